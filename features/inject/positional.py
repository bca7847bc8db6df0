"""Faults of the learned position embeddings."""

from __future__ import annotations

import torch

from features.inject.target import Target


def omitted(target: Target) -> None:
    """POE: position embeddings add nothing."""
    target.changes.after(target.anatomy.positions, lambda module, args, output: torch.zeros_like(output))


def _change_indices(target: Target, rule) -> None:
    positions = target.anatomy.positions
    first = 0 if positions.padding_idx is None else positions.padding_idx + 1

    def hook(module, args, kwargs):
        (ids,) = args
        changed = rule(ids - first)
        # RoBERTa gives padding an index of its own below the first position; it stays.
        return (torch.where(ids < first, ids, changed.clamp(0, module.num_embeddings - 1 - first) + first),), kwargs

    target.changes.before(positions, hook)


def shifted(target: Target) -> None:
    """PSI: position indices are shifted up; those that would leave the table share its last row."""
    _change_indices(target, lambda ids: ids + target.value)


def truncated(target: Target) -> None:
    """PTL: positions beyond a share of the sequence length share one index.

    The length is the longest seen since the fault was entered, so cached decoding is cut where training was.
    """
    longest = 0

    def rule(ids):
        nonlocal longest
        longest = max(longest, int(ids.max()) + 1)
        return ids.clamp(max=max(int(target.value * longest) - 1, 0))

    _change_indices(target, rule)


APPLY = {"POE": omitted, "PSI": shifted, "PTL": truncated}

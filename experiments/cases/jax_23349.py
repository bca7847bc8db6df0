"""Padding taken for text because the lengths of keys and values were ignored."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from experiments.cases.case import Case, with_attention
from features.inject.attention import additive, visible


def padding_mask(
    queries: int, keys: int, query_lengths: Tensor | None, key_lengths: Tensor | None, needs_both: bool
) -> Tensor | None:
    """Which keys queries may see, bool (B, 1, queries, keys), from lengths (B,); None for all of them.

    `needs_both` is the fault: unless both lengths are given, neither is heeded.
    """
    given = [lengths for lengths in (query_lengths, key_lengths) if lengths is not None]
    if not given or (needs_both and len(given) < 2):
        return None
    seen = torch.ones(len(given[0]), 1, queries, keys, dtype=torch.bool, device=given[0].device)
    if query_lengths is not None:
        seen &= torch.arange(queries, device=seen.device)[:, None] < query_lengths[:, None, None, None]
    if key_lengths is not None:
        seen &= torch.arange(keys, device=seen.device) < key_lengths[:, None, None, None]
    return seen


def prepare(model: nn.Module, faulty: bool) -> nn.Module:
    """Every attention is told the lengths of its keys and values, and of nothing else."""

    def change(module, hidden, kwargs):
        seen = visible(module, hidden, kwargs.get("attention_mask"), 0)
        lengths = seen[:, 0, 0].sum(-1)
        mask = padding_mask(hidden.shape[1], seen.shape[-1], None, lengths, needs_both=faulty)
        return {"attention_mask": additive(mask, hidden.dtype)}

    return with_attention(model, change)


CASE = Case(
    name="jax-23349",
    issue="jax-ml/jax#23349",
    reported_as="jax#23349",
    mechanism="An attention function takes lengths of queries and of keys, and heeds neither unless it is given both, "
    "so that a caller who gives the keys' lengths alone has padding attended.",
    here="Each attention of the model gets its padding as lengths of the keys, through a mask function with that flaw.",
    family="roberta",
    task="sentiment",
    category="masking",
    root_cause="mask_application",
    why="The lengths are right and arrive; what fails is that they are applied to the scores.",
    shows="attention_padding_mass",
    prepare=prepare,
)

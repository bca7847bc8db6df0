"""Faults of the token and segment embeddings."""

from __future__ import annotations

import torch

from features.inject.locate import InjectionError
from features.inject.target import Target
from features.inject.weights import effective_weight, rewrite


def _rows(target: Target) -> torch.Tensor:
    """The seeded choice of that share of the token rows; a padding row is never chosen, it is zero anyway."""
    tokens = target.anatomy.tokens
    padding = tokens.padding_idx
    candidates = torch.tensor([row for row in range(tokens.num_embeddings) if row != padding])
    return candidates[target.dice.chosen(len(candidates), target.value)]


def zero_rows(target: Target) -> None:
    """ETZ: a share of the token embedding rows starts at zero."""
    weight = effective_weight(target.anatomy.tokens).clone()
    weight[_rows(target)] = 0.0
    rewrite(target, target.anatomy.tokens, weight)


def swap_rows(target: Target) -> None:
    """ESW: a share of the token embedding rows starts with each other's values, pair by pair."""
    rows = _rows(target)
    if len(rows) < 2:
        raise InjectionError(
            f"ESW: a share of {target.value} of the vocabulary is not even one pair; take a larger share"
        )
    rows = rows[: len(rows) - len(rows) % 2]
    weight = effective_weight(target.anatomy.tokens).clone()
    partner = rows.view(-1, 2).flip(1).flatten()
    weight[rows] = weight[partner]
    rewrite(target, target.anatomy.tokens, weight)


def scale_segments(target: Target) -> None:
    """ESS: the segment (token-type) embeddings are multiplied; with a single segment this shifts all tokens alike."""
    target.anatomy.segments.weight.mul_(target.value)


def zero_block(target: Target) -> None:
    """EZD: a contiguous block of embedding dimensions starts at zero for every token."""
    weight = effective_weight(target.anatomy.tokens).clone()
    width = weight.shape[1]
    block = max(1, round(target.value * width))
    start = int(torch.randint(width - block + 1, (), generator=target.dice()))
    weight[:, start : start + block] = 0.0
    rewrite(target, target.anatomy.tokens, weight)


APPLY = {"ETZ": zero_rows, "ESW": swap_rows, "ESS": scale_segments, "EZD": zero_block}

"""Masking faults: what a layer's queries are allowed to see is changed before its attention is called.

Each acts on all masks of the layer taken together (padding, causal, GPT-Neo's local window), so a decoder without
padding is affected as well. MRM needs a batch of two or more examples with different padding.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from features.inject.attention import Tensor, additive, attention_hook, cached, neo_visible, visible
from features.inject.target import Target

Rule = Callable[[Tensor, nn.Module, int, int], Tensor]
"""(visible keys, bool (B or 1, 1, Q, K); attention module; batch size; cached keys) → what is seen instead."""


def change_mask(target: Target, rule: Rule) -> None:
    """Give every target layer the mask that `rule` makes of its own."""
    for layer in target.layers:
        window = getattr(layer.attention, "bias", None) if target.anatomy.family == "gpt_neo" else None
        if window is not None:
            # Folded into the mask below; left in place it would act a second time.
            target.changes.set(layer.attention, "bias", torch.ones_like(window))
        target.changes.before(layer.attention, _hook(rule, window))


def _hook(rule: Rule, window: Tensor | None) -> Callable:
    def change(module, hidden, kwargs):
        past = cached(module, kwargs)
        seen = visible(module, hidden, kwargs.get("attention_mask"), past)
        if window is not None:
            seen = seen & neo_visible(window, seen.shape[-2], seen.shape[-1])
        return {"attention_mask": additive(rule(seen, module, hidden.shape[0], past), hidden.dtype)}

    return attention_hook(change)


def all_visible(target: Target) -> None:
    """MZM: nothing is masked, neither padding nor, in a decoder, the future."""
    change_mask(target, lambda seen, *_: torch.ones_like(seen))


def inverted(target: Target) -> None:
    """MIM: what should be seen is masked and the reverse. A query that then sees nothing attends evenly to all."""
    change_mask(target, lambda seen, *_: ~seen)


def misaligned(target: Target) -> None:
    """MRM: the mask of another example.

    Axis "batch": each example gets its neighbour's mask. Axis "head": the mask is tiled over heads where it should be
    repeated, so that head h of example b gets the mask of example (b·H + h) mod B. Both always broadcast.
    """

    def by_batch(seen, module, batch, past):
        return seen.roll(1, dims=0)

    def by_head(seen, module, batch, past):
        heads = heads_of[module]
        example = torch.arange(batch * heads, device=seen.device).remainder(batch).view(batch, heads)
        return seen.expand(batch, *seen.shape[1:])[:, 0][example]

    heads_of = {layer.attention: layer.heads for layer in target.layers}
    change_mask(target, by_batch if target.value == "batch" else by_head)


def future_visible(target: Target) -> None:
    """MCB: every query sees that share (rounded up) of its future keys, the same ones at every step."""
    longest = target.model.config.max_position_embeddings
    order = torch.rand(longest, longest, generator=target.dice())

    def rule(seen, module, batch, past):
        queries, keys = seen.shape[-2:]
        future = torch.ones(queries, keys, dtype=torch.bool).triu(diagonal=past + 1)
        # Rounded up, so that a query with any future sees some of it; 0.3 · 10 must stay 3 in floating point.
        wanted = (target.value * future.sum(-1, keepdim=True) - 1e-4).ceil()
        ranks = order[past : past + queries, :keys].masked_fill(~future, 2.0).argsort(-1).argsort(-1)
        leaked = (future & (ranks < wanted)).to(seen.device)
        return seen | leaked

    change_mask(target, rule)


def causal(target: Target) -> None:
    """VEC's rule: no key after the query is seen."""
    change_mask(target, lambda seen, *_: seen & torch.ones_like(seen).tril())


APPLY = {"MZM": all_visible, "MIM": inverted, "MRM": misaligned, "MCB": future_visible}

"""Faults of the attention scores, before they are masked and normalised."""

from __future__ import annotations

from dataclasses import replace

import torch

from features.inject.attention import wrap_attention
from features.inject.locate import NoEffectError
from features.inject.target import Target


def unscaled(target: Target) -> None:
    """SDS: scores are not divided by the root of the head size."""
    for layer in target.layers:
        if layer.head_size == 1 or not getattr(layer.attention, "scale_attn_weights", True):
            raise NoEffectError(f"SDS: block {layer.index} does not divide its scores (or has heads of size 1)")
        target.changes.set(layer.attention, "scaling", layer.attention.scaling * layer.head_size**0.5)


def dropout(target: Target) -> None:
    """SPD: while training, scores are dropped to 0 with probability p (and the others scaled up) before softmax."""

    def drop(scores):
        return scores * target.dice.dropout(scores.shape, target.value, scores.device)

    def wrapper(inner, call):
        return inner(replace(call, on_scores=(*call.on_scores, drop)) if call.training else call)

    wrap_attention(target.changes, target.model, target.layers, wrapper, "SPD")


def unsafe_cast(target: Target) -> None:
    """SUC: scores go through half precision unscaled, where they round and can overflow, and are scaled after."""

    def wrapper(inner, call):
        def cast(scores):
            return (scores / call.scaling).to(torch.float16).to(scores.dtype) * call.scaling

        return inner(replace(call, on_scores=(*call.on_scores, cast)))

    wrap_attention(target.changes, target.model, target.layers, wrapper, "SUC")


APPLY = {"SDS": unscaled, "SPD": dropout, "SUC": unsafe_cast}

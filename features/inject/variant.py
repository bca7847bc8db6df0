"""Faults of the attention variant: one head where there should be many, causal where it should be bidirectional."""

from __future__ import annotations

from dataclasses import replace

import torch

from features.inject.attention import wrap_attention
from features.inject.locate import NoEffectError
from features.inject.masking import causal
from features.inject.target import Target


def single_head(target: Target) -> None:
    """VSH: the attention weights of every head but the first are zero."""
    for layer in target.layers:
        if layer.heads < 2:
            raise NoEffectError(f"VSH: block {layer.index} has one head already")

    def first_head_only(inner, call):
        def silence(weights):
            first = torch.zeros(weights.shape[1], 1, 1, dtype=weights.dtype, device=weights.device)
            first[0] = 1.0
            return weights * first

        return inner(replace(call, on_weights=(*call.on_weights, silence)))

    wrap_attention(target.changes, target.model, target.layers, first_head_only, "first_head_only")


def causal_encoder(target: Target) -> None:
    """VEC: an encoder's tokens see no later token."""
    causal(target)


APPLY = {"VSH": single_head, "VEC": causal_encoder}

"""Faults of the query, key and value projections, fused (GPT-2) or separate."""

from __future__ import annotations

import torch

from features.inject.locate import InjectionError, Layer, NoEffectError, Projection
from features.inject.optimization import step_without
from features.inject.target import Target


def _zero(target: Target, role: str) -> None:
    for layer in target.layers:
        projection: Projection = getattr(layer, role)
        projection.weight().zero_()
        if projection.bias() is not None:
            projection.bias().zero_()


def zero_query(target: Target) -> None:
    """QZQ: weight and bias of the query projection start at zero."""
    _zero(target, "query")


def zero_key(target: Target) -> None:
    """QZK: weight and bias of the key projection start at zero."""
    _zero(target, "key")


def zero_value(target: Target) -> None:
    """QZV: weight and bias of the value projection start at zero."""
    _zero(target, "value")


def swap(target: Target) -> None:
    """QSW: query and key projections start with each other's weight and bias."""
    for layer in target.layers:
        query, key = layer.query, layer.key
        weight = query.weight().clone()
        query.weight().copy_(key.weight())
        key.weight().copy_(weight)
        if query.bias() is not None:
            bias = query.bias().clone()
            query.bias().copy_(key.bias())
            key.bias().copy_(bias)


def head_sources(heads: int, which: str) -> list[int]:
    """The head whose weights each head carries.

    >>> head_sources(4, "first_half"), head_sources(4, "alternating"), head_sources(4, "all")
    ([0, 0, 2, 3], [0, 0, 2, 2], [0, 0, 0, 0])
    """
    if which == "all":
        return [0] * heads
    if which == "alternating":
        return [head - head % 2 for head in range(heads)]
    half = max(2, heads // 2)
    return [0 if head < half else head for head in range(heads)]


def tie(target: Target) -> None:
    """QTH: some heads share one set of Q, K and V weights, and stay tied because they share its gradient too.

    "first_half": the first half follow head 0 (at least two heads); "alternating": every odd head follows the one
    before it; "all": all follow head 0.
    """
    for layer in target.layers:
        if layer.heads < 2:
            raise NoEffectError(f"QTH: block {layer.index} has a single head, there is nothing to tie")
        sources = torch.tensor(head_sources(layer.heads, target.value))
        rows = torch.arange(layer.heads * layer.head_size).view(layer.heads, layer.head_size)[sources].flatten()
        for projection in (layer.query, layer.key, layer.value):
            parameters = [(projection.module.weight, projection.weight)]
            if projection.bias() is not None:
                parameters.append((projection.module.bias, projection.bias))
            for parameter, view in parameters:
                here = rows.to(parameter.device)
                view().copy_(view()[here].clone())
                if parameter.requires_grad:
                    target.changes.callback(parameter.register_hook(_shared_gradient(view, here)).remove)


def _shared_gradient(view, rows: torch.Tensor):
    def hook(gradient: torch.Tensor) -> torch.Tensor:
        shared = gradient.clone()
        part = view(shared)
        total = torch.zeros_like(part).index_add_(0, rows, part)
        part.copy_(total[rows])
        return shared

    return hook


def freeze(target: Target) -> None:
    """QFG: the QKV parameters get gradients but the optimizer does not know them, so they are never updated."""
    parameters = [parameter for layer in target.layers for parameter in layer.qkv_parameters]
    step_without(target.changes, target.needs_optimizer(), parameters)


def resplit(target: Target) -> None:
    """QHD: the same width cut into another number of heads; the scaling follows the new head size."""
    for layer in target.layers:
        heads, size = _split(layer, target.value)
        attention = layer.attention
        if hasattr(attention, "scaling"):
            target.changes.set(attention, "scaling", attention.scaling * (layer.head_size / size) ** 0.5)
        target.changes.set(attention, layer.heads_attribute, heads)
        target.changes.set(attention, layer.head_size_attribute, size)


def _split(layer: Layer, split: str) -> tuple[int, int]:
    width = layer.heads * layer.head_size
    heads = {"half_heads": layer.heads // 2, "double_heads": layer.heads * 2, "single_head": 1}[split]
    if heads == layer.heads:
        raise NoEffectError(f"QHD: block {layer.index} already has {heads} head(s)")
    if heads < 1 or width % heads:
        raise InjectionError(
            f"QHD: {split} of {layer.heads} heads does not divide the width {width} of block {layer.index}; "
            "choose another split"
        )
    return heads, width // heads


APPLY = {
    "QZQ": zero_query,
    "QZK": zero_key,
    "QZV": zero_value,
    "QSW": swap,
    "QTH": tie,
    "QFG": freeze,
    "QHD": resplit,
}

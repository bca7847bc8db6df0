"""How far the change that a fault made is from the change that was asked for, measured on the weights themselves.

Written against the operators' definitions, not their code: it looks at what is there before and after.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import nn

from features.inject.locate import Anatomy, Layer, Projection
from features.inject.qkv import head_sources

Tensor = torch.Tensor
WRONG = math.inf
"""The error of a change that is not of the asked kind at all (wrong count, wrong shape, not a swap)."""


def magnitude_error(before, now, model: nn.Module, anatomy: Anatomy, layers: list[Layer], fault) -> float:
    """Largest absolute deviation from what was asked, over all targets; NaN for faults without a magnitude.

    `before` and `now` are `ModelState`s. Of a fused QKV map, the thirds that the fault does not name count as well:
    they must be what they were.
    """
    errors: list[float] = []
    names = {parameter: name for name, parameter in model.named_parameters()}

    def pair(parameter: nn.Parameter) -> tuple[Tensor, Tensor]:
        return before.tensors[names[parameter]], now.tensors[names[parameter]]

    paths = {module: path for path, module in model.named_modules()}
    for layer in layers:
        if fault.code == "SDS":
            was = before.structure[f"{paths[layer.attention]}.scaling"]
            errors.append(abs(layer.attention.scaling / was - layer.head_size**0.5))
        errors += _qkv_errors(layer, pair, fault)
        errors += _block_errors(layer, pair, fault)
    errors += _embedding_errors(before, now, anatomy, pair, fault)
    errors += _output_errors(before, now, anatomy, fault)
    return max(errors, default=math.nan)


def _gap(after: Tensor, wanted: Tensor) -> float:
    return float((after - wanted).abs().max()) if after.numel() else 0.0


def _qkv_errors(layer: Layer, pair: Callable, fault) -> list[float]:
    code, value = fault.code, fault.value
    if code == "QHD":
        return [abs(layer.heads * layer.head_size - layer.width), 0.0 if value != "single_head" else layer.heads - 1.0]
    roles = {"query": layer.query, "key": layer.key, "value": layer.value}
    before: dict[str, list[Tensor]] = {}
    after: dict[str, list[Tensor]] = {}
    for role, projection in roles.items():
        before[role], after[role] = _views(projection, pair)
    zeroed = {"QZQ": "query", "QZK": "key", "QZV": "value"}
    if code in zeroed:
        wanted = {role: [b * (role != zeroed[code]) for b in before[role]] for role in roles}
    elif code == "QSW":
        wanted = {"query": before["key"], "key": before["query"], "value": before["value"]}
    elif code == "QTH":
        sources = head_sources(layer.heads, value)
        wanted = {role: [_by_head(b, layer)[sources].flatten(0, 1) for b in before[role]] for role in roles}
    else:
        return []
    return [_gap(a, w) for role in roles for a, w in zip(after[role], wanted[role], strict=True)]


def _views(projection: Projection, pair: Callable) -> tuple[list[Tensor], list[Tensor]]:
    both = [projection.weight(t) for t in pair(projection.module.weight)]
    views = ([both[0]], [both[1]])
    if projection.module.bias is not None:
        for view, t in zip(views, pair(projection.module.bias), strict=True):
            view.append(projection.bias(t))
    return views


def _by_head(tensor: Tensor, layer: Layer) -> Tensor:
    return tensor.reshape(layer.heads, layer.head_size, *tensor.shape[1:])


def _block_errors(layer: Layer, pair: Callable, fault) -> list[float]:
    code, value = fault.code, fault.value
    if code == "NCE":
        return [abs(norm.eps - value) for norm in layer.norms]
    if code == "RDR":
        return [abs(dropout.p - value) for dropout in layer.residual_dropouts]
    if code == "FSW":
        return [_gap(after, before * value) for before, after in (pair(layer.up.weight), pair(layer.down.weight))]
    if code == "FWI":
        fan_ins = ((layer.up.weight, layer.width), (layer.down.weight, layer.hidden_width))
        return [_initialisation_error(pair(weight)[1], value, fan_in**-0.5) for weight, fan_in in fan_ins]
    wanted = {
        "NSG": lambda gain: gain * value,
        "NZG": torch.zeros_like,
        "NSB": lambda bias: bias + value,
    }.get(code)
    if wanted is None:
        return []
    parts = [norm.bias if code == "NSB" else norm.weight for norm in layer.norms]
    return [_gap(after, wanted(before)) for before, after in map(pair, parts)]


def _initialisation_error(weight: Tensor, kind: str, bound: float) -> float:
    """Zero if the weight is all zero, all one, or fills ±bound evenly (its largest entry within a tenth of it)."""
    if kind in ("zeros", "constant_one"):
        return _gap(weight, torch.full_like(weight, float(kind == "constant_one")))
    largest = float(weight.abs().max())
    return 0.0 if 0.9 * bound <= largest <= bound else WRONG


def _embedding_errors(before, now, anatomy: Anatomy, pair: Callable, fault) -> list[float]:
    old, new, value = before.tokens, now.tokens, fault.value
    if fault.code == "ESS":
        was, is_ = pair(anatomy.segments.weight)
        return [_gap(is_, was * value)]
    if fault.code not in ("ETZ", "ESW", "EZD"):
        return []
    moved = (old - new).abs() > 1e-6
    rows = moved.any(dim=1).nonzero().flatten()
    tokens = len(old) - (anatomy.tokens.padding_idx is not None)
    asked = max(1, round(value * tokens))
    if fault.code == "ETZ":
        return [_gap(new[rows], torch.zeros_like(new[rows])) if len(rows) == asked else WRONG]
    if fault.code == "ESW":
        partners = torch.cdist(new[rows], old[rows]).argmin(dim=1) if len(rows) else rows
        pairwise = torch.equal(partners[partners], torch.arange(len(rows), device=partners.device))
        return [_gap(new[rows], old[rows][partners]) if pairwise and len(rows) == asked - asked % 2 else WRONG]
    columns = moved.any(dim=0).nonzero().flatten()
    contiguous = len(columns) > 0 and int(columns[-1] - columns[0]) + 1 == len(columns)
    right = contiguous and len(columns) == max(1, round(value * old.shape[1]))
    return [_gap(new[:, columns], torch.zeros_like(new[:, columns])) if right else WRONG]


def _output_errors(before, now, anatomy: Anatomy, fault) -> list[float]:
    if fault.code == "ORI":
        outputs, inputs = now.head.shape
        bound = {"xavier": (6 / (inputs + outputs)) ** 0.5, "kaiming": (6 / inputs) ** 0.5, "zeros": 0.0}[fault.value]
        return [_initialisation_error(now.head, fault.value, bound)]
    if fault.code == "OZR":
        classes = len(now.head)
        asked = {"rare": max(1, classes // 10), "balanced": (classes + 1) // 2, "all": classes}[fault.value]
        rows = (before.head - now.head).abs().gt(1e-6).any(dim=1).nonzero().flatten()
        return [_gap(now.head[rows], torch.zeros_like(now.head[rows])) if len(rows) == asked else WRONG]
    return []

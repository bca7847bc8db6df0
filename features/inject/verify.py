"""Verify, right after injection and before anything is trained, that a fault changed what it names and nothing else.

The manuscript's structural check: the difference between the model before and the model now is confined to the fault's
targets, and its magnitude is as asked within 1e-6. Cheap enough for every configuration of a campaign.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn

from features.inject.attention import wrappers
from features.inject.fault import Fault, selected_layers
from features.inject.locate import Anatomy, locate
from features.inject.magnitude import magnitude_error
from features.inject.weights import OFFSET, effective_weight

TOLERANCE = 1e-6
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_OPTIMIZER = "optimizer"
_CLIPPING = "torch.nn.utils.clip_grad_norm_"


@dataclass(frozen=True)
class ModelState:
    """What a fault could change: `tensors` are values by name, `structure` is everything else by name.

    Structure holds scalar attributes, hooks, own forwards and attention functions, the types of parameterless parts,
    the configuration, and the optimizer's hooks and group settings. `tokens` and `head` are the weights that these
    two compute with, which on a tied model are not the parameter's once a fault of the one must not reach the other.
    """

    tensors: dict[str, torch.Tensor]
    structure: dict[str, object]
    tokens: torch.Tensor
    head: torch.Tensor | None


@dataclass(frozen=True)
class Verification:
    """`changed` and `unexpected` are names; `magnitude_error` is NaN where the fault has no magnitude to measure."""

    ok: bool
    changed: tuple[str, ...]
    unexpected: tuple[str, ...]
    magnitude_error: float
    reason: str


def model_state(model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> ModelState:
    """The state of a model (and its optimizer), copied."""
    anatomy = locate(model)
    tensors = {name: t.detach().clone() for name, t in (*model.named_parameters(), *model.named_buffers())}
    return ModelState(
        tensors=tensors,
        structure=dict(_structure(model, optimizer)),
        tokens=effective_weight(anatomy.tokens).detach().clone(),
        head=None if anatomy.head is None else effective_weight(anatomy.head).detach().clone(),
    )


def verify(
    before: ModelState, model: nn.Module, fault: Fault, optimizer: torch.optim.Optimizer | None = None
) -> Verification:
    """Compare the model inside the fault's context with `before`, its `model_state` from just outside.

    Call it first thing inside the context: a training step changes every parameter, and the first forward of a model
    may add hooks of the transformers library. Pass the optimizer to both calls or to neither; the faults that act on
    it can be verified only with it.
    """
    now = model_state(model, optimizer)
    anatomy = locate(model)
    layers = selected_layers(anatomy, fault)
    allowed = set(_targets(model, anatomy, fault))
    replaced = tuple(name for name in allowed if name.endswith((".", ":")))
    changed = [n for n, t in now.tensors.items() if n not in before.tensors or not torch.equal(t, before.tensors[n])]
    keys = {**before.structure, **now.structure}
    changed += [key for key in keys if before.structure.get(key) != now.structure.get(key)]
    unexpected = tuple(name for name in changed if name not in allowed and not name.startswith(replaced))
    error = magnitude_error(before, now, model, anatomy, layers, fault)
    if not changed:
        reason = "nothing changed"
    elif unexpected:
        reason = f"changed beyond the target: {', '.join(unexpected[:5])}"
    elif error > TOLERANCE:
        reason = f"the magnitude is off by {error:.2g}"
    else:
        reason = ""
    return Verification(not reason, tuple(changed), unexpected, error, reason)


def _structure(model: nn.Module, optimizer: torch.optim.Optimizer | None) -> Iterator[tuple[str, object]]:
    for path, module in model.named_modules():
        yield f"{path}:type", type(module)
        for name, value in vars(module).items():
            if name in _HOOKS:
                yield f"{path}.{name}", tuple(map(id, value.values()))
            elif name == OFFSET or callable(value):
                yield f"{path}.{name}", id(value)
            elif name != "training" and isinstance(value, (int, float, str, type(None))):
                yield f"{path}.{name}", value
    paths = {module: path for path, module in model.named_modules()}
    for module, identities in wrappers(model):
        yield f"{paths[module]}:attention path", identities
    for name, parameter in model.named_parameters():
        yield f"{name}:requires_grad", parameter.requires_grad
        yield f"{name}:gradient hooks", tuple(map(id, (parameter._backward_hooks or {}).values()))
    for key, value in vars(model.config).items():
        yield f"config.{key}", repr(value)
    yield _CLIPPING, id(torch.nn.utils.clip_grad_norm_)
    if optimizer is not None:
        optimizer = getattr(optimizer, "optimizer", optimizer)
        hooks = (optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks)
        yield _OPTIMIZER, tuple(tuple(map(id, h.values())) for h in hooks)
        settings = [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
        yield f"{_OPTIMIZER}.param_groups", repr(settings)


def _targets(model: nn.Module, anatomy: Anatomy, fault: Fault) -> Iterator[str]:
    """Every name that the fault may change; one that ends in "." or ":" stands for all of a replaced module."""
    names = {module: path for path, module in model.named_modules()}
    code = fault.code

    def of(module: nn.Module, *suffixes: str) -> Iterator[str]:
        return (f"{names[module]}.{suffix}" for suffix in suffixes)

    def role(module: nn.Module) -> Iterator[str]:
        yield from of(module, OFFSET, "forward") if anatomy.tied else of(module, "weight")

    layers = selected_layers(anatomy, fault)
    for layer in layers:
        attention = layer.attention
        if fault.category == "masking" or code in ("VEC", "CST", "CDU", "COB", "CTR", "CLK"):
            yield from of(attention, "_forward_pre_hooks", "bias" if anatomy.family == "gpt_neo" else "")
        elif code in ("QZQ", "QZK", "QZV", "QSW", "QTH"):
            roles = {"QZQ": "q", "QZK": "k", "QZV": "v", "QSW": "qk", "QTH": "qkv"}[code]
            of_role = {"q": layer.query, "k": layer.key, "v": layer.value}
            for projection in (of_role[r] for r in roles):
                yield from of(projection.module, "weight", "bias")
                if code == "QTH":
                    yield from of(projection.module, "weight:gradient hooks", "bias:gradient hooks")
        elif code == "QHD":
            yield from of(attention, layer.heads_attribute, layer.head_size_attribute, "scaling")
        elif code == "SDS":
            yield from of(attention, "scaling")
        elif fault.category in ("score", "kernel") or code == "VSH":
            yield f"{names[attention]}:attention path"
        elif code in ("FSW", "FWI"):
            yield from (*of(layer.up, "weight"), *of(layer.down, "weight"))
        elif code == "FDN":
            yield from of(layer.down, "_forward_pre_hooks")
        elif code == "FCA":
            owner, name = layer.activation
            yield from (f"{names[owner]}.{name}.", f"{names[owner]}.{name}:")
        elif code in ("NSG", "NZG", "NSB", "NCE"):
            part = {"NSG": "weight", "NZG": "weight", "NSB": "bias", "NCE": "eps"}[code]
            yield from (name for norm in layer.norms for name in of(norm, part))
        elif code == "RDR":
            yield from (name for dropout in layer.residual_dropouts for name in of(dropout, "p"))
        elif fault.category == "residual":
            yield from of(layer.block, "fault_skip", "forward")
            yield from (f"{names[m]}._forward_pre_hooks" for m in layer.block.modules() if m in names)
    if fault.category in ("score", "kernel") or code == "VSH":
        # All attention goes through the one function that dispatches to the faulty path where there is one.
        yield "config._attn_implementation_internal"
        yield from (name for layer in anatomy.layers for name in of(layer.attention, "_attn"))
    if code in ("QFG", "FRG", "NWD", "RGC"):
        yield _OPTIMIZER
    if code == "RGC":
        yield _CLIPPING
    if fault.category == "positional":
        yield from of(anatomy.positions, "_forward_hooks", "_forward_pre_hooks")
    if code in ("ETZ", "ESW", "EZD"):
        yield from role(anatomy.tokens)
    if code == "ESS":
        yield from of(anatomy.segments, "weight")
    if fault.category == "output":
        yield from role(anatomy.head)
        yield from of(anatomy.head, "bias", "_forward_hooks")

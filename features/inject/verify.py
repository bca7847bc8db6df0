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
from features.inject.locate import locate, output_head
from features.inject.magnitude import magnitude_error
from features.inject.targets import CLIPPING, OPTIMIZER, targets
from features.inject.weights import OFFSET, effective_weight

TOLERANCE = 1e-6
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


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
    head = output_head(model)
    tensors = {name: t.detach().clone() for name, t in (*model.named_parameters(), *model.named_buffers())}
    return ModelState(
        tensors=tensors,
        structure=dict(_structure(model, optimizer)),
        tokens=effective_weight(model.get_input_embeddings()).detach().clone(),
        head=None if head is None else effective_weight(head).detach().clone(),
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
    allowed = set(targets(fault.code, model, anatomy, layers))
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
    yield CLIPPING, id(torch.nn.utils.clip_grad_norm_)
    if optimizer is not None:
        optimizer = getattr(optimizer, "optimizer", optimizer)
        hooks = (optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks)
        yield OPTIMIZER, tuple(tuple(map(id, h.values())) for h in hooks)
        settings = [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
        yield f"{OPTIMIZER}.param_groups", repr(settings)

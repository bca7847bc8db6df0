"""Faults that act when the optimizer steps.

The parameter groups are rearranged by a hook just before each step and put back just after it. Between steps the
optimizer looks as the user built it, so learning-rate schedulers and gradient recorders are not disturbed.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from features.inject.locate import InjectionError, NoEffectError
from features.inject.reversible import Changes


def step_without(changes: Changes, optimizer: torch.optim.Optimizer, parameters: Iterable[nn.Parameter]) -> None:
    """Let the optimizer step as if these parameters had never been registered with it."""
    left_out = {id(p) for p in parameters}

    def regroup(groups):
        return [{**group, "params": [p for p in group["params"] if id(p) not in left_out]} for group in groups]

    _regroup_steps(changes, optimizer, regroup)


def step_with_decay(
    changes: Changes, optimizer: torch.optim.Optimizer, parameters: Iterable[nn.Parameter], decay: float, code: str
) -> None:
    """Let the optimizer step with another weight decay on these parameters.

    Raises NoEffectError if the optimizer decays all of them by that much already.
    """
    chosen = {id(p) for p in parameters}
    if any("weight_decay" not in group for group in optimizer.param_groups):
        raise InjectionError(f"{code}: {type(optimizer).__name__} has no weight_decay; use an optimizer that has one")
    now = {g["weight_decay"] for g in optimizer.param_groups if any(id(p) in chosen for p in g["params"])}
    if now <= {decay}:
        raise NoEffectError(
            f"{code}: the optimizer already uses weight_decay={decay} there (or does not hold the parameters); "
            "build it with another value"
        )

    def regroup(groups):
        for group in groups:
            theirs = [p for p in group["params"] if id(p) in chosen]
            others = [p for p in group["params"] if id(p) not in chosen]
            if others:
                yield {**group, "params": others}
            if theirs:
                yield {**group, "params": theirs, "weight_decay": decay}

    _regroup_steps(changes, optimizer, regroup)


def _regroup_steps(changes: Changes, optimizer: torch.optim.Optimizer, regroup) -> None:
    as_built: list[list[dict]] = []

    def before(optimizer, args, kwargs):
        as_built.append(optimizer.param_groups)
        optimizer.param_groups = list(regroup(optimizer.param_groups))

    def after(optimizer, args, kwargs):
        if as_built:
            optimizer.param_groups = as_built.pop()

    def if_a_step_failed():
        if as_built:
            optimizer.param_groups = as_built[0]

    changes.callback(if_a_step_failed)
    changes.callback(optimizer.register_step_pre_hook(before).remove)
    changes.callback(optimizer.register_step_post_hook(after).remove)


def clip_at(changes: Changes, optimizer: torch.optim.Optimizer, model: nn.Module, limit: float) -> None:
    """Clip the gradient norm of the model at `limit`, in place of whatever norm the training loop clips at.

    The loop's own call of `torch.nn.utils.clip_grad_norm_` is answered with our norm if it concerns this model; where
    the loop does not clip, or imported the function beforehand, the gradients are clipped as the optimizer steps.
    """
    ours = {id(p) for p in model.parameters()}
    clip = torch.nn.utils.clip_grad_norm_

    def clip_grad_norm_(parameters, max_norm, *args, **kwargs):
        parameters = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        if any(id(p) in ours for p in parameters):
            max_norm = limit
        return clip(parameters, max_norm, *args, **kwargs)

    changes.set(torch.nn.utils, "clip_grad_norm_", clip_grad_norm_)
    changes.set(torch.nn.utils.clip_grad, "clip_grad_norm_", clip_grad_norm_)

    def before(optimizer, args, kwargs):
        clip([p for group in optimizer.param_groups for p in group["params"]], limit)

    changes.callback(optimizer.register_step_pre_hook(before).remove)

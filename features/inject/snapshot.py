"""Values of a model and its optimizer, kept aside and put back bit for bit."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def restored(model: nn.Module, optimizer: torch.optim.Optimizer | None) -> Iterator[None]:
    """On leaving, put back parameters, gradients, buffers, configuration, and the optimizer's groups and state."""
    parameters = [(p, p.detach().clone(), p.requires_grad, _copy(p.grad)) for p in model.parameters()]
    buffers = [(m, name, b, _copy(b)) for m in model.modules() for name, b in m._buffers.items()]
    configs = {id(m.config): m.config for m in model.modules() if hasattr(m, "config")}.values()
    attributes = [(config, copy.deepcopy(vars(config))) for config in configs]
    optimizer = getattr(optimizer, "optimizer", optimizer)
    if optimizer is not None:
        groups = optimizer.param_groups
        settings = [(group, {**group, "params": list(group["params"])}) for group in groups]
        state = {p: {k: _copy(v) for k, v in values.items()} for p, values in optimizer.state.items()}
    try:
        yield
    finally:
        with torch.no_grad():
            for parameter, value, requires_grad, gradient in parameters:
                parameter.copy_(value)
                parameter.requires_grad_(requires_grad)
                parameter.grad = gradient
            for module, name, buffer, value in buffers:
                if buffer is not None:
                    buffer.copy_(value)
                module._buffers[name] = buffer
        for config, values in attributes:
            vars(config).clear()
            vars(config).update(values)
        if optimizer is not None:
            for group, values in settings:
                group.clear()
                group.update(values)
            optimizer.param_groups = groups
            del groups[len(settings) :]
            optimizer.state.clear()
            optimizer.state.update(state)


def _copy(value):
    return value.detach().clone() if isinstance(value, torch.Tensor) else copy.deepcopy(value)

"""Faults of the feed-forward network: W1 expands, an activation follows, W2 contracts."""

from __future__ import annotations

import torch
from torch import nn

from features.inject.locate import NoEffectError
from features.inject.optimization import step_with_decay
from features.inject.target import Target

ACTIVATIONS = {"relu": nn.ReLU, "gelu": nn.GELU, "tanh": nn.Tanh, "sigmoid": nn.Sigmoid}


def scale(target: Target) -> None:
    """FSW: W1 and W2 (not the biases) are multiplied."""
    for layer in target.layers:
        layer.up.weight.mul_(target.value)
        layer.down.weight.mul_(target.value)


def silence(target: Target) -> None:
    """FDN: a share of the hidden neurons is off for good: their outputs never reach W2."""
    for layer in target.layers:
        alive = torch.ones(layer.hidden_width)
        alive[target.dice.chosen(layer.hidden_width, target.value)] = 0.0
        target.changes.before(layer.down, _multiply_input(alive))


def _multiply_input(factor: torch.Tensor):
    def hook(module, args, kwargs):
        (hidden,) = args
        return (hidden * factor.to(hidden),), kwargs

    return hook


def other_activation(target: Target) -> None:
    """FCA: another activation function between W1 and W2."""
    replacement = ACTIVATIONS[target.value]()
    for layer in target.layers:
        owner, name = layer.activation
        if same_activation(getattr(owner, name), target.value):
            raise NoEffectError(f"FCA: {target.value} is the activation of block {layer.index} already")
        target.changes.set(owner, name, replacement)


def same_activation(module: nn.Module, name: str) -> bool:
    """Whether a module computes exactly this activation (GPT's tanh approximation of gelu is another function)."""
    probe = torch.linspace(-4, 4, 33)
    return torch.equal(module(probe), ACTIVATIONS[name]()(probe))


def decay(target: Target) -> None:
    """FRG: another weight decay on the FFN's parameters."""
    parameters = [p for layer in target.layers for m in (layer.up, layer.down) for p in m.parameters()]
    step_with_decay(target.changes, target.needs_optimizer(), parameters, target.value, "FRG")


def reinitialise(target: Target) -> None:
    """FWI: W1 and W2 start anew: "uniform" in ±1/√(fan-in), all "zeros", or "constant_one"."""
    for layer in target.layers:
        for module, fan_in in ((layer.up, layer.width), (layer.down, layer.hidden_width)):
            if target.value == "zeros":
                module.weight.zero_()
            elif target.value == "constant_one":
                module.weight.fill_(1.0)
            else:
                bound = fan_in**-0.5
                module.weight.uniform_(-bound, bound, generator=target.dice(module.weight.device))


APPLY = {
    "FSW": scale,
    "FDN": silence,
    "FCA": other_activation,
    "FRG": decay,
    "FWI": reinitialise,
}

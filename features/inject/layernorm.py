"""Faults of the layer norms inside the blocks (not the one after the embedding, nor GPT's last)."""

from __future__ import annotations

from features.inject.locate import NoEffectError
from features.inject.optimization import step_with_decay
from features.inject.target import Target


def _norms(target: Target):
    return [norm for layer in target.layers for norm in layer.norms]


def scale_gain(target: Target) -> None:
    """NSG: the gain γ is multiplied."""
    for norm in _norms(target):
        norm.weight.mul_(target.value)


def zero_gain(target: Target) -> None:
    """NZG: the gain γ starts at zero."""
    for norm in _norms(target):
        norm.weight.zero_()


def shift_bias(target: Target) -> None:
    """NSB: a constant is added to the bias β."""
    for norm in _norms(target):
        norm.bias.add_(target.value)


def other_epsilon(target: Target) -> None:
    """NCE: another constant under the root."""
    for norm in _norms(target):
        if norm.eps == target.value:
            raise NoEffectError(f"NCE: epsilon is {target.value} already")
        target.changes.set(norm, "eps", target.value)


def decay(target: Target) -> None:
    """NWD: weight decay on γ and β, which are usually exempt."""
    parameters = [p for norm in _norms(target) for p in norm.parameters()]
    step_with_decay(target.changes, target.needs_optimizer(), parameters, target.value, "NWD")


APPLY = {"NSG": scale_gain, "NZG": zero_gain, "NSB": shift_bias, "NCE": other_epsilon, "NWD": decay}

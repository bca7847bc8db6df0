"""A fault, and the context manager that puts it into a model and takes it out again.

>>> Fault("FSW", 2.0).category
'ffn'
>>> Fault("FSW", 3.0)
Traceback (most recent call last):
    ...
features.inject.locate.InjectionError: FSW takes factor in (0.5, 2.0, 5.0), not 3.0
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn

from features.inject import (
    embedding,
    ffn,
    kernel,
    kv_cache,
    layernorm,
    masking,
    output,
    positional,
    qkv,
    residual,
    score,
    variant,
)
from features.inject.applicability import applicable
from features.inject.locate import Anatomy, InjectionError, Layer, locate
from features.inject.reversible import Changes
from features.inject.snapshot import restored
from features.inject.target import Target, dice_of
from features.taxonomy import Operator, operator

_MODULES = (masking, qkv, score, positional, kernel, variant, kv_cache, embedding, ffn, layernorm, residual, output)
APPLY = {code: apply for module in _MODULES for code, apply in module.APPLY.items()}
"""Operator code → the function that applies it to a `Target`."""

LAYERS = ("all", "first", "middle", "last")
_BY_LAYER = frozenset({"masking", "qkv", "score", "kernel", "variant", "kv_cache", "ffn", "layernorm", "residual"})


@dataclass(frozen=True)
class Fault:
    """One mutation operator with its setting.

    Parameters
    ----------
    code : an operator of `features.taxonomy.OPERATORS`.
    value : one of its `settings`; None for operators without a parameter.
    layers : blocks to act on: "all", "first", "middle", "last", or their indices. Operators that act on the model as
        a whole (positions, embeddings, output, clipping) and CST, whose parameter is the layers, take "all" only.
    seed : of what the operator draws at random.

    Raises InjectionError, a ValueError, naming operator, parameter and allowed values.
    """

    code: str
    value: float | int | str | None = None
    layers: str | tuple[int, ...] = "all"
    seed: int = 0

    def __post_init__(self):
        try:
            op = operator(self.code)
        except KeyError as error:
            raise InjectionError(error.args[0]) from None
        if self.value not in op.settings or isinstance(self.value, bool):
            wanted = f"{op.parameter} in {op.values}" if op.parameter else "no parameter"
            raise InjectionError(f"{self.code} takes {wanted}, not {self.value!r}")
        if not (self.layers in LAYERS or (_indices(self.layers) and len(self.layers) > 0)):
            raise InjectionError(
                f"{self.code}: layers must be one of {LAYERS} or a tuple of indices, not {self.layers!r}"
            )
        # The operator's own spelling of the value, so that 8.0 read from a file is the integer 8.
        object.__setattr__(self, "value", op.settings[op.settings.index(self.value)])
        if self.layers != "all" and not self.acts_by_layer:
            raise InjectionError(f"{self.code} does not act layer by layer: leave layers='all'")

    @property
    def operator(self) -> Operator:
        return operator(self.code)

    @property
    def category(self) -> str:
        return self.operator.category

    @property
    def root_cause(self) -> str:
        return self.operator.root_cause

    @property
    def acts_by_layer(self) -> bool:
        return self.operator.category in _BY_LAYER and self.code not in ("RGC", "CST")


def _indices(layers: object) -> bool:
    return isinstance(layers, tuple) and all(isinstance(i, int) and not isinstance(i, bool) for i in layers)


def selected_layers(anatomy: Anatomy, fault: Fault) -> list[Layer]:
    """The blocks that a fault acts on, in order. Raises InjectionError naming an index out of range."""
    layers = fault.value if fault.code == "CST" else fault.layers
    depth = len(anatomy.layers)
    named = {"all": range(depth), "first": (0,), "middle": (depth // 2,), "last": (depth - 1,)}
    indices = named[layers] if isinstance(layers, str) else layers
    if beyond := [i for i in indices if not 0 <= i < depth]:
        raise InjectionError(f"{fault.code}: no block {beyond[0]} in a model of {depth}; indices are 0 to {depth - 1}")
    return [anatomy.layers[i] for i in sorted(set(indices))]


@contextmanager
def inject(
    model: nn.Module,
    fault: Fault,
    optimizer: torch.optim.Optimizer | None = None,
    class_counts: Sequence[int] | None = None,
) -> Iterator[nn.Module]:
    """Put a fault into a model; on leaving, also by an exception, everything is as before, bit for bit.

    The context is for the whole run: enter it after building the optimizer, train, measure and evaluate inside, then
    leave. Inside, training updates parameters as usual, so a fault that acts by initial value alone (a zeroed
    projection) may heal, as it may in the manuscript. On leaving, parameters, their gradients, buffers, configuration,
    hooks, forwards, the attention function, and the optimizer's groups and state return to what they were on entering:
    what was trained inside is gone. Training or evaluation mode is the caller's. Contexts nest; a recorder attached
    inside sees what the faulty model computes.

    Parameters
    ----------
    model : an encoder or decoder of a family in `features.inject.locate.FAMILIES`, any number of layers and any head.
    fault : what to inject.
    optimizer : needed by the operators that act when it steps (QFG, FRG, NWD, RGC); restored for all.
    class_counts : frequency of each class, for OZR; without, later classes count as rarer.

    Raises InjectionError if the operator can't act on this model, NoEffectError if it would change nothing.
    """
    reason = applicable(fault.code, model, fault.value)
    if reason:
        raise InjectionError(f"{fault.code} can't act on {type(model).__name__}: {reason}")
    anatomy = locate(model)
    layers = selected_layers(anatomy, fault)
    with restored(model, optimizer), Changes() as changes:
        target = Target(
            code=fault.code,
            value=fault.value,
            model=model,
            anatomy=anatomy,
            layers=layers,
            changes=changes,
            dice=dice_of(fault.code, fault.seed),
            optimizer=optimizer,
            class_counts=class_counts,
        )
        with torch.no_grad():
            APPLY[fault.code](target)
        yield model

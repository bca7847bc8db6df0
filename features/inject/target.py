"""What an operator is given to work on: the model's parts, the layers, its own source of randomness."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import nn

from features.inject.locate import Anatomy, InjectionError, Layer
from features.inject.reversible import Changes


@dataclass
class Dice:
    """Random numbers of one fault, apart from the global generator, so that a matched clean run draws the same ones."""

    seed: int
    generators: dict[torch.device, torch.Generator] = field(default_factory=dict)

    def __call__(self, device: torch.device | str = "cpu") -> torch.Generator:
        device = torch.device(device)
        if device not in self.generators:
            self.generators[device] = torch.Generator(device=device).manual_seed(self.seed)
        return self.generators[device]

    def chosen(self, n: int, share: float) -> torch.Tensor:
        """Round(share · n) of 0..n-1, at least one, in random order."""
        return torch.randperm(n, generator=self())[: max(1, round(share * n))]

    def dropout(self, shape: Sequence[int], p: float, device: torch.device) -> torch.Tensor:
        """A dropout mask: 0 with probability p, else 1/(1-p)."""
        kept = torch.rand(shape, generator=self(device), device=device) >= p
        return kept / (1.0 - p)


@dataclass
class Target:
    """One fault about to be applied: `value` is its parameter, `layers` the selected blocks, `changes` the undo."""

    code: str
    value: float | int | str | None
    model: nn.Module
    anatomy: Anatomy
    layers: list[Layer]
    changes: Changes
    dice: Dice
    optimizer: torch.optim.Optimizer | None = None
    class_counts: Sequence[int] | None = None

    def needs_optimizer(self) -> torch.optim.Optimizer:
        """The optimizer, unwrapped if something (accelerate) wraps it. Raises InjectionError if none was given."""
        if self.optimizer is None:
            raise InjectionError(f"{self.code} acts on the optimizer: pass it, inject(model, fault, optimizer=...)")
        return getattr(self.optimizer, "optimizer", self.optimizer)


def dice_of(code: str, seed: int) -> Dice:
    """The randomness of an operator under a seed; two operators with one seed do not share it."""
    return Dice((zlib.crc32(code.encode()) ^ seed) & 0x7FFFFFFF)

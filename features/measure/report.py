"""What a reader of a run's numbers must know: how attention was seen, what was not measured, what was not finite."""

from __future__ import annotations

from dataclasses import dataclass

from features.measure.capture import LayerTrace
from features.taxonomy import Architecture

UNSEEN = "not seen (neither a softmax nor scaled_dot_product_attention ran; use eager or sdpa attention)"


@dataclass(frozen=True)
class Report:
    """What a reader of the numbers must know about how they came about."""

    arch: Architecture
    layers: int
    epochs: int
    steps: int
    measured_steps: int
    attention: str
    not_measured: dict[str, str]
    """Metric → reason."""
    nonfinite: dict[str, int]
    """Metric → number of measured values that were NaN or infinite."""
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [
            f"{self.arch}, {self.layers} layers; {self.measured_steps} of {self.steps} steps measured in "
            f"{self.epochs} epochs; attention: {self.attention}",
            *(f"not measured: {name} ({why})" for name, why in self.not_measured.items()),
            *(f"not finite: {name} ({count} values)" for name, count in self.nonfinite.items()),
            *self.notes,
        ]
        return "\n".join(lines)


def attention_source(layer: LayerTrace) -> str:
    """How this layer's attention weights came to be known."""
    if layer.softmax:
        return "weights as the softmax gave them"
    return "weights recomputed from the arguments of the fused kernel" if layer.fused else UNSEEN

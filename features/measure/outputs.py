"""What a model puts out: confidence, entropy and margin, accuracy, and validation figures gathered on the way."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from features.measure.metrics import calibration_error
from features.taxonomy import Architecture

IGNORED = -100
"""Label of positions that carry no target, as in transformers."""
PREDICTIONS = 64
"""Distributions per step that confidence, entropy and margin are averaged over, evenly spaced."""


def predictions(logits: Tensor, labels: Tensor | None, arch: Architecture) -> tuple[Tensor, Tensor | None]:
    """(logits (N, C), targets (N,)): decoders predict the next token, positions without a target are left out.

    `logits` (B, C) or (B, T, C); without usable labels all positions count and the targets are None.
    """
    logits = logits.detach()
    if labels is None or labels.is_floating_point() or labels.ndim != logits.ndim - 1:
        return logits.reshape(-1, logits.shape[-1]), None
    if logits.ndim == 3 and arch == "decoder":
        logits, labels = logits[:, :-1], labels[:, 1:]
    logits, labels = logits.reshape(-1, logits.shape[-1]), labels.reshape(-1)
    kept = labels != IGNORED
    return (logits, labels) if kept.all() else (logits[kept], labels[kept])


def output_metrics(logits: Tensor) -> dict[str, Tensor]:
    """Mean largest probability, entropy (nats) and margin of the two largest logits; `logits` (N, C)."""
    if len(logits) > PREDICTIONS:
        logits = logits[torch.linspace(0, len(logits) - 1, PREDICTIONS, device=logits.device).long()]
    if logits.numel() == 0 or logits.shape[-1] < 2:
        return {}
    logits = logits.float()
    probabilities = logits.softmax(-1)
    top = logits.topk(2, dim=-1).values
    return {
        "output_confidence": probabilities.amax(-1).mean(),
        "output_entropy": torch.special.entr(probabilities).sum(-1).mean(),
        "output_margin": (top[:, 0] - top[:, 1]).mean(),
    }


@dataclass
class Validation:
    """Losses and predictions of evaluation forwards since the last epoch."""

    losses: list[Tensor] = field(default_factory=list)
    confidence: list[Tensor] = field(default_factory=list)
    correct: list[Tensor] = field(default_factory=list)

    def add(self, loss: Tensor | None, logits: Tensor | None, labels: Tensor, arch: Architecture) -> None:
        """Take in one batch."""
        if loss is not None:
            self.losses.append(loss.detach().mean())
        if logits is None:
            return
        predicted, targets = predictions(logits, labels, arch)
        if targets is not None and predicted.shape[-1] > 1:
            top = predicted.float().softmax(-1).max(-1)
            self.confidence.append(top.values)
            self.correct.append(top.indices == targets)

    def figures(self, arch: Architecture) -> dict[str, float]:
        """`val_loss`, `val_accuracy`, `val_ece` and, for decoders, `val_perplexity`, as far as seen."""
        found = {}
        if self.losses:
            found["val_loss"] = torch.stack(self.losses).mean().item()
            if arch == "decoder":
                found["val_perplexity"] = perplexity(found["val_loss"])
        if self.correct:
            correct, confidence = torch.cat(self.correct).cpu(), torch.cat(self.confidence).cpu()
            found["val_accuracy"] = correct.float().mean().item()
            found["val_ece"] = calibration_error(confidence, correct)
        return found


def perplexity(loss: float) -> float:
    """exp of a mean loss in nats; infinite where that overflows."""
    return math.exp(loss) if loss < 700 else math.inf if loss == loss else math.nan

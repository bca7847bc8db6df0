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


@dataclass(frozen=True)
class Predictions:
    """Distributions (N, C) as logits and their targets (N,), IGNORED where there is none; None without labels."""

    logits: Tensor
    targets: Tensor | None

    def correct(self) -> Tensor:
        """Whether the largest logit is the target's, (M,) bool over the M positions that have one."""
        hit = self.logits.argmax(-1) == self.targets
        return hit[self.targets != IGNORED]

    def chosen(self, limit: int) -> Tensor:
        """Up to `limit` of the distributions that have a target (or of all, without targets), evenly spaced."""
        if self.targets is None:
            at = torch.arange(len(self.logits), device=self.logits.device)
        else:
            at = (self.targets != IGNORED).nonzero()[:, 0]
        if len(at) > limit:
            at = at[torch.linspace(0, len(at) - 1, limit, device=at.device).long()]
        return self.logits.index_select(0, at).float()


def predictions(logits: Tensor, labels: Tensor | None, arch: Architecture) -> Predictions:
    """What logits (B, C) or (B, T, C) predict: the next token in a decoder, the class or token in an encoder.

    Labels that are no classes (regression), or of another shape, count as none.
    """
    logits = logits.detach()
    if labels is None or labels.is_floating_point() or labels.ndim != logits.ndim - 1 or logits.shape[-1] < 2:
        return Predictions(logits.reshape(-1, logits.shape[-1]), None)
    if logits.ndim == 3 and arch == "decoder":
        # The last position predicts a token that the batch doesn't hold; rolling avoids a copy of the logits.
        labels = labels.roll(-1, dims=1)
        labels[:, -1] = IGNORED
    return Predictions(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1))


def output_metrics(predicted: Predictions) -> dict[str, Tensor]:
    """Mean largest probability, entropy (nats) and margin of the two largest logits, over PREDICTIONS of them."""
    logits = predicted.chosen(PREDICTIONS)
    if logits.numel() == 0 or logits.shape[-1] < 2:
        return {}
    probabilities = logits.softmax(-1)
    top = logits.topk(2, dim=-1).values
    return {
        "output_confidence": probabilities.amax(-1).mean(),
        "output_entropy": -(probabilities * probabilities.clamp_min(1e-30).log()).sum(-1).mean(),
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
        predicted = predictions(logits, labels, arch)
        if predicted.targets is not None:
            kept = predicted.targets != IGNORED
            self.confidence.append(predicted.logits.float().softmax(-1).amax(-1)[kept])
            self.correct.append(predicted.correct())

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

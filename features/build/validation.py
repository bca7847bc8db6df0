"""Validation of a fine-tuned model: loss, accuracy, perplexity and calibration; decoders through the key/value cache.

Decoders are validated as they are used: the first tokens fill the cache, the rest is decoded in chunks that read it.
A fault of the cache therefore acts on validation, while training does not see it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from features.build.tasks.task import IGNORED, Examples, Task

PREFILL = 9
CHUNK = 8
ROWS = 512
"""Examples of one evaluation batch."""


@dataclass(frozen=True)
class Validation:
    """Mean loss (nats), accuracy in [0, 1], perplexity, and expected calibration error over 10 equal-width bins."""

    loss: float
    accuracy: float
    perplexity: float
    ece: float


@torch.no_grad()
def validate(model: nn.Module, task: Task, data: Examples) -> Validation:
    """Evaluate on a whole data set; the model's mode is restored."""
    training = model.training
    model.eval()
    found = [_predict(model, task, data.part(start, start + ROWS)) for start in range(0, len(data), ROWS)]
    model.train(training)
    logits, labels = (torch.cat(parts) for parts in zip(*found, strict=True))
    loss = float(functional.cross_entropy(logits, labels))
    confidence, guess = logits.softmax(-1).max(-1)
    correct = (guess == labels).float()
    perplexity = math.exp(min(loss, 80.0)) if math.isfinite(loss) else float("nan")
    return Validation(loss, float(correct.mean()), perplexity, calibration_error(confidence, correct))


def _predict(model: nn.Module, task: Task, data: Examples) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits (predictions, classes) in single precision, and the labels (predictions,) that they are held against."""
    batch = data.take(slice(None))
    labels = batch.pop("labels")
    if task.arch == "encoder":
        return model(**batch).logits.float(), labels
    logits, labels = _decode(model, batch), _scored(labels, task)
    keep = labels != IGNORED
    return logits[keep].float(), labels[keep]


def calibration_error(confidence: torch.Tensor, correct: torch.Tensor, bins: int = 10) -> float:
    """Expected calibration error: |accuracy - confidence| per equal-width bin, weighted by the bin's share.

    >>> round(calibration_error(torch.tensor([0.9, 0.9]), torch.tensor([1.0, 0.0])), 6)
    0.4
    """
    which = (confidence.nan_to_num() * bins).long().clamp(0, bins - 1)
    gap = torch.zeros(bins, device=correct.device).index_add(0, which, correct - confidence)
    return float(gap.abs().sum() / len(confidence))


def _decode(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Next-token logits of every position but the last: prefill, then chunks over `past_key_values`."""
    length, start, cache, logits = batch["input_ids"].shape[1] - 1, 0, None, []
    while start < length:
        stop = min(length, start + (CHUNK if start else PREFILL))
        output = model(
            input_ids=batch["input_ids"][:, start:stop],
            attention_mask=batch["attention_mask"][:, :stop],
            position_ids=batch["position_ids"][:, start:stop],
            past_key_values=cache,
            use_cache=True,
        )
        cache, start = output.past_key_values, stop
        logits.append(output.logits)
    return torch.cat(logits, dim=1)


def _scored(labels: torch.Tensor, task: Task) -> torch.Tensor:
    """The next-token labels that count: all of them, or the last word's only."""
    following = labels[:, 1:].clone()
    if task.scored == "last":
        following[:, :-1] = IGNORED
    return following

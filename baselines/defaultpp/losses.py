"""The five terms of the objective, each over a whole batch, and their weighted sum.

Source: DEFault++ manuscript, §4.3: L = L_detect + α L_cat + λ L_rc + β L_ctr + γ L_pm. A term without a row to
count is zero. Level-3 terms are taken within a row's true category.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from baselines.defaultpp.model import Output
from baselines.defaultpp.prototypes import Prototypes, distances


class Targets(NamedTuple):
    """Integer labels of B rows: faulty (0/1), category and class (-1 where a row has none)."""

    faulty: Tensor
    category: Tensor
    classes: Tensor

    def take(self, rows: Tensor) -> Targets:
        """The targets of these rows."""
        return Targets(self.faulty[rows], self.category[rows], self.classes[rows])


@dataclass(frozen=True)
class Objective:
    """The weights and temperatures of the objective, and the class weights of Levels 1 and 2."""

    alpha: float
    lam: float
    beta: float
    gamma: float
    temperature: float
    prototype_temperature: float
    detection_weights: Tensor | None
    category_weights: Tensor | None
    category_of_class: Tensor

    def __call__(self, output: Output, targets: Targets, prototypes: Prototypes) -> Tensor:
        """The weighted sum for one batch."""
        total = cross_entropy(output.detection, targets.faulty, weight=self.detection_weights)
        total = total + self.alpha * category_loss(output.category, targets.category, self.category_weights)
        total = total + self.lam * within_category_loss(output.classes, targets.classes, self.category_of_class)
        if self.beta:
            total = total + self.beta * contrastive_loss(output.H, targets, self.temperature)
        if self.gamma:
            logits = -distances(output.H, prototypes) / self.prototype_temperature
            total = total + self.gamma * within_category_loss(logits, targets.classes, self.category_of_class)
        return total


def inverse_frequency(codes: Tensor, classes: int) -> Tensor:
    """Class weights n / (classes present · count), shape (classes,); 0 for a class that doesn't occur.

    >>> inverse_frequency(torch.tensor([0, 0, 0, 1]), 3)
    tensor([0.6667, 2.0000, 0.0000])
    """
    counts = torch.bincount(codes[codes >= 0], minlength=classes).to(torch.float32)
    present = counts > 0
    return torch.where(present, counts.sum() / (present.sum() * counts.clamp(min=1)), 0.0)


def category_loss(logits: Tensor, category: Tensor, weights: Tensor | None) -> Tensor:
    """Class-weighted cross-entropy over the rows that have a category. Logits (B, C)."""
    rows = category >= 0
    if not rows.any():
        return logits.sum() * 0.0
    return cross_entropy(logits[rows], category[rows], weight=weights)


def within_category_loss(logits: Tensor, classes: Tensor, category_of_class: Tensor) -> Tensor:
    """Cross-entropy of each row's class against the other classes of its category only. Logits (B, K).

    Rows whose category has one class contribute an exact zero, and count in the mean.
    """
    rows = classes >= 0
    if not rows.any():
        return logits.sum() * 0.0
    own = category_of_class[classes[rows]].unsqueeze(1) == category_of_class
    return cross_entropy(logits[rows].masked_fill(~own, -torch.inf), classes[rows])


def contrastive_loss(H: Tensor, targets: Targets, temperature: float) -> Tensor:
    """Supervised contrastive loss on the cosine of vec(H) (Khosla et al. 2020, their L_out).

    An anchor is compared with the other rows of its category; positives are those of its root cause. The mean is
    over the anchors that have a positive.
    """
    rows = targets.classes >= 0
    category, classes = targets.category[rows], targets.classes[rows]
    others = category.unsqueeze(1) == category
    others.fill_diagonal_(False)
    positive = others & (classes.unsqueeze(1) == classes)
    count = positive.sum(dim=1)
    anchors = count > 0
    if not anchors.any():
        return H.sum() * 0.0
    unit = normalize(H[rows].flatten(1), dim=1)
    similarity = (unit @ unit.T / temperature)[anchors]
    log_normaliser = similarity.masked_fill(~others[anchors], -torch.inf).logsumexp(dim=1)
    mean_positive = (similarity * positive[anchors]).sum(dim=1) / count[anchors]
    return (log_normaliser - mean_positive).mean()

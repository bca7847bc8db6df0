"""Prototypes: the mean group embedding of each class, distances to them, and what each group says for a verdict.

Source: DEFault++ manuscript, §4.3: d(H, π) = Σ_g ‖h_g − π_g‖², Δ_g = d_g(nearest alternative) − d_g(predicted),
w_g = max(Δ_g, 0) / Σ max(Δ, 0). The Δ_g sum to the margin d(alternative) − d(predicted).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor


class Prototypes(NamedTuple):
    """`mean` (K, G, h) of each class, and whether the class had a row at all (K,)."""

    mean: Tensor
    seen: Tensor


def class_means(H: Tensor, classes: Tensor, n_classes: int) -> Prototypes:
    """Mean of H, shape (B, G, h), over the rows of each class. Rows of class -1 don't count."""
    rows = classes >= 0
    kept = classes[rows]
    total = torch.zeros((n_classes, *H.shape[1:]), dtype=H.dtype, device=H.device).index_add(0, kept, H[rows])
    count = torch.bincount(kept, minlength=n_classes)
    return Prototypes(total / count.clamp(min=1).view(-1, 1, 1), count > 0)


def distances(H: Tensor, prototypes: Prototypes) -> Tensor:
    """Squared distances d(H, π), shape (B, K), infinite to a class without a prototype.

    Taken as ‖a‖² + ‖b‖² − 2ab: cheap, and exact enough to train with.
    """
    a, b = H.flatten(1), prototypes.mean.flatten(1)
    squared = a.square().sum(1, keepdim=True) + b.square().sum(1) - 2 * a @ b.T
    return squared.clamp(min=0.0).masked_fill(~prototypes.seen, torch.inf)


def group_distances(H: np.ndarray, prototypes: np.ndarray, chunk: int = 256) -> np.ndarray:
    """d_g(H, π) = ‖h_g − π_g‖² in double precision, shape (B, K, G), taken by differences."""
    H, prototypes = H.astype(np.float64), prototypes.astype(np.float64)
    parts = [np.square(H[start : start + chunk, None] - prototypes).sum(axis=-1) for start in range(0, len(H), chunk)]
    return np.concatenate(parts) if parts else np.empty((0, *prototypes.shape[:2]))


@dataclass(frozen=True)
class Margins:
    """The prototype verdict of B rows.

    predicted, alternative : class codes; the alternative is the nearest other class of the predicted category, or,
        where the category has one class only, the nearest class of another category; -1 where there is none.
    delta : Δ_g, shape (B, G); zero without an alternative.
    weight : w_g, shape (B, G); zero where no group speaks for the prediction.
    """

    predicted: np.ndarray
    alternative: np.ndarray
    delta: np.ndarray
    weight: np.ndarray

    @property
    def margin(self) -> np.ndarray:
        """d(alternative) − d(predicted), shape (B,)."""
        return self.delta.sum(axis=1)


def nearest(by_group: np.ndarray, category: np.ndarray, category_of_class: np.ndarray) -> Margins:
    """The nearest prototype within each row's category, and its nearest alternative.

    `by_group` as from `group_distances`, (B, K, G); `category` the Level-2 codes, (B,). A category without a class
    falls back to the nearest prototype of all.
    """
    if not len(category_of_class):
        none = np.full(len(by_group), -1)
        nothing = np.zeros((len(by_group), by_group.shape[2]))
        return Margins(none, none, nothing, nothing)
    total = by_group.sum(axis=-1)
    own = category[:, None] == category_of_class
    predicted = np.where(own | ~own.any(axis=1, keepdims=True), total, np.inf).argmin(axis=1)
    rivals = _alternative(total, predicted, category_of_class)
    return margins_between(by_group, predicted, rivals)


def margins_between(by_group: np.ndarray, predicted: np.ndarray, alternative: np.ndarray) -> Margins:
    """Δ_g and w_g between two given classes of each row."""
    rows = np.arange(len(by_group))
    delta = by_group[rows, alternative] - by_group[rows, predicted]
    delta[alternative < 0] = 0.0
    support = delta.clip(min=0.0)
    total = support.sum(axis=1, keepdims=True)
    weight = np.divide(support, total, out=np.zeros_like(support), where=total > 0)
    return Margins(predicted, alternative, delta, weight)


def _alternative(total: np.ndarray, predicted: np.ndarray, category_of_class: np.ndarray) -> np.ndarray:
    rows = np.arange(len(total))
    others = np.ones_like(total, dtype=bool)
    others[rows, predicted] = False
    same = others & (category_of_class[predicted][:, None] == category_of_class)
    allowed = np.where(same.any(axis=1, keepdims=True), same, others)
    return np.where(allowed.any(axis=1), np.where(allowed, total, np.inf).argmin(axis=1), -1)

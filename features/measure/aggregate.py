"""From measured values to the named vector: layers, then the epoch, then the phases of training.

* Layers: the depth is cut into three bands as equal as they can be, earlier ones first to take one more (4 layers:
  2, 1, 1; 2 layers: 1, 1, 0). The statistics are mean and deviation of the first and the second band, and the value
  of the last layer. An empty band is NaN: a model of one layer has no middle.
* Epoch: mean, deviation and 95th percentile over the measured steps.
* Phases: n // 3 epochs early, n // 3 mid, the rest final. Fewer than three epochs have no early and no mid phase:
  NaN. The slope is that of the least-squares line through the three phase means, per phase.

Deviations are those of the population (ddof = 0), so that one layer or one step deviates by 0. A measured NaN makes
every statistic over it NaN; what was not measured in a step is left out of that epoch's statistics.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from features.schema import columns, metrics
from features.taxonomy import Architecture

BURST = 95


def layer_statistics(values: np.ndarray) -> np.ndarray:
    """(..., L) → (..., 5): early mean, early deviation, mid mean, mid deviation, last layer."""
    depth = values.shape[-1]
    early, mid, _ = np.array_split(np.arange(depth), 3)
    parts = [_mean_std(values[..., band]) for band in (early, mid)]
    return np.concatenate([*parts, values[..., -1:]], axis=-1)


def epoch_statistics(values: np.ndarray) -> np.ndarray:
    """(steps, k) → (k, 3): mean, deviation, 95th percentile over the steps; NaN for no steps."""
    if len(values) == 0:
        return np.full((values.shape[1], 3), np.nan)
    with np.errstate(invalid="ignore", over="ignore"):
        return np.stack([values.mean(0), values.std(0), np.percentile(values, BURST, axis=0)], axis=-1)


def phase_statistics(values: np.ndarray) -> np.ndarray:
    """(epochs, ...) → (..., 5): early, mid and final mean, slope, last epoch."""
    n = len(values)
    third = n // 3
    with np.errstate(invalid="ignore"):
        early, mid, final = (_mean(part) for part in (values[:third], values[third : 2 * third], values[2 * third :]))
        # Three equally spaced points: the least-squares slope does not depend on the middle one, but NaN does.
        slope = (final - early) / 2 + 0 * mid
    return np.stack([early, mid, final, slope, values[-1]], axis=-1)


def vector(epochs: list[dict[str, np.ndarray]], arch: Architecture) -> pd.Series:
    """The vector of a run: float32, index `columns(arch)`.

    `epochs` holds, per epoch, what was measured by metric name: (steps, L) for a layer metric, (steps,) for a
    gradient or step metric, a float for an epoch metric. What is missing is NaN.
    """
    series = pd.Series(np.nan, index=list(columns(arch)), dtype=np.float64)
    if not epochs:
        return series.astype(np.float32)
    blocks = []
    for metric in metrics(arch):
        if metric.resolution == "epoch":
            values = np.array([epoch.get(metric.name, np.nan) for epoch in epochs], dtype=float)
            blocks.append(phase_statistics(values))
            continue
        wide = 5 if metric.resolution == "layer" else 1
        per_epoch = np.full((len(epochs), wide, 3), np.nan)
        for i, epoch in enumerate(epochs):
            found = epoch.get(metric.name)
            if found is not None and len(found):
                steps = layer_statistics(found) if wide == 5 else np.asarray(found, dtype=float)[:, None]
                per_epoch[i] = epoch_statistics(steps)
        blocks.append(phase_statistics(per_epoch).ravel())
    series[:] = np.concatenate(blocks)
    with np.errstate(over="ignore"):
        return series.astype(np.float32)


def _mean_std(values: np.ndarray) -> np.ndarray:
    if values.shape[-1] == 0:
        return np.full((*values.shape[:-1], 2), np.nan)
    with np.errstate(invalid="ignore", over="ignore"):
        return np.stack([values.mean(-1), values.std(-1)], axis=-1)


def _mean(part: np.ndarray) -> np.ndarray:
    return part.mean(0) if len(part) else np.full(part.shape[1:], np.nan)

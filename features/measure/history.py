"""A run's epochs as they were measured, and what is made of them: the long log and the vector."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from features.measure import aggregate
from features.schema import LOG_COLUMNS
from features.taxonomy import Architecture


@dataclass
class Epoch:
    """One epoch: series by metric as (steps, values), and single figures by metric (scalar or per layer)."""

    series: dict[str, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)
    figures: dict[str, np.ndarray] = field(default_factory=dict)


def vector_of(epochs: list[Epoch], arch: Architecture) -> pd.Series:
    """The run as one row: float32, index `features.schema.columns(arch)`, NaN where nothing was measured."""
    named = []
    for epoch in epochs:
        values = {name: of_steps for name, (_, of_steps) in epoch.series.items()}
        if "step_loss" in values:
            values["train_loss"] = values.pop("step_loss")
        named.append(values | {k: float(v) for k, v in epoch.figures.items() if k.startswith("val_")})
    return aggregate.vector(named, arch)


def log_of(epochs: list[Epoch]) -> pd.DataFrame:
    """The long log, columns of `LOG_COLUMNS` without the run. Epoch figures stand at step -1."""
    parts = []
    for number, epoch in enumerate(epochs):
        for name, (steps, values) in epoch.series.items():
            parts.append(_rows(number, steps, name, values, layered=values.ndim == 2))
        for name, value in epoch.figures.items():
            parts.append(_rows(number, np.array([-1]), name, np.atleast_1d(value)[None], layered=value.ndim == 1))
    columns = [c for c in LOG_COLUMNS if c != "run"]
    joined = [np.concatenate([p[i] for p in parts]) if parts else np.array([]) for i in range(len(columns))]
    return pd.DataFrame(dict(zip(columns, joined, strict=True)))


def nonfinite_counts(epochs: list[Epoch]) -> dict[str, int]:
    """Number of NaN or infinite values of each metric that has any."""
    counts: dict[str, int] = {}
    for epoch in epochs:
        for name, values in [*((n, v) for n, (_, v) in epoch.series.items()), *epoch.figures.items()]:
            count = int((~np.isfinite(values)).sum())
            if count:
                counts[name] = counts.get(name, 0) + count
    return counts


def settle(values: list[tuple[int, Tensor]]) -> tuple[np.ndarray, np.ndarray]:
    """(step, tensor) pairs of one metric as an array of steps and a float64 array of values."""
    steps = np.array([step for step, _ in values])
    return steps, torch.stack([v.detach() for _, v in values]).float().cpu().numpy().astype(np.float64)


def _rows(epoch: int, steps: np.ndarray, name: str, values: np.ndarray, layered: bool) -> tuple[np.ndarray, ...]:
    wide = values.shape[1] if values.ndim == 2 else 1
    count = len(steps) * wide
    layer = np.tile(np.arange(wide), len(steps)) if layered else np.full(count, -1)
    return np.full(count, epoch), np.repeat(steps, wide), np.full(count, name, dtype=object), layer, values.ravel()

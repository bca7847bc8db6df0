"""A run as arrays: the per-epoch log or the phases of the vector, in one shape (run × time) for all rules.

>>> log = RunLog.of(bench_of_series({"a": {"train_loss": [3.0, 1.0]}, "b": {"train_loss": [2.0]}}))
>>> log.series("train_loss")
array([[ 3.,  1.],
       [ 2., nan]])
>>> log.epochs
array([2, 1])
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from features.bench import Bench, BenchError
from features.schema import LOG_COLUMNS, PHASE_STATISTICS
from features.taxonomy import CORRECT

PHASES = tuple(p for p in PHASE_STATISTICS if p != "phase_slope")
"""The phases that serve as points in time. The slope is left out: it is half the final minus the early mean."""

ALIASES: dict[str, tuple[str, ...]] = {
    "val_accuracy": ("val_val_accuracy",),
    "val_loss": ("val_val_loss", "val_eval_loss"),
    # Validation loss rises and falls with perplexity, and only that is asked of it.
    "val_perplexity": ("val_eval_perplexity", "val_val_loss", "val_loss", "val_eval_loss"),
    "train_accuracy": ("accuracy",),
    "learning_rate": ("train_learning_rate",),
    "grad_zero_share": ("grad_zero_ratio",),
    "gradient_vanishing": ("gradient_vanish",),
    "update_ratio_qkv": ("update_ratio_total",),
}
"""What the tables published with DEFault++ (Zenodo 10.5281/zenodo.20481557) call a metric of ours."""


@dataclass(frozen=True, eq=False)
class RunLog:
    """The long log as arrays, in the row order of the bench.

    Attributes
    ----------
    runs : the n run ids.
    times : epoch numbers 0 .. T-1, T being the longest run's.
    epochs : (n,) number of epochs of each run; 0 for a run without a log.
    rows : the log as columns of codes, one frame per metric; read through the methods.
    """

    runs: pd.Index
    times: tuple[int, ...]
    epochs: np.ndarray
    rows: dict[str, pd.DataFrame] = field(repr=False)

    @classmethod
    def of(cls, bench: Bench) -> RunLog:
        """Read the log of a bench. Raises BenchError if there is none or if it lacks a column."""
        if bench.log is None:
            raise BenchError(f"bench {bench.name!r} carries no log; rules in their log form need one")
        missing = [c for c in LOG_COLUMNS if c not in bench.log]
        if missing:
            raise BenchError(f"the log of bench {bench.name!r} lacks the column {missing[0]!r}")
        codes, names = pd.factorize(bench.log["run"])
        row = bench.runs.get_indexer(pd.Index(names))[codes]
        table = bench.log.loc[:, ["epoch", "step", "metric", "layer", "value"]].assign(row=row)
        epochs = np.zeros(len(bench), dtype=int)
        np.maximum.at(epochs, table["row"].to_numpy(), table["epoch"].to_numpy(dtype=int) + 1)
        rows = dict(iter(table.groupby("metric", observed=True)))
        return cls(bench.runs, tuple(range(epochs.max(initial=0))), epochs, rows)

    def has(self, metric: str) -> bool:
        """Whether any run of the bench logged this metric."""
        return metric in self.rows

    def layered(self, metric: str) -> np.ndarray:
        """Values per run, epoch and layer, n × T × L; NaN where no row stands. L is 0 if nothing was logged."""
        return self._fill(metric, np.nan, float, "value")

    def logged(self, metric: str) -> np.ndarray:
        """Where a row stands in the log, n × T × L bool: tells a logged NaN from a value that was never measured."""
        return self._fill(metric, False, bool, None)

    def series(self, metric: str) -> np.ndarray:
        """Values per run and epoch, n × T, of a metric without layers; all NaN if nothing was logged."""
        values = self.layered(metric)
        return values[:, :, 0] if values.shape[2] else np.full(values.shape[:2], np.nan)

    def nonfinite(self, metric: str) -> np.ndarray:
        """Where a row stands whose value is NaN or infinite, n × T × L bool."""
        return self.logged(metric) & ~np.isfinite(self.layered(metric))

    def steps(self, metric: str) -> np.ndarray:
        """Values per run and optimiser step in order, n × S, of a per-step metric; NaN behind the last."""
        part = self.rows.get(metric)
        if part is None:
            return np.full((len(self.runs), 0), np.nan)
        part = part.sort_values(["row", "step"], kind="stable")
        place = part.groupby("row").cumcount().to_numpy()
        values = np.full((len(self.runs), place.max(initial=-1) + 1), np.nan)
        values[part["row"].to_numpy(), place] = part["value"]
        return values

    def _fill(self, metric: str, empty, dtype, column: str | None) -> np.ndarray:
        part = self.rows.get(metric)
        shape = (len(self.runs), len(self.times))
        if part is None:
            return np.full((*shape, 0), empty, dtype=dtype)
        layer = np.maximum(part["layer"].to_numpy(dtype=int), 0)
        cube = np.full((*shape, layer.max() + 1), empty, dtype=dtype)
        at = (part["row"].to_numpy(), part["epoch"].to_numpy(dtype=int), layer)
        cube[at] = True if column is None else part[column].to_numpy(dtype=float)
        return cube


@dataclass(frozen=True, eq=False)
class RunPhases:
    """The phases of the vector as four points in time: early, mid and final mean, and the final epoch's value."""

    runs: pd.Index
    X: pd.DataFrame = field(repr=False)
    times: tuple[str, ...] = tuple(p.removeprefix("phase_") for p in PHASES)

    @classmethod
    def of(cls, bench: Bench) -> RunPhases:
        """Read the vectors of a bench."""
        return cls(bench.runs, bench.X)

    def column(self, metric: str, statistic: str, phase: str) -> str | None:
        """The column of a metric (under our name or a published one), or None where the bench lacks it."""
        names = (metric, *ALIASES.get(metric, ()))
        return next(
            (c for n in names for s in (statistic, "epoch") if (c := f"{n}__{s}__{phase}") in self.X.columns), None
        )

    def has(self, metric: str) -> bool:
        """Whether the bench has this metric's columns with at least one value in them."""
        starts = tuple(f"{name}__" for name in (metric, *ALIASES.get(metric, ())))
        columns = [c for c in self.X.columns if c.startswith(starts)]
        return bool(self.X[columns].notna().to_numpy().any())

    def series(self, metric: str, statistic: str = "epoch_mean") -> np.ndarray:
        """Values per run and phase, n × 4; NaN where the bench has no such column or no value.

        `statistic` is the within-epoch statistic, for layer metrics with the layer statistic before it
        ("final_layer_value__epoch_mean"); per-epoch metrics (validation) have none and ignore it.
        """
        values = np.full((len(self.X), len(PHASES)), np.nan)
        for i, phase in enumerate(PHASES):
            if column := self.column(metric, statistic, phase):
                values[:, i] = self.X[column]
        return values

    def nonfinite(self, metric: str) -> np.ndarray:
        """Where a phase is infinite, or missing although an earlier phase of the same run is there; n × 4 bool.

        A vector writes a diverged epoch and an unmeasured one alike, as missing; a metric that was there and then
        is no longer can only have stopped being finite.
        """
        values = self.series(metric)
        seen = np.maximum.accumulate(np.isfinite(values), axis=1)
        return np.isinf(values) | (np.isnan(values) & seen)


def bench_of_series(series: dict[str, dict[str, list]], faulty: tuple[str, ...] = ()) -> Bench:
    """A bench of hand-written logs, to try a rule on: run → metric → one value per epoch.

    A value that is itself a list holds one number per layer; metrics named step_* hold one list per epoch. Runs
    named in `faulty` are labelled so, without category. The vector has one column, the number of epochs.
    """
    rows = []
    for run, metrics in series.items():
        for metric, values in metrics.items():
            step = 0
            for epoch, value in enumerate(values):
                if metric.startswith("step_"):
                    rows += [(run, epoch, step + i, metric, -1, v) for i, v in enumerate(value)]
                    step += len(value)
                elif isinstance(value, (list, tuple)):
                    rows += [(run, epoch, -1, metric, layer, v) for layer, v in enumerate(value)]
                else:
                    rows.append((run, epoch, -1, metric, -1, value))
    runs = pd.Index(list(series), dtype=str)
    wrong = runs.isin(faulty)
    label = np.where(wrong, None, CORRECT)
    return Bench(
        name="hand-written",
        arch=None,
        X=pd.DataFrame({"epochs": [max(map(len, m.values()), default=0) for m in series.values()]}, index=runs),
        labels=pd.DataFrame({"faulty": wrong, "category": label, "root_cause": label}, index=runs),
        pair=pd.Series("by/hand", index=runs),
        log=pd.DataFrame(rows, columns=list(LOG_COLUMNS)),
        levels=(1,),
    )

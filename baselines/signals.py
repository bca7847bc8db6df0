"""Detectors on the three signals that everybody watches: loss, accuracy and gradient norm.

These are what TrainCheck (Jiang et al., OSDI 2025) is compared with: a spike, a trend that stopped, an anomaly. The
article names the detectors but no thresholds; those here are ours and are parameters. Anomaly detectors learn what
is normal from the healthy training runs only.

>>> from baselines.series import bench_of_series
>>> runs = {"a": {"train_loss": [1.0, 0.8, 2.5]}, "b": {"train_loss": [1.0, 0.8, 0.6]}}
>>> SignalDetector("spike").predict(bench_of_series(runs)).table.faulty.tolist()
[True, False]
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from sklearn.ensemble import IsolationForest
from sklearn.neighbors import LocalOutlierFactor

from baselines.rules import Form, Reading, Rule, RuleTechnique, Sight, approximated, exact
from baselines.series import RunLog, RunPhases
from baselines.technique import Verdicts
from features.bench import Bench, BenchError

Detector = Literal["spike", "trend", "zscore", "lof", "isolation_forest"]

SIGNALS = ("loss", "accuracy", "gradient")
METRIC: dict[Form, dict[str, str]] = {
    "log": {"loss": "train_loss", "accuracy": "val_accuracy", "gradient": "grad_mean_abs"},
    "vector": {"loss": "train_loss", "accuracy": "val_accuracy", "gradient": "grad_norm_total"},
}
"""The metric that stands for each signal. The log's gradient is the mean absolute entry on the probe batch. A bench
without validation accuracy (decoders' vectors) gives minus its log-perplexity instead."""

PHASES = ("early_mean", "mid_mean", "final_mean", "final_value")
WHOLE_RUN = "run"


@dataclass(frozen=True, eq=False)
class Signals:
    """The three signals of n runs.

    phases : signal → n × 4 array: mean of the first, second and last third of the epochs, and the last epoch;
        infinite where a value was not finite, NaN where none was measured.
    jumps : signal → (n,) largest value of a point over the largest of the points before it.
    metrics : metrics that the bench has.
    """

    runs: object
    phases: dict[str, np.ndarray]
    jumps: dict[str, np.ndarray]
    metrics: frozenset[str]
    times: tuple[str, ...] = (*PHASES, WHOLE_RUN)

    def has(self, metric: str) -> bool:
        """Whether the bench has this metric."""
        return metric in self.metrics

    @classmethod
    def of_log(cls, log: RunLog, window: int) -> Signals:
        """From the log; loss jumps from step to step where steps were logged, else from epoch to epoch."""
        metrics = METRIC["log"]
        broken = {s: log.nonfinite(m).any(axis=2) for s, m in metrics.items()}
        values = {s: np.where(broken[s], np.inf, log.series(m)) for s, m in metrics.items()}
        points = dict(values)
        if log.has("step_loss"):
            steps = log.steps("step_loss")
            count = (~np.isnan(steps)).sum(axis=1, keepdims=True)
            points["loss"] = np.where(broken["loss"].any(axis=1)[:, None] & (count > 0), np.inf, steps)
        return cls(
            log.runs,
            {s: _thirds(v, log.epochs) for s, v in values.items()},
            {s: _largest_jump(v, window) for s, v in points.items()},
            frozenset(m for m in metrics.values() if log.has(m)),
        )

    @classmethod
    def of_vector(cls, vector: RunPhases) -> Signals:
        """From the phases; a jump is an epoch's 95th percentile over its mean."""
        metrics = dict(METRIC["vector"])
        values = {s: np.where(vector.nonfinite(m), np.inf, vector.series(m)) for s, m in metrics.items()}
        if not vector.has("val_accuracy"):
            with np.errstate(divide="ignore", invalid="ignore"):
                nats = np.log(vector.series("val_perplexity"))
            values["accuracy"] = -np.where(vector.nonfinite("val_perplexity"), np.inf, nats)
        jumps = {}
        for signal, metric in metrics.items():
            with np.errstate(divide="ignore", invalid="ignore"):
                ratio = vector.series(metric, "epoch_burst") / values[signal]
            ratio = np.where(np.isinf(values[signal]), np.inf, ratio)
            jumps[signal] = np.fmax.reduce(ratio, axis=1)
        seen = {m for m in metrics.values() if vector.has(m)}
        if vector.has("val_perplexity"):
            seen.add("val_accuracy")
        return cls(vector.runs, values, jumps, frozenset(seen))


class SignalDetector(RuleTechnique):
    """One detector over loss, accuracy and gradient norm.

    Parameters
    ----------
    detector : "spike" (a step's loss or gradient far above those before it), "trend" (loss no longer falls,
        accuracy falls, gradient grows), "zscore", "lof" (local outlier factor) or "isolation_forest", the last
        three over the signals' phases and fitted on the healthy training runs.
    form : "log" or "vector".
    jump : a spike is a value above `jump` times the largest of the `window` points before it; in the vector, a
        phase whose 95th percentile is above `jump` times its mean.
    min_fall : the loss falls if its last third is lower than its first by more than this share.
    max_drop : accuracy holds if its last third is at most this much below its first.
    growth : the gradient grows if its last third exceeds `growth` times its first.
    z : deviation, in healthy standard deviations, from which a phase is anomalous.
    n_neighbors, n_estimators, seed : as in scikit-learn's two detectors.
    contamination : share of the healthy training runs that these two take for outliers. scikit-learn's "auto" sets a
        fixed limit on the isolation score, which runs that come in clusters (one per model and task) exceed as a rule.

    The score is the largest ratio of what was seen to the threshold (spike, z-score), the share of signals with a
    bad trend, or scikit-learn's anomaly score. Raises BenchError from `fit` if there is no healthy run.
    """

    reference = "Jiang et al., OSDI 2025 (the detectors it is compared with); thresholds are ours"
    tool = "Signals"
    family = "signals"

    def __init__(
        self,
        detector: Detector = "zscore",
        form: Form = "log",
        jump: float = 2.0,
        window: int = 10,
        min_fall: float = 0.0,
        max_drop: float = 0.02,
        growth: float = 2.0,
        z: float = 3.0,
        n_neighbors: int = 20,
        n_estimators: int = 100,
        contamination: float = 0.05,
        seed: int = 0,
    ):
        self.detector = detector
        self.form = form
        self.jump = jump
        self.window = window
        self.min_fall = min_fall
        self.max_drop = max_drop
        self.growth = growth
        self.z = z
        self.n_neighbors = n_neighbors
        self.n_estimators = n_estimators
        self.contamination = contamination
        self.seed = seed

    @property
    def name(self) -> str:
        """Detector and form."""
        return f"Signals: {self.detector.replace('_', ' ')} ({self.form})"

    @property
    def rules(self) -> tuple[Rule, ...]:
        """One rule per signal that the detector looks at; outlier detectors have one over all."""
        metric = METRIC[self.form]
        if self.detector == "spike":
            condition = f"> {self.jump:g} times the largest of {self.window} points before"
            return tuple(
                _rule(f"spike_{s}", s, condition, exact(metric[s]), approximated("burst over mean", metric[s]))
                for s in ("loss", "gradient")
            )
        if self.detector == "trend":
            conditions = {
                "loss": f"last third at or above {1 - self.min_fall:g} of the first",
                "accuracy": f"last third more than {self.max_drop:g} below the first",
                "gradient": f"last third above {self.growth:g} times the first",
            }
            return tuple(_rule(f"trend_{s}", s, conditions[s], exact(metric[s]), exact(metric[s])) for s in SIGNALS)
        if self.detector == "zscore":
            condition = f"a phase {self.z:g} standard deviations from the healthy mean"
            return tuple(_rule(f"zscore_{s}", s, condition, exact(metric[s]), exact(metric[s])) for s in SIGNALS)
        sight = exact(metric["loss"])
        return (_rule(self.detector, "loss, accuracy and gradient", "an outlier among healthy runs", sight, sight),)

    def series(self, bench: Bench) -> Signals:
        """The three signals in the shape that both forms share."""
        if self.form == "log":
            return Signals.of_log(RunLog.of(bench), self.window)
        return Signals.of_vector(RunPhases.of(bench))

    def fit(self, bench: Bench) -> SignalDetector:
        """Learn what is normal from the healthy runs of `bench`; spike and trend have nothing to learn."""
        if self.detector in ("spike", "trend"):
            return self
        healthy = ~bench.faulty.to_numpy(dtype=bool)
        if not healthy.any():
            raise BenchError(f"bench {bench.name!r}: {self.name} learns from healthy runs, and there is none")
        table = _features(self.series(bench.take(healthy)))
        table[~np.isfinite(table)] = np.nan
        measured = ~np.isnan(table).all(axis=0)
        self.mean_ = np.full(table.shape[1], np.nan)
        self.std_ = np.full(table.shape[1], np.nan)
        self.mean_[measured] = np.nanmean(table[:, measured], axis=0)
        # A signal that never varies among healthy runs gets a tiny scale, so that any other value is far away.
        self.std_[measured] = np.maximum(np.nanstd(table[:, measured], axis=0), 1e-9)
        if self.detector == "lof":
            neighbours = max(1, min(self.n_neighbors, len(table) - 1))
            self.model_ = LocalOutlierFactor(
                n_neighbors=neighbours, novelty=True, contamination=self.contamination
            ).fit(self._standard(table))
        elif self.detector == "isolation_forest":
            self.model_ = IsolationForest(
                n_estimators=self.n_estimators, contamination=self.contamination, random_state=self.seed
            ).fit(self._standard(table))
        return self

    def readings(self, series: Signals) -> list[Reading]:
        """What the detector saw per signal: per phase for z-scores, for the whole run otherwise."""
        if self.detector == "spike":
            return [
                _whole(f"spike_{s}", series.jumps[s] > self.jump, series.jumps[s], self.jump)
                for s in ("loss", "gradient")
            ]
        if self.detector == "trend":
            return self._trend(series)
        table = _features(series)
        if self.detector == "zscore":
            z = self._standard(table).reshape(len(table), len(SIGNALS), len(PHASES))
            wide = np.pad(z, ((0, 0), (0, 0), (0, 1)), constant_values=0.0)
            return [
                Reading(f"zscore_{s}", np.abs(wide[:, i]) > self.z, wide[:, i], self.z) for i, s in enumerate(SIGNALS)
            ]
        margin = -self.model_.decision_function(self._standard(table))
        # Trees cut an infinite value off no faster than the largest healthy one; it is an outlier all the same.
        margin = np.where(np.isinf(table).any(axis=1), np.maximum(margin, 1.0), margin)
        return [_whole(self.detector, margin > 0, margin, 0.0)]

    def predict(self, bench: Bench) -> Verdicts:
        """Faulty where the detector fired for any signal."""
        table = super().predict(bench).table.copy()
        cubes = [r.observed for r in self.readings(self.series(bench))]
        seen = np.nan_to_num(np.abs(np.concatenate(cubes, axis=1)), nan=0.0, posinf=1e9).max(axis=1)
        if self.detector == "spike":
            table["score"] = seen / self.jump
        elif self.detector == "zscore":
            table["score"] = seen / self.z
        elif self.detector in ("lof", "isolation_forest"):
            table["score"] = cubes[0][:, -1]
        return Verdicts(table)

    def search_space(self, trial) -> dict:
        """The thresholds of this detector."""
        match self.detector:
            case "spike":
                return {"jump": trial.suggest_float("jump", 1.1, 10.0, log=True)}
            case "trend":
                return {
                    "min_fall": trial.suggest_float("min_fall", -0.2, 0.9),
                    "max_drop": trial.suggest_float("max_drop", -0.2, 0.2),
                    "growth": trial.suggest_float("growth", 0.5, 20.0, log=True),
                }
            case "zscore":
                return {"z": trial.suggest_float("z", 1.5, 6.0)}
        return {"contamination": trial.suggest_float("contamination", 0.005, 0.4, log=True)}

    def _standard(self, table: np.ndarray) -> np.ndarray:
        """Deviations from the healthy mean in healthy standard deviations; 0 where nothing was measured."""
        with np.errstate(invalid="ignore"):
            z = (table - self.mean_) / self.std_
        return np.clip(np.nan_to_num(z, nan=0.0, posinf=1e6, neginf=-1e6), -1e6, 1e6)

    def _trend(self, series: Signals) -> list[Reading]:
        first = {s: p[:, 0] for s, p in series.phases.items()}
        last = {s: p[:, 2] for s, p in series.phases.items()}
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = {s: np.where(np.isinf(last[s]), np.inf, last[s] / first[s]) for s in ("loss", "gradient")}
        change = last["accuracy"] - first["accuracy"]
        return [
            _whole("trend_loss", ratio["loss"] >= 1 - self.min_fall, ratio["loss"], 1 - self.min_fall),
            _whole("trend_accuracy", change < -self.max_drop, change, -self.max_drop),
            _whole("trend_gradient", ratio["gradient"] > self.growth, ratio["gradient"], self.growth),
        ]


def _rule(name: str, observable: str, condition: str, log: Sight, vector: Sight) -> Rule:
    return Rule(name, observable, condition, "whole run", "error", log, vector)


def _whole(rule: str, fired: np.ndarray, observed: np.ndarray, threshold: float) -> Reading:
    """A reading about the whole run: its last column."""
    empty = np.zeros((len(fired), len(PHASES)))
    return Reading(rule, np.column_stack([empty.astype(bool), fired]), np.column_stack([empty, observed]), threshold)


def _features(series: Signals) -> np.ndarray:
    """The signals' phases side by side, n × 12."""
    return np.concatenate([series.phases[s] for s in SIGNALS], axis=1)


def _thirds(values: np.ndarray, epochs: np.ndarray) -> np.ndarray:
    """Means of the first, second and last third of the epochs, and the last epoch's value; n × 4."""
    t = np.arange(values.shape[1])
    n, third = epochs[:, None], epochs[:, None] // 3
    masks = (t < third, (t >= third) & (t < 2 * third), (t >= 2 * third) & (t < n), t == n - 1)
    columns = []
    for mask in masks:
        inside = mask & ~np.isnan(values)
        count = inside.sum(axis=1)
        total = np.where(inside, values, 0.0).sum(axis=1)
        columns.append(np.where(count > 0, total / np.maximum(count, 1), np.nan))
    return np.column_stack(columns)


def _largest_jump(values: np.ndarray, window: int) -> np.ndarray:
    """Largest value over the largest of up to `window` measured points before it (at least two); (n,)."""
    n, length = values.shape
    largest = np.full(n, np.nan)
    for t in range(length):
        before = values[:, max(0, t - window) : t]
        enough = (~np.isnan(before)).sum(axis=1) >= 2
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            ratio = values[:, t] / np.fmax.reduce(before, axis=1, initial=-np.inf)
        ratio = np.where(np.isinf(values[:, t]), np.inf, np.where(enough, ratio, np.nan))
        largest = np.fmax(largest, ratio)
    return largest

"""From raw columns to numbers that a learner can use: scikit-learn transformers, fitted on training rows only.

Source: DEFault++ manuscript, §4.3 (drop incomplete columns, log1p of wide ones, medians of correct runs, drop
near-constant ones, standardise) and §4.2 (encodings). `y` is the Level-1 label throughout: 0 or False is a correct
run. A DataFrame comes back as a DataFrame, an array as an array.

>>> X = pd.DataFrame({"loss": [0.1, 0.2, 9.0, np.inf], "flat": 1.0, "rare": [np.nan, np.nan, np.nan, 1.0]})
>>> Preparation().fit(X, [0, 0, 1, 1]).transform(X).round(2)
   loss
0 -1.01
1 -0.99
2  1.00
3  1.00
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Literal
from weakref import WeakKeyDictionary

import numpy as np
import pandas as pd
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import _check_feature_names_in, check_is_fitted, validate_data

from features.bench import Bench, BenchError, read_parquet

Encoding = Literal["raw", "anomaly", "paired"]
ENCODINGS: tuple[Encoding, ...] = ("raw", "anomaly", "paired")
"""raw: the run's own values. anomaly: distance from clean training runs. paired: minus the run's clean twin, which a
user doesn't have: for research only."""

MAD_TO_STD = 1.4826
"""The median absolute deviation of a normal sample times this estimates its standard deviation."""


def finite(X: pd.DataFrame) -> pd.DataFrame:
    """The same table with infinite values missing, for learners that take NaN but not infinity (trees)."""
    return X.where(np.isfinite(X))


class _ColumnTransformer(TransformerMixin, BaseEstimator):
    """What the transformers below share: every one learns a value or a verdict per column, and takes NaN and ±inf.

    A subclass fills in `_learn(values, correct)`, where values is n × d float64 and correct marks the healthy rows
    (all rows where `y` is None or names none), and `_apply(values)`. `kept_` marks the columns that stay.
    """

    def fit(self, X, y=None):
        """Learn from training rows. `y` is the Level-1 label: rows with y == 0 are the correct runs."""
        values = self._values(X, reset=True)
        correct = np.ones(len(values), dtype=bool) if y is None else (pd.Series(np.asarray(y)) == 0).to_numpy()
        if len(correct) != len(values):
            raise ValueError(f"y holds {len(correct)} labels for {len(values)} rows")
        self.kept_ = np.ones(values.shape[1], dtype=bool)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "(All-NaN|Mean of empty|Degrees of freedom)", RuntimeWarning)
            self._learn(values, correct if correct.any() else np.ones_like(correct))
        return self

    def transform(self, X):
        """The columns that stay, transformed, in the type and float width of X."""
        check_is_fitted(self)
        values = self._apply(self._values(X, reset=False))[:, self.kept_]
        dtypes = X.dtypes if isinstance(X, pd.DataFrame) else [X.dtype if hasattr(X, "dtype") else np.float64]
        if len(dtypes) and all(d == np.float32 for d in dtypes):
            with np.errstate(over="ignore"):
                values = values.astype(np.float32)
        if isinstance(X, pd.DataFrame):
            return pd.DataFrame(values, index=X.index, columns=X.columns[self.kept_])
        return values

    def get_feature_names_out(self, input_features=None) -> np.ndarray:
        """Names of the columns that stay."""
        check_is_fitted(self)
        return _check_feature_names_in(self, input_features)[self.kept_]

    def _values(self, X, reset: bool) -> np.ndarray:
        rows = 2 if reset else 1
        return validate_data(
            self, X, reset=reset, dtype=np.float64, ensure_all_finite=False, ensure_min_samples=rows, copy=True
        )

    def _apply(self, values: np.ndarray) -> np.ndarray:
        return values

    def _keep(self, kept: np.ndarray, why: str) -> None:
        if not kept.any():
            raise ValueError(f"no column is left: {why}")
        self.kept_ = kept

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags


class BoundInfinite(_ColumnTransformer):
    """+inf becomes the largest finite training value of its column, -inf the smallest.

    A loss that overflowed is as bad as the worst one seen, not unknown: making it missing would give it the median of
    the correct runs. In a column without any finite training value, infinite values become missing.
    """

    def _learn(self, values, correct):
        shown = np.where(np.isfinite(values), values, np.nan)
        self.low_, self.high_ = np.nanmin(shown, axis=0), np.nanmax(shown, axis=0)

    def _apply(self, values):
        values = np.where(np.isposinf(values), self.high_, values)
        return np.where(np.isneginf(values), self.low_, values)


class DropMissing(_ColumnTransformer):
    """Drop columns with more than `max_share` missing training values, and those with none present."""

    def __init__(self, max_share: float = 0.4):
        self.max_share = max_share

    def _learn(self, values, correct):
        share = np.isnan(values).mean(axis=0)
        self._keep((share <= self.max_share) & (share < 1), f"every one misses more than {self.max_share:.0%}")


class LogLarge(_ColumnTransformer):
    """sign(x)·log1p(|x|) on columns with variance > `variance` or max|x| / median|x| > `ratio`; others stay.

    On non-negative columns this is log1p; the sign carries it to negative values, odd around 0. The ratio counts only
    where the median of |x| is above 0: else every indicator that is mostly 0 would be infinitely wide.
    """

    def __init__(self, variance: float = 1e6, ratio: float = 1000.0):
        self.variance = variance
        self.ratio = ratio

    def _learn(self, values, correct):
        size = np.abs(np.where(np.isfinite(values), values, np.nan))
        median = np.nanmedian(size, axis=0)
        wide = np.nanmax(size, axis=0) > self.ratio * median
        spread = np.nanvar(np.where(np.isfinite(values), values, np.nan), axis=0)
        self.logged_ = (spread > self.variance) | (wide & (median > 0))

    def _apply(self, values):
        values[:, self.logged_] = np.sign(values[:, self.logged_]) * np.log1p(np.abs(values[:, self.logged_]))
        return values


class ImputeMedian(_ColumnTransformer):
    """Missing values become the median of the correct training runs.

    Where a column has no value on any correct run, the median of all training runs stands in; where it has none at
    all, it stays missing (`DropMissing` removes such columns).
    """

    def _learn(self, values, correct):
        shown = np.where(np.isfinite(values), values, np.nan)
        median = np.nanmedian(shown[correct], axis=0)
        self.median_ = np.where(np.isnan(median), np.nanmedian(shown, axis=0), median)

    def _apply(self, values):
        return np.where(np.isnan(values), self.median_, values)


class DropConstant(_ColumnTransformer):
    """Drop columns whose coefficient of variation, standard deviation over |mean|, is below `min_variation`.

    A column with mean 0 is kept if it varies at all.
    """

    def __init__(self, min_variation: float = 0.01):
        self.min_variation = min_variation

    def _learn(self, values, correct):
        shown = np.where(np.isfinite(values), values, np.nan)
        deviation = np.nanstd(shown, axis=0)
        varies = (deviation > 0) & (deviation >= self.min_variation * np.abs(np.nanmean(shown, axis=0)))
        self._keep(varies, f"every one varies by less than {self.min_variation:.0%} of its mean")


class Standardise(_ColumnTransformer):
    """Subtract the training mean, divide by the training standard deviation (1 where that is 0). NaN stays."""

    def _learn(self, values, correct):
        shown = np.where(np.isfinite(values), values, np.nan)
        self.mean_ = np.nanmean(shown, axis=0)
        deviation = np.nanstd(shown, axis=0)
        self.scale_ = np.where(deviation > 0, deviation, 1.0)

    def _apply(self, values):
        return (values - self.mean_) / self.scale_


class AnomalyEncoder(_ColumnTransformer):
    """Robust z-score of every column against the correct training runs: (value − median) / (1.4826 · MAD).

    Where the MAD is 0, the correct runs' standard deviation stands in; where that is 0 too, 1, so that the column
    shows the plain distance from what every correct run has. Without any correct run in `y`, or without `y`, all
    training runs are the reference.
    """

    def _learn(self, values, correct):
        shown = np.where(np.isfinite(values), values, np.nan)[correct]
        self.median_ = np.nanmedian(shown, axis=0)
        mad = MAD_TO_STD * np.nanmedian(np.abs(shown - self.median_), axis=0)
        deviation = np.nanstd(shown, axis=0)
        self.scale_ = np.select([mad > 0, deviation > 0], [mad, deviation], 1.0)

    def _apply(self, values):
        return (values - self.median_) / self.scale_


class Preparation(_ColumnTransformer):
    """The manuscript's preparation as one estimator: bound, drop, log, impute, filter, scale, in that order.

    Parameters
    ----------
    max_missing : share of missing training values above which a column is dropped.
    log_large : whether wide columns go through log1p.
    impute : whether missing values become medians; False leaves NaN, for learners that take it (trees).
    min_variation : coefficient of variation below which a column is dropped.
    standardise : whether to centre and scale.
    anomaly : whether columns are first encoded as robust z-scores against the correct training runs.

    Raises ValueError if no column is left, or if a row to transform lacks a column.
    """

    def __init__(
        self,
        max_missing: float = 0.4,
        log_large: bool = True,
        impute: bool = True,
        min_variation: float = 0.01,
        standardise: bool = True,
        anomaly: bool = False,
    ):
        self.max_missing = max_missing
        self.log_large = log_large
        self.impute = impute
        self.min_variation = min_variation
        self.standardise = standardise
        self.anomaly = anomaly

    def _learn(self, values, correct):
        steps = [
            BoundInfinite(),
            AnomalyEncoder() if self.anomaly else None,
            DropMissing(self.max_missing),
            LogLarge() if self.log_large else None,
            ImputeMedian() if self.impute else None,
            DropConstant(self.min_variation),
            Standardise() if self.standardise else None,
        ]
        self.steps_ = [s for s in steps if s is not None]
        kept = np.arange(values.shape[1])
        for step in self.steps_:
            values = step.fit(values, ~correct).transform(values)
            kept = kept[step.kept_]
        self.kept_ = np.isin(np.arange(self.n_features_in_), kept)

    def _apply(self, values):
        prepared = np.full(values.shape, np.nan)
        for step in self.steps_:
            values = step.transform(values)
        prepared[:, self.kept_] = values
        return prepared


def prepared(bench: Bench) -> tuple[Preparation, pd.DataFrame]:
    """`Preparation()` fitted on the runs of `bench`, and those runs prepared (run × column kept).

    Kept for as long as this very bench object lives, because several techniques learn from one training part: treat
    both as read-only.
    """
    if bench not in _PREPARED:
        fitted = Preparation().fit(bench.X, bench.faulty)
        _PREPARED[bench] = fitted, fitted.transform(bench.X)
    return _PREPARED[bench]


_PREPARED: WeakKeyDictionary[Bench, tuple[Preparation, pd.DataFrame]] = WeakKeyDictionary()


def paired_path(path: Path | str) -> Path:
    """The file beside a bench that holds every run minus its matched clean run."""
    path = Path(path)
    return path.with_name(f"{path.stem}.paired.parquet")


def paired(bench: Bench, path: Path | str) -> Bench:
    """The same runs in the `paired` encoding: faulty minus matched clean values, read beside the bench at `path`.

    Not deployable, since a user has no clean twin of the run; a note on the bench says so. The file is a table of
    run × column whose columns are features of the bench. Raises BenchError if it is missing or lacks a run.
    """
    file = paired_path(path)
    if not file.exists():
        raise BenchError(
            f"{file}: no such file, so bench {bench.name!r} has no paired encoding (each run minus its matched clean "
            "run); choose raw or anomaly"
        )
    table = read_parquet(file)
    missing = bench.runs.difference(table.index)
    if len(missing):
        raise BenchError(
            f"{file}: run {missing[0]!r} is missing ({len(missing)} in all); write it again for this bench"
        )
    unknown = table.columns.difference(bench.X.columns)
    if len(unknown):
        raise BenchError(f"{file}: column {unknown[0]!r} is no feature of bench {bench.name!r}; write it again")
    note = "paired encoding: each run minus its matched clean run, which a user does not have; for research only"
    columns = [c for c in bench.X.columns if c in table.columns]
    return replace(bench, X=table.loc[bench.runs, columns], notes=(*bench.notes, note))

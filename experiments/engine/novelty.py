"""Whether a run is of the kind that a bench holds: without that, no technique trained there can be trusted.

Three measures, each held against what runs of *held-out pairs* show, so that another model or task of the same kind is
no novelty by itself:

* distance: mean distance to the nearest rows of the bench, prepared as for training, along the bench's principal
  components and off them;
* absent: share of the columns that no row of the bench lacks, but the run does;
* beyond: share of the columns in which the run lies outside the bench's range.

Rows of a bench may be means over seeds, which are steadier than any run. Where the bench has single runs beside it,
they are what the measures are taken of.

A run is out of distribution when the highest of its three percentiles is above what all but 5 % of held-out runs reach:
one threshold, whatever the number of measures.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from features.bench import Bench, BenchError

NEIGHBOURS = 5
VARIANCE = 0.95
"""Share of the variance that the principal components hold."""
HELD_OUT_SHARE = 0.95
MEASURES = ("distance", "absent", "beyond")
LIMIT = 20.0
"""Standardised values are cut here: one column that explodes must not hide all others from the neighbours."""


@dataclass(frozen=True, eq=False)
class Kind:
    """What a run looks like beside the bench.

    table : measure × value, threshold, percentile (of held-out runs, in [0, 1]), outside (bool).
    out : whether the run is out of distribution; `percentile`, the highest of the three, is held against `threshold`.
    nearest : the nearest rows of the bench: run, pair, faulty, category, root_cause, distance, ratio (to the typical
        distance from a held-out run to its nearest row).
    """

    table: pd.DataFrame
    out: bool
    percentile: float
    threshold: float
    nearest: pd.DataFrame
    typical: float

    @property
    def reasons(self) -> list[str]:
        """The measures that are beyond their threshold."""
        return self.table.index[self.table["outside"]].tolist() if self.out else []


@dataclass(frozen=True, eq=False)
class Space:
    """Prepared rows as points: along the principal components, and the rest of them off these."""

    columns: tuple[str, ...]
    preparation: object
    mean: np.ndarray
    components: np.ndarray
    points: np.ndarray
    rest: np.ndarray

    @classmethod
    def of(cls, X: pd.DataFrame, faulty: pd.Series) -> Space:
        """Prepare rows (run × raw feature) and find the components that hold `VARIANCE` of their variance."""
        from sklearn.decomposition import PCA

        from features.preparation import Preparation

        preparation = Preparation().fit(X, faulty)
        prepared = _prepared(preparation, X)
        pca = PCA(n_components=min(VARIANCE, 0.999), svd_solver="full").fit(prepared)
        points, rest = _split(prepared, pca.mean_, pca.components_)
        return cls(tuple(X.columns), preparation, pca.mean_, pca.components_, points, rest)

    def distances(self, X: pd.DataFrame) -> np.ndarray:
        """Distance of every row of X to every row of this space, n × rows.

        What lies off the components counts by its length only: there the bench has no directions to compare.
        """
        points, rest = _split(_prepared(self.preparation, X[list(self.columns)]), self.mean, self.components)
        squares = (points**2).sum(1)[:, None] + (self.points**2).sum(1)[None] - 2 * points @ self.points.T
        off = np.abs(rest[:, None] - self.rest[None])
        return np.sqrt(np.maximum(squares, 0) + off**2)


@dataclass(frozen=True, eq=False)
class Novelty:
    """A bench as a measure of what is familiar.

    held_out : (n, 3) measures of held-out runs (single ones, if there are any) against the rows of the other pairs.
    typical : median distance of a held-out run to its nearest row.
    threshold : percentile that all but 5 % of held-out runs stay below in all measures.
    """

    space: Space
    labels: pd.DataFrame
    pair: pd.Series
    low: np.ndarray
    high: np.ndarray
    complete: np.ndarray
    held_out: np.ndarray
    typical: float
    threshold: float

    def judge(self, bench: Bench, nearest: int = NEIGHBOURS) -> Kind:
        """Measure the one run of `bench`. Raises BenchError if it holds several, or lacks all columns."""
        if len(bench) != 1:
            raise BenchError(f"bench {bench.name!r} holds {len(bench)} runs; give one")
        X = bench.X.reindex(columns=list(self.space.columns))
        if X.notna().to_numpy().sum() == 0:
            raise BenchError(f"bench {bench.name!r}: none of its columns is one of the reference bench")
        away = self.space.distances(X)[0]
        values = _measures(away[None], X.to_numpy(), self.low, self.high, self.complete)[0]
        percentiles = _percentiles(self.held_out, values[None])[0]
        outside = percentiles > self.threshold
        limits = [_limit(self.held_out[:, i], self.threshold) for i in range(len(MEASURES))]
        table = pd.DataFrame(
            {"value": values, "threshold": limits, "percentile": percentiles, "outside": outside}, index=list(MEASURES)
        )
        return Kind(
            table,
            bool(outside.any()),
            float(percentiles.max()),
            self.threshold,
            self._rows(away, nearest),
            self.typical,
        )

    def _rows(self, away: np.ndarray, count: int) -> pd.DataFrame:
        """The nearest faulty rows and the nearest correct ones, `count` and two of them, by distance."""
        faulty = self.labels["faulty"].to_numpy(bool)
        order = np.argsort(away, kind="stable")
        chosen = np.concatenate([order[faulty[order]][:count], order[~faulty[order]][:2]])
        chosen = chosen[np.argsort(away[chosen], kind="stable")]
        table = self.labels.iloc[chosen][["faulty", "category", "root_cause"]].rename_axis("run").reset_index()
        return table.assign(
            pair=self.pair.iloc[chosen].to_numpy(), distance=away[chosen], ratio=away[chosen] / self.typical
        )


def fit_novelty(bench: Bench, singles: pd.DataFrame | None = None) -> Novelty:
    """Learn what is familiar from a bench; its pairs are held out one at a time.

    `singles` holds single runs (run × column) of some of the rows, where rows are means. Raises BenchError if there are
    fewer than two pairs: nothing says then how far another pair may be.
    """
    if bench.pair.nunique() < 2:
        raise BenchError(f"bench {bench.name!r} has one (model, task) pair; novelty takes at least two")
    runs = bench.X if singles is None else singles[list(bench.X.columns)]
    pair_of = bench.pair.loc[runs.index]
    held_out, nearest = np.zeros((len(runs), len(MEASURES))), np.zeros(len(runs))
    for pair in pair_of.unique():
        here = (pair_of == pair).to_numpy()
        others, X = bench.take((bench.pair != pair).to_numpy()), runs[here]
        away = Space.of(others.X, others.faulty).distances(X)
        held_out[here] = _measures(away, X.to_numpy(), *_ranges(others.X))
        nearest[here] = away.min(axis=1)
    highest = _percentiles(held_out, held_out).max(axis=1)
    return Novelty(
        Space.of(bench.X, bench.faulty),
        bench.labels,
        bench.pair,
        *_ranges(bench.X),
        held_out,
        float(np.median(nearest)),
        float(np.quantile(highest, HELD_OUT_SHARE, method="higher")),
    )


def _prepared(preparation, X: pd.DataFrame) -> np.ndarray:
    return np.clip(preparation.transform(X).to_numpy(np.float64), -LIMIT, LIMIT)


def _split(prepared: np.ndarray, mean: np.ndarray, components: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    centred = prepared - mean
    points = centred @ components.T
    return points, np.sqrt(np.maximum((centred**2).sum(1) - (points**2).sum(1), 0))


def _ranges(X: pd.DataFrame) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Lowest and highest finite value of each column, and whether no row lacks it."""
    values = X.to_numpy(np.float64)
    finite = np.isfinite(values)
    low = np.where(finite, values, np.inf).min(axis=0)
    high = np.where(finite, values, -np.inf).max(axis=0)
    return low, high, ~np.isnan(values).any(axis=0)


def _measures(away: np.ndarray, values: np.ndarray, low, high, complete) -> np.ndarray:
    """Distance, absent and beyond of n rows, n × 3."""
    distance = np.sort(away, axis=1)[:, :NEIGHBOURS].mean(axis=1)
    absent = (np.isnan(values) & complete).sum(axis=1) / max(complete.sum(), 1)
    seen = ~np.isnan(values)
    # Values are float32, and a row read back from text may differ in its last bit.
    slack = 1e-5 * np.maximum(np.abs(low), np.abs(high))
    beyond = (((values < low - slack) | (values > high + slack)) & seen).sum(axis=1) / np.maximum(seen.sum(axis=1), 1)
    return np.column_stack([distance, absent, beyond])


def _percentiles(held_out: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Share of held-out rows that are strictly below each value, n × 3."""
    return (held_out[None] < values[:, None]).mean(axis=1)


def _limit(held_out: np.ndarray, threshold: float) -> float:
    """The value above which a run's percentile exceeds the threshold."""
    return float(np.sort(held_out)[min(int(np.floor(threshold * len(held_out) + 1e-9)), len(held_out) - 1)])

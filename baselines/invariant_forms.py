"""What an invariant over a feature vector can say, and how such statements are learned and checked.

Every invariant bounds one statistic of a run: a column itself (constant, range), the sign of its slope (trend), the
difference of two columns (ordering) or their ratio. Two columns are compared where they tell of one metric in
successive phases or in adjacent parts of the depth.

>>> X = pd.DataFrame({"loss__epoch__phase_early_mean": [2.0, 3.0], "loss__epoch__phase_mid_mean": [1.0, 1.5]})
>>> forms = Forms.of(X.columns)
>>> bounds = forms.learn(forms.statistics(X), epsilon=0.0, margin=0.0)
>>> forms.sentence(2, bounds, held=1.0)
'loss: mid phase <= early phase in 100 % of healthy runs'
>>> forms.sentence(3, bounds, held=1.0)
'loss: mid phase is 0.5 times early phase in 100 % of healthy runs'
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

KINDS = ("range", "trend", "ordering", "ratio")
"""Kinds of statistic. A range without width is called a constant."""

PHASE_PAIRS = (("early_mean", "mid_mean"), ("mid_mean", "final_mean"), ("final_mean", "final_value"))
LAYER_PAIRS = (
    ("layer_early_mean", "layer_mid_mean"),
    ("layer_mid_mean", "final_layer_value"),
    ("layer_early_mean", "final_layer_value"),
)
WORDS = {
    "early_mean": "early phase",
    "mid_mean": "mid phase",
    "final_mean": "final phase",
    "final_value": "final epoch",
    "slope": "slope",
    "layer_early_mean": "early layers",
    "layer_mid_mean": "middle layers",
    "final_layer_value": "last layer",
    "layer_early_std": "spread of early layers",
    "layer_mid_std": "spread of middle layers",
    "epoch_mean": "",
    "epoch": "",
    "epoch_std": "within-epoch deviation",
    "epoch_burst": "within-epoch 95th percentile",
}


@dataclass(frozen=True, eq=False)
class Bounds:
    """What m statistics were found to be among healthy runs.

    low, high : (m,) inclusive bounds. usable : (m,) whether the statement says anything at all. strict : (m,)
    whether it was measured in nearly every run, so that a run where it is missing breaks it.
    """

    low: np.ndarray
    high: np.ndarray
    usable: np.ndarray
    strict: np.ndarray


@dataclass(frozen=True, eq=False)
class Forms:
    """The m statements that can be made about these columns, before anything is learned.

    kind : (m,) index into KINDS. a, b : (m,) column positions; b is -1 where there is no second column.
    """

    columns: tuple[str, ...]
    kind: np.ndarray
    a: np.ndarray
    b: np.ndarray

    @classmethod
    def of(cls, columns) -> Forms:
        """All statements about these columns: one range each, a trend per slope, two per comparable pair."""
        columns = tuple(map(str, columns))
        place = {c: i for i, c in enumerate(columns)}
        slopes = [i for i, c in enumerate(columns) if c.endswith("__phase_slope")]
        pairs = []
        for first, second in PHASE_PAIRS:
            ending = f"__phase_{first}"
            pairs += [
                (i, place[other])
                for c, i in place.items()
                if c.endswith(ending) and (other := c.removesuffix(ending) + f"__phase_{second}") in place
            ]
        for first, second in LAYER_PAIRS:
            middle = f"__{first}__"
            pairs += [
                (i, place[other])
                for c, i in place.items()
                if middle in c and not c.endswith("slope") and (other := c.replace(middle, f"__{second}__")) in place
            ]
        one, two = [p[0] for p in pairs], [p[1] for p in pairs]
        d, s, n = len(columns), len(slopes), len(pairs)
        kind = np.repeat(np.arange(len(KINDS)), [d, s, n, n])
        a = np.array([*range(d), *slopes, *one, *one], dtype=int)
        b = np.array([-1] * (d + s) + two + two, dtype=int)
        return cls(columns, kind, a, b)

    def take(self, rows: np.ndarray) -> Forms:
        """These statements only (boolean mask or positions)."""
        return Forms(self.columns, self.kind[rows], self.a[rows], self.b[rows])

    def statistics(self, X: pd.DataFrame) -> np.ndarray:
        """The bounded statistic of every statement in every run, n × m float64; NaN where a value is missing."""
        values = X.to_numpy(dtype=float)
        out = values[:, self.a]
        ordering, ratio = (self.kind == KINDS.index(k) for k in ("ordering", "ratio"))
        with np.errstate(divide="ignore", invalid="ignore"):
            out[:, ordering] = values[:, self.b[ordering]] - out[:, ordering]
            out[:, ratio] = values[:, self.b[ratio]] / out[:, ratio]
        return out

    def learn(self, S: np.ndarray, epsilon: float, margin: float, ratio_width: float = 0.1) -> Bounds:
        """Bounds from the statistics of healthy runs, n × m.

        They are quantiles that leave epsilon outside, widened by `margin` of their distance.
        Orderings and trends get the sign that prevails. A ratio is usable only if its bounds are within
        `ratio_width` of their middle, an ordering only if the two columns are not mostly equal.
        """
        measured = (~np.isnan(S)).mean(axis=0)
        low, high = _quantiles(S, epsilon / 2, 1 - epsilon / 2)
        with np.errstate(invalid="ignore"):
            # Relative slack for float32 columns: equal numbers must not break a bound by rounding.
            width = high - low
            slack = margin * width + 1e-6 * np.maximum(np.abs(low), np.abs(high))
        middle = (low + high) / 2
        usable = np.isfinite(low) & np.isfinite(high) & (measured >= 0.5)
        low, high = low - slack, high + slack

        sign = np.isin(self.kind, [KINDS.index("trend"), KINDS.index("ordering")])
        with np.errstate(invalid="ignore"):
            up, down, level = ((f(S)).mean(axis=0) for f in (lambda s: s > 0, lambda s: s < 0, lambda s: s == 0))
        usable[sign] = (level < 0.5 * measured)[sign] & (measured >= 0.5)[sign]
        low[sign] = np.where(up >= down, 0.0, -np.inf)[sign]
        high[sign] = np.where(up >= down, np.inf, 0.0)[sign]

        ratio = self.kind == KINDS.index("ratio")
        usable[ratio] &= (width <= 2 * ratio_width * np.abs(middle))[ratio] & (width > 0)[ratio]
        return Bounds(low, high, usable, measured >= 1 - max(epsilon, 1e-9))

    def sentence(self, i: int, bounds: Bounds, held: float) -> str:
        """Statement i in words, with the share of healthy runs in which it held (0..1)."""
        low, high, column = bounds.low[i], bounds.high[i], self.columns[self.a[i]]
        often = f"in {100 * held:.0f} % of healthy runs"
        match KINDS[self.kind[i]]:
            case "range":
                what = _words(column)
                if high - low <= 1e-5 * max(abs(low), abs(high)):
                    return f"{what} is {(low + high) / 2:.4g} {often}"
                return f"{what} lies in [{low:.4g}, {high:.4g}] {often}"
            case "trend":
                return f"{_words(column.removesuffix('__phase_slope'))} {'rises' if high > 0 else 'falls'} {often}"
            case "ordering":
                common, first, second = _compared(column, self.columns[self.b[i]])
                return f"{common}: {second} {'>=' if high > 0 else '<='} {first} {often}"
        common, first, second = _compared(column, self.columns[self.b[i]])
        times = f"{low:.3g}" if f"{low:.3g}" == f"{high:.3g}" else f"{low:.3g} to {high:.3g}"
        return f"{common}: {second} is {times} times {first} {often}"


def outside(statistics: np.ndarray, bounds: Bounds) -> np.ndarray:
    """Which statement each run breaks, n × m bool: its statistic is out of bounds, or missing where that is strict."""
    with np.errstate(invalid="ignore"):
        return (statistics < bounds.low) | (statistics > bounds.high) | (np.isnan(statistics) & bounds.strict)


def _quantiles(values: np.ndarray, *levels: float) -> list[np.ndarray]:
    """Linear-interpolated quantiles per column, missing values left out: NaN sorts behind everything."""
    ordered = np.sort(values, axis=0)
    count = (~np.isnan(values)).sum(axis=0)
    at = np.arange(values.shape[1])
    result = []
    for level in levels:
        place = level * np.maximum(count - 1, 0)
        below = np.floor(place).astype(int)
        above = np.minimum(below + 1, np.maximum(count - 1, 0))
        with np.errstate(invalid="ignore"):
            value = ordered[below, at] + (place - below) * (ordered[above, at] - ordered[below, at])
        result.append(np.where(count > 0, value, np.nan))
    return result


def _words(column: str) -> str:
    """A column in words: metric, then what it is a statistic of."""
    metric, *parts = column.split("__")
    said = [WORDS.get(p.removeprefix("phase_"), p) for p in parts]
    said = ", ".join(s for s in said if s)
    return metric.replace("_", " ") + (f" ({said})" if said else "")


def _compared(a: str, b: str) -> tuple[str, str, str]:
    """What two columns have in common, in words, and the part in which each differs."""
    first, second = a.split("__"), b.split("__")
    differs = next(i for i, (p, q) in enumerate(zip(first, second, strict=True)) if p != q)
    common = _words("__".join(first[:differs] + first[differs + 1 :]))
    return common, *(WORDS.get(p[differs].removeprefix("phase_"), p[differs]) for p in (first, second))

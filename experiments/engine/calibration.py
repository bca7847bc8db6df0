"""What a verdict is worth: how often runs with such a verdict were faulty when they were judged unseen.

Everything is learned from outer-fold verdicts, in which no run was judged by a model that had seen its (model, task)
pair. Level 1: the share of faulty runs among those of nearest score; where a technique gives few different scores, as
most rules do, among those under the same verdict. Levels 2 and 3: the share of runs put into a class that were of that
class. Shares of few runs are drawn towards that of all.

Nearest scores were chosen over a logistic curve (Platt 1999) and isotonic regression on the embedded benches, under
grouped cross-validation (`compare_methods`, means over techniques, verdicts on single runs): their Brier score is .16
(encoders) and .17 (decoders), isotonic regression's the same, the curve's .17 and .19, at a like calibration error.
Isotonic regression ends in 0 and 1, and the curve promised certainty where one run in six was of the other kind.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

FEW_SCORES = 10
"""With so many different scores or fewer, a score is a verdict and no ranking."""
ALIKE = 25
"""So many outer-fold runs of nearest score are counted beside a probability."""
ALARM_PRIOR, CLASS_PRIOR = 2, 5
"""How many runs the share over all counts as in that of the runs alike, and in that of one class (an m-estimate)."""
METHODS = ("nearest", "sigmoid", "isotonic")


@dataclass(frozen=True)
class Rate:
    """A share with the counts behind it; `value` is NaN where nothing was seen."""

    value: float
    hits: int
    of: int


NEVER = Rate(float("nan"), 0, 0)


@dataclass(frozen=True, eq=False)
class Calibration:
    """One technique's outer-fold verdicts as probabilities.

    values, faulty : (n,) scores and Level-1 labels of the judged runs.
    counted : whether the values are verdicts, 0 or 1, because the technique gives few different scores.
    named : (category, root cause or None) → `Rate` over runs that were called faulty and so.
    error : expected calibration error under grouped cross-validation (10 equal-width bins).
    """

    values: np.ndarray
    faulty: np.ndarray
    counted: bool
    named: dict[tuple[str, str | None], Rate]
    error: float

    @property
    def prevalence(self) -> float:
        """Share of faulty runs among those judged: the probabilities hold where it holds."""
        return float(self.faulty.mean())

    def probability(self, score: float, said: bool) -> Rate:
        """P(faulty) at a score and verdict, from the outer-fold runs judged most alike; NEVER if none was."""
        away = np.abs(self.values - (float(said) if self.counted else score))
        alike = away == 0 if self.counted else _nearest(away)
        if not alike.any():
            return NEVER
        hits, of = int(self.faulty[alike].sum()), int(alike.sum())
        return Rate(_drawn(hits, of, self.prevalence, ALARM_PRIOR), hits, of)

    def hit(self, category: str, root_cause: str | None = None) -> Rate:
        """How often a run that this technique called faulty and named so was of that class.

        `value` is drawn towards the share of all names of that level that were right: one hit of one is no certainty.
        """
        rate = self.named.get((category, root_cause), NEVER)
        if not rate.of:
            return NEVER
        same_level = [r for (_, cause), r in self.named.items() if (cause is None) == (root_cause is None)]
        overall = sum(r.hits for r in same_level) / sum(r.of for r in same_level)
        return Rate(_drawn(rate.hits, rate.of, overall, CLASS_PRIOR), rate.hits, rate.of)


def fit_calibration(verdicts: pd.DataFrame, labels: pd.DataFrame, pair: pd.Series) -> Calibration:
    """Learn from outer-fold verdicts (a `Verdicts` table), the labels and pairs of their runs.

    Raises ValueError if the tables don't share their runs.
    """
    if not verdicts.index.equals(labels.index) or not verdicts.index.equals(pair.index):
        raise ValueError("verdicts, labels and pairs must share one index of runs")
    score, said = verdicts["score"].to_numpy(float), verdicts["faulty"].to_numpy(bool)
    faulty = labels["faulty"].to_numpy(bool)
    counted = len(np.unique(score)) <= FEW_SCORES or faulty.all() or not faulty.any()
    values = said.astype(float) if counted else score
    unseen = cross_validated(values, faulty, pair, "counts" if counted else "nearest")
    return Calibration(
        values=values,
        faulty=faulty,
        counted=counted,
        named=_named(verdicts, labels),
        error=expected_calibration_error(unseen, faulty),
    )


def expected_calibration_error(probability: np.ndarray, outcome: np.ndarray, bins: int = 10) -> float:
    """|mean probability − share of outcomes| per equal-width bin, weighted by the bin's share; NaNs are left out.

    >>> expected_calibration_error(np.array([0.9, 0.9, 0.1, 0.1]), np.array([1, 1, 0, 1])).round(3)
    np.float64(0.25)
    """
    known = np.isfinite(probability)
    probability, outcome = probability[known], np.asarray(outcome, dtype=float)[known]
    which = np.clip((probability * bins).astype(int), 0, bins - 1)
    gaps = np.bincount(which, weights=outcome - probability, minlength=bins)
    return np.abs(gaps).sum() / max(len(outcome), 1)


def cross_validated(
    score: np.ndarray, faulty: np.ndarray, pair: pd.Series, method: str = "nearest", folds: int = 5
) -> np.ndarray:
    """P(faulty) of every run by a calibration fitted without the runs of its pair, (n,).

    method : "nearest", "sigmoid", "isotonic", or "counts" (the share of faulty runs at exactly this score, NaN if there
        is none).
    Where there are fewer pairs than folds, there are as many folds as pairs; with one pair everything is NaN.
    """
    codes, names = pd.factorize(pair)
    probability = np.full(len(score), np.nan)
    if len(names) < 2:
        return probability
    fold = codes % min(folds, len(names))
    for number in np.unique(fold):
        here, rest = fold == number, fold != number
        probability[here] = _fitted(score[rest], faulty[rest], method)(score[here])
    return probability


def compare_methods(verdicts: dict[str, pd.DataFrame], labels: pd.DataFrame, pair: pd.Series) -> pd.DataFrame:
    """Brier score and calibration error of each method on each technique whose scores rank, under grouped folds.

    `verdicts` is technique → outer-fold verdicts. Beside the methods stands the raw score where it lies in [0, 1].
    """
    rows = []
    for name, table in verdicts.items():
        score, faulty = table["score"].to_numpy(float), labels.loc[table.index, "faulty"].to_numpy(bool)
        if len(np.unique(score)) <= FEW_SCORES:
            continue
        for method in ("raw", *METHODS):
            if method == "raw" and (score.min() < 0 or score.max() > 1):
                continue
            p = score if method == "raw" else cross_validated(score, faulty, pair.loc[table.index], method)
            brier = float(np.mean((p - faulty) ** 2))
            rows.append((name, method, brier, expected_calibration_error(p, faulty)))
    return pd.DataFrame(rows, columns=["technique", "method", "brier", "error"])


def _fitted(score: np.ndarray, faulty: np.ndarray, method: str):
    if method == "counts":
        seen = pd.Series(faulty).groupby(score).agg(["sum", "size"])
        shares = _drawn(seen["sum"], seen["size"], faulty.mean(), ALARM_PRIOR)
        return lambda s: shares.reindex(s).to_numpy()
    if method == "nearest":

        def share(s: np.ndarray) -> np.ndarray:
            alike = _nearest(np.abs(s[:, None] - score))
            return _drawn(alike @ faulty.astype(int), alike.sum(axis=1), faulty.mean(), ALARM_PRIOR)

        return share
    if faulty.all() or not faulty.any():
        return lambda s: np.full(len(s), float(faulty.mean()))
    if method == "isotonic":
        from sklearn.isotonic import IsotonicRegression

        return IsotonicRegression(y_min=0, y_max=1, out_of_bounds="clip").fit(score, faulty).predict
    curve = _fit_logistic(score, faulty)
    return lambda s: _logistic(s, curve)


def _nearest(away: np.ndarray) -> np.ndarray:
    """Which distances (along the last axis) are among the `ALIKE` smallest, ties included."""
    last = min(ALIKE, away.shape[-1]) - 1
    return away <= np.sort(away, axis=-1)[..., last : last + 1]


def _drawn(hits, of, overall: float, prior: int):
    return (hits + prior * overall) / (of + prior)


def _fit_logistic(score: np.ndarray, faulty: np.ndarray) -> tuple[float, float]:
    """Slope and offset of the logit over the score, which never falls with it."""
    from sklearn.linear_model import LogisticRegression

    centre, spread = score.mean(), score.std()
    # A weak penalty keeps the curve finite where scores separate the runs.
    model = LogisticRegression(C=10.0).fit(((score - centre) / spread)[:, None], faulty)
    slope = max(float(model.coef_[0, 0]), 0.0) / spread
    offset = float(model.intercept_[0]) if slope else float(np.log(faulty.mean() / (1 - faulty.mean())))
    return slope, offset - slope * centre


def _logistic(score: np.ndarray, curve: tuple[float, float]) -> np.ndarray:
    return 1 / (1 + np.exp(-np.clip(curve[0] * score + curve[1], -30, 30)))


def _named(verdicts: pd.DataFrame, labels: pd.DataFrame) -> dict[tuple[str, str | None], Rate]:
    found = {}
    called = verdicts[verdicts["faulty"] & verdicts["category"].notna()]
    truth = labels.loc[called.index]
    right = (called["category"] == truth["category"]) & truth["faulty"]
    for category, rows in right.groupby(called["category"].astype(object)):
        found[category, None] = Rate(float(rows.mean()), int(rows.sum()), len(rows))
    both = called["root_cause"].notna()
    exact = (right & (called["root_cause"] == truth["root_cause"]))[both]
    names = [called.loc[both, "category"].astype(object), called.loc[both, "root_cause"].astype(object)]
    for key, rows in exact.groupby(names):
        found[key] = Rate(float(rows.mean()), int(rows.sum()), len(rows))
    return found

"""Intervals, paired tests and ranks over (model, task) pairs: runs of one pair depend on each other, pairs hardly."""

from __future__ import annotations

import gc

import numpy as np
import pandas as pd
from scipy.stats import permutation_test, rankdata, studentized_range
from statsmodels.stats.multitest import multipletests

from experiments.engine.scoring import Confusion, f1_scores


def bootstrap_weights(n_pairs: int, n_resamples: int = 1000, seed: int = 0) -> np.ndarray:
    """How often each pair is drawn: B × P, rows sum to P."""
    rng = np.random.default_rng(seed)
    return rng.multinomial(n_pairs, np.full(n_pairs, 1 / n_pairs), size=n_resamples).astype(float)


def bootstrap_scores(table: Confusion, n_resamples: int = 1000, seed: int = 0) -> pd.DataFrame:
    """F1, precision and recall of each resample of pairs (B rows)."""
    weights = bootstrap_weights(len(table.pairs), n_resamples, seed)
    return f1_scores(np.einsum("bp,pij->bij", weights, table.counts, optimize=True), table)


def interval(table: Confusion, level: float = 0.95, n_resamples: int = 1000, seed: int = 0) -> tuple[float, float]:
    """Percentile interval of F1 by bootstrap over pairs. One pair gives (nan, nan): there is nothing to resample."""
    if len(table.pairs) < 2:
        return (float("nan"), float("nan"))
    f1 = bootstrap_scores(table, n_resamples, seed)["f1"]
    tail = (1 - level) / 2
    low, high = np.nanquantile(f1, [tail, 1 - tail])
    return (float(low), float(high))


def pair_scores(table: Confusion) -> pd.Series:
    """F1 of each pair on its own (index: pair)."""
    return pd.Series(f1_scores(table.counts, table)["f1"].to_numpy(), index=pd.Index(table.pairs, name="pair"))


def pair_matrix(tables: dict[str, Confusion]) -> pd.DataFrame:
    """F1 per pair (rows) and technique (columns), the sample that paired tests and ranks work on."""
    return pd.DataFrame({name: pair_scores(table) for name, table in tables.items()}).dropna()


def paired_tests(matrix: pd.DataFrame, reference: str, n_resamples: int = 9999, seed: int = 0) -> pd.DataFrame:
    """Every technique against `reference`, paired by pair.

    Two-sided sign-flip permutation test of the mean difference (exact where 2^pairs is below `n_resamples`), Holm-
    corrected over the techniques; effect size is the matched-pairs rank-biserial correlation (Kerby 2014), from −1
    to 1. With n pairs p can't fall below 2^(1−n): five pairs can't show significance at 0.05.

    Columns: difference (technique − reference), p, p_holm, effect. Index: technique, without the reference.
    """
    others = [c for c in matrix if c != reference]
    rows = []
    for name in others:
        difference = (matrix[name] - matrix[reference]).to_numpy()
        p = 1.0
        if np.any(difference != 0) and len(difference) > 1:
            p = permutation_test(
                (difference,),
                lambda d, axis: np.mean(d, axis=axis),
                permutation_type="samples",
                vectorized=True,
                n_resamples=n_resamples,
                rng=np.random.default_rng(seed),
            ).pvalue
        rows.append({"difference": difference.mean(), "p": float(p), "effect": rank_biserial(difference)})
    table = pd.DataFrame(rows, index=pd.Index(others, name="technique"), columns=["difference", "p", "effect"])
    table["p_holm"] = _holm(table["p"]) if len(table) else []
    return table[["difference", "p", "p_holm", "effect"]]


def _holm(p: pd.Series) -> np.ndarray:
    gc.freeze()  # the library collects garbage on every call: among this program's objects, a quarter of a second
    try:
        return multipletests(p, method="holm")[1]
    finally:
        gc.unfreeze()


def rank_biserial(difference: np.ndarray) -> float:
    """Sum of ranks of |d| where d > 0 minus where d < 0, over their total; 0 if all differences are 0."""
    difference = difference[difference != 0]
    if len(difference) == 0:
        return 0.0
    ranks = rankdata(np.abs(difference))
    return float(np.sum(ranks * np.sign(difference)) / ranks.sum())


def average_ranks(matrix: pd.DataFrame) -> pd.Series:
    """Mean rank over pairs, 1 = best; ties share ranks."""
    return matrix.rank(axis=1, ascending=False).mean().sort_values()


def critical_difference(n_techniques: int, n_pairs: int, alpha: float = 0.05) -> float:
    """Nemenyi's critical difference of average ranks (Demšar, JMLR 2006, equation in §3.2.2)."""
    q = studentized_range.ppf(1 - alpha, n_techniques, np.inf) / np.sqrt(2)
    return float(q * np.sqrt(n_techniques * (n_techniques + 1) / (6 * n_pairs)))

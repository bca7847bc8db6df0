"""Intervals by resampling pairs: runs of one (model, task) pair are not independent, pairs nearly are."""

from __future__ import annotations

import numpy as np
import pandas as pd

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

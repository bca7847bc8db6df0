"""How well an explanation's ranking of groups agrees with the truth, with another explanation, and with itself.

Every figure comes with what it would be by chance, computed exactly, in two forms. *Uniform*: all rankings of the
groups equally likely. *Shuffled*: the explanations that were given, dealt out to the runs anew; an explanation that
names the same groups for every run can't do better than that. Scores may tie (a prototype's weights are often zero):
every figure is the expectation over random orders of tied groups.
"""

from __future__ import annotations

from math import comb

import numpy as np
import pandas as pd
from scipy.special import gammaln
from scipy.stats import permutation_test, rankdata

from experiments.engine.statistics import bootstrap_weights
from features.fpg import CATEGORY_GROUP, neighbours

TRUTHS = ("own", "near")
"""own: the group that measures the operator's component; near: that group or a neighbour in the propagation graph."""


def true_groups(categories, arch, names: tuple[str, ...], near: bool = False) -> np.ndarray:
    """Which groups count as the faulty component, n × G bool; with `near`, its neighbours in the graph as well."""
    truth = np.zeros((len(categories), len(names)), dtype=bool)
    for i, category in enumerate(categories):
        own = CATEGORY_GROUP[category]
        truth[i, [names.index(g) for g in ((own, *neighbours(arch, own)) if near else (own,))]] = True
    return truth


def hits(scores: np.ndarray, truth: np.ndarray, k: int) -> np.ndarray:
    """Probability that the k highest groups hold a true one, (n,); `scores` and `truth` n × G.

    >>> hits(np.array([[3.0, 1.0, 1.0, 0.0]]), np.array([[False, True, False, False]]), 2)
    array([0.5])
    """
    bound = -np.sort(-scores, axis=1)[:, k - 1, None]
    above, tied = scores > bound, scores == bound
    slots, level = k - above.sum(axis=1), tied.sum(axis=1)
    missed = _none_drawn(level, (tied & truth).sum(axis=1), slots)
    return np.where((above & truth).any(axis=1), 1.0, 1.0 - missed)


def best_rank(scores: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Rank of each run's true group, 1 = highest, ties shared; of several true groups the first. (n,)"""
    ranks = rankdata(-scores, axis=1)
    return np.where(truth, ranks, np.inf).min(axis=1)


def chance_hit(n_groups: int, n_true: int, k: int) -> float:
    """Probability that k groups drawn at random hold one of the true ones.

    >>> round(chance_hit(12, 1, 3), 3), round(chance_hit(12, 4, 1), 3)
    (0.25, 0.333)
    """
    return 1.0 - comb(n_groups - n_true, k) / comb(n_groups, k)


def shuffled(measure, scores: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Each run's expected `measure(scores, truth)` with another run's explanation, all n equally likely. (n,)"""
    kinds, which = np.unique(truth, axis=0, return_inverse=True)
    expected = np.array([measure(scores, np.tile(kind, (len(scores), 1))).mean() for kind in kinds])
    return expected[which.reshape(-1)]


def spearman(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Rank correlation of the rows of a and b (n × G), ties shared; NaN where a row is constant. (n,)"""
    return (_standard_ranks(a) * _standard_ranks(b)).sum(axis=1)


def kendall(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Kendall's τ_b of the rows of a and b (n × G); NaN where a row is constant. (n,)"""
    i, j = np.triu_indices(a.shape[1], 1)
    x, y = np.sign(a[:, i] - a[:, j]), np.sign(b[:, i] - b[:, j])
    with np.errstate(invalid="ignore"):
        return (x * y).sum(axis=1) / np.sqrt((x**2).sum(axis=1) * (y**2).sum(axis=1))


def top_overlap(a: np.ndarray, b: np.ndarray, k: int) -> np.ndarray:
    """Expected share of a's k highest groups among b's, by chance k / G. (n,)"""
    return (_top_share(a, k) * _top_share(b, k)).sum(axis=1) / k


def compare_rankings(a: np.ndarray, b: np.ndarray) -> dict[str, float]:
    """Means over runs of Spearman, Kendall and the overlap of the top 1 and 3, each also with b dealt out anew.

    Runs where a correlation is undefined (no group speaks for the verdict) are left out of it; `defined` is the share
    that counts.
    """
    ranks_a, ranks_b = _standard_ranks(a), _standard_ranks(b)
    known = ~np.isnan(ranks_a[:, 0]) & ~np.isnan(ranks_b[:, 0])
    row = {"runs": len(a), "defined": float(known.mean())}
    if not known.any():
        return row
    row["spearman"] = float(spearman(a, b)[known].mean())
    row["spearman_shuffled"] = float(ranks_a[known].mean(axis=0) @ ranks_b[known].mean(axis=0))
    row["kendall"] = float(kendall(a, b)[known].mean())
    for k in (1, 3):
        row[f"top{k}"] = float(top_overlap(a, b, k).mean())
        row[f"top{k}_shuffled"] = float(_top_share(a, k).mean(axis=0) @ _top_share(b, k).mean(axis=0) / k)
        row[f"top{k}_chance"] = k / a.shape[1]
    return row


def hit_table(scores: np.ndarray, categories, pairs, arch, names: tuple[str, ...], seed: int = 0) -> dict[str, float]:
    """hit@1, hit@3 and rank of the true component, with intervals over pairs and both chance levels.

    `scores` is n × G in the order of `names`; `categories` and `pairs` (n,). For t in own, near and k in 1, 3 the keys
    are `{t}{k}`, `{t}{k}_low`, `_high` (95 % bootstrap over pairs), `_chance`, `_shuffled`, and `_p`: two-sided
    sign-flip test over pairs of hit against shuffled. `rank`, `rank_chance`, `rank_shuffled` are of the own group.
    """
    row: dict[str, float] = {"runs": len(scores), "pairs": len(np.unique(pairs))}
    for kind in TRUTHS:
        truth = true_groups(categories, arch, names, near=kind == "near")
        for k in (1, 3):
            key = f"{kind}{k}"
            found = hits(scores, truth, k)
            luck = shuffled(lambda s, t, k=k: hits(s, t, k), scores, truth)
            row[key] = float(found.mean())
            row[f"{key}_low"], row[f"{key}_high"] = pair_interval(found, pairs, seed)
            row[f"{key}_chance"] = float(np.mean([chance_hit(len(names), t, k) for t in truth.sum(axis=1)]))
            row[f"{key}_shuffled"] = float(luck.mean())
            row[f"{key}_p"] = _p_over_pairs(found, luck, pairs, seed)
    own = true_groups(categories, arch, names)
    row["rank"] = float(best_rank(scores, own).mean())
    row["rank_chance"] = (len(names) + 1) / 2
    row["rank_shuffled"] = float(shuffled(best_rank, scores, own).mean())
    return row


def pair_interval(values: np.ndarray, pairs, seed: int = 0, n_resamples: int = 1000) -> tuple[float, float]:
    """95 % bootstrap interval over pairs of the mean over runs; (nan, nan) with a single pair."""
    table = pd.DataFrame({"value": values, "pair": np.asarray(pairs)}).dropna().groupby("pair")["value"]
    total, count = table.sum().to_numpy(), table.size().to_numpy()
    if len(total) < 2:
        return (float("nan"), float("nan"))
    weights = bootstrap_weights(len(total), n_resamples, seed)
    low, high = np.quantile(weights @ total / (weights @ count), [0.025, 0.975])
    return (float(low), float(high))


def sign_flip_p(difference: np.ndarray, seed: int = 0) -> float:
    """Two-sided sign-flip permutation test of a mean of 0 over pairs; exact up to ten pairs. 1 if nothing differs.

    As in `statistics.paired_tests`, without its correction, which belongs to a whole table.
    """
    if len(difference) < 2 or not np.any(difference != 0):
        return 1.0
    return float(
        permutation_test(
            (difference,),
            lambda d, axis: np.mean(d, axis=axis),
            permutation_type="samples",
            vectorized=True,
            n_resamples=1999,
            rng=np.random.default_rng(seed),
        ).pvalue
    )


def _p_over_pairs(found: np.ndarray, luck: np.ndarray, pairs, seed: int) -> float:
    difference = pd.Series(found - luck).groupby(np.asarray(pairs)).mean().to_numpy()
    return sign_flip_p(np.where(np.abs(difference) < 1e-12, 0.0, difference), seed)


def _none_drawn(level: np.ndarray, wanted: np.ndarray, slots: np.ndarray) -> np.ndarray:
    """C(level − wanted, slots) / C(level, slots): no wanted one among `slots` drawn from `level`."""
    left = level - wanted - slots
    with np.errstate(invalid="ignore"):
        log = (
            gammaln(level - wanted + 1)
            + gammaln(level - slots + 1)
            - gammaln(np.maximum(left, 0) + 1)
            - gammaln(level + 1)
        )
    return np.where(left < 0, 0.0, np.exp(log))


def _standard_ranks(a: np.ndarray) -> np.ndarray:
    ranks = rankdata(a, axis=1)
    centred = ranks - ranks.mean(axis=1, keepdims=True)
    with np.errstate(invalid="ignore"):
        return centred / np.sqrt((centred**2).sum(axis=1, keepdims=True))


def _top_share(scores: np.ndarray, k: int) -> np.ndarray:
    """Probability of each group to be among its row's k highest, n × G; rows sum to k."""
    bound = -np.sort(-scores, axis=1)[:, k - 1, None]
    above, tied = scores > bound, scores == bound
    slots = k - above.sum(axis=1, keepdims=True)
    return above + tied * slots / tied.sum(axis=1, keepdims=True)

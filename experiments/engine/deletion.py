"""Faithfulness by deletion: does a margin fall more when an explanation's first groups go than when others go?

The DEFault++ manuscript zeroes the top two groups and, against them, two random ones. Here the others are all
C(G, k) subsets where there are no more of them than draws, so that the comparison holds no luck. A deleted group's
columns become their training means, which is zero in standardised inputs.
"""

from __future__ import annotations

from itertools import combinations
from math import comb

import numpy as np
import pandas as pd

from experiments.engine.margins import Game


def other_subsets(n_groups: int, k: int, n_draws: int = 200, seed: int = 0) -> np.ndarray:
    """The groups to delete for comparison, S × G bool: all subsets of size k if at most `n_draws`, else draws."""
    if comb(n_groups, k) <= n_draws:
        chosen = np.array(list(combinations(range(n_groups), k)), dtype=int)
    else:
        rng = np.random.default_rng(seed)
        chosen = rng.permuted(np.tile(np.arange(n_groups), (n_draws, 1)), axis=1)[:, :k]
    subsets = np.zeros((len(chosen), n_groups), dtype=bool)
    np.put_along_axis(subsets, chosen, True, axis=1)
    return subsets


def ranked(scores: np.ndarray, seed: int = 0) -> np.ndarray:
    """Groups from the highest score to the lowest, n × G positions; ties in random order."""
    lots = np.random.default_rng(seed).random(scores.shape)
    return np.lexsort((lots, -scores), axis=1)


def drops_of_others(game: Game, subsets: np.ndarray) -> np.ndarray:
    """What every run's margin loses with each of `subsets` (S × G) deleted, S × n × levels."""
    n = len(game.runs)
    rows = np.tile(np.arange(n), len(subsets))
    margins = game.evaluate(rows, ~np.repeat(subsets, n, axis=0), game.absent)
    return game.whole - margins.reshape(len(subsets), n, -1)


def deletion_test(
    game: Game, scores: np.ndarray, level: int, others: np.ndarray, k: int = 2, seed: int = 0
) -> pd.DataFrame:
    """One row per run: margin, `top` and `random` drop, and `percentile`, on deletion of the k highest groups.

    `scores` is n × G, `others` from `drops_of_others`. `random` is the mean over the other subsets; `percentile` the
    share of them with a smaller drop (half of the ties), one half by chance.
    """
    at = game.levels.index(level)
    kept = np.ones(scores.shape, dtype=bool)
    np.put_along_axis(kept, ranked(scores, seed)[:, :k], False, axis=1)
    top = (game.whole - game.evaluate(np.arange(len(scores)), kept, game.absent))[:, at]
    rest = others[:, :, at]
    # A sum in another order may differ in its last bits; that is a tie, not a smaller drop.
    near = np.isclose(rest, top, rtol=1e-5, atol=1e-6)
    return pd.DataFrame(
        {
            "margin": game.whole[:, at],
            "top": top,
            "random": rest.mean(axis=0),
            "percentile": np.where(np.isnan(top), np.nan, ((rest < top) & ~near).mean(axis=0) + near.mean(axis=0) / 2),
        },
        index=game.runs,
    )


def deletion_curve(game: Game, order: np.ndarray, level: int) -> np.ndarray:
    """Every run's margin after the first 0, 1, ..., G groups of its `order` (n × G) are gone, n × (G + 1)."""
    n, G = order.shape
    place = np.argsort(order, axis=1)
    kept = place[None] >= np.arange(G + 1)[:, None, None]
    margins = game.evaluate(np.tile(np.arange(n), G + 1), kept.reshape(-1, G), game.absent)
    return margins[:, game.levels.index(level)].reshape(G + 1, n).T


def random_curves(game: Game, n_orders: int = 10, seed: int = 0) -> np.ndarray:
    """The mean curve over random orders, n × (G + 1) × levels."""
    rng = np.random.default_rng(seed)
    n, G = len(game.runs), len(game.groups)
    total = np.zeros((n, G + 1, len(game.levels)))
    for _ in range(n_orders):
        place = rng.permuted(np.tile(np.arange(G), (n, 1)), axis=1)
        kept = place[None] >= np.arange(G + 1)[:, None, None]
        margins = game.evaluate(np.tile(np.arange(n), G + 1), kept.reshape(-1, G), game.absent)
        total += margins.reshape(G + 1, n, -1).transpose(1, 0, 2)
    return total / n_orders

"""Shapley values: of columns for tree ensembles, and of feature groups for any model.

Columns: Lundberg et al., "From local explanations to global understanding with explainable AI for trees" (Nature
Machine Intelligence, 2020), by the package shap, in its two forms. *Interventional* averages over background runs;
*path-dependent* weighs both branches of a split by the training rows that went there, and needs no background.
Groups: Shapley's value itself, exactly by all 2^G coalitions, or by sampled permutations with a standard error.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from math import comb
from typing import Literal

import numpy as np

from experiments.engine.margins import Game, TreeModel

Form = Literal["interventional", "path-dependent"]
FORMS: tuple[Form, ...] = ("interventional", "path-dependent")


@dataclass(frozen=True, eq=False)
class ColumnValues:
    """Shapley values of the columns for each run's margin.

    values : n × d, d the columns that the model sees.
    base : (n,), the margin expected without knowing the run.
    margin : (n,), the model's own.
    """

    values: np.ndarray
    base: np.ndarray
    margin: np.ndarray

    @property
    def error(self) -> float:
        """Largest |base + Σ values − margin|."""
        return float(np.abs(self.base + self.values.sum(axis=1) - self.margin).max(initial=0.0))


def tree_shap(model: TreeModel, seen: np.ndarray, target: np.ndarray, background: np.ndarray | None) -> ColumnValues:
    """SHAP values of each row's margin towards its `target` class: interventional with a background, else by paths.

    `seen` is n × d and `background` B × d, both as the ensemble sees them. The interventional base is the mean of the
    model's own margins over the background: shap's expected value lacks XGBoost's constant if there are many classes.
    """
    filled = _as_lightgbm_sees(model.estimator)
    kind = "tree_path_dependent" if background is None else "interventional"
    known = None if background is None else filled(background)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about shap's own past output formats
        import shap  # several seconds to import, and only explanations need it

        explainer = shap.TreeExplainer(model.estimator, data=known, feature_perturbation=kind)
        values = np.asarray(explainer.shap_values(filled(seen), check_additivity=False), dtype=np.float64)
    expected = np.atleast_1d(np.asarray(explainer.expected_value, dtype=np.float64))
    if values.ndim == 2:
        values, expected = np.stack([-values / 2, values / 2], axis=2), np.array([-expected[0] / 2, expected[0] / 2])
    contrast = _contrasts(target, values.shape[2])
    if background is not None:
        expected = model.outputs(background).mean(axis=0)
    return ColumnValues(
        values=np.einsum("ndk,nk->nd", values, contrast),
        base=contrast @ expected,
        margin=model.margin(seen, target),
    )


def coalitions(n_players: int) -> np.ndarray:
    """All subsets of the players, 2^n × n, bool; row i holds the bits of i."""
    return (np.arange(2**n_players)[:, None] >> np.arange(n_players)) & 1 == 1


def exact_shapley(value: Callable[[np.ndarray], np.ndarray], n_players: int) -> np.ndarray:
    """Shapley values of a game of `n_players`, whose `value` takes S × n subsets (bool) to S × ... worths.

    All 2^n subsets are asked for in one call. Gives n × .... In a game that adds up, each player gets its own worth:

    >>> exact_shapley(lambda subsets: subsets @ np.array([1.0, -2.0, 0.5]), 3).round(6)
    array([ 1. , -2. ,  0.5])
    """
    subsets = coalitions(n_players)
    return np.tensordot(_weights(subsets), value(subsets), axes=(1, 0))


def exact_group_shapley(game: Game, row: int) -> np.ndarray:
    """Shapley values of the groups for one run, G × levels: 2^G coalitions, absent groups from every background run."""
    n_background = len(game.background)

    def value(subsets: np.ndarray) -> np.ndarray:
        total = np.zeros((len(subsets), len(game.levels)))
        for other in game.background:
            total += game.evaluate(np.full(len(subsets), row), subsets, other)
        return total / n_background

    return exact_shapley(value, len(game.groups))


def sampled_group_shapley(game: Game, n_draws: int = 50, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Shapley values of the groups for every run and their standard errors, both n × G × levels.

    A draw walks one random order of the groups and its reverse (Mitchell et al., JMLR 2022) against one background run;
    draws take turns over the background, so that with a multiple of its size the values sum exactly to the margin minus
    its mean over the background.
    """
    rng = np.random.default_rng(seed)
    n, G = len(game.runs), len(game.groups)
    total, squares = np.zeros((2, n, G, len(game.levels)))
    rows = np.tile(np.arange(n), G + 1)
    for draw in range(n_draws):
        orders = rng.permuted(np.tile(np.arange(G), (n, 1)), axis=1)
        both = (_walk(game, rows, orders, draw) + _walk(game, rows, orders[:, ::-1], draw)) / 2
        total += both
        squares += both**2
    mean = total / n_draws
    spread = np.maximum(squares / n_draws - mean**2, 0.0)
    error = np.sqrt(spread / (n_draws - 1)) if n_draws > 1 else np.full_like(mean, np.nan)
    return mean, error


def by_group(values: np.ndarray, owner: np.ndarray, n_groups: int) -> tuple[np.ndarray, np.ndarray]:
    """Column values (n × d) summed by group, n × G: with their signs, and in absolute value."""
    member = np.zeros((len(owner), n_groups))
    member[np.arange(len(owner)), owner] = 1.0
    return values @ member, np.abs(values) @ member


def _walk(game: Game, rows: np.ndarray, orders: np.ndarray, draw: int) -> np.ndarray:
    """Each group's gain in margin as it enters in its run's order: n × G × levels."""
    n, G = orders.shape
    place = np.argsort(orders, axis=1)
    kept = place[None] < np.arange(G + 1)[:, None, None]  # step s keeps the first s of the order
    other = game.background[draw % len(game.background)]
    margins = game.evaluate(rows, kept.reshape(-1, G), other).reshape(G + 1, n, -1)
    gains = np.diff(margins, axis=0).transpose(1, 0, 2)
    return np.take_along_axis(gains, place[:, :, None], axis=1)


def _weights(subsets: np.ndarray) -> np.ndarray:
    """w(g, S): a game's Shapley values are w @ v(S). Positive where S holds g, negative where it doesn't."""
    n = subsets.shape[1]
    size = subsets.sum(axis=1)
    # A subset of size s, g aside, comes before g in a share 1 / (n · C(n−1, s)) of all orders.
    before = np.array([1 / (n * comb(n - 1, s)) for s in range(n)])
    return np.where(subsets, before[np.maximum(size - 1, 0)][:, None], -before[np.minimum(size, n - 1)][:, None]).T


def _contrasts(target: np.ndarray, n_classes: int) -> np.ndarray:
    """One row per run: 1 at its class, −1/(k−1) at the others, as in `margins.against_rest`."""
    contrast = np.full((len(target), n_classes), -1 / (n_classes - 1))
    contrast[np.arange(len(target)), target] = 1.0
    return contrast


def _as_lightgbm_sees(estimator) -> Callable[[np.ndarray], np.ndarray]:
    """LightGBM reads a missing value as 0 in a column that had none in training; shap doesn't know that."""
    if type(estimator).__module__.partition(".")[0] != "lightgbm":
        return lambda values: values
    splits = estimator.booster_.trees_to_dataframe().dropna(subset=["split_feature"])
    taught = set(splits.loc[splits["missing_type"] != "None", "split_feature"])
    untaught = np.array([name not in taught for name in estimator.booster_.feature_name()])
    return lambda values: np.where(np.isnan(values) & untaught, np.float32(0), values)

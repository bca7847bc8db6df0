"""Shapley values: closed forms, brute force over all orders, a second implementation, and sums for real ensembles."""

from dataclasses import replace
from itertools import permutations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baselines.boosting import Boosting
from baselines.default import DEFault
from baselines.simple import Forest
from experiments.engine.margins import Game, bench_values, column_owners, explained, game_of
from experiments.engine.shapley import (
    by_group,
    coalitions,
    exact_group_shapley,
    exact_shapley,
    sampled_group_shapley,
    tree_shap,
)


def brute_force(value, n):
    """Mean gain of each player over all n! orders."""
    total = np.zeros(n)
    orders = list(permutations(range(n)))
    for order in orders:
        present = np.zeros(n, dtype=bool)
        for player in order:
            before = value(present)
            present[player] = True
            total[player] += value(present) - before
    return total / len(orders)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 5), st.integers(0, 2**16))
def test_exact_equals_all_orders_on_any_game(n, seed):
    worth = np.random.default_rng(seed).normal(size=2**n)
    weights = 2 ** np.arange(n)
    expected = brute_force(lambda present: worth[(present * weights).sum()], n)
    found = exact_shapley(lambda subsets: worth[(subsets * weights).sum(axis=1)], n)
    np.testing.assert_allclose(found, expected, atol=1e-10)


def test_coalitions_are_all_subsets_once():
    subsets = coalitions(4)
    assert subsets.shape == (16, 4)
    assert len(np.unique(subsets, axis=0)) == 16


def test_glove_game_from_the_textbook():
    """One left glove, two right ones: a pair is worth 1. The left glove gets 2/3, the right ones 1/6 each."""
    found = exact_shapley(lambda s: (s[:, 0] & (s[:, 1] | s[:, 2])).astype(float), 3)
    np.testing.assert_allclose(found, [2 / 3, 1 / 6, 1 / 6])


def linear_game(seed=0, n=5, groups=4, wide=3, background=5):
    """margin = x·w, and half of it at a second level: Shapley values are known in closed form."""
    rng = np.random.default_rng(seed)
    d = groups * wide
    weights = rng.normal(size=d)
    inputs = rng.normal(size=(n, d))
    game = Game(
        runs=pd.Index([f"r{i}" for i in range(n)]),
        groups=tuple("abcdefgh"[:groups]),
        levels=(1, 2),
        inputs=inputs,
        absent=np.zeros(d),
        background=rng.normal(size=(background, d)),
        owner=np.repeat(np.arange(groups), wide),
        margins=lambda rows, values: np.column_stack([values @ weights, values @ weights / 2]),
    )
    parts = (inputs - game.background.mean(axis=0)) * weights
    return game, parts.reshape(n, groups, wide).sum(axis=2)


def test_groups_of_a_linear_model_get_their_part_of_the_sum():
    game, expected = linear_game()
    for row in (0, 3):
        found = exact_group_shapley(game, row)
        np.testing.assert_allclose(found[:, 0], expected[row], atol=1e-12)
        np.testing.assert_allclose(found[:, 1], expected[row] / 2, atol=1e-12)
    sampled, _ = sampled_group_shapley(game, n_draws=10)
    np.testing.assert_allclose(sampled[:, :, 0], expected, atol=1e-12)


def interacting_game():
    game, _ = linear_game(seed=3, n=4, groups=4, wide=2, background=4)

    def margins(rows, values):
        sums = values.reshape(len(values), 4, 2).sum(axis=2)
        return (sums[:, 0] * sums[:, 1] * sums[:, 2] + np.maximum(sums[:, 2], sums[:, 3]))[:, None]

    return Game(**{**vars(game), "levels": (3,), "margins": margins})


def test_sampling_comes_near_the_exact_value_within_its_stated_error():
    game = interacting_game()
    sampled, error = sampled_group_shapley(game, n_draws=400, seed=1)
    exact = np.stack([exact_group_shapley(game, row) for row in range(4)])
    assert error.max() < 0.5
    away = np.abs(sampled - exact) / np.maximum(error, 1e-9)
    assert (away < 4).all()
    assert np.median(away) > 0.05, "an error stated far too large says nothing"


def test_sampled_values_sum_to_margin_minus_background_mean():
    game = interacting_game()
    sampled, _ = sampled_group_shapley(game, n_draws=8)
    base = np.array([game.margins(np.zeros(4, dtype=int), game.background).mean()] * 4)
    np.testing.assert_allclose(sampled[:, :, 0].sum(axis=1), game.whole[:, 0] - base, atol=1e-10)


def test_sums_by_group_by_hand():
    signed, absolute = by_group(np.array([[1.0, -2.0, 4.0]]), np.array([0, 0, 1]), 3)
    assert signed.tolist() == [[-1.0, 4.0, 0.0]]
    assert absolute.tolist() == [[3.0, 4.0, 0.0]]


@pytest.fixture(scope="module")
def with_gaps(toy_maker):
    """Training and faulty test runs on 200 columns; test runs miss values also in columns that training has in full."""
    bench = toy_maker(n_pairs=4, per_pair=24, n_causes=6)
    bench = bench.with_features(bench.X.columns[::8])
    X = bench.X.to_numpy(copy=True)
    rng = np.random.default_rng(0)
    gaps = rng.random(X.shape) < 0.1
    held = bench.pair.isin(sorted(bench.pair.unique())[:1]).to_numpy()
    gaps[~held, ::2] = False
    X[gaps] = np.nan
    bench = replace(bench, X=pd.DataFrame(X, index=bench.runs, columns=bench.X.columns))
    return bench.take(~held), bench.take(held & bench.faulty.to_numpy())


SMALL = {
    "lightgbm": lambda: Boosting("lightgbm", n_estimators=15),
    "xgboost": lambda: Boosting("xgboost", n_estimators=15),
    "forest": lambda: Forest(n_estimators=15),
    "default": lambda: DEFault(n_estimators=15),
}


@pytest.fixture(scope="module", params=SMALL)
def fitted(request, with_gaps):
    return SMALL[request.param]().fit(with_gaps[0])


def test_tree_values_sum_to_the_margin_at_every_level(fitted, with_gaps):
    train, test = with_gaps
    game = game_of(fitted, test, train, n_background=7)
    values = bench_values(test)
    parts = explained(fitted, test)
    assert {p.level for p in parts} >= {1, 2}
    for part in parts:
        seen, background = part.model.prepare(values[part.rows]), part.model.prepare(game.background)
        for data in (background, None):
            found = tree_shap(part.model, seen, part.target, data)
            assert found.error < 1e-4 * max(np.abs(found.margin).max(), 1.0)
            assert np.abs(found.values).max() > 0
        at = game.levels.index(part.level)
        np.testing.assert_allclose(
            part.model.margin(seen, part.target), game.whole[part.rows, at], rtol=1e-5, atol=1e-6
        )


def test_interventional_values_are_shapley_values_of_the_model(with_gaps):
    """Against exact enumeration over columns, on a forest of few columns: a second implementation."""
    train, test = (bench.with_features(bench.X.columns[:6]) for bench in with_gaps)
    model = Forest(n_estimators=8).fit(train)
    part = explained(model, test)[0]
    values, background = bench_values(test), bench_values(train)[:5]
    found = tree_shap(part.model, values, part.target, background)
    for row in (0, 1):
        target = np.full(64 * 5, part.target[row])

        def value(subsets, row=row, target=target):
            mixed = np.where(subsets[:, None, :], values[row], background[None])
            return part.model.margin(mixed.reshape(-1, 6), target).reshape(64, 5).mean(axis=1)

        np.testing.assert_allclose(found.values[row], exact_shapley(value, 6), atol=1e-6)


def test_columns_know_their_group(toy_bench):
    names, owner = column_owners(toy_bench.X.columns, "encoder")
    assert [names[k] for k in owner] == toy_bench.groups().tolist()
    names, owner = column_owners(["train_loss__epoch_mean__phase_slope", "nobody_knows_me"], "encoder")
    assert [names[k] for k in owner] == ["training_dynamics", "(no group)"]

"""Deletion: on models whose answer is known, because they use one group, or add up."""

from math import comb

import numpy as np
import pandas as pd
import pytest

from experiments.engine.deletion import (
    deletion_curve,
    deletion_test,
    drops_of_others,
    other_subsets,
    random_curves,
    ranked,
)
from experiments.engine.margins import Game

G = 5


def game(weights, n=3):
    """margin = Σ weight of each group × its two columns, all columns 1; deleted columns become 0."""
    spread = np.repeat(np.asarray(weights, float), 2)
    return Game(
        runs=pd.Index([f"r{i}" for i in range(n)]),
        groups=tuple("abcde"),
        levels=(2,),
        inputs=np.ones((n, 2 * G)),
        absent=np.zeros(2 * G),
        background=np.zeros((1, 2 * G)),
        owner=np.repeat(np.arange(G), 2),
        margins=lambda rows, values: (values @ spread)[:, None],
    )


def test_all_subsets_where_they_are_few_else_draws():
    subsets = other_subsets(12, 2)
    assert len(subsets) == comb(12, 2) == len(np.unique(subsets, axis=0))
    assert (subsets.sum(axis=1) == 2).all()
    drawn = other_subsets(12, 4, n_draws=200)
    assert drawn.shape == (200, 12)
    assert (drawn.sum(axis=1) == 4).all()


def test_a_model_of_one_group_falls_only_if_that_group_goes():
    g = game([0, 0, 3, 0, 0])
    others = drops_of_others(g, other_subsets(G, 2))
    right, wrong = np.tile([0.0, 0, 1, 0, 0], (3, 1)), np.tile([2.0, 1, 0, 0, 0], (3, 1))
    found = deletion_test(g, right, 2, others)
    np.testing.assert_allclose(found["margin"], 6.0)
    np.testing.assert_allclose(found["top"], 6.0)
    # The group is in 4 of the 10 subsets of two: mean drop 2.4; 6 subsets drop less, 4 as much.
    np.testing.assert_allclose(found["random"], 2.4)
    np.testing.assert_allclose(found["percentile"], 0.8)
    found = deletion_test(g, wrong, 2, others)
    np.testing.assert_allclose(found["top"], 0.0)
    np.testing.assert_allclose(found["percentile"], 0.3)


def test_curve_of_a_sum_loses_each_part_in_turn():
    g = game([1, 4, 2, 0, 3])
    order = ranked(np.tile([1.0, 4, 2, 0, 3], (3, 1)))
    assert order[0].tolist() == [1, 4, 2, 0, 3]
    np.testing.assert_allclose(deletion_curve(g, order, 2)[0], [20, 12, 6, 2, 0, 0])
    middle = random_curves(g, n_orders=400)[:, :, 0].mean(axis=0)
    np.testing.assert_allclose(middle, 20 * (1 - np.arange(G + 1) / G), atol=0.5)


def test_ties_are_broken_by_chance_not_by_place():
    first = ranked(np.zeros((2000, G)))[:, 0]
    assert np.bincount(first, minlength=G).min() > 300


def test_the_margin_that_stays_missing_is_not_a_percentile():
    g = Game(**{**vars(game([1, 0, 0, 0, 0])), "margins": lambda rows, values: np.full((len(rows), 1), np.nan)})
    found = deletion_test(g, np.zeros((3, G)), 2, drops_of_others(g, other_subsets(G, 2)))
    assert found["percentile"].isna().all()


def test_unknown_level_is_refused():
    g = game([1, 1, 1, 1, 1])
    with pytest.raises(ValueError, match="not in tuple"):
        deletion_test(g, np.zeros((3, G)), 3, drops_of_others(g, other_subsets(G, 2)))

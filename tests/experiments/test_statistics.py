"""Paired tests and ranks against scipy, enumeration and published values."""

from itertools import product

import numpy as np
import pandas as pd
import pytest
from scipy.stats import wilcoxon

from experiments.engine.statistics import (
    average_ranks,
    bootstrap_weights,
    critical_difference,
    paired_tests,
    rank_biserial,
)


@pytest.fixture
def matrix():
    rng = np.random.default_rng(3)
    base = rng.random(8)
    return pd.DataFrame({"a": base, "b": base - 0.1 - 0.02 * rng.random(8), "c": base + rng.normal(0, 0.05, 8)})


def test_sign_flip_p_by_enumeration(matrix):
    difference = (matrix["c"] - matrix["a"]).to_numpy()
    flips = np.array(list(product([-1, 1], repeat=len(difference))))
    expected = np.mean(np.abs((flips * difference).mean(axis=1)) >= abs(difference.mean()) - 1e-12)
    assert paired_tests(matrix, "a").loc["c", "p"] == pytest.approx(expected)


def test_consistent_loss_reaches_the_smallest_p(matrix):
    result = paired_tests(matrix, "a")
    assert result.loc["b", "p"] == pytest.approx(2 / 2**8)
    assert result.loc["b", "effect"] == -1.0
    assert result.loc["b", "p_holm"] == pytest.approx(2 * result.loc["b", "p"])


def test_equal_techniques_are_never_distinguished():
    result = paired_tests(pd.DataFrame({"a": [0.1, 0.5], "b": [0.1, 0.5]}), "a")
    assert result.loc["b", ["difference", "p", "effect"]].tolist() == [0.0, 1.0, 0.0]


def test_rank_biserial_is_wilcoxons_statistic_rescaled():
    d = np.random.default_rng(0).normal(0.3, 1, 15)
    total = 15 * 16 / 2
    minus = wilcoxon(d, alternative="less").statistic  # sum of positive ranks
    assert rank_biserial(d) == pytest.approx((minus - (total - minus)) / total)


def test_ranks_share_ties():
    ranks = average_ranks(pd.DataFrame({"a": [0.9, 0.9], "b": [0.9, 0.1], "c": [0.1, 0.5]}))
    assert ranks.to_dict() == {"a": 1.25, "b": 2.25, "c": 2.5}


def test_critical_difference_of_demsars_table():
    # Demšar (2006), Table 5: q for 4 classifiers at 0.05 is 2.569; his example has 14 data sets: 1.25.
    assert critical_difference(4, 14) == pytest.approx(1.25, abs=0.005)


def test_bootstrap_draws_as_many_pairs_as_there_are():
    weights = bootstrap_weights(7, 50)
    assert (weights.sum(axis=1) == 7).all()
    assert weights.std() > 0

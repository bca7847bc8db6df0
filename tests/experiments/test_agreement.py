"""Agreement with the truth and between rankings: by enumeration, by scipy, by hand."""

from itertools import combinations, permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import kendalltau, spearmanr

from experiments.engine.agreement import (
    best_rank,
    chance_hit,
    compare_rankings,
    hit_table,
    hits,
    kendall,
    pair_interval,
    shuffled,
    spearman,
    top_overlap,
    true_groups,
)
from features.fpg import neighbours
from features.schema import groups

NAMES = groups("encoder")


@pytest.mark.parametrize(("n", "true", "k"), [(6, 1, 1), (6, 1, 3), (7, 3, 2), (5, 5, 1), (6, 4, 3)])
def test_chance_of_a_hit_by_enumeration(n, true, k):
    chosen = list(combinations(range(n), k))
    expected = np.mean([any(g < true for g in subset) for subset in chosen])
    assert chance_hit(n, true, k) == pytest.approx(expected)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 2), min_size=4, max_size=5), st.integers(1, 3), st.integers(1, 14))
def test_a_hit_among_ties_is_the_mean_over_their_orders(scores, k, mask):
    truth = np.array([(mask >> i) & 1 for i in range(len(scores))], dtype=bool)
    if not truth.any():
        return
    found = []
    for order in permutations(range(len(scores))):
        place = np.argsort(order)
        top = sorted(range(len(scores)), key=lambda g: (-scores[g], place[g]))[:k]
        found.append(truth[top].any())
    assert hits(np.array([scores], float), truth[None], k)[0] == pytest.approx(np.mean(found))


def test_constant_scores_hit_at_the_chance_level():
    truth = true_groups(["ffn", "qkv"], "encoder", NAMES, near=True)
    flat = np.zeros(truth.shape)
    expected = [chance_hit(12, int(t), 3) for t in truth.sum(axis=1)]
    np.testing.assert_allclose(hits(flat, truth, 3), expected)
    np.testing.assert_allclose(best_rank(flat, true_groups(["ffn", "qkv"], "encoder", NAMES)), 6.5)


def test_random_rankings_hit_at_the_chance_level():
    rng = np.random.default_rng(0)
    truth = true_groups(["kernel"] * 4000, "encoder", NAMES)
    found = hits(rng.random(truth.shape), truth, 3)
    assert found.mean() == pytest.approx(chance_hit(12, 1, 3), abs=0.03)


def test_true_groups_are_the_operators_own_and_its_neighbours():
    own, near = (true_groups(["kernel"], "encoder", NAMES, near=n)[0] for n in (False, True))
    assert [NAMES[i] for i in np.flatnonzero(own)] == ["attention"]
    assert {NAMES[i] for i in np.flatnonzero(near)} == {"attention", *neighbours("encoder", "attention")}


def test_shuffled_is_the_mean_over_all_deals():
    rng = np.random.default_rng(1)
    scores = rng.integers(0, 3, size=(4, 12)).astype(float)
    truth = true_groups(["ffn", "qkv", "ffn", "score"], "encoder", NAMES)
    for measure in (lambda s, t: hits(s, t, 3), best_rank):
        deals = [measure(scores[list(order)], truth) for order in permutations(range(4))]
        np.testing.assert_allclose(shuffled(measure, scores, truth), np.mean(deals, axis=0))


def test_an_explanation_blind_to_the_run_does_no_better_than_itself_shuffled():
    blind = np.tile(np.arange(12.0), (30, 1))
    categories = ["ffn"] * 10 + ["qkv"] * 10 + ["layernorm"] * 10
    row = hit_table(blind, categories, [f"p{i % 6}" for i in range(30)], "encoder", NAMES)
    for key in ("own1", "own3", "near1", "near3"):
        assert row[key] == pytest.approx(row[f"{key}_shuffled"])
    assert row["rank"] == pytest.approx(row["rank_shuffled"])
    assert row["own1_p"] == row["near3_p"] == 1.0


def test_a_perfect_explanation_is_told_from_chance():
    categories = ["ffn", "qkv", "layernorm", "score", "masking"] * 12
    truth = true_groups(categories, "encoder", NAMES)
    row = hit_table(truth.astype(float), categories, [f"p{i // 6}" for i in range(60)], "encoder", NAMES)
    assert row["own1"] == row["own3"] == 1.0
    assert row["rank"] == 1.0
    assert row["own1_shuffled"] == pytest.approx(0.2)
    assert row["own1_chance"] == pytest.approx(1 / 12)
    assert row["own1_p"] == pytest.approx(2 / 2**10)
    assert (row["own1_low"], row["own1_high"]) == (1.0, 1.0)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=3, max_size=8))
def test_correlations_equal_scipys(rows):
    a, b = np.array(rows, float).T
    if np.ptp(a) == 0 or np.ptp(b) == 0:
        assert np.isnan(spearman(a[None], b[None]))[0]
        assert np.isnan(kendall(a[None], b[None]))[0]
        return
    assert spearman(a[None], b[None])[0] == pytest.approx(spearmanr(a, b).statistic)
    assert kendall(a[None], b[None])[0] == pytest.approx(kendalltau(a, b).statistic)


def test_overlap_by_hand():
    a = np.array([[4.0, 3, 2, 1], [1, 1, 0, 0]])
    b = np.array([[4.0, 1, 3, 2], [0, 1, 1, 0]])
    np.testing.assert_allclose(top_overlap(a, b, 2), [0.5, 0.5])
    np.testing.assert_allclose(top_overlap(a, b, 1), [1.0, 0.25])


def test_compared_rankings_know_what_shuffling_gives():
    rng = np.random.default_rng(2)
    a = rng.normal(size=(5, 12))
    row = compare_rankings(a, a)
    assert row["spearman"] == row["kendall"] == row["top1"] == row["top3"] == pytest.approx(1.0)
    every = [[spearmanr(x, y).statistic for y in a] for x in a]
    assert row["spearman_shuffled"] == pytest.approx(np.mean(every))
    assert row["top3_chance"] == pytest.approx(0.25)
    silent = compare_rankings(np.zeros((5, 12)), a)
    assert silent["defined"] == 0.0


def test_interval_resamples_pairs_not_runs():
    one_pair_decides = np.array([1.0] * 50 + [0.0] * 50)
    low, high = pair_interval(one_pair_decides, ["a"] * 50 + ["b"] * 50)
    assert (low, high) == (0.0, 1.0)
    assert np.isnan(pair_interval(np.ones(3), ["a"] * 3)).all()

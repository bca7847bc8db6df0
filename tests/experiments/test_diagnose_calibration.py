"""Calibration on scores whose probabilities are known by construction."""

import numpy as np
import pandas as pd
import pytest
from sklearn.calibration import calibration_curve
from sklearn.neighbors import KNeighborsRegressor

from experiments.engine.calibration import (
    ALIKE,
    METHODS,
    compare_methods,
    cross_validated,
    expected_calibration_error,
    fit_calibration,
)


def runs(n):
    return pd.Index([f"run{i}" for i in range(n)])


def tables(score, said, faulty, category=None, named=None):
    index = runs(len(score))
    verdicts = pd.DataFrame(
        {"score": score, "faulty": said, "category": named if named is not None else None, "root_cause": None},
        index=index,
    )
    label = np.where(faulty, "ffn", "correct") if category is None else category
    labels = pd.DataFrame({"faulty": faulty, "category": label, "root_cause": label}, index=index)
    return verdicts, labels, pd.Series([f"pair{i % 10}" for i in range(len(score))], index=index)


@pytest.fixture(scope="module")
def known():
    """4,000 overconfident scores whose true probability is a logistic curve of slope 3 around 0.5."""
    rng = np.random.default_rng(0)
    score = rng.uniform(-1, 2, 4000)
    truth = 1 / (1 + np.exp(-3 * (score - 0.5)))
    return score, truth, rng.random(4000) < truth


def test_recovers_known_probabilities(known):
    score, truth, faulty = known
    made = fit_calibration(*tables(score, score > 0.5, faulty))
    found = np.array([made.probability(s, s > 0.5).value for s in score[:200]])
    noise = np.sqrt(truth * (1 - truth) / ALIKE)[:200]
    assert np.abs(found - truth[:200]).mean() < noise.mean(), "no further off than 25 draws are"
    assert np.abs((found - truth[:200]).mean()) < 0.02
    assert made.error < 0.06


def test_is_the_share_among_the_runs_judged_most_alike(known):
    """Against scikit-learn's neighbours."""
    score, _, faulty = known
    made = fit_calibration(*tables(score, score > 0.5, faulty))
    neighbours = KNeighborsRegressor(ALIKE).fit(score[:, None], faulty)
    asked = np.linspace(-0.9, 1.9, 15)
    hits = ALIKE * neighbours.predict(asked[:, None])
    for s, expected in zip(asked, hits, strict=True):
        rate = made.probability(s, True)
        assert (rate.hits, rate.of) == (round(expected), ALIKE)
        assert rate.value == pytest.approx((rate.hits + 2 * faulty.mean()) / (ALIKE + 2))


def test_a_score_beyond_all_seen_is_worth_no_more_than_the_last_were(known):
    score, _, faulty = known
    made = fit_calibration(*tables(score, score > 0.5, faulty))
    assert made.probability(9.0, True) == made.probability(score.max(), True)
    assert made.probability(-9.0, False) == made.probability(score.min(), False)
    assert made.probability(9.0, True).value < 1, "25 runs are no certainty"


def test_a_score_that_says_nothing_gives_the_share_of_faulty_runs():
    rng = np.random.default_rng(1)
    faulty = rng.random(2000) < 0.3
    made = fit_calibration(*tables(rng.random(2000), faulty, faulty))
    assert np.mean([made.probability(s, True).value for s in rng.random(300)]) == pytest.approx(0.3, abs=0.03)


def test_a_verdict_of_rules_is_worth_its_outer_fold_rate():
    said = np.array([True] * 4 + [False] * 6)
    faulty = np.array([True, True, True, False] + [True, True] + [False] * 4)
    made = fit_calibration(*tables(said.astype(float), said, faulty))
    fired, silent = made.probability(1.0, True), made.probability(0.0, False)
    assert (fired.hits, fired.of) == (3, 4)
    assert fired.value == pytest.approx((3 + 2 * 0.5) / (4 + 2)), "drawn towards the 5 of 10 that are faulty"
    assert (silent.hits, silent.of) == (2, 6)


def test_a_verdict_that_was_never_given_has_no_rate():
    made = fit_calibration(*tables(np.zeros(6), np.zeros(6, bool), np.arange(6) % 2 == 0))
    rate = made.probability(1.0, True)
    assert np.isnan(rate.value)
    assert rate.of == 0


def test_a_category_is_worth_its_hit_rate_false_alarms_included():
    said = np.array([True] * 5 + [False])
    faulty = np.array([True, True, True, True, False, True])
    category = ["ffn", "ffn", "qkv", "qkv", "correct", "ffn"]
    named = np.array(["ffn", "ffn", "ffn", "qkv", "ffn", "ffn"], dtype=object)
    made = fit_calibration(*tables(said.astype(float), said, faulty, category, named))
    assert (made.hit("ffn").hits, made.hit("ffn").of) == (2, 4)
    # Of all five names three were right, which counts as five more runs.
    assert made.hit("ffn").value == pytest.approx((2 + 3) / (4 + 5))
    assert made.hit("qkv").value == pytest.approx((1 + 3) / (1 + 5))
    assert made.hit("output").of == 0
    assert np.isnan(made.hit("output").value)


@pytest.mark.parametrize("method", METHODS)
def test_cross_validation_never_sees_the_own_pair(method):
    rng = np.random.default_rng(3)
    score, faulty = rng.random(300), rng.random(300) < 0.5
    pair = pd.Series(np.repeat([f"p{i}" for i in range(5)], 60))
    before = cross_validated(score, faulty, pair, method)
    # Turning the labels of one pair over must leave that pair's own probabilities as they are.
    turned = np.where(pair == "p2", ~faulty, faulty)
    after = cross_validated(score, turned, pair, method)
    own = (pair == "p2").to_numpy()
    np.testing.assert_array_equal(before[own], after[own])
    assert not np.allclose(before[~own], after[~own])


def test_calibration_error_agrees_with_scikit_learns_bins():
    rng = np.random.default_rng(4)
    p = rng.random(1000)
    y = rng.random(1000) < p**2
    share, mean = calibration_curve(y, p, n_bins=10)
    weight = np.histogram(p, bins=10, range=(0, 1))[0] / 1000
    assert expected_calibration_error(p, y) == pytest.approx(np.sum(weight * np.abs(share - mean)))


def test_methods_are_compared_on_ranking_scores_only(known):
    score, _, faulty = known
    verdicts, labels, pair = tables(score, score > 0.5, faulty)
    rules = verdicts.assign(score=verdicts["faulty"].astype(float))
    found = compare_methods({"curve": verdicts, "rules": rules}, labels, pair)
    assert set(found["technique"]) == {"curve"}
    assert found.set_index("method")["error"].between(0, 0.06).all()


def test_tables_of_other_runs_are_refused():
    verdicts, labels, pair = tables(np.arange(4.0), np.ones(4, bool), np.arange(4) % 2 == 0)
    with pytest.raises(ValueError, match="share one index"):
        fit_calibration(verdicts, labels.iloc[::-1], pair)

"""What every registered technique must keep, checked for each by its registry key."""

import json

import pandas as pd
import pytest
from sklearn.base import clone

from baselines.technique import REGISTRY, Technique, Verdicts, technique
from experiments.engine.protocol import outer_folds

# Techniques that read the log are held to the contract on the embedded bench, which carries logs.
VECTOR = [key for key in REGISTRY if technique(key).needs == "vector"]


@pytest.mark.parametrize("key", REGISTRY)
def test_is_an_estimator_with_a_card(key):
    estimator = technique(key)
    assert isinstance(estimator, Technique)
    copy = clone(estimator)
    assert copy.get_params() == estimator.get_params()
    assert estimator.name
    assert estimator.reference
    assert estimator.__doc__
    assert set(estimator.levels) <= {1, 2, 3}


def test_names_are_unique():
    names = [technique(key).name for key in REGISTRY]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("key", VECTOR)
def test_verdicts_on_unseen_pairs(key, toy_bench):
    fold = outer_folds(toy_bench, 3)[0]
    train, test = toy_bench.take(fold.train), toy_bench.take(fold.test)
    estimator = technique(key)
    assert estimator.unsupported(toy_bench) is None
    parameters = estimator.get_params()
    assert estimator.fit(train) is estimator
    assert estimator.get_params() == parameters, "fit must not change parameters"
    verdicts = estimator.predict(test)
    assert isinstance(verdicts, Verdicts)
    pd.testing.assert_index_equal(verdicts.table.index, test.runs)
    assert all(isinstance(json.loads(e), dict) for e in verdicts.table["evidence"])
    if 2 in estimator.levels:
        assert verdicts.table["category"].notna().all()
    again = technique(key).fit(train).predict(test)
    pd.testing.assert_frame_equal(verdicts.table, again.table)


@pytest.mark.parametrize("key", VECTOR)
def test_test_rows_are_judged_one_by_one(key, toy_bench):
    """A verdict must not depend on which other runs are judged beside it (as with scaling on the test table)."""
    if key == "dummy":
        pytest.skip("draws by position, on purpose")
    fold = outer_folds(toy_bench, 3)[0]
    estimator = technique(key).fit(toy_bench.take(fold.train))
    together = estimator.predict(toy_bench.take(fold.test)).table
    alone = estimator.predict(toy_bench.take(fold.test[:3])).table
    pd.testing.assert_frame_equal(together.iloc[:3], alone, check_exact=False, rtol=1e-4)


def test_unknown_key_lists_what_there_is():
    with pytest.raises(KeyError, match="no technique 'nope'; known: dummy"):
        technique("nope")

"""The number of rounds against a loop over all of them, and what can't be held out."""

import lightgbm
import numpy as np
import pytest
import xgboost
from sklearn.metrics import log_loss
from sklearn.model_selection import GroupShuffleSplit

from baselines.boosting import Boosting
from baselines.early_stopping import HELD_OUT, EarlyStopped

LEARNERS = {
    "xgboost": xgboost.XGBClassifier(n_estimators=80, max_depth=2, learning_rate=0.3, n_jobs=1, random_state=0),
    "lightgbm": lightgbm.LGBMClassifier(
        n_estimators=80, num_leaves=3, learning_rate=0.3, n_jobs=1, random_state=0, verbose=-1
    ),
}


@pytest.fixture(scope="module")
def data():
    """Three classes over ten groups, each with an offset of its own, so that late rounds learn the groups by heart."""
    rng = np.random.default_rng(0)
    y = rng.integers(3, size=400)
    groups = rng.integers(10, size=400)
    X = (y[:, None] + rng.normal(size=(400, 6)) * 1.5 + rng.normal(size=(10, 6))[groups]).astype(np.float32)
    return X, np.array(["a", "b", "c"])[y], groups


@pytest.mark.parametrize("learner", LEARNERS)
def test_takes_the_rounds_that_a_loop_over_all_finds_best(learner, data):
    X, y, groups = data
    made = EarlyStopped(LEARNERS[learner], patience=80).fit(X, y, groups)
    train, held = next(GroupShuffleSplit(1, test_size=HELD_OUT, random_state=0).split(X, y, groups))
    losses = []
    for rounds in range(1, 81):
        by_hand = LEARNERS[learner].__class__(**LEARNERS[learner].get_params() | {"n_estimators": rounds})
        by_hand.fit(X[train], np.searchsorted(["a", "b", "c"], y[train]))
        losses.append(log_loss(y[held], by_hand.predict_proba(X[held]), labels=["a", "b", "c"]))
    assert made.rounds_ == int(np.argmin(losses)) + 1
    assert 1 < made.rounds_ < 80


@pytest.mark.parametrize("learner", LEARNERS)
def test_is_then_fitted_to_all_rows(learner, data):
    X, y, groups = data
    made = EarlyStopped(LEARNERS[learner], patience=3).fit(X, y, groups)
    by_hand = LEARNERS[learner].__class__(**LEARNERS[learner].get_params() | {"n_estimators": made.rounds_})
    by_hand.fit(X, np.searchsorted(made.classes_, y))
    np.testing.assert_array_equal(made.predict_proba(X), by_hand.predict_proba(X))
    assert set(made.predict(X)) == {"a", "b", "c"}


@pytest.mark.parametrize("learner", LEARNERS)
def test_takes_all_rounds_where_nothing_can_be_held_out(learner, data):
    X, y, _ = data
    assert EarlyStopped(LEARNERS[learner]).fit(X, y, np.zeros(len(y))).rounds_ == 80, "one group"
    # Each group holds a class of its own: what is held out was never learned.
    assert EarlyStopped(LEARNERS[learner]).fit(X, y, y).rounds_ == 80
    alone = EarlyStopped(LEARNERS[learner]).fit(X[:9], np.repeat("a", 9), np.arange(9))
    assert alone.predict(X[:2]).tolist() == ["a", "a"], "one class"


@pytest.mark.parametrize("structure", ["flat", "hierarchical"])
@pytest.mark.parametrize("learner", LEARNERS)
def test_boosting_stops_early_by_pair(learner, structure, toy_bench):
    made = Boosting(learner, structure, n_estimators=60, patience=3).fit(toy_bench)
    first = made.model_.classifier if structure == "flat" else made.model_.detector
    assert 1 <= first.rounds_ < 60
    assert len(made.predict(toy_bench).table) == len(toy_bench)

"""Both libraries are asked for the same thing."""

import pytest

from baselines.boosting import Boosting


@pytest.mark.parametrize("learner", ["xgboost", "lightgbm"])
def test_leaves_are_penalised_alike_and_by_default(learner, toy_bench):
    assert Boosting(learner).make_classifier().estimator.get_params()["reg_lambda"] == 1.0
    spread = []
    for l2 in (1e-6, 1.0, 1e3):
        fitted = Boosting(learner, l2=l2, n_estimators=5).fit(toy_bench)
        spread.append(fitted.predict(toy_bench).table["score"].std())
    # The larger the penalty, the nearer all scores stay to the share of faulty runs.
    assert spread[0] > spread[1] > 5 * spread[2] > 0

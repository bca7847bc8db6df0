"""The two shapes against direct scikit-learn, and the inner estimator against scikit-learn's own checks."""

import numpy as np
import pandas as pd
import pytest
from sklearn.ensemble import RandomForestClassifier
from sklearn.tree import DecisionTreeClassifier
from sklearn.utils.estimator_checks import parametrize_with_checks

from baselines.hierarchy import EncodedClassifier, fit_flat, fit_hierarchical


@parametrize_with_checks([EncodedClassifier(DecisionTreeClassifier(random_state=0))])
def test_encoded_classifier_is_an_estimator(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    labels = pd.DataFrame(
        [(False, "correct", "correct")] * 30
        + [(True, "ffn", "weight_scaling")] * 15
        + [(True, "ffn", "neuron_dropout")] * 15
        + [(True, "qkv", "dimension")] * 15,
        columns=["faulty", "category", "root_cause"],
    )
    codes = pd.factorize(labels["category"] + labels["root_cause"])[0]
    X = pd.DataFrame(rng.normal(size=(75, 5)) + codes[:, None], columns=list("abcde"))
    return X, labels


def forest():
    return EncodedClassifier(RandomForestClassifier(20, random_state=0))


def test_hierarchy_equals_three_forests_fitted_by_hand(data):
    X, labels = data
    table = fit_hierarchical(forest, X, labels).predict(X).table
    faulty = labels["faulty"].to_numpy()
    array = X.to_numpy(np.float32)
    detector = RandomForestClassifier(20, random_state=0).fit(array, faulty.astype(int))
    np.testing.assert_array_equal(table["score"], detector.predict_proba(array)[:, 1])
    categoriser = RandomForestClassifier(20, random_state=0).fit(array[faulty], labels.loc[faulty, "category"])
    np.testing.assert_array_equal(table["category"], categoriser.predict(array))
    ffn = (labels["category"] == "ffn").to_numpy()
    diagnoser = RandomForestClassifier(20, random_state=0).fit(array[ffn], labels.loc[ffn, "root_cause"])
    called_ffn = (table["category"] == "ffn").to_numpy()
    np.testing.assert_array_equal(table.loc[called_ffn, "root_cause"], diagnoser.predict(array[called_ffn]))


def test_a_category_with_one_root_cause_predicts_it(data):
    X, labels = data
    table = fit_hierarchical(forest, X, labels).predict(X).table
    assert set(table.loc[table["category"] == "qkv", "root_cause"]) == {"dimension"}


def test_flat_splits_its_classes_into_category_and_cause(data):
    X, labels = data
    table = fit_flat(forest, X, labels).predict(X).table
    faulty = labels["faulty"]
    assert (table.loc[faulty, "category"] == labels.loc[faulty, "category"]).mean() > 0.9
    assert (table.loc[faulty, "root_cause"] == labels.loc[faulty, "root_cause"]).mean() > 0.9
    assert table["category"].notna().all()  # a guess given a fault, also on runs called correct


def test_level_1_labels_alone_give_level_1_verdicts(data):
    X, labels = data
    labels = labels.assign(category=None, root_cause=None)
    for fit in (fit_flat, fit_hierarchical):
        table = fit(forest, X, labels).predict(X).table
        assert table["category"].isna().all()
        assert (table["faulty"] == labels["faulty"]).mean() > 0.9


def test_one_class_at_level_1_is_refused(data):
    X, labels = data
    with pytest.raises(ValueError, match="all of one Level-1 class"):
        fit_hierarchical(forest, X[labels["faulty"]], labels[labels["faulty"]])

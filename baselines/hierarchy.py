"""From one kind of classifier to verdicts at three levels: flat, or detector → category → root cause.

Both shapes take any scikit-learn classifier factory, so that a new learner is a few lines.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.preprocessing import LabelEncoder
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from baselines.technique import Verdicts
from features.taxonomy import CORRECT

SEPARATOR = "/"


class EncodedClassifier(ClassifierMixin, BaseEstimator):
    """A classifier over any labels, from one that wants 0..k-1 and at least two classes (such as XGBoost's).

    With a single class in training it predicts that class always: a fold may hold one root cause of a category.
    """

    def __init__(self, estimator):
        self.estimator = estimator

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags

    def fit(self, X, y):
        """Fit on X (n × d, NaN allowed) and y (n labels of any type)."""
        X, y = validate_data(self, X, y, ensure_all_finite="allow-nan", dtype=np.float32)
        check_classification_targets(y)
        self.encoder_ = LabelEncoder().fit(y)
        self.classes_ = self.encoder_.classes_
        self.estimator_ = None
        if len(self.classes_) > 1:
            self.estimator_ = clone(self.estimator).fit(X, self.encoder_.transform(y))
        return self

    def predict_proba(self, X):
        """Class probabilities, n × k in the order of `classes_`."""
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, ensure_all_finite="allow-nan", dtype=np.float32)
        if self.estimator_ is None:
            return np.ones((len(X), 1))
        return self.estimator_.predict_proba(X)

    def predict(self, X):
        """The most probable class of each row."""
        probabilities = self.predict_proba(X)
        return self.classes_[probabilities.argmax(axis=1)]


@dataclass(frozen=True)
class FlatModel:
    """One classifier over "correct" and every (category, root cause) that the training rows hold."""

    classifier: BaseEstimator

    def predict(self, X: pd.DataFrame) -> Verdicts:
        """Score = 1 − P(correct); the verdict is the most probable class, the guess the most probable fault."""
        probabilities = self.classifier.predict_proba(X.to_numpy())
        probabilities = pd.DataFrame(probabilities, index=X.index, columns=self.classifier.classes_)
        healthy = probabilities.get(CORRECT, pd.Series(0.0, index=X.index))
        faults = probabilities.drop(columns=CORRECT, errors="ignore")
        category, root_cause = _split(faults.idxmax(axis=1))
        return Verdicts.build(X.index, 1 - healthy, faults.max(axis=1) > healthy, category, root_cause)


@dataclass(frozen=True)
class HierarchicalModel:
    """A detector over all rows, a category classifier over faulty rows, one root-cause classifier a category."""

    detector: BaseEstimator
    categoriser: BaseEstimator | None
    diagnosers: dict[str, BaseEstimator]

    def predict(self, X: pd.DataFrame) -> Verdicts:
        """Score = P(faulty), faulty from 0.5 on."""
        values = X.to_numpy()
        score = self.detector.predict_proba(values)[:, list(self.detector.classes_).index(True)]
        if self.categoriser is None:
            return Verdicts.build(X.index, score, score >= 0.5)
        category = np.asarray(self.categoriser.predict(values), dtype=object)
        root_cause = np.full(len(X), None, dtype=object)
        for name, diagnoser in self.diagnosers.items():
            rows = category == name
            if rows.any():
                root_cause[rows] = diagnoser.predict(values[rows])
        return Verdicts.build(X.index, score, score >= 0.5, category, root_cause)


def fit_flat(
    make: Callable[[], BaseEstimator], X: pd.DataFrame, labels: pd.DataFrame, groups: pd.Series | None = None
) -> FlatModel:
    """Fit one classifier over (category, root cause), or over whatever levels the labels carry.

    `groups` (of the runs of X) goes to classifiers whose `fit` takes it as a third argument.
    """
    return FlatModel(_fitted(make, X.to_numpy(), _joined(labels), groups))


def fit_hierarchical(
    make: Callable[[], BaseEstimator], X: pd.DataFrame, labels: pd.DataFrame, groups: pd.Series | None = None
) -> HierarchicalModel:
    """Fit Level 1 on all rows and Levels 2 and 3 on faulty ones. Raises ValueError if a level has no row.

    `groups` as in `fit_flat`.
    """
    faulty = labels["faulty"].to_numpy(bool)
    if faulty.all() or not faulty.any():
        raise ValueError("the training rows are all of one Level-1 class; use fewer folds or a larger bench")
    # Classifiers get arrays: scikit-learn checks a table column by column, of which there are thousands.
    values = X.to_numpy()
    detector = _fitted(make, values, faulty, groups)
    category, cause = labels["category"], labels["root_cause"]
    known = faulty & category.notna().to_numpy()
    if not known.any():
        return HierarchicalModel(detector, None, {})
    categoriser = _fitted(make, values[known], category[known].to_numpy(str), groups, known)
    diagnosers = {}
    for name in sorted(category[known].unique()):
        rows = known & (category == name).to_numpy() & cause.notna().to_numpy()
        if rows.any():
            diagnosers[name] = _fitted(make, values[rows], cause[rows].to_numpy(str), groups, rows)
    return HierarchicalModel(detector, categoriser, diagnosers)


def _fitted(
    make: Callable[[], BaseEstimator], X: np.ndarray, y: np.ndarray, groups: pd.Series | None, rows=slice(None)
):
    """A classifier fitted to X and y, which are these rows of what `groups` spans."""
    return make().fit(X, y) if groups is None else make().fit(X, y, groups[rows])


def _joined(labels: pd.DataFrame) -> np.ndarray:
    """One label a row: "correct", "category/root_cause", "category", or "faulty" where no category is known."""
    joined = labels["category"].astype(object).where(labels["category"].notna(), "faulty")
    with_cause = labels["root_cause"].notna() & labels["faulty"]
    joined = joined.where(~with_cause, joined.astype(str) + SEPARATOR + labels["root_cause"].astype(str))
    return joined.where(labels["faulty"], CORRECT).to_numpy(str)


def _split(joined: pd.Series) -> tuple[np.ndarray, np.ndarray]:
    parts = joined.str.partition(SEPARATOR)
    category = parts[0].astype(object).where(parts[0] != "faulty", None)
    root_cause = parts[2].astype(object).where(parts[2] != "", None)
    return category.to_numpy(object), root_cause.to_numpy(object)

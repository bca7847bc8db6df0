"""Early stopping of gradient-boosted trees on training pairs held out, then a fit on all rows with the best rounds."""

from __future__ import annotations

import lightgbm
import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.model_selection import GroupShuffleSplit
from sklearn.preprocessing import LabelEncoder
from sklearn.utils.validation import check_is_fitted

from baselines.hierarchy import EncodedClassifier

HELD_OUT = 0.25
"""Share of the training pairs that say when to stop."""


class EarlyStopped(ClassifierMixin, BaseEstimator):
    """An XGBoost or LightGBM classifier with as many rounds as held-out pairs found best.

    A quarter of the groups is held out; rounds are added until `patience` of them in a row don't lower the log loss
    there. The classifier is then fitted to all rows with the best number of rounds. Where nothing can be held out (one
    group, one class, or no held-out row of a known class) it takes all its rounds.

    Parameters
    ----------
    estimator : XGBClassifier or LGBMClassifier, whose `n_estimators` is the most rounds.
    patience : rounds without improvement.
    seed : of the choice of groups.

    Attributes
    ----------
    rounds_ : the number of rounds it was fitted with.
    classes_ : (k,) labels in the order of `predict_proba`'s columns.
    """

    def __init__(self, estimator, patience: int = 10, seed: int = 0):
        self.estimator = estimator
        self.patience = patience
        self.seed = seed

    def fit(self, X, y, groups):
        """Fit on X (n × d, NaN allowed), y (n labels of any type) and the n labels of groups that stay together."""
        values, y = np.asarray(X, dtype=np.float32), np.asarray(y)
        self.rounds_ = self._best_rounds(values, y, np.asarray(groups)) or self.estimator.get_params()["n_estimators"]
        chosen = clone(self.estimator).set_params(n_estimators=self.rounds_)
        self.classifier_ = EncodedClassifier(chosen).fit(X, y)
        self.classes_ = self.classifier_.classes_
        return self

    def predict_proba(self, X) -> np.ndarray:
        """Class probabilities, n × k in the order of `classes_`."""
        check_is_fitted(self)
        return self.classifier_.predict_proba(X)

    def predict(self, X) -> np.ndarray:
        """The most probable class of each row."""
        check_is_fitted(self)
        return self.classifier_.predict(X)

    def _best_rounds(self, X: np.ndarray, y: np.ndarray, groups: np.ndarray) -> int | None:
        if len(np.unique(groups)) < 2:
            return None
        split = GroupShuffleSplit(1, test_size=HELD_OUT, random_state=self.seed)
        train, held_out = next(split.split(X, y, groups))
        encoder = LabelEncoder().fit(y[train])
        # A class of which nothing is left to learn from says nothing about the number of rounds.
        held_out = held_out[np.isin(y[held_out], encoder.classes_)]
        if len(encoder.classes_) < 2 or not len(held_out):
            return None
        watched = [(X[held_out], encoder.transform(y[held_out]))]
        probe = clone(self.estimator)
        if isinstance(probe, lightgbm.LGBMClassifier):
            stop = lightgbm.early_stopping(self.patience, verbose=False)
            probe.fit(X[train], encoder.transform(y[train]), eval_set=watched, callbacks=[stop])
            return probe.best_iteration_
        probe.set_params(early_stopping_rounds=self.patience)
        probe.fit(X[train], encoder.transform(y[train]), eval_set=watched, verbose=False)
        return probe.best_iteration + 1

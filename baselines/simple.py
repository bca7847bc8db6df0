"""The floor: a dummy that knows only the class shares, and four textbook learners on the same vectors."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier

from baselines.hierarchy import EncodedClassifier, fit_hierarchical
from baselines.technique import Technique, Verdicts
from features.bench import Bench
from features.preparation import finite, prepared


class StratifiedDummy(Technique):
    """Draws every verdict from the training rows' class shares: what a technique must beat to know anything.

    With a share p of faulty rows in training and test, its expected Level-1 precision and recall are both p.
    """

    name = "Dummy (stratified)"
    reference: ClassVar[str] = "scikit-learn, DummyClassifier"
    family = "floor"

    def __init__(self, seed: int = 0):
        self.seed = seed

    def fit(self, bench: Bench) -> StratifiedDummy:
        """Count the classes."""
        self.faulty_share_ = float(bench.faulty.mean())
        known = bench.labels[bench.faulty & bench.labels["category"].notna()]
        self.causes_ = known[["category", "root_cause"]].reset_index(drop=True)
        return self

    def predict(self, bench: Bench) -> Verdicts:
        """A draw per run; the same seed and number of runs give the same draws."""
        rng = np.random.default_rng(self.seed)
        faulty = rng.random(len(bench)) < self.faulty_share_
        category = root_cause = None
        if len(self.causes_):
            drawn = self.causes_.iloc[rng.integers(len(self.causes_), size=len(bench))]
            category, root_cause = drawn["category"].to_numpy(object), drawn["root_cause"].to_numpy(object)
        return Verdicts.build(bench.runs, np.full(len(bench), self.faulty_share_), faulty, category, root_cause)


class _Textbook(Technique):
    """A scikit-learn classifier used three times: detector, category, root cause."""

    def make_classifier(self) -> EncodedClassifier:
        raise NotImplementedError

    def fit(self, bench: Bench) -> _Textbook:
        """Fit the preparation and the three levels on the runs of `bench`."""
        self.preparation_, X = prepared(bench)
        self.model_ = fit_hierarchical(self.make_classifier, X, bench.labels)
        return self

    def predict(self, bench: Bench) -> Verdicts:
        """Verdicts at all levels that the training rows carried."""
        return self.model_.predict(self.preparation_.transform(bench.X))


class Logistic(_Textbook):
    """L2-regularised logistic regression on prepared features."""

    name = "Logistic regression"
    reference = "scikit-learn, LogisticRegression"

    def __init__(self, C: float = 0.01, max_iter: int = 300):
        self.C = C
        self.max_iter = max_iter

    def make_classifier(self) -> EncodedClassifier:
        """An unfitted classifier with this technique's parameters."""
        return EncodedClassifier(LogisticRegression(C=self.C, max_iter=self.max_iter, class_weight="balanced"))

    def search_space(self, trial) -> dict:
        """Regularisation strength."""
        return {"C": trial.suggest_float("C", 1e-4, 1.0, log=True)}


class NearestNeighbours(_Textbook):
    """k nearest training runs in the space of prepared features."""

    name = "k-NN"
    reference = "scikit-learn, KNeighborsClassifier"

    def __init__(self, n_neighbors: int = 5, weights: str = "distance"):
        self.n_neighbors = n_neighbors
        self.weights = weights

    def make_classifier(self) -> EncodedClassifier:
        """An unfitted classifier with this technique's parameters."""
        return EncodedClassifier(_BoundedNeighbours(n_neighbors=self.n_neighbors, weights=self.weights))

    def search_space(self, trial) -> dict:
        """Number of neighbours and their weighting."""
        return {
            "n_neighbors": trial.suggest_int("n_neighbors", 1, 25, log=True),
            "weights": trial.suggest_categorical("weights", ["uniform", "distance"]),
        }


class _BoundedNeighbours(KNeighborsClassifier):
    """k-NN that asks for as many neighbours as there are: a category may have fewer training rows than k."""

    def fit(self, X, y):
        self.n_neighbors = min(self.n_neighbors, len(X))
        return super().fit(X, y)


class Forest(Technique):
    """Random forest; missing values go to the trees as such."""

    name = "Random forest"
    reference = "Breiman, Machine Learning 2001"

    def __init__(
        self, n_estimators: int = 100, max_features: float | str = "sqrt", min_samples_leaf: int = 1, seed: int = 0
    ):
        self.n_estimators = n_estimators
        self.max_features = max_features
        self.min_samples_leaf = min_samples_leaf
        self.seed = seed

    def make_classifier(self) -> EncodedClassifier:
        """An unfitted classifier with this technique's parameters."""
        return EncodedClassifier(
            RandomForestClassifier(
                n_estimators=self.n_estimators,
                max_features=self.max_features,
                min_samples_leaf=self.min_samples_leaf,
                class_weight="balanced",
                random_state=self.seed,
                n_jobs=1,
            )
        )

    def fit(self, bench: Bench) -> Forest:
        """Fit the three levels on the runs of `bench`."""
        self.model_ = fit_hierarchical(self.make_classifier, finite(bench.X), bench.labels)
        return self

    def predict(self, bench: Bench) -> Verdicts:
        """Verdicts at all levels that the training rows carried."""
        return self.model_.predict(finite(bench.X))

    def search_space(self, trial) -> dict:
        """Trees, columns per split, leaf size."""
        return {
            "n_estimators": trial.suggest_int("n_estimators", 50, 400, log=True),
            "max_features": trial.suggest_categorical("max_features", ["sqrt", 0.01, 0.05, 0.1, 0.3]),
            "min_samples_leaf": trial.suggest_int("min_samples_leaf", 1, 8),
        }

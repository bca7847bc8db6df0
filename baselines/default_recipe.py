"""DEFault's recipe for one forest: clean, rank the columns, keep twenty, fit a forest, over a grid if asked.

Jahan et al., "Improved Detection and Diagnosis of Faults in Deep Neural Networks Using Hierarchical and Explainable
Classification" (DEFault), ICSE 2025, and its public code (SigmaJahan/DEFault-DNN-Debugging).
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, TransformerMixin, clone
from sklearn.ensemble import RandomForestClassifier
from sklearn.model_selection import GridSearchCV, StratifiedGroupKFold, StratifiedKFold

GRID = {
    "n_estimators": [50, 100, 200],
    "max_depth": [None, 10, 20, 30],
    "min_samples_split": [2, 5, 10],
    "min_samples_leaf": [1, 2, 4],
    "max_features": ["sqrt", "log2"],
}
"""The published grid: 216 candidates, each fitted five times."""

CHOICES = {
    "search": ("none", "grid"),
    "inner": ("grouped", "random"),
    "balance": ("undersample", "weights", "none"),
    "infinities": ("first", "as_published"),
}
N_FOLDS = 5
N_RANKING_TREES = 100


class Cleaning(TransformerMixin, BaseEstimator):
    """Fill what is missing or infinite, clip to two quantiles, standardise: all of it learnt in `fit`.

    Parameters
    ----------
    infinities : "as_published" takes the mean that fills a gap while infinities are still in the column, so that one
        of them turns every missing value into the largest finite one, and minus infinity becomes the largest as
        well; default "first", which replaces infinities by the largest (smallest) finite value before the mean is
        taken, because a gap should not depend on another run's overflow.
    lower, upper : quantiles that values are clipped to, as published.

    A column without any finite value becomes 0.
    """

    def __init__(
        self, infinities: Literal["first", "as_published"] = "first", lower: float = 0.01, upper: float = 0.99
    ):
        self.infinities = infinities
        self.lower = lower
        self.upper = upper

    def fit(self, X, y=None):
        """Learn from X (n × d, NaN and infinities allowed)."""
        X = np.asarray(X, dtype=float)
        finite = np.where(np.isfinite(X), X, np.nan)
        empty = np.isnan(finite).all(axis=0)
        finite[:, empty] = 0.0
        self.largest_, self.smallest_ = np.nanmax(finite, axis=0), np.nanmin(finite, axis=0)
        if self.infinities == "as_published":
            self.smallest_ = self.largest_
            self.fill_ = np.where(np.isinf(X).any(axis=0), self.largest_, np.nanmean(finite, axis=0))
        else:
            bounded = self._bounded(X)
            bounded[:, empty] = 0.0
            self.fill_ = np.nanmean(bounded, axis=0)
        filled = self._filled(X)
        self.low_, self.high_ = np.quantile(filled, [self.lower, self.upper], axis=0)
        clipped = np.clip(filled, self.low_, self.high_)
        self.mean_ = clipped.mean(axis=0)
        deviation = clipped.std(axis=0)
        # A constant column's deviation is rounding noise, not exactly 0; dividing by it would blow that noise up.
        self.scale_ = np.where(deviation > 10 * np.finfo(float).eps * np.abs(self.mean_), deviation, 1.0)
        return self

    def transform(self, X) -> np.ndarray:
        """Cleaned and standardised, n × d."""
        return (np.clip(self._filled(X), self.low_, self.high_) - self.mean_) / self.scale_

    def _bounded(self, X) -> np.ndarray:
        X = np.asarray(X, dtype=float)
        return np.where(np.isposinf(X), self.largest_, np.where(np.isneginf(X), self.smallest_, X))

    def _filled(self, X) -> np.ndarray:
        bounded = self._bounded(X)
        return np.where(np.isnan(bounded), self.fill_, bounded)


class RecipeForest(ClassifierMixin, BaseEstimator):
    """One of DEFault's classifiers, for any number of classes (a single one is predicted always).

    Parameters
    ----------
    n_selected : columns kept, by the importances of a forest of 100 trees; as published.
    search : "grid" is the published search over `GRID`; default "none", because its 1,080 fits for each of two dozen
        forests take hours; the five parameters below are then the forest's.
    inner : folds of that search. "random" as published; default "grouped", because rows of one group resemble each
        other, and a search that is rewarded for recognising the group picks the deepest forest.
    balance : "undersample" draws every class down to the smallest, as the published tables were; "weights" weighs
        classes instead, "none" does neither.
    infinities : see `Cleaning`.
    clean : False where X is cleaned already, as the published code does with all rows before it splits them; default
        True, so that nothing is learnt from rows to be judged.
    n_estimators, max_depth, min_samples_split, min_samples_leaf, max_features : as in scikit-learn.
    random_state : as published, 42.
    n_jobs : processes of the grid search; the forests themselves use one thread.
    """

    def __init__(
        self,
        n_selected: int = 20,
        search: Literal["none", "grid"] = "none",
        inner: Literal["grouped", "random"] = "grouped",
        balance: Literal["undersample", "weights", "none"] = "none",
        infinities: Literal["first", "as_published"] = "first",
        clean: bool = True,
        n_estimators: int = 100,
        max_depth: int | None = None,
        min_samples_split: int = 2,
        min_samples_leaf: int = 1,
        max_features: str = "sqrt",
        random_state: int = 42,
        n_jobs: int = 1,
    ):
        self.n_selected = n_selected
        self.search = search
        self.inner = inner
        self.balance = balance
        self.infinities = infinities
        self.clean = clean
        self.n_estimators = n_estimators
        self.max_depth = max_depth
        self.min_samples_split = min_samples_split
        self.min_samples_leaf = min_samples_leaf
        self.max_features = max_features
        self.random_state = random_state
        self.n_jobs = n_jobs

    def fit(self, X, y, groups=None):
        """Fit on X (n × d, NaN and infinities allowed), y (n labels) and, for a grouped search, n group labels.

        Raises ValueError if a parameter is none of its choices.
        """
        for name, values in CHOICES.items():
            if getattr(self, name) not in values:
                raise ValueError(f"DEFault: {name} must be one of {', '.join(values)}, not {getattr(self, name)!r}")
        X, y = np.asarray(X, dtype=float), np.asarray(y)
        groups = None if groups is None else np.asarray(groups)
        if self.balance == "undersample":
            rows = undersampled(y, self.random_state)
            X, y, groups = X[rows], y[rows], None if groups is None else groups[rows]
        self.cleaning_ = Cleaning(self.infinities).fit(X) if self.clean else None
        cleaned = self._cleaned(X)
        weights = "balanced" if self.balance == "weights" else None
        ranking = RandomForestClassifier(N_RANKING_TREES, class_weight=weights, random_state=self.random_state)
        self.selected_ = np.argsort(ranking.fit(cleaned, y).feature_importances_)[::-1][: self.n_selected]
        forest = RandomForestClassifier(
            **{name: getattr(self, name) for name in GRID}, class_weight=weights, random_state=self.random_state
        )
        chosen = cleaned[:, self.selected_]
        if self.inner == "random":
            groups = None
        folds = self._folds(y, groups) if self.search == "grid" else None
        if folds is None:
            self.forest_ = forest.fit(chosen, y)
        else:
            search = GridSearchCV(forest, GRID, cv=folds, n_jobs=self.n_jobs).fit(chosen, y, groups=groups)
            self.forest_ = search.best_estimator_
        self.classes_ = self.forest_.classes_
        return self

    def selected(self, X) -> np.ndarray:
        """What the forest sees of X: cleaned, `n_selected` columns in order of importance."""
        return self._cleaned(X)[:, self.selected_]

    def predict(self, X) -> np.ndarray:
        """Labels of the rows of X."""
        return self.forest_.predict(self.selected(X))

    def predict_proba(self, X) -> np.ndarray:
        """Class probabilities, n × k in the order of `classes_`."""
        return self.forest_.predict_proba(self.selected(X))

    def _cleaned(self, X) -> np.ndarray:
        return np.asarray(X, dtype=float) if self.cleaning_ is None else self.cleaning_.transform(X)

    def _folds(self, y, groups):
        """The search's folds, fewer where rows or groups are few; None if nothing can be held out."""
        sizes = np.unique(y, return_counts=True)[1]
        if groups is None:
            n_folds = min(N_FOLDS, sizes.min())
            return StratifiedKFold(n_folds) if n_folds > 1 else None
        n_folds = min(N_FOLDS, len(np.unique(groups)), sizes.max())
        return StratifiedGroupKFold(n_folds) if n_folds > 1 else None


class OneVsRest(ClassifierMixin, BaseEstimator):
    """A forest per class against all others; the verdict is the class whose forest is surest.

    The published tool prints the verdict of each forest; one verdict a run needs a choice between them.
    """

    def __init__(self, recipe: RecipeForest):
        self.recipe = recipe

    def fit(self, X, y, groups=None):
        """Fit on X (n × d), y (n labels) and, for a grouped search, n group labels."""
        y = np.asarray(y)
        self.classes_ = np.unique(y)
        self.forests_ = {label: clone(self.recipe).fit(X, y == label, groups) for label in self.classes_}
        return self

    def positive(self, X) -> np.ndarray:
        """Each forest's probability of its own class: n × k in the order of `classes_`; rows don't add up to 1."""
        return np.column_stack([f.predict_proba(X)[:, list(f.classes_).index(True)] for f in self.forests_.values()])

    def predict(self, X) -> np.ndarray:
        """The class of the surest forest."""
        return self.classes_[self.positive(X).argmax(axis=1)]


def undersampled(y: np.ndarray, random_state: int) -> np.ndarray:
    """Row numbers, in order, with every class drawn down to the size of the smallest."""
    classes, codes, counts = np.unique(y, return_inverse=True, return_counts=True)
    rng = np.random.default_rng(random_state)
    kept = [rng.permutation(np.flatnonzero(codes == k))[: counts.min()] for k in range(len(classes))]
    return np.sort(np.concatenate(kept))

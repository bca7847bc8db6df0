"""DEFault: a forest for faulty or correct, one-vs-rest forests for the category, a forest per category for the cause.

Jahan et al., "Improved Detection and Diagnosis of Faults in Deep Neural Networks Using Hierarchical and Explainable
Classification" (DEFault), ICSE 2025. The recipe of each forest is in `baselines.default_recipe`.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from sklearn.base import clone

from baselines.default_recipe import GRID, OneVsRest, RecipeForest
from baselines.hierarchy import HierarchicalModel
from baselines.technique import Technique, Verdicts
from features.bench import Bench, BenchError

N_EXPLAINED = 5


class DEFault(Technique):
    """DEFault's three levels on the bench's columns and labels.

    The score is the first forest's probability of a fault. Evidence holds the two surest categories with their forests'
    probabilities.

    Parameters
    ----------
    search : "grid" is the published grid search; see `RecipeForest` for why the default is "none". The comparison's
        own tuning draws from the same values (`search_space`).
    inner : "grouped" (default) keeps a (model, task) pair on one side of that search's folds, as the comparison's
        outer folds do; "random" as published.
    balance : of Levels 1 and 2; default "undersample", as the published tables were. Level 3 was not balanced.
    infinities : see `Cleaning`.
    explain : add SHAP values of the five columns that speak most for or against the guessed category, for runs called
        faulty; default False, because they cost more than all the rest of `predict`.
    n_selected, n_estimators, max_depth, min_samples_split, min_samples_leaf, max_features, random_state, n_jobs : see
        `RecipeForest`.

    Departures without a parameter: the published preparation is fitted on all rows before they are split, which a
    technique that sees training rows only can't do, nor should. Its static features of source code, and the static
    forest for layer faults, have no counterpart in a bench of runs: Level 3 uses the same columns as the rest.
    """

    reference = "Jahan et al., DEFault, ICSE 2025"
    family = "learned"
    levels: ClassVar[tuple[int, ...]] = (1, 2, 3)

    def __init__(
        self,
        search: Literal["none", "grid"] = "none",
        inner: Literal["grouped", "random"] = "grouped",
        balance: Literal["undersample", "weights", "none"] = "undersample",
        infinities: Literal["first", "as_published"] = "first",
        explain: bool = False,
        n_selected: int = 20,
        n_estimators: int = 100,
        max_depth: int | None = None,
        min_samples_split: int = 2,
        min_samples_leaf: int = 1,
        max_features: str = "sqrt",
        random_state: int = 42,
        n_jobs: int = 1,
    ):
        self.search = search
        self.inner = inner
        self.balance = balance
        self.infinities = infinities
        self.explain = explain
        self.n_selected = n_selected
        self.n_estimators = n_estimators
        self.max_depth = max_depth
        self.min_samples_split = min_samples_split
        self.min_samples_leaf = min_samples_leaf
        self.max_features = max_features
        self.random_state = random_state
        self.n_jobs = n_jobs

    @property
    def name(self) -> str:
        """As in the leaderboard."""
        return "DEFault (published grid)" if self.search == "grid" else "DEFault"

    def fit(self, bench: Bench) -> DEFault:
        """Fit up to three levels of forests on the runs of `bench`. Raises BenchError if they are of one class."""
        faulty = bench.faulty.to_numpy(bool)
        if faulty.all() or not faulty.any():
            raise BenchError(f"bench {bench.name!r}: the training runs are all of one Level-1 class; use fewer folds")
        shared = RecipeForest().get_params().keys() & self.get_params().keys()
        recipe = RecipeForest(**{name: getattr(self, name) for name in shared})
        detector = clone(recipe).fit(bench.X, faulty, bench.pair)
        self.features_ = list(bench.X.columns)
        self.model_ = HierarchicalModel(detector, *self._diagnosis(bench, recipe))
        return self

    def _diagnosis(self, bench: Bench, recipe: RecipeForest) -> tuple[OneVsRest | None, dict[str, RecipeForest]]:
        """The category's and the causes' forests, from faulty runs only."""
        labels = bench.labels[bench.faulty & bench.labels["category"].notna()]
        if labels.empty:
            return None, {}
        X, pair = bench.X.loc[labels.index], bench.pair.loc[labels.index]
        categoriser = OneVsRest(recipe).fit(X, labels["category"].to_numpy(str), pair)
        unbalanced = clone(recipe).set_params(balance="none")
        diagnosers = {
            category: clone(unbalanced).fit(X.loc[rows.index], rows["root_cause"].to_numpy(str), pair.loc[rows.index])
            for category, rows in labels[labels["root_cause"].notna()].groupby("category", sort=True)
        }
        return categoriser, diagnosers

    def predict(self, bench: Bench) -> Verdicts:
        """Verdicts at all levels that the training rows carried."""
        X = bench.X[self.features_]
        table = self.model_.predict(X).table
        faulty = self.model_.detector.predict(X).astype(bool)
        return Verdicts.build(
            bench.runs, table["score"], faulty, table["category"], table["root_cause"], self._evidence(X, faulty)
        )

    def search_space(self, trial) -> dict:
        """The published grid's values, the number of columns kept and the balancing; nothing beside a grid search."""
        if self.search == "grid":
            return {}
        space = {**GRID, "n_selected": [10, 20, 40, 80], "balance": ["undersample", "weights", "none"]}
        return {name: trial.suggest_categorical(name, values) for name, values in space.items()}

    def _evidence(self, X, faulty: np.ndarray) -> list[dict]:
        categoriser = self.model_.categoriser
        if categoriser is None:
            return [{} for _ in faulty]
        sure = categoriser.positive(X)
        order = np.argsort(-sure, axis=1, kind="stable")[:, :2]
        evidence = [
            {"categories": [[str(categoriser.classes_[k]), round(float(row[k]), 4)] for k in best]}
            for row, best in zip(sure, order, strict=True)
        ]
        if self.explain:
            for label, forest in categoriser.forests_.items():
                rows = np.flatnonzero(faulty & (categoriser.classes_[order[:, 0]] == label))
                for row, columns in zip(rows, _shap(forest, X.iloc[rows], self.features_), strict=True):
                    evidence[row]["shap"] = columns
        return evidence


def _shap(forest: RecipeForest, X, names: list[str]) -> list[list]:
    """For each row, columns and their SHAP values (towards the forest's class), the largest first."""
    if not len(X):
        return []
    import shap  # several seconds to import, and only explanations need it

    values = shap.TreeExplainer(forest.forest_).shap_values(forest.selected(X), check_additivity=False)
    values = np.asarray(values)[..., list(forest.classes_).index(True)]
    columns = np.asarray(names, dtype=object)[forest.selected_]
    best = np.argsort(-np.abs(values), axis=1, kind="stable")[:, :N_EXPLAINED]
    return [[[columns[k], round(float(row[k]), 6)] for k in top] for row, top in zip(values, best, strict=True)]

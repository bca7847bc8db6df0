"""XGBoost and LightGBM on the very same vectors, flat or hierarchical: the learners that the manuscript left out."""

from __future__ import annotations

from typing import ClassVar, Literal

import lightgbm
import xgboost

from baselines.early_stopping import EarlyStopped
from baselines.hierarchy import EncodedClassifier, fit_flat, fit_hierarchical
from baselines.technique import Technique, Verdicts
from features.bench import Bench
from features.preparation import finite

_TITLE = {"xgboost": "XGBoost", "lightgbm": "LightGBM"}


class Boosting(Technique):
    """Gradient-boosted trees.

    Parameters
    ----------
    learner : which library.
    structure : "flat" is one classifier over "correct" and all (category, root cause) pairs; "hierarchical" is a
        detector, a category classifier on faulty rows, and one root-cause classifier per category.
    n_estimators, learning_rate, max_depth : as in either library.
    column_share : share of the columns that each tree sees. The columns are highly redundant (five phases of three
        statistics of one series), so that a fifth costs no accuracy and saves most of the time.
    patience : stop early, see `EarlyStopped`: after so many rounds without a better log loss on held-out training
        pairs. Default None, because on the embedded benches flat trees with a patience of 10 took 8 to 26 % longer
        (the held-out loss is lowest at 30 to 75 of 100 rounds, and the fit to all rows comes on top), and lost .02 to
        .04 at Level 1: F1 goes on rising after the log loss doesn't.
    l2 : penalty on the values of leaves, 1 in both libraries. It is XGBoost's own default; LightGBM's is 0, with which
        dozens of classes of a few runs each make the values of its leaves run away.
    seed : of the column sampling.

    Each fit uses one thread, so that verdicts don't depend on the machine; comparisons run fits side by side.
    Missing values go to the trees as such; infinite ones become missing.
    """

    family: ClassVar[str] = "learned"

    def __init__(
        self,
        learner: Literal["xgboost", "lightgbm"] = "xgboost",
        structure: Literal["flat", "hierarchical"] = "hierarchical",
        n_estimators: int = 100,
        learning_rate: float = 0.15,
        max_depth: int = 4,
        column_share: float = 0.2,
        l2: float = 1.0,
        patience: int | None = None,
        seed: int = 0,
    ):
        self.learner = learner
        self.structure = structure
        self.n_estimators = n_estimators
        self.learning_rate = learning_rate
        self.max_depth = max_depth
        self.column_share = column_share
        self.l2 = l2
        self.patience = patience
        self.seed = seed

    @property
    def name(self) -> str:
        """As in the leaderboard, such as "XGBoost (flat)"."""
        return f"{_TITLE[self.learner]} ({self.structure})"

    @property
    def reference(self) -> str:
        """The library's paper."""
        return {"xgboost": "Chen and Guestrin, KDD 2016", "lightgbm": "Ke et al., NeurIPS 2017"}[self.learner]

    def make_classifier(self) -> EncodedClassifier | EarlyStopped:
        """An unfitted classifier with this technique's parameters."""
        if self.patience is not None:
            return EarlyStopped(self._booster(), self.patience, self.seed)
        return EncodedClassifier(self._booster())

    def _booster(self) -> xgboost.XGBClassifier | lightgbm.LGBMClassifier:
        shared = {
            "n_estimators": self.n_estimators,
            "learning_rate": self.learning_rate,
            "max_depth": self.max_depth,
            "colsample_bytree": self.column_share,
            "reg_lambda": self.l2,
            "n_jobs": 1,
            "random_state": self.seed,
        }
        if self.learner == "xgboost":
            return xgboost.XGBClassifier(**shared, max_bin=64, tree_method="hist")
        return lightgbm.LGBMClassifier(
            **shared,
            num_leaves=2**self.max_depth - 1,
            min_child_samples=5,
            max_bin=63,
            deterministic=True,
            force_col_wise=True,
            verbose=-1,
        )

    def fit(self, bench: Bench) -> Boosting:
        """Fit on the runs of `bench`."""
        fit = fit_flat if self.structure == "flat" else fit_hierarchical
        groups = None if self.patience is None else bench.pair
        self.model_ = fit(self.make_classifier, finite(bench.X), bench.labels, groups)
        self.features_ = list(bench.X.columns)
        return self

    def predict(self, bench: Bench) -> Verdicts:
        """Verdicts at all levels that the training rows carried."""
        return self.model_.predict(finite(bench.X[self.features_]))

    def search_space(self, trial) -> dict:
        """Rounds, step, depth and column share."""
        return {
            "n_estimators": trial.suggest_int("n_estimators", 40, 200, log=True),
            "learning_rate": trial.suggest_float("learning_rate", 0.03, 0.3, log=True),
            "max_depth": trial.suggest_int("max_depth", 2, 6),
            "column_share": trial.suggest_float("column_share", 0.05, 0.5, log=True),
        }

"""DeepFD: three learners on min-max scaled features of a run, and their vote.

Cao et al., "DeepFD: Automated Fault Diagnosis and Localization for Deep Learning Programs", ICSE 2022, and its public
code (ArabelaTso/DeepFD). There the labels are five configuration faults; here Level 1 is faulty or correct by union of
the learners, and Levels 2 and 3, which the published tool doesn't have, are the same learners on our labels.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
import pandas as pd
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.ensemble import RandomForestClassifier
from sklearn.neighbors import KNeighborsClassifier
from sklearn.preprocessing import MinMaxScaler
from sklearn.tree import DecisionTreeClassifier

from baselines.deepfd_features import vectors
from baselines.hierarchy import fit_hierarchical
from baselines.technique import Technique, Verdicts
from features.bench import Bench, BenchError

LEARNERS = ("neighbours", "tree", "forest")
CHOICES = {
    "form": ("vector", "log"),
    "history": ("epoch", "batch"),
    "scaling": ("training", "as_published"),
    "vote": ("union", "majority"),
}


class Committee(ClassifierMixin, BaseEstimator):
    """The three learners; `predict` is their majority, a tie goes to the forest.

    With fewer rows than neighbours, or fewer columns than `max_features`, it takes what there is.
    """

    def __init__(self, n_neighbors=5, tree_depth=5, forest_depth=10, n_trees=32, max_features=60, random_state=0):
        self.n_neighbors = n_neighbors
        self.tree_depth = tree_depth
        self.forest_depth = forest_depth
        self.n_trees = n_trees
        self.max_features = max_features
        self.random_state = random_state

    def fit(self, X, y):
        """Fit each learner on X (n × d, finite) and y (n labels)."""
        X, y = np.asarray(X), np.asarray(y)
        self.learners_ = (
            KNeighborsClassifier(n_neighbors=min(self.n_neighbors, len(X))).fit(X, y),
            DecisionTreeClassifier(criterion="gini", max_depth=self.tree_depth, random_state=self.random_state).fit(
                X, y
            ),
            RandomForestClassifier(
                n_estimators=self.n_trees,
                max_depth=self.forest_depth,
                max_features=min(self.max_features, X.shape[1]),
                random_state=self.random_state,
                n_jobs=1,
            ).fit(X, y),
        )
        self.classes_ = self.learners_[0].classes_
        return self

    def votes(self, X) -> np.ndarray:
        """The label that each learner gives each row: n × 3, in the order of `LEARNERS`."""
        return np.column_stack([learner.predict(np.asarray(X)) for learner in self.learners_])

    def predict(self, X) -> np.ndarray:
        """The label that two learners share; the forest's where all three differ."""
        first, second, forest = self.votes(X).T
        return np.where(first == second, first, forest)

    def predict_proba(self, X) -> np.ndarray:
        """Mean of the learners' probabilities, n × k in the order of `classes_`."""
        return np.mean([learner.predict_proba(np.asarray(X)) for learner in self.learners_], axis=0)


class DeepFD(Technique):
    """KNeighbors(5), DecisionTree(depth 5) and RandomForest(32 trees, depth 10) under one vote.

    The score is the mean of the three probabilities of a fault; evidence holds each learner's Level-1 vote.

    Parameters
    ----------
    form : "vector" gives the learners the bench's columns, as the DEFault++ manuscript did; "log" computes DeepFD's
        own features (`baselines.deepfd_features`) from the bench's log. Default "vector": every bench has it.
    history : log form. The published callback checks after single batches ("batch"); default "epoch", because a batch
        has no validation value, which leaves six of the 22 monitors constant.
    shift : log form. The published tables give each monitor the name of the one four places before and lose four;
        default False, because they are a mistake of file writing.
    scaling : "as_published" fits min-max on the rows to be judged; default "training", because a verdict must not
        depend on which other runs are judged beside it.
    clip : default True: a test value outside the training range is moved to its end, which the published refit does
        by construction; otherwise one diverged run is far from all its neighbours for one column's sake.
    vote : Level 1. "union" of the learners as published; "majority" of them.
    offsets : the published tool judges blocks of nine runs of one program: of a learner's positive votes in a block it
        subtracts a number set by hand per label (0, 2, 3, 6, 5) and asks whether any is left. An int does that at
        Level 1 with consecutive blocks of `block` runs; default None, because it was tuned without a stated
        validation set and our runs are judged one by one.
    block : runs in such a block.
    undersample : the published training draws every fault class and the correct one down to the smallest (at least
        50); default False, because it would leave a few dozen of some hundred runs.
    n_neighbors, tree_depth, forest_depth, n_trees, max_features : as published.
    random_state : the published learners are unseeded; default 0, so that verdicts can be repeated.

    Infinite and missing values become 0 before scaling, as published.
    """

    reference = "Cao et al., DeepFD, ICSE 2022"
    family = "learned"
    levels: ClassVar[tuple[int, ...]] = (1, 2, 3)

    def __init__(
        self,
        form: Literal["vector", "log"] = "vector",
        history: Literal["epoch", "batch"] = "epoch",
        shift: bool = False,
        scaling: Literal["training", "as_published"] = "training",
        clip: bool = True,
        vote: Literal["union", "majority"] = "union",
        offsets: int | None = None,
        block: int = 9,
        undersample: bool = False,
        n_neighbors: int = 5,
        tree_depth: int = 5,
        forest_depth: int = 10,
        n_trees: int = 32,
        max_features: int = 60,
        random_state: int = 0,
    ):
        self.form = form
        self.history = history
        self.shift = shift
        self.scaling = scaling
        self.clip = clip
        self.vote = vote
        self.offsets = offsets
        self.block = block
        self.undersample = undersample
        self.n_neighbors = n_neighbors
        self.tree_depth = tree_depth
        self.forest_depth = forest_depth
        self.n_trees = n_trees
        self.max_features = max_features
        self.random_state = random_state

    @property
    def name(self) -> str:
        """As in the leaderboard: "DeepFD (vector)" or "DeepFD (log)"."""
        return f"DeepFD ({self.form})"

    @property
    def needs(self) -> str:
        """What it reads of a bench."""
        return self.form

    def fit(self, bench: Bench) -> DeepFD:
        """Fit the scaling and three levels of learners on the runs of `bench`.

        Raises BenchError if the log form is asked of a bench whose log lacks a run or a metric, ValueError if a
        parameter is none of its choices.
        """
        for name, values in CHOICES.items():
            if getattr(self, name) not in values:
                raise ValueError(f"DeepFD: {name} must be one of {', '.join(values)}, not {getattr(self, name)!r}")
        features = self._features(bench)
        if self.undersample:
            rows = _undersampled(bench.labels, self.random_state)
            features, labels = features.loc[rows], bench.labels.loc[rows]
        else:
            labels = bench.labels
        self.features_ = list(features.columns)
        self.scaler_ = MinMaxScaler(clip=self.clip).fit(features)
        self.model_ = fit_hierarchical(self._committee, self._scaled(features, self.scaler_), labels)
        return self

    def predict(self, bench: Bench) -> Verdicts:
        """Verdicts at all levels that the training rows carried."""
        features = self._features(bench)[self.features_]
        scaler = MinMaxScaler().fit(features) if self.scaling == "as_published" else self.scaler_
        scaled = self._scaled(features, scaler)
        votes = self.model_.detector.votes(scaled).astype(bool)
        verdicts = self.model_.predict(scaled).table
        evidence = [{"votes": dict(zip(LEARNERS, map(bool, row), strict=True))} for row in votes]
        return Verdicts.build(
            bench.runs, verdicts["score"], self._faulty(votes), verdicts["category"], verdicts["root_cause"], evidence
        )

    def search_space(self, trial) -> dict:
        """The learners' sizes and the vote."""
        return {
            "n_neighbors": trial.suggest_int("n_neighbors", 1, 25, log=True),
            "tree_depth": trial.suggest_int("tree_depth", 2, 12),
            "forest_depth": trial.suggest_int("forest_depth", 4, 20),
            "n_trees": trial.suggest_int("n_trees", 16, 256, log=True),
            "max_features": trial.suggest_int("max_features", 5, 200, log=True),
            "vote": trial.suggest_categorical("vote", ["union", "majority"]),
        }

    def _committee(self) -> Committee:
        return Committee(
            self.n_neighbors, self.tree_depth, self.forest_depth, self.n_trees, self.max_features, self.random_state
        )

    def _features(self, bench: Bench) -> pd.DataFrame:
        table = bench.X if self.form == "vector" else _from_log(bench, self.history, self.shift)
        return table.astype(float).replace([np.inf, -np.inf], np.nan).fillna(0.0)

    @staticmethod
    def _scaled(features: pd.DataFrame, scaler: MinMaxScaler) -> pd.DataFrame:
        return pd.DataFrame(scaler.transform(features), index=features.index, columns=features.columns)

    def _faulty(self, votes: np.ndarray) -> np.ndarray:
        """Level-1 verdicts from the learners' votes (n × 3)."""
        if self.offsets is not None:
            block = np.arange(len(votes)) // self.block
            votes = pd.DataFrame(votes).groupby(block).transform("sum").to_numpy() > self.offsets
        return votes.any(axis=1) if self.vote == "union" else votes.sum(axis=1) >= 2


def _from_log(bench: Bench, history: str, shift: bool) -> pd.DataFrame:
    if bench.log is None:
        raise BenchError(f"bench {bench.name!r} carries no log; use DeepFD(form='vector')")
    table = vectors(bench.log, history, shift)
    absent = bench.runs.difference(table.index)
    if len(absent):
        raise BenchError(
            f"log of bench {bench.name!r}: no per-epoch rows of run {absent[0]!r}; add them or drop the run"
        )
    return table.loc[bench.runs]


def _undersampled(labels: pd.DataFrame, random_state: int, floor: int = 50) -> pd.Index:
    """Run ids with every category and "correct" drawn down to the smallest class, but not under `floor` runs."""
    classes = labels["category"].astype(object).where(labels["category"].notna(), labels["faulty"].astype(str))
    size = max(classes.value_counts().min(), floor)
    rng = np.random.default_rng(random_state)
    kept = [rng.permutation(rows.index)[:size] for _, rows in labels.groupby(classes, sort=True)]
    return labels.index[labels.index.isin(np.concatenate(kept))]

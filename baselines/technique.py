"""The contract that every technique keeps: `Technique`, `Verdicts`, and the registry.

A technique is a scikit-learn estimator over a Bench: the constructor only stores, `fit(bench)` learns and returns
self, `predict(bench)` gives Verdicts. To add one, write a file with a class and add a line to `REGISTRY`.
"""

from __future__ import annotations

import importlib
import json
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np
import pandas as pd
from sklearn.base import BaseEstimator

from features.bench import Bench
from features.taxonomy import CORRECT

VERDICT_COLUMNS = ("score", "faulty", "category", "root_cause", "evidence")


@dataclass(frozen=True, eq=False)
class Verdicts:
    """One row per run, indexed by run id.

    score : float, higher means more likely faulty (a probability where the technique gives one).
    faulty : bool, the Level-1 verdict.
    category, root_cause : the technique's best guess *if* the run is faulty; missing at levels it doesn't serve or
        where it has no guess. Kept on runs that it calls correct too, because the `paper` protocol scores Level 2
        with an oracle Level 1. `path()` is what a user receives.
    evidence : JSON object as str: which rule, group, invariant or prototype; "{}" if none.

    Raises ValueError on construction if a column is missing or has wrong values.
    """

    table: pd.DataFrame

    def __post_init__(self):
        table = self.table
        missing = [c for c in VERDICT_COLUMNS if c not in table]
        if missing:
            raise ValueError(f"verdicts lack the column {missing[0]!r}")
        if not table.index.is_unique:
            raise ValueError("verdicts hold a run twice")
        if not np.isfinite(table["score"].to_numpy(dtype=float)).all():
            raise ValueError("verdicts hold a score that is not finite")
        if table["faulty"].dtype != bool:
            raise ValueError("verdicts: 'faulty' must be bool")
        for column in ("category", "root_cause"):
            if (table[column] == CORRECT).any():
                raise ValueError(f"verdicts: {column} is a guess given a fault, it can't be {CORRECT!r}")
        object.__setattr__(self, "table", table.loc[:, list(VERDICT_COLUMNS)])

    @classmethod
    def build(cls, runs: pd.Index, score, faulty, category=None, root_cause=None, evidence=None) -> Verdicts:
        """Verdicts from arrays of length n; `evidence` is a sequence of JSON-able dicts."""
        n = len(runs)
        return cls(
            pd.DataFrame(
                {
                    "score": np.asarray(score, dtype=float),
                    "faulty": np.asarray(faulty, dtype=bool),
                    "category": np.full(n, None, dtype=object) if category is None else np.asarray(category, object),
                    "root_cause": np.full(n, None, object) if root_cause is None else np.asarray(root_cause, object),
                    "evidence": ["{}"] * n if evidence is None else [json.dumps(e, sort_keys=True) for e in evidence],
                },
                index=runs,
            )
        )

    def path(self) -> pd.DataFrame:
        """What a user receives: `faulty`, `category`, `root_cause`, the last two "correct" on runs called correct."""
        table = self.table.loc[:, ["faulty", "category", "root_cause"]].copy()
        table.loc[~table["faulty"], ["category", "root_cause"]] = CORRECT
        return table


class Technique(BaseEstimator):
    """Base of all techniques.

    Class attributes
    ----------------
    name : as it stands in the leaderboard (a property where it depends on the parameters).
    levels : the label levels it gives a verdict at.
    needs : "vector" (X), "log" (the long log) or "trace".
    tool : what variants of one technique have in common.
    reference : paper or documentation it follows.
    family : heading under which it is listed.
    """

    name: ClassVar[str]
    levels: ClassVar[tuple[int, ...]] = (1, 2, 3)
    needs: ClassVar[Literal["vector", "log", "trace"]] = "vector"
    reference: ClassVar[str] = ""
    family: ClassVar[str] = "learned"

    @property
    def tool(self) -> str:
        """The name without what tells variants apart: "XGBoost" of "XGBoost (flat)"."""
        return self.name.partition(" (")[0]

    def fit(self, bench: Bench) -> Technique:
        """Learn from the runs of `bench`; techniques without anything to learn return self."""
        return self

    def predict(self, bench: Bench) -> Verdicts:
        """Verdicts for every run of `bench`, in its row order."""
        raise NotImplementedError

    def unsupported(self, bench: Bench) -> str | None:
        """Why this technique can't run on this bench, as a sentence; None if it can."""
        if self.needs == "log" and bench.log is None:
            return f"{self.name} reads the per-epoch log, and bench {bench.name!r} carries none"
        if self.needs == "trace":
            return f"{self.name} reads a trace, and bench {bench.name!r} carries none"
        return None

    def search_space(self, trial) -> dict:
        """Parameters drawn from an Optuna trial, for `set_params`; empty if there is nothing to tune."""
        return {}


@dataclass(frozen=True)
class Entry:
    """Where a technique lives and how it is made: import `module`, call `cls` with `parameters`."""

    module: str
    cls: str
    parameters: dict = field(default_factory=dict)


REGISTRY: dict[str, Entry] = {
    "dummy": Entry("baselines.simple", "StratifiedDummy"),
    # Rules. A technique's native form reads the log; its vector form shows what aggregation costs it.
    "autotrainer": Entry("baselines.autotrainer", "AutoTrainer", {"form": "log", "variant": "code"}),
    "autotrainer-paper": Entry("baselines.autotrainer", "AutoTrainer", {"form": "log", "variant": "paper"}),
    "autotrainer-guarded": Entry("baselines.autotrainer", "AutoTrainer", {"form": "log", "variant": "guarded"}),
    "autotrainer-vector": Entry("baselines.autotrainer", "AutoTrainer", {"form": "vector", "variant": "code"}),
    "umlaut": Entry("baselines.umlaut", "Umlaut", {"form": "log"}),
    "umlaut-vector": Entry("baselines.umlaut", "Umlaut", {"form": "vector"}),
    "deepdiagnosis": Entry("baselines.deepdiagnosis", "DeepDiagnosis", {"form": "log", "variant": "code"}),
    "deepdiagnosis-no-dead-node": Entry(
        "baselines.deepdiagnosis", "DeepDiagnosis", {"form": "log", "variant": "code", "dead_node": False}
    ),
    "deepdiagnosis-vector": Entry("baselines.deepdiagnosis", "DeepDiagnosis", {"form": "vector", "variant": "code"}),
    # What TrainCheck is compared with, and its idea on vectors.
    "spike": Entry("baselines.signals", "SignalDetector", {"detector": "spike"}),
    "trend": Entry("baselines.signals", "SignalDetector", {"detector": "trend"}),
    "zscore": Entry("baselines.signals", "SignalDetector", {"detector": "zscore"}),
    "lof": Entry("baselines.signals", "SignalDetector", {"detector": "lof"}),
    "isolation-forest": Entry("baselines.signals", "SignalDetector", {"detector": "isolation_forest"}),
    "invariants": Entry("baselines.invariants", "Invariants"),
    # Learned techniques from the literature.
    "deepfd": Entry("baselines.deepfd", "DeepFD", {"form": "log"}),
    "deepfd-vector": Entry("baselines.deepfd", "DeepFD", {"form": "vector"}),
    "default": Entry("baselines.default", "DEFault"),
    "defaultpp": Entry("baselines.defaultpp.estimator", "DefaultPlusPlus"),
    "defaultpp-no-fpg": Entry("baselines.defaultpp.estimator", "DefaultPlusPlus", {"graph": "none"}),
    "defaultpp-no-sep": Entry("baselines.defaultpp.estimator", "DefaultPlusPlus", {"separation": False}),
    "defaultpp-no-fpg-no-sep": Entry(
        "baselines.defaultpp.estimator", "DefaultPlusPlus", {"graph": "none", "separation": False}
    ),
    "defaultpp-rewired": Entry("baselines.defaultpp.estimator", "DefaultPlusPlus", {"graph": "rewired"}),
    # Learners that the manuscript left out.
    "logistic": Entry("baselines.simple", "Logistic"),
    "knn": Entry("baselines.simple", "NearestNeighbours"),
    "forest": Entry("baselines.simple", "Forest"),
    "xgboost-flat": Entry("baselines.boosting", "Boosting", {"learner": "xgboost", "structure": "flat"}),
    "xgboost": Entry("baselines.boosting", "Boosting", {"learner": "xgboost", "structure": "hierarchical"}),
    "lightgbm-flat": Entry("baselines.boosting", "Boosting", {"learner": "lightgbm", "structure": "flat"}),
    "lightgbm": Entry("baselines.boosting", "Boosting", {"learner": "lightgbm", "structure": "hierarchical"}),
}
"""Key on the command line → entry, in the order of the leaderboard's families."""


def technique(key: str) -> Technique:
    """A fresh instance of a registered technique. Raises KeyError listing what there is."""
    if key not in REGISTRY:
        raise KeyError(f"no technique {key!r}; known: {', '.join(REGISTRY)}")
    entry = REGISTRY[key]
    return getattr(importlib.import_module(entry.module), entry.cls)(**entry.parameters)

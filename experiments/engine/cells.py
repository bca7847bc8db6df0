"""One cell of a comparison: one technique on one outer fold, computed once and kept as an atomic folder.

A cell's folder is named by a hash of all that decides its verdicts: technique and parameters, data, fold, seed,
tuning, and the source of the packages that compute it. A killed comparison, started again, runs only the cells
whose folder isn't there; a folder appears by rename, whole or not at all.
"""

from __future__ import annotations

import json
import resource
import time
import warnings
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

import pandas as pd
from threadpoolctl import threadpool_limits

from baselines.technique import Technique, technique
from experiments.engine.protocol import Fold, Split, outer_folds
from experiments.engine.revision import code_revision, digest_of
from experiments.engine.source import BenchSource, data_fingerprint
from experiments.engine.tuning import Tuned, Tuning, tune
from features.bench import Bench
from features.files import new_folder


@dataclass(frozen=True)
class Cell:
    """What to compute. `technique` is a registry key; `tuning` is None for published or default parameters."""

    source: BenchSource
    technique: str
    fold: int
    n_folds: int = 5
    split: Split = "grouped"
    seed: int = 0
    tuning: Tuning | None = None

    def estimator(self) -> Technique:
        """The unfitted technique with this comparison's seed."""
        estimator = technique(self.technique)
        seeds = {"seed", "random_state"} & set(estimator.get_params())
        return estimator.set_params(**dict.fromkeys(seeds, self.seed))

    def outer_fold(self) -> Fold:
        """The fold of this cell."""
        return _folds(self.source, self.n_folds, self.split, self.seed)[self.fold]

    def parts(self) -> tuple[Bench, Bench]:
        """Training and test rows: the same objects for every technique, so that what one prepared serves the next."""
        return _parts(self.source, self.outer_fold())

    def identity(self) -> dict:
        """Everything that decides the verdicts, as JSON."""
        fold = self.outer_fold()
        return {
            "technique": self.technique,
            "parameters": {k: repr(v) for k, v in sorted(self.estimator().get_params().items())},
            "data": _fingerprint(self.source),
            "train": digest_of(list(map(str, fold.train))),
            "test": digest_of(list(map(str, fold.test))),
            "seed": self.seed,
            "tuning": None if self.tuning is None else self.tuning.identity(),
            "code": code_revision(),
        }

    def folder(self, store: Path) -> Path:
        """Where the result lies once it is computed."""
        return store / f"{self.technique}-{self.fold}-{digest_of(self.identity())}"


@dataclass(frozen=True, eq=False)
class CellResult:
    """What a cell gave: verdicts of the fold's test runs (None if it failed), parameters, cost.

    `history` is the fitted technique's `history_` (a row per epoch), where it has one.
    """

    cell: Cell
    verdicts: pd.DataFrame | None
    tuned: Tuned | None
    cost: dict
    error: str | None = None
    history: pd.DataFrame | None = None

    @property
    def parameters(self) -> dict:
        """What tuning set; empty if untuned."""
        return self.tuned.parameters if self.tuned else {}


def run_cell(cell: Cell, store: Path) -> CellResult:
    """Compute a cell and keep it, or read it back. A technique's exception becomes the result's `error`, not kept."""
    folder = cell.folder(store)
    if folder.exists():
        return read_cell(cell, folder)
    try:
        with warnings.catch_warnings(), threadpool_limits(1):
            warnings.simplefilter("ignore")
            result = _judge(cell, *cell.parts())
    except Exception as error:  # one broken technique must not cost the others their results
        return CellResult(cell, None, None, {}, f"{type(error).__name__}: {error}")
    _keep(folder, result)
    return read_cell(cell, folder)


def read_cell(cell: Cell, folder: Path) -> CellResult:
    """Read a kept cell."""
    tuned = None
    if cell.tuning is not None:
        found = json.loads((folder / "tuned.json").read_text())
        tuned = Tuned(found["parameters"], pd.read_csv(folder / "trials.csv"), found["importances"])
    cost = json.loads((folder / "cost.json").read_text())
    told = folder / "history.csv"
    history = pd.read_csv(told) if told.exists() else None
    return CellResult(cell, pd.read_parquet(folder / "verdicts.parquet"), tuned, cost, history=history)


def _judge(cell: Cell, train: Bench, test: Bench) -> CellResult:
    started = time.perf_counter()
    estimator, found = cell.estimator(), None
    if cell.tuning is not None:
        found = tune(cell.technique, estimator, train, cell.tuning, label=f"{train.arch} fold {cell.fold}")
        estimator.set_params(**found.parameters)
    tuned = time.perf_counter()
    estimator.fit(train)
    fitted = time.perf_counter()
    verdicts = estimator.predict(test).table
    predicted = time.perf_counter()
    if not verdicts.index.equals(test.runs):
        raise ValueError("verdicts don't cover the runs asked for, in their order")
    cost = {
        "seconds_tune": tuned - started,
        "seconds_fit": fitted - tuned,
        "seconds_predict": predicted - fitted,
        "peak_memory_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    return CellResult(cell, verdicts, found, cost, history=getattr(estimator, "history_", None))


def _keep(folder: Path, result: CellResult) -> None:
    with new_folder(folder) as temporary:
        result.verdicts.to_parquet(temporary / "verdicts.parquet")
        if result.tuned is not None:
            found = {"parameters": result.tuned.parameters, "importances": result.tuned.importances}
            (temporary / "tuned.json").write_text(json.dumps(found, indent=1, sort_keys=True))
            result.tuned.trials.to_csv(temporary / "trials.csv", index=False)
        if result.history is not None:
            result.history.reset_index().to_csv(temporary / "history.csv", index=False)
        (temporary / "cost.json").write_text(json.dumps(result.cost, indent=1))
        (temporary / "cell.json").write_text(json.dumps(result.cell.identity(), indent=1))


@cache
def _folds(source: BenchSource, n_folds: int, split: Split, seed: int) -> list[Fold]:
    return outer_folds(source.load(), n_folds, split, seed)


@cache
def _fingerprint(source: BenchSource) -> str:
    return data_fingerprint(source.load())


@lru_cache(maxsize=2)
def _parts(source: BenchSource, fold: Fold) -> tuple[Bench, Bench]:
    bench = source.load()
    return bench.take(fold.train), bench.take(fold.test)

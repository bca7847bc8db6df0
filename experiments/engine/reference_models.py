"""Techniques trained on a whole bench, with their calibration and the bench's novelty: fitted once, then read back.

What was fitted lies in `CACHE`, one folder per item, named by a hash of all that decides it: data, source, parameters.
Folders appear by rename. Models are pickled, so only what this program wrote there under that name is read, never a
path from outside, and nothing that another user owns.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

import joblib
from rich.console import Console

from baselines.technique import REGISTRY, Technique, technique
from experiments.engine.calibration import Calibration
from experiments.engine.novelty import Novelty
from experiments.engine.revision import ROOT, code_revision, digest_of, source_revision
from experiments.engine.source import BenchSource
from features.bench import Bench, BenchError, log_path, read_parquet, single_path
from features.files import new_folder

if TYPE_CHECKING:
    import pandas as pd

    from experiments.engine.cells import Cell

CACHE = ROOT / ".cache" / "diagnose"
RESULTS = ROOT / "results" / "tuned"
_OWN_CODE = tuple(
    f"experiments/engine/{name}.py" for name in ("calibration", "novelty", "reference_models", "single_verdicts")
)
FOLDS = 5
KEPT = 3
"""So many states of one item are kept: of several benches, or of a bench that grows."""


@dataclass(frozen=True)
class Item:
    """One thing that is fitted on a bench and kept: a technique by its registry key, or "novelty"."""

    source: BenchSource
    name: str
    seed: int = 0
    results: Path = RESULTS

    def folder(self, store: Path) -> Path:
        """Where it lies once it is fitted."""
        parameters = {} if self.name == "novelty" else _estimator(self.name, self.seed).get_params()
        identity = {
            "source": repr(self.source),
            "data": _file_fingerprint(self.source),
            "code": code_revision() + source_revision(_OWN_CODE),
            "parameters": {k: repr(v) for k, v in sorted(parameters.items())},
            "seed": self.seed,
        }
        return store / f"{self.name}-{self.source.arch or 'table'}-{digest_of(identity)}"


@dataclass(frozen=True, eq=False)
class Reference:
    """What a run is diagnosed with.

    source : the bench that everything was fitted on; `bench` reads it.
    techniques : registry key → fitted technique.
    calibrations : registry key → calibration on outer-fold verdicts; a technique that can't be judged so has none.
    novelty : what is familiar.
    reasons : one sentence for each technique that can't be fitted on this bench.
    """

    source: BenchSource
    techniques: dict[str, Technique]
    calibrations: dict[str, Calibration]
    novelty: Novelty
    reasons: tuple[str, ...] = field(default=())

    @cached_property
    def bench(self) -> Bench:
        """The bench, read when it is first asked for."""
        return self.source.load()


def fit_reference(
    source: BenchSource,
    keys: list[str] | None = None,
    *,
    console: Console | None = None,
    workers: int | None = None,
    store: Path | None = None,
    results: Path = RESULTS,
) -> Reference:
    """Techniques (registry keys; all but the dummy if None) fitted on a whole bench, read back where they were before.

    Parameters
    ----------
    source : the bench; `BenchSource(arch="encoder")` is the embedded one.
    console : where progress is shown; None is silent.
    workers : processes for what isn't there yet; one per core if None.
    store : the cache's folder, this program's own; `CACHE` if None.
    results : a comparison's folder, whose outer-fold verdicts serve for calibration if they are of the same bench, as
        do those in `single_runs` beside it. Otherwise they are computed, which takes five fits per technique.

    Raises BenchError for an unknown key or a bench that can't be read.
    """
    store = CACHE if store is None else store
    keys = [k for k in REGISTRY if k != "dummy"] if keys is None else list(dict.fromkeys(keys))
    if unknown := [k for k in keys if k not in REGISTRY]:
        raise BenchError(f"no technique {unknown[0]!r}; known: {', '.join(REGISTRY)}")
    items = [Item(source, name, results=results) for name in ("novelty", *keys)]
    missing = [item for item in items if not item.folder(store).exists()]
    if missing:
        _fit_missing(missing, store, console, workers or joblib.cpu_count(only_physical_cores=False))
    kept = {item.name: _read(item.folder(store)) for item in items}
    fitted = {k: kept[k] for k in keys if not isinstance(kept[k], str)}
    return Reference(
        source,
        {k: model for k, (model, _) in fitted.items()},
        {k: calibration for k, (_, calibration) in fitted.items() if calibration is not None},
        kept["novelty"],
        tuple(kept[k] for k in keys if isinstance(kept[k], str)),
    )


def _fit_missing(items: list[Item], store: Path, console: Console | None, workers: int) -> None:
    from experiments.engine.parallel import progress_of, side_by_side

    store.mkdir(parents=True, exist_ok=True)
    items[0].source.load()  # a bench that can't be read is refused before any worker starts
    started = time.perf_counter()
    workers = min(workers, len(items)) if len(items) > 4 else 1
    work: Iterator = side_by_side(partial(_fit, store=store), items, workers)
    if console is None:
        list(work)
        return
    with progress_of(console, "fitting on the bench, once") as progress:
        task = progress.add_task("", total=len(items))
        for name in work:
            progress.update(task, advance=1, description=name)
    seconds = time.perf_counter() - started
    console.print(f"[dim]fitted {len(items)} models on the bench in {seconds:.0f} s; they are kept for next time[/dim]")


def _fit(item: Item, store: Path) -> str:
    """Fit one item and keep it; gives its name."""
    from threadpoolctl import threadpool_limits

    with warnings.catch_warnings(), threadpool_limits(1):
        warnings.simplefilter("ignore")
        made = _novelty(item) if item.name == "novelty" else _technique(item, store)
    with new_folder(item.folder(store)) as temporary:
        joblib.dump(made, temporary / "fitted.joblib")
    _forget_old(item, store)
    return item.name


def _forget_old(item: Item, store: Path) -> None:
    """Remove what was fitted on earlier states of data or code, but for the last few."""
    same = store.glob(f"{item.name}-{item.source.arch or 'table'}-*")
    for folder in sorted(same, key=lambda f: f.stat().st_mtime, reverse=True)[KEPT:]:
        shutil.rmtree(folder, ignore_errors=True)


def _novelty(item: Item) -> Novelty:
    from experiments.engine.novelty import fit_novelty

    beside = single_path(item.source.file)
    return fit_novelty(item.source.load(), read_parquet(beside) if beside.exists() else None)


def _technique(item: Item, store: Path) -> tuple[Technique, Calibration | None] | str:
    """The fitted technique and its calibration, or why it can't be had."""
    bench = item.source.load()
    model = _estimator(item.name, item.seed)
    if reason := model.unsupported(bench):
        return f"{reason}."
    return model.fit(bench), _calibration(item, bench, store)


def _calibration(item: Item, bench: Bench, store: Path) -> Calibration | None:
    from experiments.engine.calibration import fit_calibration

    verdicts = _unseen_verdicts(item, bench, store)
    if verdicts is None:
        return None
    return fit_calibration(verdicts, bench.labels.loc[verdicts.index], bench.pair.loc[verdicts.index])


def _unseen_verdicts(item: Item, bench: Bench, store: Path) -> pd.DataFrame | None:
    """Outer-fold verdicts on runs like the one to be diagnosed, which is a single one; None if there can't be any.

    Where rows are means over seeds and single runs lie beside them, those are judged: a mean is easier. A log is that
    of a single run anyway.
    """
    from experiments.engine.single_verdicts import stored_single_verdicts

    if technique(item.name).needs == "vector" and single_path(item.source.file).exists():
        stored = stored_single_verdicts(item.results.parent / "single_runs", item.name, bench)
        return _single_verdicts(item, bench) if stored is None else stored
    stored = stored_verdicts(item.results / (bench.arch or bench.name), item.name, bench)
    return _outer_verdicts(item, bench, store) if stored is None else stored


def stored_verdicts(folder: Path, key: str, bench: Bench):
    """A technique's outer-fold verdicts as `compare.py` left them, in the bench's order.

    None unless they are of exactly this bench, grouped by pair and untuned.
    """
    from experiments.engine.manifest import record_of
    from experiments.engine.source import data_fingerprint

    record = record_of(folder / "manifest.json", data_fingerprint(bench))
    path = folder / "verdicts" / f"{key}.parquet"
    same = record is not None and record["settings"]["split"] == "grouped" and path.exists()
    verdicts = read_parquet(path) if same else None
    return verdicts.loc[bench.runs] if verdicts is not None and set(bench.runs) == set(verdicts.index) else None


def _outer_verdicts(item: Item, bench: Bench, store: Path) -> pd.DataFrame | None:
    """The same, computed here; None if the technique can't be fitted on a part of the bench."""
    import pandas as pd

    from experiments.engine.cells import run_cell

    found = [run_cell(cell, store / "folds").verdicts for cell in _cells(item, bench)]
    return None if not found or any(f is None for f in found) else pd.concat(found).loc[bench.runs]


def _single_verdicts(item: Item, bench: Bench) -> pd.DataFrame | None:
    """Verdicts on single runs, computed here; None as above."""
    import pandas as pd

    from experiments.engine.single_verdicts import judge_forms

    try:
        found = [judge_forms(cell) for cell in _cells(item, bench)]
    except ValueError:
        return None
    return pd.concat(v[v["form"] == "single"] for v in found) if found else None


def _cells(item: Item, bench: Bench) -> list[Cell]:
    from experiments.engine.cells import Cell

    folds = min(FOLDS, bench.pair.nunique())
    return [Cell(item.source, item.name, fold, folds, seed=item.seed) for fold in range(folds)] if folds > 1 else []


def _read(folder: Path) -> object:
    """What `_fit` kept. Refuses a file of another user: unpickling runs code."""
    path = folder / "fitted.joblib"
    if hasattr(os, "getuid") and path.stat().st_uid != os.getuid():
        raise BenchError(f"{path}: belongs to another user and isn't read; remove the folder {folder.parent}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return joblib.load(path)


def _estimator(key: str, seed: int) -> Technique:
    made = technique(key)
    return made.set_params(**dict.fromkeys({"seed", "random_state"} & set(made.get_params()), seed))


@cache
def _file_fingerprint(source: BenchSource) -> str:
    """Hash of the files that a source reads: a few milliseconds, where the bench's own takes a second."""
    path = source.file
    if not path.exists():
        raise BenchError(f"{path}: no such file; check the path of the bench")
    digest = hashlib.sha256()
    beside = [Path(source.mapping)] if source.mapping and Path(source.mapping).exists() else []
    for file in (path, log_path(path), single_path(path), *beside):
        if file.is_file():
            digest.update(file.read_bytes())
    return digest.hexdigest()

"""The runs of a case's two versions over matched seeds: made once, kept as whole folders, handed on as a bench."""

from __future__ import annotations

import hashlib
import importlib
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from experiments.cases.case import Case
from experiments.cases.training import fine_tune
from experiments.engine.protocol import identical_rows
from experiments.engine.revision import digest_of, source_revision
from features.bench import Bench, BenchError
from features.build.base import base_path
from features.build.families import family
from features.build.killtest import KillTest, kill_test
from features.files import new_folder
from features.taxonomy import CORRECT, Architecture

VERSIONS = {True: "faulty", False: "fixed"}
_CODE = (
    "features/schema.py",
    "features/measure/*.py",
    "features/inject/attention.py",
    "features/inject/locate.py",
    *(f"features/build/{name}.py" for name in ("base", "families", "profile", "run", "validation", "variants")),
    "features/build/tasks/*.py",
    *(f"experiments/cases/{name}.py" for name in ("case", "runs", "training")),
)
"""What can change a run, beside the case's own file: models, tasks, the loop, and what is measured."""


@dataclass(frozen=True, eq=False)
class Finished:
    """One version of a case, run with every seed.

    vectors : seed × feature, float32. qualities : accuracy (encoders) or log-perplexity (decoders) on the test split.
    log : the first seed's, columns of `LOG_COLUMNS` without the run.
    """

    case: Case
    faulty: bool
    seeds: tuple[int, ...]
    qualities: tuple[float, ...]
    vectors: pd.DataFrame
    log: pd.DataFrame

    @property
    def id(self) -> str:
        """The run id; no run of the bench starts like it."""
        return f"real-world-{self.case.name}-{VERSIONS[self.faulty]}"

    @property
    def shown(self) -> float:
        """Mean of the metric that should show the fault, over the first seed's run; NaN where it wasn't measured."""
        values = self.log.loc[self.log["metric"] == self.case.shows, "value"]
        return float(values.mean()) if len(values) else float("nan")


def run_version(case: Case, faulty: bool, seeds: tuple[int, ...], store: Path, sizes: str = "embedded") -> Finished:
    """Run one version of a case with every seed, or read it back if it was run like that before."""
    folder = store / f"{case.name}-{VERSIONS[faulty]}-{_digest(case, seeds, sizes)}"
    if not folder.exists():
        runs = [fine_tune(case, faulty, seed, sizes) for seed in seeds]
        with new_folder(folder) as temporary:
            vectors = pd.DataFrame([run.vector for run in runs], index=pd.Index(seeds, name="seed"))
            vectors.astype(np.float32).to_parquet(temporary / "vectors.parquet")
            runs[0].log.to_parquet(temporary / "log.parquet", index=False)
            (temporary / "qualities.json").write_text(json.dumps([run.quality for run in runs]))
    return Finished(
        case=case,
        faulty=faulty,
        seeds=seeds,
        qualities=tuple(json.loads((folder / "qualities.json").read_text())),
        vectors=pd.read_parquet(folder / "vectors.parquet"),
        log=pd.read_parquet(folder / "log.parquet"),
    )


def worse(faulty: Finished, fixed: Finished) -> KillTest:
    """The bench's kill test: is the faulty version worse, seed by seed?"""
    return kill_test(fixed.qualities, faulty.qualities, higher_is_better=faulty.case.arch == "encoder")


def bench_of(finished: list[Finished], reference: Bench) -> Bench:
    """The versions as rows that techniques fitted on `reference` can judge: its columns, its log's metrics.

    As in the bench a row is the mean over its seeds, and its log that of its first seed. Raises BenchError if a
    column of the reference wasn't measured, or a row is a row of the reference.
    """
    ids = pd.Index([f.id for f in finished], name="run")
    missing = reference.X.columns.difference(finished[0].vectors.columns)
    if len(missing):
        raise BenchError(f"bench {reference.name!r}: column {missing[0]!r} is none that runs are measured in")
    X = pd.DataFrame([f.vectors.astype(np.float64).mean() for f in finished], index=ids)[list(reference.X.columns)]
    labels = pd.DataFrame(
        {
            "faulty": [f.faulty for f in finished],
            "category": [f.case.category if f.faulty else CORRECT for f in finished],
            "root_cause": [f.case.root_cause if f.faulty else CORRECT for f in finished],
        },
        index=ids,
    )
    bench = Bench(
        name=f"real-world-{reference.arch}",
        arch=reference.arch,
        X=X,
        labels=labels,
        pair=pd.Series([f"real-world/{f.case.name}" for f in finished], index=ids),
        log=None if reference.log is None else _logs(finished, reference.log),
    )
    refuse_shared(bench, reference)
    return bench


def refuse_shared(bench: Bench, reference: Bench) -> None:
    """Raise BenchError if a run, a pair or a row of measurements is in both: the reference would have learnt it."""
    for what, own, theirs in (("run", bench.runs, reference.runs), ("pair", bench.pair, reference.pair)):
        shared = set(own) & set(theirs)
        if shared:
            raise BenchError(
                f"bench {reference.name!r} holds the {what} {min(shared)!r} of a real-world case; remove it"
            )
    columns = list(reference.X.columns)
    codes = identical_rows(pd.concat([bench.X[columns], reference.X]))
    copies = np.isin(codes[: len(bench)], codes[len(bench) :])
    if copies.any():
        raise BenchError(f"run {bench.runs[copies.argmax()]!r} is a copy of a run of bench {reference.name!r}")


def of_arch(finished: list[Finished], arch: Architecture) -> list[Finished]:
    """The versions of one architecture's cases."""
    return [f for f in finished if f.case.arch == arch]


def _logs(finished: list[Finished], like: pd.DataFrame) -> pd.DataFrame:
    """The first seeds' logs with the reference log's metrics and types."""
    kept = set(like["metric"].unique())
    parts = [f.log[f.log["metric"].isin(kept)].assign(run=f.id) for f in finished]
    types = {c: t for c, t in like.dtypes.items() if c != "metric"}
    return pd.concat(parts, ignore_index=True)[list(like.columns)].astype(types).astype({"metric": "category"})


def _digest(case: Case, seeds: tuple[int, ...], sizes: str) -> str:
    """Of all that decides a version's runs: case, seeds, sizes, the sources that make and measure them, the base."""
    own = importlib.import_module(case.prepare.__module__).__file__
    told = [case.family, case.task, list(seeds), sizes, _revision(), _file(own), _file(base_path(family(case.family)))]
    return digest_of(told)


def _revision() -> str:
    return source_revision(_CODE)


def _file(path: Path | str) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()

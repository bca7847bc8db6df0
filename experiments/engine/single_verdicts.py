"""Verdicts on single runs by models that learned from means over seeds: what a verdict is worth to who trains once.

Beside a bench of means may lie single runs of some of its rows (`features.bench.single_path`): the same training with
the first seed alone. Each is judged by the model of the outer fold that held its (model, task) pair out.
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path

import pandas as pd
from threadpoolctl import threadpool_limits

from experiments.engine.cells import Cell
from experiments.engine.leaderboard import title_of
from experiments.engine.manifest import record_of
from experiments.engine.source import data_fingerprint
from features.bench import Bench, read_parquet, single_path
from features.files import replacing

FORMS = ("mean", "single")


def file_title(bench: Bench) -> str:
    """What files about a bench are named by: "embedded-encoder"."""
    return title_of(bench, "{}-{}")


def judge_forms(cell: Cell) -> pd.DataFrame:
    """Verdicts on the cell's held-out rows that have a single run, by either form, with columns technique and form."""
    with warnings.catch_warnings(), threadpool_limits(1):
        warnings.simplefilter("ignore")
        train, held_out = cell.parts()
        singles = read_parquet(single_path(cell.source.file))[list(train.X.columns)]
        fitted = cell.estimator().fit(train)
        held_out = held_out.take(held_out.runs.isin(singles.index))
        by_form = {"mean": held_out, "single": replace(held_out, X=singles.loc[held_out.runs])}
        return pd.concat(
            fitted.predict(runs).table.assign(technique=fitted.name, form=form) for form, runs in by_form.items()
        )


def keep_single_verdicts(verdicts: pd.DataFrame, folder: Path, bench: Bench, keys: dict[str, str]) -> None:
    """Write each technique's verdicts on single runs, without evidence; `keys` is name → registry key."""
    singles = verdicts[verdicts["form"] == "single"].drop(columns=["form", "evidence"])
    for name, table in singles.groupby("technique", sort=False):
        with replacing(_file(folder, bench, keys[name])) as temporary:
            table.drop(columns="technique").to_parquet(temporary)


def stored_single_verdicts(folder: Path, key: str, bench: Bench) -> pd.DataFrame | None:
    """A technique's verdicts as `single_runs.py` left them in `folder`; None unless they are of exactly this bench."""
    record = record_of(folder / f"{file_title(bench)}.json", data_fingerprint(bench))
    path = _file(folder, bench, key)
    same = record is not None and key in record["settings"]["techniques"] and path.exists()
    return read_parquet(path) if same else None


def _file(folder: Path, bench: Bench, key: str) -> Path:
    return folder / file_title(bench) / f"{key}.parquet"

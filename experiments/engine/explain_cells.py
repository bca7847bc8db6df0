"""A technique explained on one outer fold, with its faithfulness and stability: computed once, kept as a folder."""

from __future__ import annotations

import json
import time
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from threadpoolctl import threadpool_limits

from experiments.engine.agreement import spearman, top_overlap
from experiments.engine.cells import Cell
from experiments.engine.deletion import (
    deletion_curve,
    deletion_test,
    drops_of_others,
    other_subsets,
    random_curves,
    ranked,
)
from experiments.engine.explanations import GROUP_SHAPLEY, Settings, exact_check, explain_runs, kinds_of, wide
from experiments.engine.margins import Game, game_of
from experiments.engine.revision import digest_of, source_revision
from features.bench import Bench
from features.files import new_folder
from features.fpg import CATEGORY_GROUP

_CODE = tuple(
    f"experiments/engine/{name}.py"
    for name in ("explain_cells", "explanations", "margins", "shapley", "deletion", "agreement")
)


@dataclass(frozen=True)
class ExplainCell:
    """One technique on one outer fold, explained. Its folder appears by rename, whole or not at all."""

    cell: Cell
    settings: Settings

    def folder(self, store: Path) -> Path:
        """Where the tables lie once they are computed; named by all that decides them."""
        identity = {"cell": self.cell.identity(), "settings": asdict(self.settings), "code": source_revision(_CODE)}
        return store / f"explain-{self.cell.technique}-{self.cell.fold}-{digest_of(identity)}"


TABLES = ("verdicts", "groups", "columns", "prototypes", "deletion", "curves", "stability")


def explain_cell(cell: ExplainCell, store: Path) -> str | None:
    """Compute and keep a cell's tables, unless they are there. Gives the technique's error, if it had one."""
    folder = cell.folder(store)
    if folder.exists():
        return None
    try:
        with warnings.catch_warnings(), threadpool_limits(1):
            warnings.simplefilter("ignore")
            tables, checks = _compute(cell)
    except Exception as error:  # one technique that can't be explained must not cost the others their tables
        return f"{cell.cell.technique}, fold {cell.cell.fold}: {type(error).__name__}: {error}"
    with new_folder(folder) as temporary:
        for name, table in tables.items():
            table.to_parquet(temporary / f"{name}.parquet")
        (temporary / "checks.json").write_text(json.dumps(checks, indent=1))
    return None


def _compute(cell: ExplainCell) -> tuple[dict[str, pd.DataFrame], dict]:
    settings, seed = cell.settings, cell.cell.seed
    bench = cell.cell.source.load()
    fold = cell.cell.outer_fold()
    train, test = bench.take(fold.train), bench.take(fold.test)
    # A category that the taxonomy lacks has no component to point at.
    test = test.take((test.faulty & test.labels["category"].isin(CATEGORY_GROUP)).to_numpy())
    started = time.perf_counter()
    technique = cell.cell.estimator().fit(train)
    fitted = time.perf_counter()
    game = game_of(technique, test, train, settings.background, seed)
    made = explain_runs(technique, test, game, settings, seed)
    explained_ = time.perf_counter()
    deletion, curves = _deletions(game, made.groups, settings, seed)
    deleted = time.perf_counter()
    stability = _stability(cell, train, test, made.groups)
    checks = {
        **made.checks,
        **(exact_check(game, settings) if GROUP_SHAPLEY in set(made.groups["kind"]) else {}),
        "seconds_fit": fitted - started,
        "seconds_explain": explained_ - fitted,
        "seconds_delete": deleted - explained_,
        "seconds_stability": time.perf_counter() - deleted,
        "runs": len(test),
    }
    kept = (made.verdicts, made.groups, _as_file(made.columns), made.prototypes, deletion, curves, stability)
    return dict(zip(TABLES, kept, strict=True)), checks


def _deletions(game: Game, groups: pd.DataFrame, settings: Settings, seed: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The test on k groups, and the curves, for every kind: both long, one row per run (and step)."""
    others = drops_of_others(game, other_subsets(len(game.groups), settings.deleted, settings.subsets, seed))
    chance = random_curves(game, settings.orders, seed)
    tests, curves = [], [_curve(chance[:, :, at], game.runs, level, "random") for at, level in enumerate(game.levels)]
    for level, kind in kinds_of(groups):
        scores = wide(groups, level, kind, game.runs, list(game.groups))
        scores = np.where(np.isnan(scores), 0.0, scores)
        test = deletion_test(game, scores, level, others, settings.deleted, seed)
        tests.append(test.assign(level=level, kind=kind).rename_axis("run").reset_index())
        curves.append(_curve(deletion_curve(game, ranked(scores, seed), level), game.runs, level, kind))
    return pd.concat(tests, ignore_index=True).dropna(), pd.concat(curves, ignore_index=True).dropna()


def _stability(cell: ExplainCell, train: Bench, test: Bench, groups: pd.DataFrame) -> pd.DataFrame:
    """Agreement with the explanations of the same technique, fitted on a part of the training runs; first fold only."""
    columns = ["level", "kind", "run", "spearman", "top1"]
    share, seed = cell.settings.resample, cell.cell.seed
    if not share or cell.cell.fold > 0:
        return pd.DataFrame(columns=columns)
    rows = np.random.default_rng(seed + 1).permutation(len(train))[: round(share * len(train))]
    part = train.take(np.sort(rows))
    technique = cell.cell.estimator().fit(part)
    game = game_of(technique, test, part, cell.settings.background, seed)
    again = explain_runs(technique, test, game, cell.settings, seed).groups
    found = []
    for level, kind in kinds_of(groups):
        a, b = (wide(table, level, kind, test.runs, list(game.groups)) for table in (groups, again))
        known = np.isfinite(a).all(axis=1) & np.isfinite(b).all(axis=1)
        if known.any():
            values = {"spearman": spearman(a[known], b[known]), "top1": top_overlap(a[known], b[known], 1)}
            found.append(pd.DataFrame({"level": level, "kind": kind, "run": test.runs[known], **values}))
    return pd.concat(found, ignore_index=True)[columns]


def _curve(margins: np.ndarray, runs: pd.Index, level: int, kind: str) -> pd.DataFrame:
    n, steps = margins.shape
    columns = {"run": np.repeat(np.asarray(runs, dtype=object), steps), "step": np.tile(np.arange(steps), n)}
    return pd.DataFrame({**columns, "margin": margins.reshape(-1), "level": level, "kind": kind})


def _as_file(columns: pd.DataFrame) -> pd.DataFrame:
    return columns.loc[:, (columns != 0).any()] if len(columns) else columns

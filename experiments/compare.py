"""The main job: every technique on the same runs, under the same splits, scored the same way.

python experiments/compare.py                        # embedded bench, both architectures, all techniques
python experiments/compare.py --technique xgboost-flat --technique forest --arch encoder
python experiments/compare.py --bench runs.csv --map my_columns.yaml --split random
"""

from __future__ import annotations

import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import joblib
import pandas as pd
import typer

from baselines.technique import technique as make_technique
from experiments.engine import leaderboard as board_of
from experiments.engine.cells import Cell
from experiments.engine.command import Arch, one_line_errors, registered, sources, terminal
from experiments.engine.leaderboard import Judged
from experiments.engine.manifest import SCRATCH, keep, manifest
from experiments.engine.parallel import run_cells
from experiments.engine.protocol import outer_folds
from experiments.engine.significance import (
    comparisons,
    critical_difference_figure,
    level_matrix,
    tied_with_best,
)
from experiments.engine.source import data_fingerprint
from experiments.engine.tracking import track, tracking_uri
from experiments.engine.tuning import Tuning, prepare_storage, tunable
from features.bench import write_parquet
from features.files import write_text

SplitRule = StrEnum("SplitRule", {"grouped": "grouped", "random": "random"})
Survivors = StrEnum("Survivors", {"drop": "drop", "correct": "correct"})

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
@one_line_errors
def compare(
    bench: Annotated[Path | None, typer.Option(help="Table to use; default: the embedded bench.")] = None,
    map: Annotated[str | None, typer.Option(help="Column map: a built-in name or a YAML/JSON file.")] = None,
    arch: Annotated[Arch, typer.Option(help="Which architecture's runs.")] = Arch.both,
    technique: Annotated[list[str] | None, typer.Option(help="Registry key; repeat for several. Default: all.")] = None,
    level: Annotated[list[int] | None, typer.Option(help="Label levels to report; default: all.")] = None,
    folds: Annotated[int, typer.Option(min=2)] = 5,
    split: Annotated[SplitRule, typer.Option(help="By (model, task) pair, or random rows.")] = SplitRule.grouped,
    seed: int = 0,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes; default: one per core.")] = None,
    scheduler: Annotated[str | None, typer.Option(help="dask scheduler, such as tcp://host:8786.")] = None,
    include_machine_columns: Annotated[bool, typer.Option(help="Let step time, memory and the like in.")] = False,
    survivors: Annotated[Survivors, typer.Option(help="Surviving mutants of published tables.")] = Survivors.drop,
    blocks: Annotated[int | None, typer.Option(help="Contiguous blocks as groups, for tables without run ids.")] = None,
    trials: Annotated[int, typer.Option(min=0, help="Optuna trials per technique and outer fold; 0: untuned.")] = 0,
    timeout: Annotated[float | None, typer.Option(help="Seconds per study.")] = None,
    storage: Annotated[str | None, typer.Option(help="Optuna storage URL.")] = None,
    results: Annotated[Path, typer.Option(help="Folder for tables and verdicts.")] = Path("results"),
    name: Annotated[str, typer.Option(help="Name of this comparison, in MLflow and on disk.")] = SCRATCH,
    mlflow: Annotated[bool, typer.Option(help="Log to MLflow.")] = True,
) -> None:
    """Compare techniques and print, write and log the leaderboard."""
    console = terminal()
    started = time.perf_counter()
    workers = workers or joblib.cpu_count(only_physical_cores=False)
    keys = registered(technique)
    tuning = Tuning(trials, timeout, seed=seed, storage=storage or _default_storage(results)) if trials else None
    prepare_storage(tuning.storage if tuning else None)
    problems = []
    reading = {"include_machine_columns": include_machine_columns, "survivors": survivors.value, "blocks": blocks}
    for source in sources(bench, map, arch, **reading):
        problems += _compare_one(
            source, keys, level, folds, split.value, seed, workers, scheduler, tuning, results, name, mlflow, console
        )
    console.print(f"[dim]{time.perf_counter() - started:.0f} s in all, {workers} workers.[/dim]")
    if problems:
        raise typer.Exit(1)


def _compare_one(
    source, keys, levels, folds, split, seed, workers, scheduler, tuning, results, name, mlflow, console
) -> list[str]:
    """One bench: run, report, keep. Gives the failures."""
    bench = source.load()
    outer_folds(bench, folds, split, seed)  # refuse a bad split before any work
    title = board_of.title_of(bench)
    console.print(
        f"\n[bold]{title}[/bold]: {len(bench)} runs, {bench.X.shape[1]} columns, {bench.pair.nunique()} pairs"
    )
    for note in bench.notes:
        console.print(f"  [dim]{note}[/dim]")
    reasons = {key: make_technique(key).unsupported(bench) for key in keys}
    runnable = [key for key in keys if reasons[key] is None]
    plans = [None] if tuning is None else [None, tuning]
    cells = [
        Cell(source, key, fold, folds, split, seed, plan)
        for fold in range(folds)
        for key in runnable
        for plan in plans
        if plan is None or tunable(make_technique(key))
    ]
    outcome = run_cells(cells, results / ".runs", workers, console, scheduler)
    judged, failed = _collect(bench, outcome)
    for reason in filter(None, reasons.values()):
        console.print(f"  not run: {reason}")
    for message in failed:
        console.print(f"  [red]failed:[/red] {message}")
    if not judged:
        return failed
    board = board_of.leaderboard(judged, seed=seed)
    if levels:
        board = board[board["level"].isin(levels)]
    cost = board_of.costs(judged)
    seconds = cost.assign(total=cost.filter(like="seconds").sum(axis=1)).groupby("technique")["total"].sum()
    tests = comparisons(judged, seed)
    board_of.show(board, seconds, tied_with_best(tests), f"{title}: F1 with 95 % interval over pairs", console)
    console.print(
        "  [dim]≈ not distinguishable from the best at 5 % (Holm); alarm: share of correct runs called faulty[/dim]"
    )
    rules = board_of.fired_rules(judged)
    for name_of, rows in rules.groupby("technique", sort=False):
        top = ", ".join(f"{r.rule} {r.on_faulty}/{r.on_correct}" for r in rows.head(3).itertuples())
        line = f"  [dim]fired on faulty/correct runs, {name_of}: {top}[/dim]"
        console.print(line, highlight=False, no_wrap=True, overflow="ellipsis")
    settings = {"folds": folds, "split": split, "seed": seed, "trials": tuning.trials if tuning else 0}
    record = manifest([bench], [data_fingerprint(bench)], **settings)
    folder = results / name / (bench.arch or bench.name)
    _write(folder, judged, board, tests, rules, cost)
    keep(record, folder / "manifest.json", results)
    if mlflow:
        before = time.perf_counter()
        track(judged, board, record, name)
        console.print(f"  logged to {tracking_uri()} in {time.perf_counter() - before:.1f} s")
    return failed


def _collect(bench, outcome) -> tuple[list[Judged], list[str]]:
    by_entry: dict[tuple[str, bool], list] = {}
    for result in outcome:
        by_entry.setdefault((result.cell.technique, result.cell.tuning is not None), []).append(result)
    judged, failed = [], []
    for (key, tuned), results in by_entry.items():
        errors = [r for r in results if r.error]
        failed += [f"{key}, fold {r.cell.fold}: {r.error}" for r in errors]
        if not errors:
            judged.append(Judged(key, make_technique(key), bench, results, tuned))
    return judged, failed


def _write(folder: Path, judged, board, tests, rules, cost) -> None:
    """Tables for people and machines. All but the costs repeat byte for byte."""
    write_text(folder / "leaderboard.csv", board.to_csv(index=False, float_format="%.6f"))
    write_text(folder / "leaderboard.md", board_of.markdown(board, tied_with_best(tests)))
    write_text(folder / "comparisons.csv", tests.to_csv(index=False, float_format="%.6f"))
    write_text(folder / "rules.csv", rules.to_csv(index=False))
    for level in sorted(board["level"].unique()):
        matrix = level_matrix(judged, level)
        if matrix.shape[1] > 2 and len(matrix) > 1:
            figure = folder / "figures" / f"ranks_L{level}.svg"
            critical_difference_figure(matrix, f"Level {level}, path F1", figure)
    write_text(folder / "classes.csv", board_of.class_scores(judged).to_csv(index=False, float_format="%.6f"))
    write_text(folder / "costs.csv", cost.to_csv(index=False, float_format="%.3f"))
    (folder / "tuned.csv").unlink(missing_ok=True)  # an earlier comparison's may lie there
    if len(tuned := board_of.tuned_parameters(judged)):
        write_text(folder / "tuned.csv", tuned.to_csv(index=False, float_format="%.6f"))
    told = [
        r.history.assign(technique=entry.name, fold=r.cell.fold)
        for entry in judged
        for r in entry.results
        if r.history is not None
    ]
    if told:
        write_text(folder / "history.csv", pd.concat(told).to_csv(index=False, float_format="%.6g"))
    for entry in judged:
        suffix = "-tuned" if entry.tuned else ""
        write_parquet(entry.table, folder / "verdicts" / f"{entry.key}{suffix}.parquet")


def _default_storage(results: Path) -> str:
    (results / ".runs").mkdir(parents=True, exist_ok=True)
    return f"sqlite:///{results / '.runs' / 'optuna.db'}"


if __name__ == "__main__":
    app()

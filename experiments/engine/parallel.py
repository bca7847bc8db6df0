"""Cells side by side: loky processes on one machine, or a dask cluster; progress in one place."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import joblib
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from experiments.engine.cells import Cell, CellResult, run_cell


def run_cells(
    cells: list[Cell], store: Path, workers: int, console: Console, scheduler: str | None = None
) -> list[CellResult]:
    """Run all cells, each in one thread of one process, and give the results in the order of `cells`.

    Cells of one fold are neighbours, so that a worker's cached bench and preparation serve several of them.
    """
    store.mkdir(parents=True, exist_ok=True)
    results: dict[Cell, CellResult] = {}
    with _progress(console) as progress, _backend(scheduler, workers) as parallel:
        task = progress.add_task("", total=len(cells))
        for result in _stream(cells, store, workers, parallel):
            results[result.cell] = result
            progress.update(task, advance=1, description=f"{result.cell.technique}, fold {result.cell.fold}")
    return [results[cell] for cell in cells]


def _stream(cells, store, workers, parallel) -> Iterator[CellResult]:
    if workers == 1 and parallel is None:
        yield from (run_cell(cell, store) for cell in cells)
        return
    parallel = parallel or joblib.Parallel(n_jobs=workers, batch_size=1, return_as="generator_unordered")
    yield from parallel(joblib.delayed(run_cell)(cell, store) for cell in cells)


@contextmanager
def _backend(scheduler: str | None, workers: int):
    if scheduler is None:
        yield None
        return
    try:
        from distributed import Client
    except ImportError:
        raise SystemExit("--scheduler needs dask.distributed: pip install 'transformer-fault-bench[cluster]'") from None
    with Client(scheduler) as client, joblib.parallel_config(backend="dask", wait_for_workers_timeout=60):
        n_jobs = sum(client.nthreads().values())
        yield joblib.Parallel(n_jobs=n_jobs, batch_size=1, return_as="generator_unordered")


def _progress(console: Console) -> Progress:
    return Progress(
        BarColumn(30),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
        console=console,
        transient=True,
    )

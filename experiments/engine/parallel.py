"""Cells side by side: loky processes on one machine, or a dask cluster; progress in one place."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import joblib
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from experiments.engine.cells import Cell, CellResult, run_cell
from features.bench import BenchError


def run_cells(
    cells: list[Cell], store: Path, workers: int, console: Console, scheduler: str | None = None
) -> list[CellResult]:
    """Run the cells that the store doesn't hold, and give the results of all in the order of `cells`.

    Cells of one fold are neighbours, so that a worker's cached rows serve several of them. They are run from last to
    first: rules, which take no time, stand first, and no worker is left with a long fit at the end.
    """
    store.mkdir(parents=True, exist_ok=True)
    kept = {cell for cell in cells if cell.folder(store).exists()}
    results = {cell: run_cell(cell, store) for cell in kept}
    work = partial(run_cell, store=store)
    missing = [cell for cell in reversed(cells) if cell not in kept]
    with progress_of(console) as progress, cluster(scheduler) as client:
        task = progress.add_task("", total=len(cells), completed=len(kept))
        if client is not None:
            workers = sum(client.nthreads().values())
        for result in side_by_side(work, missing, workers, client is not None):
            results[result.cell] = result
            progress.update(task, advance=1, description=f"{result.cell.technique}, fold {result.cell.fold}")
    return [results[cell] for cell in cells]


def side_by_side(work: Callable, items: list, workers: int, remote: bool = False) -> Iterator:
    """`work(item)` for every item, as it is done: here where one worker is asked for, otherwise over processes.

    `remote` says that a cluster is set up by `cluster`, which then does the work whatever their number.
    """
    if workers == 1 and not remote:
        yield from map(work, items)
        return
    parallel = joblib.Parallel(n_jobs=workers, batch_size=1, return_as="generator_unordered")
    with warnings.catch_warnings():
        # loky replaces a worker whose memory grew; the work it was to do goes to its successor.
        warnings.filterwarnings("ignore", message="A worker stopped while some jobs", category=UserWarning)
        yield from parallel(joblib.delayed(work)(item) for item in items)


@contextmanager
def cluster(scheduler: str | None) -> Iterator:
    """A client of the dask cluster at this address, to which joblib sends its work; None where there is no address.

    Raises BenchError if dask.distributed isn't installed.
    """
    if scheduler is None:
        yield None
        return
    try:
        from distributed import Client
    except ImportError:
        raise BenchError("--scheduler needs dask.distributed: pip install 'transformer-fault-bench[cluster]'") from None
    with Client(scheduler) as client, joblib.parallel_config(backend="dask", wait_for_workers_timeout=60):
        yield client


def progress_of(console: Console, what: str | None = None) -> Progress:
    """Bar, count, time taken and left, and what was done last; `what` says first what is being done."""
    return Progress(
        *([] if what is None else [TextColumn(what)]),
        BarColumn(30),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
        console=console,
        transient=True,
    )

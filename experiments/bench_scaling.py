"""How time and memory of each technique grow with the number of runs.

    python experiments/bench_scaling.py --arch encoder --limit 120
    python experiments/bench_scaling.py --technique defaultpp --rows 700 --rows 50000

Rows are drawn from the bench with replacement and jittered by a thousandth of each column's deviation, so that no
two are the same to a tree. Each measurement is a process of its own on one thread, whose peak memory is its own too.
Seconds are processor time, so that other work on the machine counts little. A measurement that takes longer than
--limit is killed and stands in the table as such, and larger sizes of it are skipped.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated

import numpy as np
import pandas as pd
import typer
from rich import box
from rich.console import Console
from rich.table import Table

from baselines.technique import technique as make_technique
from experiments.engine.command import Arch, one_line_errors, registered, terminal
from experiments.engine.manifest import keep, manifest
from experiments.engine.source import BenchSource, data_fingerprint
from features.bench import Bench
from features.files import write_text

PUBLISHED = (5_556, 50_000)
"""Rows of the manuscript's bench, and about ten times as many."""
ONE_THREAD = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "MKL", "OPENBLAS")}

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
@one_line_errors
def main(
    arch: Arch = Arch.encoder,
    technique: Annotated[list[str] | None, typer.Option(help="Registry key; default: all that read vectors.")] = None,
    rows: Annotated[list[int] | None, typer.Option(help="Training rows; default: ×1, ×4, ×16, 5,556, 50,000.")] = None,
    limit: Annotated[float, typer.Option(help="Seconds by the clock after which a measurement is given up.")] = 600,
    results: Path = Path("results/scaling"),
) -> None:
    """Measure and print seconds to fit, milliseconds to judge a run, and peak memory."""
    console = terminal()
    bench = BenchSource(arch=arch.value).load()
    sizes = sorted(rows or {*(times * len(bench) for times in (1, 4, 16)), *PUBLISHED})
    keys = registered(technique, needs="vector")
    record = manifest([bench], [data_fingerprint(bench)], rows=sizes, limit=limit, techniques=keys)
    found = []
    for key in keys:
        found += _measure_all(key, arch.value, sizes, limit, console)
        write_text(results / f"{arch.value}.csv", pd.DataFrame(found).to_csv(index=False, float_format="%.4g"))
    keep(record, results / f"{arch.value}.json", results.parent)
    table = Table("technique", *(f"{n:,} rows" for n in sizes), box=box.SIMPLE_HEAD)
    for name, part in pd.DataFrame(found).groupby("technique", sort=False):
        cells = part.set_index("rows")
        table.add_row(name, *(_cell(cells.loc[n]) if n in cells.index else "–" for n in sizes))
    console.print(table)
    console.print("[dim]seconds to fit, milliseconds to judge a run, MiB added[/dim]")


def _measure_all(key: str, arch: str, sizes: list[int], limit: float, console: Console) -> list[dict]:
    rows = []
    for size in sizes:
        command = [sys.executable, __file__, "--child", key, arch, str(size)]
        console.print(f"[dim]{key}, {size} rows[/dim]")
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=limit, env=os.environ | ONE_THREAD)
        except subprocess.TimeoutExpired:
            rows.append({"technique": key, "rows": size, "error": f"over {limit:.0f} s"})
            break
        if done.returncode:
            rows.append({"technique": key, "rows": size, "error": done.stderr.strip().splitlines()[-1]})
            break
        rows.append(json.loads(done.stdout.splitlines()[-1]))
    return rows


def measure(key: str, arch: str, size: int) -> dict:
    """Fit on `size` resampled runs and judge 200, in this process."""
    import resource

    bench = resample(BenchSource(arch=arch).load(), size)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.process_time()
    fitted = make_technique(key).fit(bench)
    fit = time.process_time() - started
    few = bench.take(np.arange(min(200, size)))
    started = time.process_time()
    fitted.predict(few)
    judge = (time.process_time() - started) / len(few)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "technique": key,
        "rows": size,
        "fit_seconds": fit,
        "judge_ms_per_run": 1e3 * judge,
        "peak_mib": peak / 1024,
        "added_mib": (peak - before) / 1024,
    }


def resample(bench: Bench, size: int, seed: int = 0) -> Bench:
    """`size` runs drawn with replacement, jittered by 0.001 of each column's standard deviation; no log."""
    rng = np.random.default_rng(seed)
    rows = np.sort(rng.integers(len(bench), size=size))
    index = pd.Index([f"{run}#{i}" for i, run in enumerate(bench.runs[rows])], name="run")
    scale = np.nan_to_num(bench.X.std().to_numpy(np.float32), posinf=0.0) * np.float32(1e-3)
    X = bench.X.to_numpy(np.float32)[rows] + rng.standard_normal((size, len(scale)), dtype=np.float32) * scale
    return Bench(
        name=f"{bench.name} × {size}",
        arch=bench.arch,
        X=pd.DataFrame(X, index=index, columns=bench.X.columns),
        labels=bench.labels.iloc[rows].set_axis(index),
        pair=bench.pair.iloc[rows].set_axis(index),
    )


def _cell(row: pd.Series) -> str:
    if isinstance(row.get("error"), str):
        return row["error"]
    return f"{row['fit_seconds']:.1f}, {row['judge_ms_per_run']:.2f}, {row['added_mib']:.0f}"


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        print(json.dumps(measure(sys.argv[2], sys.argv[3], int(sys.argv[4]))))
    else:
        app()

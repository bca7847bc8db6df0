"""How time and memory of each technique grow with the number of runs.

    python experiments/bench_scaling.py --arch encoder --rows 700 --rows 2800 --rows 11200 --rows 50000

Rows are drawn from the bench with replacement and jittered by a thousandth of each column's deviation, so that no
two are the same to a tree. Each measurement is a process of its own, whose peak memory is its own too. One that takes
longer than --limit is killed and stands in the table as such, and larger sizes of it are skipped.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated

import numpy as np
import pandas as pd
import typer
from rich.console import Console
from rich.table import Table

from baselines.technique import REGISTRY
from baselines.technique import technique as make_technique
from experiments.engine.command import Arch, one_line_errors, terminal
from experiments.engine.source import BenchSource
from features.bench import Bench
from features.files import write_text

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
@one_line_errors
def main(
    arch: Arch = Arch.encoder,
    technique: Annotated[list[str] | None, typer.Option(help="Registry key; default: all that read vectors.")] = None,
    rows: Annotated[list[int] | None, typer.Option(help="Training rows; repeat for several.")] = None,
    limit: Annotated[float, typer.Option(help="Seconds after which a measurement is given up.")] = 600,
    results: Path = Path("results/scaling"),
) -> None:
    """Measure and print seconds to fit, milliseconds to judge a run, and peak memory."""
    console = terminal()
    sizes = sorted(rows or [700, 2800, 5556])
    keys = technique or [key for key in REGISTRY if make_technique(key).needs == "vector"]
    found = pd.DataFrame(row for key in keys for row in _measure_all(key, arch.value, sizes, limit, console))
    write_text(results / f"{arch.value}.csv", found.to_csv(index=False, float_format="%.4g"))
    table = Table("technique", *(f"{n} rows: fit s, judge ms, MiB" for n in sizes))
    for name, part in found.groupby("technique", sort=False):
        cells = part.set_index("rows")
        table.add_row(name, *(_cell(cells.loc[n]) if n in cells.index else "–" for n in sizes))
    console.print(table)


def _measure_all(key: str, arch: str, sizes: list[int], limit: float, console: Console) -> list[dict]:
    rows = []
    for size in sizes:
        command = [sys.executable, __file__, "--child", key, arch, str(size)]
        console.print(f"[dim]{key}, {size} rows[/dim]")
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=limit)
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
    started = time.perf_counter()
    fitted = make_technique(key).fit(bench)
    fit = time.perf_counter() - started
    few = bench.take(np.arange(min(200, size)))
    started = time.perf_counter()
    fitted.predict(few)
    judge = (time.perf_counter() - started) / len(few)
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

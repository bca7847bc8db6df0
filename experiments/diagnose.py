"""Diagnose a run of your own: every technique's verdict side by side, what each is worth, why, and what to try first.

python experiments/diagnose.py runs/mine                        # what Recorder or MeasureCallback wrote
python experiments/diagnose.py mine.parquet --html mine.html --json mine.json
python experiments/diagnose.py mine.csv --arch encoder --technique forest --technique lightgbm

The techniques are fitted on the embedded bench on first use and kept in .cache/diagnose. A run of another kind than the
bench's is said to be so before any verdict.
"""

from __future__ import annotations

import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from experiments.engine.command import one_line_errors, registered, terminal
from features.taxonomy import ARCHITECTURES

Architecture = StrEnum("Architecture", {a: a for a in ARCHITECTURES})

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
@one_line_errors
def diagnose(
    run_path: Annotated[Path, typer.Argument(metavar="RUN", help="Folder or file (Parquet, CSV, JSON) of one run.")],
    arch: Annotated[Architecture | None, typer.Option(help="Where the run's columns don't tell.")] = None,
    run: Annotated[str | None, typer.Option(help="Which run, if the file holds several.")] = None,
    technique: Annotated[list[str] | None, typer.Option(help="Registry key; repeat for several. Default: all.")] = None,
    bench: Annotated[Path | None, typer.Option(help="Bench to fit on; default: the embedded one.")] = None,
    map: Annotated[str | None, typer.Option(help="Column map of that bench.")] = None,
    explain: Annotated[bool, typer.Option(help="Explain trees and DEFault++ by SHAP; takes seconds more.")] = False,
    html: Annotated[Path | None, typer.Option(help="Write the diagnosis as a page.")] = None,
    json: Annotated[Path | None, typer.Option(help="Write the diagnosis as data.")] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes on first use; default: one per core.")] = None,
) -> None:
    """Diagnose one run, print and write."""
    started = time.perf_counter()
    keys = registered(technique) if technique else None
    # Imported after the options are known to be right: they bring scikit-learn and pandas along.
    from experiments.engine.diagnosis import diagnose as diagnosis_of
    from experiments.engine.diagnosis_page import to_html, to_json, to_rich
    from experiments.engine.own_run import read_run
    from experiments.engine.reference_models import fit_reference
    from experiments.engine.source import BenchSource
    from features.files import write_text

    console = terminal()
    own = read_run(run_path, arch.value if arch else None, run)
    source = BenchSource(None if bench is None else str(bench), map, own.arch)
    found = diagnosis_of(own, fit_reference(source, keys, console=console, workers=workers), explain)
    console.print(to_rich(found))
    for path, made in ((html, to_html), (json, to_json)):
        if path is not None:
            write_text(path, made(found))
            console.print(f"written: {path}", highlight=False)
    console.print(f"[dim]{time.perf_counter() - started:.1f} s[/dim]", highlight=False)


if __name__ == "__main__":
    app()

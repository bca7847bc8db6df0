"""Diagnose a run of your own: every technique's verdict side by side, what each is worth, why, and what to try first.

python experiments/diagnose.py runs/mine                        # what Recorder or MeasureCallback wrote
python experiments/diagnose.py runs/* --html pages              # several at once: a page for each in that folder
python experiments/diagnose.py mine.parquet --html mine.html --json mine.json
python experiments/diagnose.py mine.csv --arch encoder --technique forest --technique lightgbm

The techniques are fitted on the embedded bench on first use and kept in .cache/diagnose. A run of another kind than the
bench's is said to be so before any verdict. Most of the seconds of a call go into loading the libraries that the
techniques stand on (torch, scikit-learn, XGBoost, LightGBM), once for all runs of the call.
"""

from __future__ import annotations

import re
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
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folder or file (Parquet, CSV, JSON) of a run.")],
    arch: Annotated[Architecture | None, typer.Option(help="Where the run's columns don't tell.")] = None,
    run: Annotated[str | None, typer.Option(help="Which run, if the file holds several.")] = None,
    technique: Annotated[list[str] | None, typer.Option(help="Registry key; repeat for several. Default: all.")] = None,
    bench: Annotated[Path | None, typer.Option(help="Bench to fit on; default: the embedded one.")] = None,
    map: Annotated[str | None, typer.Option(help="Column map of that bench.")] = None,
    explain: Annotated[bool, typer.Option(help="Explain trees and DEFault++ by SHAP; takes seconds more.")] = False,
    html: Annotated[Path | None, typer.Option(help="Write the diagnosis as a page; a folder for several runs.")] = None,
    json: Annotated[Path | None, typer.Option(help="Write the diagnosis as data; a folder for several runs.")] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes on first use; default: one per core.")] = None,
) -> None:
    """Diagnose one run or several, print and write."""
    # Imports took processor time and nothing else; they are part of what a call costs.
    started = time.perf_counter() - time.process_time()
    keys = registered(technique) if technique else None
    # Imported after the options are known to be right: they bring scikit-learn and pandas along.
    from experiments.engine.diagnosis import diagnose as diagnosis_of
    from experiments.engine.diagnosis_page import to_html, to_json, to_rich
    from experiments.engine.own_run import read_run
    from experiments.engine.reference_models import fit_reference
    from experiments.engine.source import BenchSource
    from features.files import write_text

    console = terminal()
    # All are read before the first is judged, so that a mistyped path costs no wait.
    own = [read_run(path, arch.value if arch else None, run) for path in runs]
    sources = [BenchSource(None if bench is None else str(bench), map, one.arch) for one in own]
    references = {s: fit_reference(s, keys, console=console, workers=workers) for s in dict.fromkeys(sources)}
    loaded = time.perf_counter()
    for number, (one, source) in enumerate(zip(own, sources, strict=True)):
        found = diagnosis_of(one, references[source], explain)
        console.print(to_rich(found))
        for path, made, suffix in ((html, to_html, ".html"), (json, to_json, ".json")):
            if path is not None:
                file = path if len(own) == 1 else path / f"{number}-{_file_name(one.runs[0])}{suffix}"
                write_text(file, made(found))
                console.print(f"written: {file}", highlight=False)
    done = time.perf_counter()
    each = f", {(done - loaded) / len(own):.1f} s a run" if len(own) > 1 else ""
    console.print(f"[dim]{loaded - started:.1f} s to load, {done - loaded:.1f} s to judge{each}[/dim]", highlight=False)


def _file_name(run: object) -> str:
    return re.sub(r"[^\w.-]+", "-", str(run))


if __name__ == "__main__":
    app()

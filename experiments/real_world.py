"""Faults that people reported in public, rebuilt on the bench's models: what every technique says of them.

python experiments/real_world.py                                     # all cases, five seeds, all techniques
python experiments/real_world.py --case jax-23349 --seeds 2 --technique forest --technique autotrainer

Each case is run in a faulty and in a fixed version that differ in nothing else (DEFault++ manuscript, Table 12).
Techniques are fitted on the whole embedded bench, which holds none of these runs. Writes verdicts.parquet, runs.csv,
table.md and manifest.json; finished runs and fitted techniques are kept, so that a second start goes on.
"""

from __future__ import annotations

import hashlib
import warnings
from pathlib import Path
from typing import Annotated

import pandas as pd
import transformers
import typer
from rich import box
from rich.console import Console
from rich.table import Table

from experiments.cases import Case, cases
from experiments.cases import case as case_named
from experiments.cases.judging import RIGHT, by_case, by_technique, judge, kinds
from experiments.cases.report import case_lines, markdown, reported, technique_lines
from experiments.cases.runs import VERSIONS, Finished, bench_of, of_arch, run_version, worse
from experiments.cases.training import seeds as seeds_of
from experiments.engine.command import one_line_errors, registered, terminal
from experiments.engine.manifest import keep, manifest
from experiments.engine.parallel import progress_of
from experiments.engine.reference_models import fit_reference
from experiments.engine.source import BenchSource, data_fingerprint
from features.bench import write_parquet
from features.files import write_text
from features.taxonomy import ARCHITECTURES

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
@one_line_errors
def real_world(
    case: Annotated[list[str] | None, typer.Option(help="Name of a case; repeat for several. Default: all.")] = None,
    seeds: Annotated[int, typer.Option(min=1, max=5, help="Matched seeds; five are needed to call a fault worse.")] = 5,
    technique: Annotated[list[str] | None, typer.Option(help="Registry key; repeat for several. Default: all.")] = None,
    workers: Annotated[int, typer.Option(min=1, help="Processes that fit techniques not yet fitted.")] = 1,
    results: Annotated[Path, typer.Option(help="Folder for tables and verdicts.")] = Path("results/real_world"),
) -> None:
    """Run the cases, judge both versions of each, print and write the tables."""
    console = terminal()
    chosen = [case_named(name) for name in dict.fromkeys(case)] if case else list(cases())
    keys = registered(technique)
    finished = run_all(chosen, seeds_of(seeds), results.parent / ".runs" / "real_world", console)
    verdicts, runs, benches = [], [], []
    for arch in ARCHITECTURES:
        own = of_arch(finished, arch)
        if not own:
            continue
        reference = fit_reference(BenchSource(arch=arch), keys, console=console, workers=workers)
        for reason in reference.reasons:
            console.print(f"[dim]{arch}: not run: {reason}[/dim]")
        bench = bench_of(own, reference.bench)
        verdicts.append(judge(bench, reference))
        runs.append(describe(own, bench.X.columns).join(kinds(bench, reference)))
        benches += [reference.bench, bench]
    verdicts, runs = pd.concat(verdicts, ignore_index=True), pd.concat(runs)
    show(verdicts, runs, chosen, console)
    record = manifest(
        benches,
        [data_fingerprint(bench) for bench in benches],
        cases={c.name: c.issue for c in chosen},
        seeds=list(seeds_of(seeds)),
        techniques=list(verdicts["technique"].unique()),
        vectors={f.id: hashlib.sha256(f.vectors.to_numpy().tobytes()).hexdigest()[:16] for f in finished},
    )
    write_parquet(verdicts, results / "verdicts.parquet", index=False)
    write_text(results / "runs.csv", runs.to_csv(float_format="%.6g"))
    write_text(results / "table.md", markdown(verdicts, runs, chosen))
    keep(record, results / "manifest.json", results.parent)


def run_all(chosen: list[Case], seeds: tuple[int, ...], store: Path, console: Console) -> list[Finished]:
    """Both versions of every case, fixed first; those that the store holds are read back."""
    transformers.logging.set_verbosity_error()  # notices of renamed arguments, once per family
    finished = []
    with warnings.catch_warnings(), progress_of(console) as progress:
        warnings.simplefilter("ignore", FutureWarning)
        task = progress.add_task("", total=2 * len(chosen))
        for case in chosen:
            for faulty in (False, True):
                progress.update(task, description=f"{case.name}, {VERSIONS[faulty]}: {len(seeds)} runs")
                finished.append(run_version(case, faulty, seeds, store))
                progress.advance(task)
    return finished


def describe(finished: list[Finished], columns: pd.Index) -> pd.DataFrame:
    """Index run: case, version, seeds, quality (mean), metric and what it shows, and how the faulty version differs.

    effect and p_value are the kill test's; `columns_that_differ` counts those of `columns`.
    """
    rows = {}
    for fixed, faulty in zip(finished[::2], finished[1::2], strict=True):
        test = worse(faulty, fixed)
        one, other = (f.vectors[columns].mean() for f in (fixed, faulty))
        differ = int(((one != other) & ~(one.isna() & other.isna())).sum())
        for f in (fixed, faulty):
            rows[f.id] = {
                "case": f.case.name,
                "version": VERSIONS[f.faulty],
                "seeds": len(f.seeds),
                "quality": sum(f.qualities) / len(f.qualities),
                "metric": f.case.shows,
                "shown": f.shown,
                "effect": test.effect if f.faulty else float("nan"),
                "p_value": test.p_value if f.faulty else float("nan"),
                "columns_that_differ": differ if f.faulty else 0,
            }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("run")


def show(verdicts: pd.DataFrame, runs: pd.DataFrame, chosen: list[Case], console: Console) -> None:
    """Both tables on the terminal."""
    first = Table(
        title=f"Real-world faults: {len(chosen)} faulty and {len(chosen)} fixed versions", box=box.SIMPLE_HEAD
    )
    for heading, justify in (("technique", "left"), *((h, "right") for h in ("detected", *RIGHT[1:], "false_alarm"))):
        first.add_column(heading.replace("_", " "), justify=justify)
    for line in technique_lines(by_technique(verdicts), chosen):
        first.add_row(*line)
    console.print(first)
    second = Table(title="By case: how many techniques", box=box.SIMPLE_HEAD)
    lines = case_lines(by_case(verdicts), runs, chosen)
    for i, heading in enumerate(lines[0]):
        second.add_column(heading, justify="left" if i == 0 else "right", no_wrap=True)
    for line in lines[1:]:
        second.add_row(*line)
    console.print(second)
    console.print(f"[dim]{reported()}[/dim]")


if __name__ == "__main__":
    app()

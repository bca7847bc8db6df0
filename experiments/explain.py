"""Which explanation points at the component that was broken: SHAP of tree techniques beside DEFault++'s prototypes.

python experiments/explain.py                                   # embedded bench, both architectures
python experiments/explain.py --arch encoder --technique lightgbm --technique defaultpp
python experiments/explain.py --run RUN                         # the figures of one run of your choice

Every technique is fitted on the outer folds of compare.py and explains the faulty runs that it did not see. Folds are
kept one by one, so that a killed command, started again, continues.
"""

from __future__ import annotations

import time
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated

import joblib
import pandas as pd
import typer
from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table

from baselines.rules import RuleTechnique
from baselines.technique import REGISTRY
from baselines.technique import technique as make_technique
from experiments.engine import explain_figures as figures
from experiments.engine import explain_tables as tables
from experiments.engine.cells import Cell
from experiments.engine.command import Arch, one_line_errors, sources, terminal
from experiments.engine.explain_cells import ExplainCell, explain_cell
from experiments.engine.explain_tables import Collected, collect
from experiments.engine.explain_tracking import track_explanations
from experiments.engine.explanations import GROUP_SHAPLEY, PROTOTYPE_WEIGHT, Settings
from experiments.engine.leaderboard import title_of
from experiments.engine.manifest import keep, manifest
from experiments.engine.parallel import side_by_side
from experiments.engine.protocol import outer_folds
from experiments.engine.source import data_fingerprint
from experiments.engine.verdict_sheet import VerdictSheet, assemble, draw, sheet_groups, to_html, to_rich
from features.bench import Bench, BenchError
from features.files import write_text

EXPLAINED = ("forest", "xgboost", "lightgbm", "default", "defaultpp")
"""Registry keys of the techniques that have a margin at each level."""

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
@one_line_errors
def explain(
    bench: Annotated[Path | None, typer.Option(help="Table to use; default: the embedded bench.")] = None,
    map: Annotated[str | None, typer.Option(help="Column map: a built-in name or a YAML/JSON file.")] = None,
    arch: Annotated[Arch, typer.Option(help="Which architecture's runs.")] = Arch.both,
    technique: Annotated[list[str] | None, typer.Option(help=f"Of {', '.join(EXPLAINED)}. Default: all.")] = None,
    folds: Annotated[int, typer.Option(min=2)] = 5,
    seed: int = 0,
    background: Annotated[int, typer.Option(min=2, help="Training runs that stand in for what is absent.")] = 25,
    draws: Annotated[int, typer.Option(min=2, help="Permutations per sampled Shapley value.")] = 50,
    resample: Annotated[float, typer.Option(min=0, max=1, help="Share of training runs refitted on; 0: none.")] = 0.8,
    run: Annotated[str | None, typer.Option(help="Run of the single-run figures; default: a typical one.")] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes; default: one per core.")] = None,
    results: Annotated[Path, typer.Option(help="Folder for tables and figures.")] = Path("results"),
    name: Annotated[str, typer.Option(help="Name of the comparison that this belongs to.")] = "comparison",
    mlflow: Annotated[bool, typer.Option(help="Log to MLflow.")] = True,
) -> None:
    """Explain, compare with the known faults, print and write tables and figures."""
    console = terminal()
    started = time.perf_counter()
    keys = _keys(technique, console)
    settings = Settings(background=background, draws=draws, resample=resample)
    workers = workers or joblib.cpu_count(only_physical_cores=False)
    failed = []
    for source in sources(bench, map, arch):
        failed += _explain_one(source, keys, folds, seed, settings, run, workers, results, name, mlflow, console)
    console.print(f"[dim]{time.perf_counter() - started:.0f} s in all, {workers} workers.[/dim]")
    if failed:
        raise typer.Exit(1)


def _explain_one(source, keys, folds, seed, settings, run, workers, results, name, mlflow, console) -> list[str]:
    bench = source.load()
    if bench.arch is None or 2 not in bench.levels:
        raise BenchError(f"bench {bench.name!r}: explanations are held against fault categories, and it has none")
    if run is not None and run not in bench.runs:
        raise BenchError(f"bench {bench.name!r} has no run {run!r}")
    outer_folds(bench, folds, "grouped", seed)  # refuse a bad split before any work
    console.print(f"\n[bold]{title_of(bench)}[/bold]: {int(bench.faulty.sum())} faulty runs of {len(bench)}")
    keys = [key for key in keys if _supported(key, bench, console)]
    cells = [
        ExplainCell(Cell(source, key, fold, folds, "grouped", seed), settings) for fold in range(folds) for key in keys
    ]
    store = results / ".runs"
    store.mkdir(parents=True, exist_ok=True)
    failed = [error for error in _run(cells, store, workers, console) if error]
    for message in failed:
        console.print(f"  [red]failed:[/red] {message}")
    whole = [c for c in cells if not any(m.startswith(f"{c.cell.technique},") for m in failed)]
    if not whole:
        return failed
    found = collect(bench, whole, store)
    folder = results / name / "explain" / bench.arch
    made = write_tables(found, folder, seed)
    shown = run or typical_run(found)
    sheet = kept_sheet(found, shown)
    draw_all(found, made, shown, sheet, folder / "figures")
    write_text(folder / "sheet.html", to_html(sheet))
    record = manifest([bench], [data_fingerprint(bench)], folds=folds, seed=seed, run=shown, **asdict(settings))
    keep(record, folder / "manifest.json", results)
    _show(made["agreement"], found, console)
    console.print(to_rich(sheet))
    console.print(f"  tables and figures in {folder}")
    if mlflow:
        track_explanations(bench, folder, made["agreement"], record, name)
    return failed


def write_tables(found: Collected, folder: Path, seed: int) -> dict[str, pd.DataFrame]:
    """All summary tables, by name, each written as CSV."""
    made = {
        "agreement": tables.agreement_table(found, seed),
        "categories": tables.category_table(found),
        "correlations": tables.correlation_table(found),
        "contests": tables.contest_table(found, "own1", seed),
        "deletion": tables.deletion_table(found),
        "stability": tables.stability_table(found),
        "shares": tables.share_table(found),
        "checks": found.checks,
    }
    for title, table in made.items():
        if len(table):
            write_text(folder / f"{title}.csv", table.to_csv(index=False, float_format="%.6g"))
    return made


def draw_all(found: Collected, made: dict, run: str, sheet: VerdictSheet, folder: Path) -> None:
    """Every figure, PNG and SVG."""
    figures.pointing(made["agreement"], folder / "pointing")
    figures.one_run(found, run, folder / "one_run")
    figures.deletion_curves(found.tables["curves"], folder / "deletion_curves")
    draw(sheet, folder / "verdict_sheet")
    shown = [s for s in found.sources() if s[1:] in ((2, figures.SHAP), (2, GROUP_SHAPLEY), (3, PROTOTYPE_WEIGHT))]
    for start in range(0, len(shown), 3):
        figures.heat_map(made["shares"], shown[start : start + 3], folder / f"heat_map_{start // 3 + 1}")
    for technique in found.techniques:
        columns = found.of("columns", technique).drop(columns="technique")
        if len(columns) and columns.index.nlevels == 2:
            key = "".join(c if c.isalnum() else "_" for c in technique.lower()).strip("_")
            figures.shap_summary(columns, found.bench.X, technique, folder / f"summary_{key}")


def typical_run(found: Collected) -> str:
    """A faulty run whose category most techniques name right; among those, the surest at Level 2."""
    right = pd.concat({t: found.right(t) for t in found.techniques}, axis=1).mean(axis=1)
    sure = found.tables["verdicts"]["confidence_2"].groupby(level=0).mean()
    return pd.DataFrame({"right": right, "sure": sure}).sort_values(["right", "sure"], ascending=False).index[0]


def kept_sheet(found: Collected, run: str) -> VerdictSheet:
    """The verdict sheet of a run from the kept tables, with the rules that fire on its log or vector.

    Rules that have to be fitted learn from the other pairs.
    """
    verdicts = found.tables["verdicts"]
    if run not in verdicts.index:
        raise BenchError(f"run {run!r} is not explained: it isn't a faulty run with a category")
    rows = verdicts.loc[[run]].to_dict("records")
    groups = {}
    for technique in found.techniques:
        own = found.of("groups", technique)
        groups |= sheet_groups(own[own["run"] == run], technique)
    prototypes = found.tables["prototypes"]
    one = found.bench.take([run])
    others = found.bench.take((found.bench.pair != found.bench.pair[run]).to_numpy())
    rules, notes = [], []
    for key in REGISTRY:
        technique = make_technique(key)
        if not isinstance(technique, RuleTechnique):
            continue
        if reason := technique.unsupported(one):
            notes.append(f"Not run: {reason}.")
            continue
        technique.fit(others)
        verdict = technique.predict(one).table.iloc[0][["faulty", "category", "root_cause"]].to_dict()
        rows.append({"technique": technique.name, **verdict})
        rules.append(technique.firings(one).assign(technique=technique.name))
    return assemble(
        run=run,
        pair=found.bench.pair[run],
        truth=tuple(found.bench.labels.loc[run, ["category", "root_cause"]]),
        verdicts=pd.DataFrame(rows),
        groups=groups,
        prototypes=prototypes[prototypes["run"] == run] if len(prototypes) else prototypes,
        rules=rules,
        notes=notes,
    )


def _run(cells: list[ExplainCell], store: Path, workers: int, console: Console) -> list[str | None]:
    missing = [cell for cell in cells if not cell.folder(store).exists()]
    work = side_by_side(partial(explain_cell, store=store), missing, workers)
    return list(track(work, "explaining", total=len(missing), console=console, transient=True))


def _show(agreement: pd.DataFrame, found: Collected, console: Console) -> None:
    table = Table(
        title="Share of faulty runs whose first group is the changed component's own",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    table.add_column("explanation")
    for column in ("hit@1 (95 %)", "shuffled", "p", "hit@3", "near@1", "rank"):
        table.add_column(column, justify="right", no_wrap=True)
    rows = agreement[
        (agreement["subset"] == "all faulty") & agreement["kind"].isin((*figures.HEADLINE, *tables.CONSTANTS))
    ]
    for row in rows.sort_values("own1", ascending=False).itertuples():
        table.add_row(
            f"{row.technique}, L{row.level}, {row.kind}",
            f"{row.own1:.2f} ({row.own1_low:.2f}–{row.own1_high:.2f})",
            f"{row.own1_shuffled:.2f}",
            f"{row.own1_p:.3f}",
            f"{row.own3:.2f}",
            f"{row.near1:.2f}",
            f"{row.rank:.1f}",
        )
    console.print(table)
    chance = agreement.iloc[0]
    console.print(
        f"  [dim]by chance {chance.own1_chance:.2f}, hit@3 {chance.own3_chance:.2f}, near@1 {chance.near1_chance:.2f}, "
        f"rank {chance.rank_chance:.1f}; shuffled: the same explanations dealt out to runs anew; p: against shuffled, "
        "paired by pair[/dim]"
    )


def _supported(key: str, bench: Bench, console: Console) -> bool:
    if reason := make_technique(key).unsupported(bench):
        console.print(f"  not run: {reason}")
    return reason is None


def _keys(chosen: list[str] | None, console: Console) -> list[str]:
    for key in chosen or ():
        if key not in EXPLAINED or key not in REGISTRY:
            raise BenchError(f"technique {key!r} can't be explained; those that can: {', '.join(EXPLAINED)}")
    return chosen or [key for key in EXPLAINED if key in REGISTRY]


if __name__ == "__main__":
    app()

"""What the graph, the groups and the separation of DEFault++ are worth: the manuscript's Tables 9, 10 and 11.

python experiments/ablate.py                               # embedded bench, both architectures, three draws each
python experiments/ablate.py --arch encoder --variant full --variant rewired --draws 10

Cells are kept one by one, so that a killed run, started again, continues.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import joblib
import pandas as pd
import typer
from rich.console import Console
from rich.table import Table

from experiments.compare import SplitRule
from experiments.engine.ablation import VARIANTS, ablation_markdown, ablation_table, judged_draws, variant_cells
from experiments.engine.command import Arch, one_line_errors, sources, terminal
from experiments.engine.leaderboard import title_of
from experiments.engine.manifest import keep, manifest
from experiments.engine.parallel import run_cells
from experiments.engine.protocol import outer_folds
from experiments.engine.source import data_fingerprint
from experiments.engine.stored import load_paper
from features.bench import BenchError
from features.files import write_text

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
@one_line_errors
def ablate(
    bench: Annotated[Path | None, typer.Option(help="Table to use; default: the embedded bench.")] = None,
    map: Annotated[str | None, typer.Option(help="Column map: a built-in name or a YAML/JSON file.")] = None,
    arch: Annotated[Arch, typer.Option(help="Which architecture's runs.")] = Arch.both,
    variant: Annotated[list[str] | None, typer.Option(help=f"Of {', '.join(VARIANTS)}. Default: all.")] = None,
    draws: Annotated[int, typer.Option(min=1, help="Training seeds, and graphs, per variant.")] = 3,
    folds: Annotated[int, typer.Option(min=2)] = 5,
    split: Annotated[SplitRule, typer.Option(help="By (model, task) pair, or random rows.")] = SplitRule.grouped,
    seed: int = 0,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes; default: one per core.")] = None,
    scheduler: Annotated[str | None, typer.Option(help="dask scheduler, such as tcp://host:8786.")] = None,
    results: Annotated[Path, typer.Option(help="Folder for tables.")] = Path("results"),
    name: Annotated[str, typer.Option(help="Name of this ablation on disk.")] = "ablation",
) -> None:
    """Run the variants on the folds of compare.py; print and write the tables."""
    console = terminal()
    names = _names(variant)
    workers = workers or joblib.cpu_count(only_physical_cores=False)
    failed = []
    for source in sources(bench, map, arch):
        loaded = source.load()
        outer_folds(loaded, folds, split.value, seed)  # refuse a bad split before any work
        cells = variant_cells(source, names, draws, folds, split.value, seed)
        outcome = run_cells(cells, results / ".runs", workers, console, scheduler)
        failed += [f"{r.cell.technique}, fold {r.cell.fold}: {r.error}" for r in outcome if r.error]
        whole = [r for r in outcome if not r.error]
        if failed or not whole:
            continue
        table = ablation_table(judged_draws(loaded, whole), seed=seed)
        folder = results / name
        write_text(folder / f"{loaded.arch}.csv", table.to_csv(index=False, float_format="%.6f"))
        settings = {"variants": names, "draws": draws, "folds": folds, "split": split.value, "seed": seed}
        record = manifest([loaded], [data_fingerprint(loaded)], **settings)
        keep(record, folder / f"{loaded.arch}.json", results)
        _show(table, title_of(loaded), console)
    for message in failed:
        console.print(f"[red]failed:[/red] {message}")
    written = sorted((results / name).glob("*coder.csv"))
    if written:
        everything = pd.concat([pd.read_csv(path) for path in written], ignore_index=True)
        write_text(results / name / "ablation.md", ablation_markdown(everything, load_paper()))
    if failed:
        raise typer.Exit(1)


def _show(table: pd.DataFrame, title: str, console: Console) -> None:
    """`path` F1 by level: mean over draws, its spread, and the difference with its 95 % interval."""
    shown = Table(title=f"{title}: path F1, and difference to the mate with 95 % interval", title_justify="left")
    shown.add_column("variant", no_wrap=True)
    levels = sorted(table["level"].unique())
    for level in levels:
        shown.add_column(f"L{level}")
    for variant, rows in table[table["protocol"] == "path"].groupby("variant", sort=False):
        cells = []
        for level in levels:
            row = rows[rows["level"] == level].iloc[0]
            cell = f"{row['f1']:.3f}" + (f" ± {row['f1_sd']:.3f}" if row["draws"] > 1 else "")
            if pd.notna(row["difference"]):
                cell += f"\n{row['difference']:+.3f} [{row['difference_low']:+.3f}, {row['difference_high']:+.3f}]"
            cells.append(cell)
        shown.add_row(str(variant), *cells)
    console.print(shown)


def _names(chosen: list[str] | None) -> list[str]:
    for name in chosen or ():
        if name not in VARIANTS:
            raise BenchError(f"no variant {name!r}; known: {', '.join(VARIANTS)}")
    return chosen or list(VARIANTS)


if __name__ == "__main__":
    app()

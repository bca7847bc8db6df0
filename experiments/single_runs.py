"""What a verdict is worth on a single run, where techniques are compared on means over five seeds.

python experiments/single_runs.py
python experiments/single_runs.py --arch encoder --technique forest --technique lightgbm-flat

A bench in the manuscript's manner holds the mean vector of five seeds a row; who debugs a model has trained it once.
Techniques are fitted on the means of the training pairs, as ever, and judge the held-out pairs twice: by mean and by
the first seed alone, of the same rows. Writes results/single_runs/<bench>.csv and, for the confidences of diagnose.py,
the verdicts on single runs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import joblib
import pandas as pd
import typer
from rich import box
from rich.table import Table

from baselines.technique import Verdicts
from baselines.technique import technique as make_technique
from experiments.engine.cells import Cell
from experiments.engine.command import Arch, one_line_errors, registered, sources, terminal
from experiments.engine.manifest import keep, manifest
from experiments.engine.parallel import progress_of, side_by_side
from experiments.engine.scoring import confusion, false_alarm_rate, score
from experiments.engine.single_verdicts import FORMS, file_title, judge_forms, keep_single_verdicts
from experiments.engine.source import data_fingerprint
from features.bench import Bench, BenchError, single_path
from features.files import write_text

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
@one_line_errors
def single_runs(
    arch: Annotated[Arch, typer.Option(help="Which architecture's runs.")] = Arch.both,
    technique: Annotated[list[str] | None, typer.Option(help="Registry key; default: all that judge vectors.")] = None,
    bench: Annotated[Path | None, typer.Option(help="Table of means, with single runs beside it.")] = None,
    folds: Annotated[int, typer.Option(min=2)] = 5,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes; default: one per core.")] = None,
    results: Path = Path("results/single_runs"),
) -> None:
    """Judge held-out rows by mean and by first seed, print and write both scores."""
    console = terminal()
    keys = registered(technique, needs="vector")
    for source in sources(bench, None, arch):
        if not (path := single_path(source.file)).exists():
            raise BenchError(f"{path}: no single runs beside the bench; build_bench.py writes them")
        means = source.load()
        jobs = [Cell(source, key, fold, folds) for fold in range(folds) for key in keys]
        found = []
        with progress_of(console) as progress:
            task = progress.add_task("", total=len(jobs))
            for verdicts in side_by_side(judge_forms, jobs, workers or joblib.cpu_count()):
                found.append(verdicts)
                progress.update(task, advance=1, description=str(verdicts["technique"].iloc[0]))
        made = {key: make_technique(key) for key in keys}
        verdicts = pd.concat(found).sort_index(kind="stable")
        table = scores(means, verdicts, {t.name: t.levels for t in made.values()})
        title = file_title(means)
        keep_single_verdicts(verdicts, results, means, {t.name: key for key, t in made.items()})
        write_text(results / f"{title}.csv", table.to_csv(index=False, float_format="%.4f"))
        record = manifest([means], [data_fingerprint(means)], folds=folds, techniques=keys)
        keep(record, results / f"{title}.json", results.parent)
        console.print(_shown(table, title))


def scores(bench: Bench, verdicts: pd.DataFrame, served: dict[str, tuple[int, ...]]) -> pd.DataFrame:
    """technique, level, mean, single (pooled `path` F1), runs, and at Level 1 alarms_mean and alarms_single.

    `served` gives the levels of each technique, which stand in this order.
    """
    rows = []
    for name, levels in served.items():
        of_technique = verdicts[verdicts["technique"] == name]
        for level in (n for n in levels if n in bench.levels):
            row = {"technique": name, "level": level}
            for form in FORMS:
                guess = of_technique[of_technique["form"] == form].drop(columns=["technique", "form"])
                labels, path = bench.labels.loc[guess.index], Verdicts(guess).path()
                counts = confusion(labels, path, guess, bench.pair.loc[guess.index], level, "path")
                row[form] = score(counts)["f1"]
                row["runs"] = len(guess)
                if level == 1:
                    row[f"alarms_{form}"] = false_alarm_rate(labels, path)
            rows.append(row)
    return pd.DataFrame(rows)


def _shown(table: pd.DataFrame, title: str) -> Table:
    shown = Table(title=f"{title}: path F1 by mean of five seeds → by one", title_justify="left", box=box.SIMPLE_HEAD)
    levels = sorted(table["level"].unique())
    for head in ("technique", *(f"L{level}" for level in levels), "alarms"):
        shown.add_column(head, justify="left" if head == "technique" else "right")
    for name, rows in table.groupby("technique", sort=False):
        by_level = rows.set_index("level")
        cells = [
            f"{by_level.loc[n, 'mean']:.3f} → {by_level.loc[n, 'single']:.3f}" if n in by_level.index else "–"
            for n in levels
        ]
        alarms = f"{by_level.loc[1, 'alarms_mean']:.2f} → {by_level.loc[1, 'alarms_single']:.2f}"
        shown.add_row(str(name), *cells, alarms)
    return shown


if __name__ == "__main__":
    app()

"""How often every rule fired on faulty and on correct runs, by fault category, and what it can see at all.

python experiments/rules_table.py                          # embedded bench, both architectures
python experiments/rules_table.py --bench runs.parquet --technique autotrainer

Writes results/rules/<bench>.csv (tidy: one row per technique, rule and category) and <bench>.md (one row per rule).
Detectors that learn what is normal are fitted without the pairs that they are counted on.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import pandas as pd
import typer
from rich import box
from rich.console import Console
from rich.table import Table
from sklearn.base import clone

from baselines.rules import RuleTechnique
from baselines.technique import technique as make_technique
from experiments.engine.command import Arch, one_line_errors, registered, sources, terminal
from experiments.engine.leaderboard import title_of
from experiments.engine.manifest import keep, manifest
from experiments.engine.protocol import outer_folds
from experiments.engine.source import data_fingerprint
from features.bench import Bench, BenchError
from features.files import write_text
from features.taxonomy import CORRECT

FAULTY = "faulty"

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
@one_line_errors
def rules_table(
    bench: Annotated[Path | None, typer.Option(help="Bench to use; default: the embedded bench.")] = None,
    arch: Annotated[Arch, typer.Option(help="Which architecture's runs.")] = Arch.both,
    technique: Annotated[list[str] | None, typer.Option(help="Registry key; default: all with rules.")] = None,
    folds: Annotated[int, typer.Option(min=2, help="Grouped folds for detectors that are fitted.")] = 5,
    results: Annotated[Path, typer.Option(help="Folder for the tables.")] = Path("results/rules"),
) -> None:
    """Count, print and write how often every rule fired."""
    console = terminal()
    for source in sources(bench, None, arch):
        runs = source.load()
        techniques = _techniques(technique, runs, console)
        table = count_firings(runs, techniques, folds)
        title = title_of(runs, "{}-{}")
        _print(table, title, console)
        write_text(results / f"{title}.csv", table.to_csv(index=False, float_format="%.6g"))
        write_text(results / f"{title}.md", to_markdown(table, title))
        record = manifest([runs], [data_fingerprint(runs)], folds=folds, techniques=[t.name for t in techniques])
        keep(record, results / f"{title}.json", results.parent)


def count_firings(bench: Bench, techniques: list[RuleTechnique], folds: int = 5) -> pd.DataFrame:
    """One row per technique, rule and category: technique, rule, severity, sight, note, category, runs, fired, share.

    `category` is each of the bench's, "correct", and "faulty" for all faulty runs together. Share is fired / runs.
    """
    parts = []
    for estimator in techniques:
        seen = estimator.observability(bench).rename_axis("rule").reset_index()
        firings = _cross_firings(estimator, bench, folds)
        parts.append(_count(bench, seen, firings).assign(technique=estimator.name))
    columns = ["technique", "rule", "severity", "sight", "note", "category", "runs", "fired", "share"]
    return pd.concat(parts, ignore_index=True).loc[:, columns]


def to_markdown(table: pd.DataFrame, title: str) -> str:
    """One row per rule, in per cent of the runs of each category; rules that nothing shows are listed below."""
    wide = _wide(table)
    head = ["technique", "rule", "seen", *wide.columns]
    lines = [
        f"# How often each rule fired: {title}",
        "",
        "Per cent of the runs of each category in which the rule fired; `n` is the number of runs. A rule stands here",
        "by its own condition, whatever severity a verdict asks for.",
        "",
        "| " + " | ".join(head) + " |",
        "|" + " --- |" * 3 + " ---: |" * len(wide.columns),
        "| | | n | " + " | ".join(str(n) for n in _sizes(table).reindex(wide.columns)) + " |",
    ]
    for (technique, rule, sight), row in wide.iterrows():
        lines.append(f"| {technique} | {rule} | {sight} | " + " | ".join(f"{100 * v:.1f}" for v in row) + " |")
    notes = table.drop_duplicates(["technique", "rule"])
    lines += ["", "Approximated or not observable:", ""]
    lines += [
        f"- {row.technique}, {row.rule}: {row.sight}; {row.note}"
        for row in notes.itertuples()
        if row.sight != "exact" and row.note
    ]
    return "\n".join(lines) + "\n"


def _cross_firings(estimator: RuleTechnique, bench: Bench, folds: int) -> pd.DataFrame:
    """Firings on every run, by an estimator that did not learn from its pair."""
    parts = [
        clone(estimator).fit(bench.take(fold.train)).firings(bench.take(fold.test))
        for fold in outer_folds(bench, min(folds, bench.pair.nunique()))
    ]
    parts = [part for part in parts if len(part)]
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame({"run": [], "rule": []})


def _count(bench: Bench, seen: pd.DataFrame, firings: pd.DataFrame) -> pd.DataFrame:
    category = bench.labels["category"].astype(object).where(bench.faulty, CORRECT)
    sizes = category.value_counts()
    sizes[FAULTY] = int(bench.faulty.sum())
    hits = firings.assign(category=firings["run"].map(category).to_numpy())
    counted = pd.concat([hits, hits[hits["category"] != CORRECT].assign(category=FAULTY)])
    counts = counted.groupby(["rule", "category"]).size()
    every = pd.MultiIndex.from_product([seen["rule"], sizes.index], names=["rule", "category"])
    table = counts.reindex(every, fill_value=0).rename("fired").reset_index()
    table["runs"] = table["category"].map(sizes)
    table["share"] = table["fired"] / table["runs"].clip(lower=1)
    return table.merge(seen[["rule", "severity", "sight", "note"]], on="rule")


def _wide(table: pd.DataFrame) -> pd.DataFrame:
    """Shares, one row per technique and rule in their order, observable rules only; faulty and correct first."""
    shown = table[table["sight"] != "not observable"]
    order = shown[["technique", "rule", "sight"]].drop_duplicates()
    wide = shown.pivot_table(index=["technique", "rule", "sight"], columns="category", values="share")
    first = [c for c in (FAULTY, CORRECT) if c in wide]
    rest = [c for c in _sizes(table).index if c not in first]
    return wide.loc[pd.MultiIndex.from_frame(order), first + rest]


def _sizes(table: pd.DataFrame) -> pd.Series:
    return table.drop_duplicates("category").set_index("category")["runs"]


def _print(table: pd.DataFrame, title: str, console: Console) -> None:
    wide, sizes = _wide(table), _sizes(table)
    shown = Table(title=f"Rules that fired: {title}", box=box.SIMPLE_HEAD)
    for heading in ("technique", "rule", "seen"):
        shown.add_column(heading)
    columns = list(wide.columns[:2])
    for column in columns:
        shown.add_column(f"{column} % (n={sizes[column]})", justify="right")
    shown.add_column("most often in")
    for (technique, rule, sight), row in wide.iterrows():
        categories = row.drop(columns)
        most = f"{categories.idxmax()} {100 * categories.max():.0f} %" if len(categories) and row.max() > 0 else ""
        shown.add_row(technique, rule, sight, *(f"{100 * row[c]:.1f}" for c in columns), most)
    console.print(shown)
    unseen = table[table["sight"] == "not observable"].groupby("technique")["rule"].nunique()
    for technique, number in unseen.items():
        console.print(f"[dim]{technique}: {number} more rules are not observable here.[/dim]")


def _techniques(keys: list[str] | None, bench: Bench, console: Console) -> list[RuleTechnique]:
    made = {key: make_technique(key) for key in registered(keys)}
    for key in keys or ():
        if not isinstance(made[key], RuleTechnique):
            raise BenchError(f"technique {key!r} has no rules to count")
    ruled = {key: t for key, t in made.items() if isinstance(t, RuleTechnique)}
    for t in ruled.values():
        if reason := t.unsupported(bench):
            console.print(f"[yellow]not run: {reason}[/yellow]")
    runnable = [t for t in ruled.values() if t.unsupported(bench) is None]
    if not runnable:
        raise BenchError(f"bench {bench.name!r}: no technique with rules can run on it")
    return runnable


if __name__ == "__main__":
    app()

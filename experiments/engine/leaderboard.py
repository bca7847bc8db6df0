"""From verdicts to tables: the leaderboard, per fold and per class, as CSV, Markdown and on the terminal."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import pandas as pd
from rich import box
from rich.console import Console
from rich.table import Table
from sklearn.metrics import roc_auc_score

from baselines.rules import count_rules
from baselines.technique import Technique, Verdicts
from experiments.engine.cells import CellResult
from experiments.engine.scoring import PROTOCOLS, Confusion, class_table, confusion, f1_scores, false_alarm_rate, score
from experiments.engine.statistics import interval
from features.bench import Bench

TUNED = ", tuned"
"""What follows a technique's name where its parameters were tuned."""


@dataclass(frozen=True, eq=False)
class Judged:
    """One technique's verdicts on all outer folds of one bench."""

    key: str
    estimator: Technique
    bench: Bench
    results: list[CellResult]
    tuned: bool = False

    @property
    def name(self) -> str:
        """As in the leaderboard."""
        return self.estimator.name + (TUNED if self.tuned else "")

    @cached_property
    def table(self) -> pd.DataFrame:
        """Verdicts of every judged run, in the bench's order, with its fold."""
        table = pd.concat([r.verdicts.assign(fold=r.cell.fold) for r in self.results])
        return table.loc[self.bench.runs[self.bench.runs.isin(table.index)]]

    @property
    def levels(self) -> tuple[int, ...]:
        """The levels that both the technique and the bench have."""
        return tuple(level for level in self.estimator.levels if level in self.bench.levels)

    def confusion(self, level: int, protocol: str, by: Literal["pair", "fold"] = "pair") -> Confusion:
        """Counts at a level under a protocol, per pair or per outer fold; counted once, read often."""
        if (level, protocol, by) not in self._counted:
            table, unit = self.table, self.bench.pair if by == "pair" else self.table["fold"].astype(str)
            runs = (self.bench.labels.loc[table.index], self._path, table, unit.loc[table.index])
            self._counted[level, protocol, by] = confusion(*runs, level, protocol)
        return self._counted[level, protocol, by]

    @cached_property
    def _path(self) -> pd.DataFrame:
        return Verdicts(self.table).path()

    @cached_property
    def _counted(self) -> dict[tuple[int, str, str], Confusion]:
        return {}


def title_of(bench: Bench, pattern: str = "{} ({})") -> str:
    """The bench's name, with its architecture where the name doesn't say it."""
    return bench.name if bench.arch is None or bench.arch in bench.name else pattern.format(bench.name, bench.arch)


def leaderboard(judged: list[Judged], n_resamples: int = 1000, seed: int = 0) -> pd.DataFrame:
    """One row per technique × protocol × level: pooled F1, precision, recall, interval, mean and sd over folds."""
    rows = []
    for entry in judged:
        table = entry.table
        labels = entry.bench.labels.loc[table.index]
        path = Verdicts(table).path()
        auroc = roc_auc_score(labels["faulty"], table["score"]) if labels["faulty"].nunique() > 1 else np.nan
        for level in entry.levels:
            for protocol in PROTOCOLS:
                counts = entry.confusion(level, protocol)
                low, high = interval(counts, n_resamples=n_resamples, seed=seed)
                per_fold = fold_scores(entry, level, protocol)["f1"]
                rows.append(
                    {
                        "bench": entry.bench.name,
                        "arch": entry.bench.arch or "",
                        "technique": entry.name,
                        "key": entry.key,
                        "family": entry.estimator.family,
                        "level": level,
                        "protocol": protocol,
                        **score(counts),
                        "low": low,
                        "high": high,
                        "fold_mean": per_fold.mean(),
                        "fold_sd": per_fold.std(ddof=1),
                        "classes": int(counts.scored.sum()),
                        "runs": len(table),
                        "accuracy": float((labels["faulty"] == path["faulty"]).mean()) if level == 1 else np.nan,
                        "auroc": float(auroc) if level == 1 else np.nan,
                        "false_alarm_rate": false_alarm_rate(labels, path) if level == 1 else np.nan,
                    }
                )
    return pd.DataFrame(rows)


def fold_scores(entry: Judged, level: int, protocol: str) -> pd.DataFrame:
    """F1, precision and recall on each outer fold by itself."""
    counted = entry.confusion(level, protocol, by="fold")
    folds = pd.Index([int(fold) for fold in counted.pairs], name="fold")
    return f1_scores(counted.counts, counted).set_axis(folds).sort_index()


def class_scores(judged: list[Judged]) -> pd.DataFrame:
    """Per class tables of all techniques, levels and protocols, stacked."""
    parts = [
        class_table(entry.confusion(level, protocol))
        .reset_index()
        .assign(arch=entry.bench.arch or "", technique=entry.name, level=level, protocol=protocol)
        for entry in judged
        for level in entry.levels
        for protocol in PROTOCOLS
    ]
    return pd.concat(parts, ignore_index=True)


def fired_rules(judged: list[Judged]) -> pd.DataFrame:
    """How often each rule fired on faulty and on correct runs, per technique that has rules, most often first."""
    rows = []
    for entry in judged:
        table = entry.table
        faulty = entry.bench.faulty.loc[table.index]
        on_faulty, on_correct = (count_rules(table.loc[mask, "evidence"]) for mask in (faulty, ~faulty))
        for rule in count_rules(table["evidence"]).index:
            counts = {"on_faulty": int(on_faulty.get(rule, 0)), "on_correct": int(on_correct.get(rule, 0))}
            rows.append({"technique": entry.name, "rule": rule, **counts})
    return pd.DataFrame(rows, columns=["technique", "rule", "on_faulty", "on_correct"])


def costs(judged: list[Judged]) -> pd.DataFrame:
    """Seconds and peak memory per technique and fold, as measured when the cell was computed."""
    return pd.DataFrame(
        {"arch": entry.bench.arch or "", "technique": entry.name, "fold": r.cell.fold, **r.cost}
        for entry in judged
        for r in entry.results
    )


def tuned_parameters(judged: list[Judged]) -> pd.DataFrame:
    """What tuning found, per tuned technique and outer fold, and what it was worth on the inner folds.

    Columns: arch, technique, fold, trials, inner_default (the first trial: F1 of the defaults), inner_best, parameters
    (JSON). On the outer fold the gain is usually less; the leaderboard has that.
    """
    rows = [
        {
            "arch": entry.bench.arch or "",
            "technique": entry.name,
            "fold": r.cell.fold,
            "trials": len(r.tuned.trials),
            "inner_default": r.tuned.trials["value"].iloc[0],
            "inner_best": r.tuned.trials["value"].max(),
            "parameters": json.dumps(r.tuned.parameters, sort_keys=True),
        }
        for entry in judged
        for r in entry.results
        if r.tuned is not None
    ]
    return pd.DataFrame(rows)


def show(board: pd.DataFrame, seconds: pd.Series, tied: set[tuple[str, int]], title: str, console: Console) -> None:
    """Print one bench's leaderboard, best `path` score first within 100 columns; ≈ marks a tie with the best."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=0, show_edge=False)
    table.add_column("technique", no_wrap=True, max_width=28, overflow="ellipsis")
    levels = sorted(board["level"].unique())
    for level in levels:
        table.add_column(f"path L{level}", justify="right", no_wrap=True, min_width=14)
    paper_head = "paper" if len(levels) == 1 else f"paper L{levels[0]}–{levels[-1]}"
    table.add_column(paper_head, justify="right", no_wrap=True, min_width=5 * len(levels) - 1)
    # With one level there is room for accuracy, which papers on detection alone report.
    extra = ["accuracy"] if levels == [1] else []
    for column in (*extra, "alarm", "s"):
        table.add_column(column, justify="right", no_wrap=True, min_width=5 if column == "alarm" else 3)
    for technique in order(board):
        rows = board[board["technique"] == technique].set_index(["protocol", "level"])
        # A hard space keeps the numbers of a column below each other.
        path = [_path_cell(rows, n, "≈" if (technique, n) in tied else "\u00a0") for n in levels]
        paper = " ".join(_plain_cell(rows, "paper", n).rjust(4) for n in levels)
        accuracy = [f"{rows.loc[('path', 1), column]:.3f}" for column in extra]
        alarms = _short(rows.loc[("path", 1), "false_alarm_rate"], 2)
        table.add_row(technique, *path, paper, *accuracy, alarms, f"{seconds.get(technique, float('nan')):.0f}")
    console.print(table)


def order(board: pd.DataFrame) -> list[str]:
    """Techniques by what they deliver: deepest level served first, then `path` F1 at that level."""
    path = board[board["protocol"] == "path"]
    deepest = path.loc[path.groupby("technique", sort=False)["level"].idxmax()]
    return deepest.sort_values(["level", "f1"], ascending=False, kind="stable")["technique"].tolist()


def markdown(board: pd.DataFrame, tied: set[tuple[str, int]] = frozenset()) -> str:
    """The leaderboard as Markdown: `path` with intervals beside `paper`; ≈ marks a tie with the best of the level.

    What tuning made of a technique stands in its row, if anything was tuned; false alarms are the untuned ones.
    """
    levels = sorted(board["level"].unique())
    is_tuned = board["technique"].str.endswith(TUNED)
    beside = [f"tuned L{n}" for n in levels] if is_tuned.any() else []
    head = ["Technique", *(f"path L{n}" for n in levels), *beside, *(f"paper L{n}" for n in levels), "False alarms"]
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    for technique in order(board[~is_tuned]):
        rows, tuned = (
            board[board["technique"] == name].set_index(["protocol", "level"])
            for name in (technique, technique + TUNED)
        )
        cells = [technique, *(_path_cell(rows, n, "≈" if (technique, n) in tied else "") for n in levels)]
        if beside:
            marks = ["≈" if (technique + TUNED, n) in tied else "" for n in levels]
            cells += [_plain_cell(tuned, "path", n) + mark for n, mark in zip(levels, marks, strict=True)]
        cells += [_plain_cell(rows, "paper", n) for n in levels]
        cells.append(_short(rows.loc[("path", 1), "false_alarm_rate"]))
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _path_cell(rows: pd.DataFrame, level: int, mark: str) -> str:
    if ("path", level) not in rows.index:
        return "–"
    row = rows.loc[("path", level)]
    bounds = f" {_short(row['low'], 2)}–{_short(row['high'], 2)}" if np.isfinite(row["low"]) else ""
    return _short(row["f1"]) + bounds + mark


def _plain_cell(rows: pd.DataFrame, protocol: str, level: int) -> str:
    return _short(rows.loc[(protocol, level), "f1"]) if (protocol, level) in rows.index else "–"


def _short(value: float, digits: int = 3) -> str:
    """Without the leading zero: a hundred columns hold three levels with intervals."""
    return f"{value:.{digits}f}".removeprefix("0") if value < 0.9995 else f"{value:.{digits - 1}f}"

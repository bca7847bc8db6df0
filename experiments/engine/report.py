"""What the report page shows, as plain rows for the template, and the page itself: one file without network or script.

All figures come from stored results; a section whose results don't exist says so with the command that makes them.
"""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass
from pathlib import Path

import jinja2
import numpy as np
import pandas as pd
from markupsafe import Markup, escape

from experiments.engine.leaderboard import order
from experiments.engine.significance import tied_with_best
from experiments.engine.stored import Origin, Stored
from experiments.engine.tables import MEASURES, SideBySide
from experiments.engine.typeset import cell_text, notes, number_text, ours_text
from features.taxonomy import CORRECT, categories

TEMPLATE = Path(__file__).with_name("report.html.j2")
EMBEDDED_CAVEATS = (
    "The models are tiny and trained for minutes on small tasks. A ranking here is evidence about techniques on such "
    "runs, not a promise for large ones.",
    "The manuscript’s figures come from its own bench of larger models. Put beside ours they compare orders of "
    "techniques, not decimals; for like with like, run the comparison on the published tables.",
    "Correct runs are variants of one base per pair (other seeds, data orders, narrow changes of learning rate, batch "
    "size and warm-up), kept only if they are not worse than the base. Healthy runs in the wild vary more, so expect "
    "more false alarms there.",
    "Faults are injected one at a time, at the start, by operators that we wrote. Real faults come in company, late, "
    "and in forms that no operator has.",
    "A mutant counts as faulty only if all five seeds got worse; those that survived are left out, although some of "
    "them are faults that merely don’t show yet.",
    "A run’s vector is the mean over five seeds; its log, which the log-based techniques read, is that of one seed.",
)
GENERAL_CAVEATS = (
    "Rule-based techniques were made for other networks and longer runs. Their thresholds stand as published; where a "
    "rule can’t be seen in the data it never fires, and the table of rules says so.",
    "Intervals resample (model, task) pairs. They say how much the score depends on which pairs were drawn, not how it "
    "would change with other architectures or other faults.",
    "The protocol “paper” gives credit that no user gets: it takes Level 1 as known at Level 2. The protocol “path” "
    "scores the one verdict that a user receives, and is the one to quote.",
    "“≈” means that these pairs can’t tell two techniques apart, not that the two are equal.",
)


def caveats(origins: set[Origin]) -> tuple[str, ...]:
    """What a reader must know before quoting a figure; more of it if any runs are of the embedded bench."""
    return (*EMBEDDED_CAVEATS, *GENERAL_CAVEATS) if "embedded" in origins else GENERAL_CAVEATS


@dataclass(frozen=True)
class Score:
    """A score in the leaderboard: F1, 95 % interval (NaN if none), best of its level, tied with the best."""

    f1: float
    low: float
    high: float
    best: bool
    tied: bool


@dataclass(frozen=True)
class BoardRow:
    """A technique: `path` scores per level (None where it isn't served), `paper` F1 per level, and what it costs."""

    technique: str
    family: str
    path: tuple[Score | None, ...]
    paper: tuple[float | None, ...]
    false_alarms: float
    auroc: float
    mean_rank: float
    seconds: float


@dataclass(frozen=True)
class HeatCell:
    """A value from 0 to 1 with its background and a readable ink."""

    value: float
    background: str
    ink: str


@dataclass(frozen=True)
class HeatMap:
    """F1 by technique and class; `sizes` counts the runs of each class."""

    columns: tuple[str, ...]
    sizes: tuple[int, ...]
    rows: tuple[tuple[str, tuple[HeatCell | None, ...]], ...]


def board_rows(stored: Stored, arch: str) -> list[BoardRow]:
    """The leaderboard of one architecture, best first."""
    board = stored.board[stored.board["arch"] == arch]
    tests = stored.tests[stored.tests["arch"] == arch]
    tied = tied_with_best(tests)
    seconds = technique_costs(stored, arch)["total"]
    levels = sorted(board["level"].unique())
    path = board[board["protocol"] == "path"].set_index(["technique", "level"])
    paper = board[board["protocol"] == "paper"].set_index(["technique", "level"])["f1"]
    best = path["f1"].groupby("level").max()
    ranks = tests[tests["role"] == "best"].set_index(["technique", "level"])["mean_rank"]
    rows = []
    for technique in order(board):
        scores = []
        for level in levels:
            if (technique, level) not in path.index:
                scores.append(None)
                continue
            row = path.loc[(technique, level)]
            is_best = row["f1"] == best[level]
            scores.append(Score(row["f1"], row["low"], row["high"], is_best, (technique, level) in tied))
        first = path.loc[(technique, levels[0])]
        rows.append(
            BoardRow(
                technique=technique,
                family=first["family"],
                path=tuple(scores),
                paper=tuple(paper.get((technique, level)) for level in levels),
                false_alarms=first["false_alarm_rate"],
                auroc=first["auroc"],
                mean_rank=ranks.get((technique, max(levels)), np.nan),
                seconds=seconds.get(technique, np.nan),
            )
        )
    return rows


def heat_map(stored: Stored, arch: str, level: int) -> HeatMap | None:
    """F1 per category under `path`, at Level 3 the mean over its root causes; None if no technique serves the level."""
    scores = stored.classes
    scores = scores[(scores["arch"] == arch) & (scores["level"] == level) & (scores["protocol"] == "path")]
    if scores.empty:
        return None
    scores = scores.assign(category=scores["class"].str.split("/").str[0])
    table = scores.pivot_table(index="technique", columns="category", values="f1", aggfunc="mean")
    first = scores[scores["technique"] == scores["technique"].iloc[0]]
    sizes = first.groupby("category")["support"].sum()
    known = [c for c in (*categories("decoder"), CORRECT) if c in table]
    columns = [*known, *table.columns.difference(known)]
    ranked = [t for t in order(stored.board[stored.board["arch"] == arch]) if t in table.index]
    rows = tuple((t, tuple(heat_cell(table.loc[t, c]) for c in columns)) for t in ranked)
    return HeatMap(tuple(columns), tuple(int(sizes.get(c, 0)) for c in columns), rows)


def heat_cell(value: float) -> HeatCell | None:
    """Pale to dark in one hue, so that lightness alone carries the value; black or white ink, whichever contrasts more.

    >>> heat_cell(0.0).ink, heat_cell(1.0).ink
    ('#000000', '#ffffff')
    """
    if not np.isfinite(value):
        return None
    pale, dark = np.array([244, 246, 248]), np.array([13, 56, 92])
    rgb = pale + (dark - pale) * float(np.clip(value, 0, 1))
    ink = "#000000" if contrast(rgb, np.zeros(3)) >= contrast(rgb, np.full(3, 255)) else "#ffffff"
    return HeatCell(float(value), "#" + "".join(f"{round(c):02x}" for c in rgb), ink)


def contrast(one, other) -> float:
    """WCAG 2 contrast ratio of two sRGB colours (0 to 255)."""
    light, deep = sorted((_luminance(np.asarray(c, float)) for c in (one, other)), reverse=True)
    return (light + 0.05) / (deep + 0.05)


def technique_costs(stored: Stored, arch: str) -> pd.DataFrame:
    """Seconds of tuning, fitting and judging over all folds, their total, and peak memory (MiB), cheapest first."""
    costs = stored.costs[stored.costs["arch"] == arch]
    seconds = ["seconds_tune", "seconds_fit", "seconds_predict"]
    table = costs.groupby("technique")[seconds].sum()
    table["total"] = table.sum(axis=1)
    table["peak_memory_mib"] = costs.groupby("technique")["peak_memory_mib"].max()
    return table.sort_values("total")


def rule_rows(table: pd.DataFrame, least: float = 0.01, most: int = 6) -> list[dict]:
    """Per technique the rules that fired most on faulty runs: share of faulty, of correct, and where most often.

    `table` is that of rules_table.py; rules that fired on less than `least` of either are left out.
    """
    shares = table.pivot_table(index=["technique", "rule"], columns="category", values="share", sort=False)
    rows = []
    for technique, part in shares.groupby(level="technique", sort=False):
        faulty, correct = part["faulty"], part[CORRECT]
        shown = part[(faulty >= least) | (correct >= least)].sort_values("faulty", ascending=False).head(most)
        for (_, rule), row in shown.iterrows():
            others = row.drop(["faulty", CORRECT])
            top = others.idxmax() if others.notna().any() else ""
            rows.append(
                {
                    "technique": technique,
                    "rule": rule.replace("_", " "),
                    "faulty": row["faulty"],
                    "correct": row[CORRECT],
                    "top": f"{top} {100 * others[top]:.0f} %" if top else "",
                }
            )
    return rows


def printed(table: SideBySide) -> dict:
    """A side-by-side table for the template: heads by architecture, rows of (paper, ours, missing)."""
    cells = table.cells
    architectures = list(dict.fromkeys(cells["arch"]))
    heads = [(a, list(dict.fromkeys(cells.loc[cells["arch"] == a, "measure"]))) for a in architectures]
    found = cells.set_index(["section", "row", "arch", "measure"])
    rows = []
    for section, row in cells[["section", "row"]].drop_duplicates().itertuples(index=False):
        shown = []
        for arch, measures in heads:
            for measure in measures:
                key = (section, row, arch, measure)
                shown.append(_printed_cell(found.loc[key], table) if key in found.index else None)
        rows.append({"section": section, "row": row, "cells": shown})
    columns = [MEASURES.get(m, m) for _, measures in heads for m in measures]
    return {
        "number": table.number,
        "title": table.title,
        "heads": [(a, len(m)) for a, m in heads],
        "columns": columns,
        "rows": rows,
        "notes": notes(table),
        "has_sections": bool(cells["section"].any()),
        "reported_only": table.reported_only,
    }


def inline_svg(path: Path, label: str) -> Markup:
    """A stored line drawing as part of the page: black becomes the text colour, white nothing, whatever the theme."""
    text = path.read_text()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r"fill: (#ffffff|white)", "fill: none", text)
    text = re.sub(r"(fill|stroke): (#000000|#4d4d4d|black)", r"\1: currentColor", text)
    return Markup(text.replace("<svg", f'<svg role="img" aria-label="{escape(label)}"', 1))


def picture(path: Path, label: str) -> Markup:
    """A stored SVG as an image of its own, colours as drawn."""
    data = base64.b64encode(path.read_bytes()).decode()
    return Markup('<img alt="{}" src="data:image/svg+xml;base64,{}">').format(label, data)


def render(context: dict) -> str:
    """The page."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATE.parent), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {
        "short": short,
        "svg": lambda figure: inline_svg(*figure),
        "picture": lambda figure: picture(*figure),
        "code": _code,
        "command": _command,
    }
    return environment.get_template(TEMPLATE.name).render(**context)


def short(value, digits: int = 3) -> str:
    """A score without its leading zero.

    >>> short(0.8128), short(1.0), short(float("nan"))
    ('.813', '1.00', '–')
    """
    if value is None or not np.isfinite(value):
        return "–"
    return f"{value:.{digits}f}".removeprefix("0") if value < 1 - 0.5 * 10**-digits else f"{value:.{digits - 1}f}"


def _printed_cell(cell: pd.Series, table: SideBySide) -> dict:
    return {
        "paper": number_text(cell["paper"], table.digits),
        "ours": "" if table.reported_only else ours_text(cell, table.digits),
        "missing": cell["missing"],
        "text": cell_text(cell, table.digits, table.reported_only),
    }


def _code(text: str) -> Markup:
    """Backticks become code."""
    return Markup(re.sub(r"`([^`]*)`", r"<code>\1</code>", str(escape(text))))


def _command(text: str) -> Markup:
    """A command that wraps between its words only, so that no option is broken after its first hyphen."""
    words = Markup(" ").join(Markup('<span class="word">{}</span>').format(word) for word in text.split(" "))
    return Markup("<code>{}</code>").format(words)


def _luminance(rgb: np.ndarray) -> float:
    channel = rgb / 255
    linear = np.where(channel <= 0.03928, channel / 12.92, ((channel + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])

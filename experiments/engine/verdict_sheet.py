"""The verdict sheet of one run, after the DEFault++ manuscript's Figure 13: what is wrong, where, how sure, and why.

A sheet is plain tables (`VerdictSheet`), made once and shown as a terminal page (`to_rich`), as HTML (`to_html`) or as
a figure (`draw`). `verdict_sheet` makes it from fitted techniques; `experiments/explain.py` makes it from kept tables.
"""

from __future__ import annotations

import html
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from rich import box
from rich.console import Group as Stack
from rich.table import Table

from baselines.rules import RuleTechnique
from baselines.technique import Technique
from features.bench import Bench, BenchError

# Figures and explanations are imported where they are made: a sheet alone needs neither matplotlib nor torch.
if TYPE_CHECKING:
    from experiments.engine.explanations import Settings

VERDICT_COLUMNS = ("technique", "faulty", "confidence_1", "category", "confidence_2", "root_cause", "confidence_3")
COUNT_COLUMNS = ("alike", "hits_2", "hits_3")
"""Optional columns of verdicts: "18 of 25", what the confidence of each level rests on."""
RULE_COLUMNS = ("technique", "rule", "severity", "epoch", "layer", "observed", "threshold")
SHOWN_PROTOTYPES = 5
SHOWN_RULES = 8
SHOWN_GROUPS = 4


@dataclass(frozen=True, eq=False)
class VerdictSheet:
    """Everything that is known about one run.

    run, pair : whose sheet it is.
    truth : (category, root cause) where it is known, else None.
    verdicts : one row per technique, `VERDICT_COLUMNS`; confidences in [0, 1], NaN where there is none. With
        `COUNT_COLUMNS` where they are rates: `alike` counts faulty runs among those that were judged alike.
    groups : group × explanation, each column scaled to a largest absolute value of 1.
    prototypes : prototype, distance; the nearest first. Empty without DEFault++.
    rules : every rule that fired, `RULE_COLUMNS`.
    notes : what is missing and why, one sentence each.
    trusted : False marks every confidence by a question mark.
    """

    run: str
    pair: str
    truth: tuple[str, str] | None
    verdicts: pd.DataFrame
    groups: pd.DataFrame
    prototypes: pd.DataFrame
    rules: pd.DataFrame
    notes: tuple[str, ...] = field(default=())
    trusted: bool = True


def verdict_sheet(
    bench: Bench,
    run: str,
    techniques: list[Technique],
    train: Bench,
    known: bool = True,
    settings: Settings | None = None,
) -> VerdictSheet:
    """The sheet of one run of `bench`, from techniques that were fitted on `train`.

    `known` says whether the bench's labels are the truth (False for a run of one's own). Techniques that give verdicts
    only, rules and the log's lack are told apart in `notes`. Raises BenchError if the run isn't there.
    """
    from experiments.engine.explanations import Settings, explain_runs
    from experiments.engine.margins import game_of, why_unexplained

    if run not in bench.runs:
        raise BenchError(f"bench {bench.name!r} has no run {run!r}")
    one = bench.take([run])
    settings = settings or Settings()
    verdicts, groups, prototypes, rules, notes = [], {}, pd.DataFrame(columns=["prototype", "distance"]), [], []
    for technique in techniques:
        if reason := technique.unsupported(one):
            notes.append(f"Not run: {reason}.")
        elif isinstance(technique, RuleTechnique):
            verdicts.append(_plain(technique, one))
            rules.append(technique.firings(one).assign(technique=technique.name))
        elif reason := why_unexplained(technique):
            verdicts.append(_plain(technique, one))
            notes.append(f"Verdict only: {reason}.")
        else:
            made = explain_runs(technique, one, game_of(technique, one, train, settings.background), settings)
            verdicts.append({**made.verdicts.iloc[0].to_dict(), "technique": technique.name})
            groups |= sheet_groups(made.groups, technique.name)
            prototypes = made.prototypes if len(made.prototypes) else prototypes
    truth = tuple(one.labels.iloc[0][["category", "root_cause"]]) if known else None
    return assemble(
        str(run), str(one.pair.iloc[0]), truth, pd.DataFrame(verdicts), groups, prototypes, rules, tuple(notes)
    )


def assemble(
    run, pair, truth, verdicts, groups: dict[str, pd.Series], prototypes, rules, notes=(), trusted=True
) -> VerdictSheet:
    """A sheet from its parts, in the order and scale in which it is shown."""
    table = pd.DataFrame(groups)
    scaled = table / table.abs().max().where(lambda m: m > 0, 1.0)
    fired = pd.concat(rules, ignore_index=True) if rules else pd.DataFrame(columns=list(RULE_COLUMNS))
    return VerdictSheet(
        run,
        pair,
        truth,
        verdicts.reindex(columns=[*VERDICT_COLUMNS, *(c for c in COUNT_COLUMNS if c in verdicts)]).reset_index(
            drop=True
        ),
        scaled,
        prototypes.reindex(columns=["prototype", "distance"]).head(SHOWN_PROTOTYPES).reset_index(drop=True),
        fired.reindex(columns=list(RULE_COLUMNS)),
        tuple(notes),
        trusted,
    )


def sheet_groups(groups: pd.DataFrame, technique: str) -> dict[str, pd.Series]:
    """The explanations that a sheet shows of one technique and run: column title → group → value."""
    from experiments.engine.explanations import PROTOTYPE_DELTA, PROTOTYPE_WEIGHT

    chosen = {
        f"{technique}: why this category": (2, "SHAP interventional"),
        f"{technique}: Δ of prototypes": (3, PROTOTYPE_DELTA),
        f"{technique}: weight of prototypes": (3, PROTOTYPE_WEIGHT),
    }
    found = {}
    for title, (level, kind) in chosen.items():
        rows = groups[(groups["level"] == level) & (groups["kind"] == kind)]
        if len(rows):
            found[title] = rows.set_index("group")["value"]
    return found


def to_rich(sheet: VerdictSheet) -> Stack:
    """The sheet for a terminal of 100 columns."""
    parts = [f"[bold]{sheet.run}[/bold]  {sheet.pair}" + (f"  truth: {_truth(sheet)}" if sheet.truth else "")]
    parts += [rich_table(title, rows) for title, rows in sections(sheet)]
    return Stack(*parts, *(f"[dim]{note}[/dim]" for note in sheet.notes))


def to_html(sheet: VerdictSheet) -> str:
    """The sheet as an HTML fragment: one <section> of tables, no style of its own and nothing to fetch."""
    head = f"<h3>{html.escape(sheet.run)} <small>{html.escape(sheet.pair)}</small></h3>"
    truth = f"<p>Truth: {html.escape(_truth(sheet))}</p>" if sheet.truth else ""
    tables = "".join(
        f"<h4>{html.escape(title)}</h4>" + rows.to_html(index=False, border=0, escape=True)
        for title, rows in sections(sheet, full=True)
    )
    notes = "".join(f"<p>{html.escape(note)}</p>" for note in sheet.notes)
    return f'<section class="verdict-sheet">{head}{truth}{tables}{notes}</section>'


def draw(sheet: VerdictSheet, path: Path) -> list[Path]:
    """The sheet as a figure, in PNG and SVG beside `path`."""
    from matplotlib.figure import Figure

    from experiments.engine.explain_figures import save, styled

    lines = max(len(sheet.rules.head(SHOWN_RULES)), len(sheet.prototypes), 1)
    height = 1.6 + 0.26 * (len(sheet.verdicts) + lines) + 0.26 * len(sheet.groups)
    with styled():
        figure = Figure(figsize=(10, height), layout="constrained")
        top, middle, low = figure.subfigures(
            3, 1, height_ratios=[len(sheet.verdicts) + 1.5, max(len(sheet.groups), 2) + 2, lines + 2]
        )
        figure.suptitle(f"{sheet.run}   {sheet.pair}" + (f"   (truth: {_truth(sheet)})" if sheet.truth else ""))
        _draw_table(top.subplots(), _verdict_rows(sheet), "Verdicts")
        _draw_groups(middle.subplots(), sheet.groups)
        left, right = low.subplots(1, 2, width_ratios=[1, 2])
        _draw_prototypes(left, sheet.prototypes)
        rules = _rule_rows(sheet)
        named = [f"{t}: {r}" for t, r in zip(rules["technique"], rules["rule"], strict=True)]
        rules.insert(0, "rule that fired", named)
        widths = [0.52, 0.13, 0.12, 0.11, 0.12]
        _draw_table(right, rules.drop(columns=["technique", "rule"]), "Rules that fired", widths)
        return save(figure, path)


def sections(sheet: VerdictSheet, full: bool = False) -> list[tuple[str, pd.DataFrame]]:
    """Title and table of text, for each part that has rows; unless `full`, the first few rules and strongest groups."""
    groups = sheet.groups.map(lambda v: f"{v:+.2f}").rename_axis("group").reset_index() if full else _strongest(sheet)
    prototypes = sheet.prototypes.assign(distance=sheet.prototypes["distance"].map(lambda v: f"{v:.3g}"))
    parts = [
        ("Verdicts", _verdict_rows(sheet)),
        ("Groups (largest = 1)", groups),
        ("Nearest prototypes", prototypes),
        ("Rules that fired", _rule_rows(sheet, None if full else SHOWN_RULES)),
    ]
    return [(title, rows) for title, rows in parts if len(rows)]


def _strongest(sheet: VerdictSheet) -> pd.DataFrame:
    """An explanation per row: a terminal has no room for a column each."""
    rows = []
    for explanation, values in sheet.groups.items():
        order = values.abs().sort_values(ascending=False, kind="stable").index[:SHOWN_GROUPS]
        rows.append((explanation, ", ".join(f"{group} {values[group]:+.2f}" for group in order)))
    return pd.DataFrame(rows, columns=["explanation", "strongest groups"])


def _verdict_rows(sheet: VerdictSheet) -> pd.DataFrame:
    table = sheet.verdicts
    none, doubt = [None] * len(table), "" if sheet.trusted else "?"
    counts = [none, *(list(table[c]) if c in table else none for c in COUNT_COLUMNS[1:])]
    sure = [
        [_confidence(v, n, doubt) for v, n in zip(table[f"confidence_{level}"], counted, strict=True)]
        for level, counted in zip((1, 2, 3), counts, strict=True)
    ]
    guess = [[str(v) if isinstance(v, str) else "–" for v in table[c]] for c in ("category", "root_cause")]
    faulty = ["faulty" if v else "correct" for v in table["faulty"]]
    # What comes after "correct" is a guess, had it been faulty.
    guess = [
        [g if f == "faulty" or g == "–" else f"[{g}]" for g, f in zip(column, faulty, strict=True)] for column in guess
    ]
    cells = [[a + b for a, b in zip(*both, strict=True)] for both in zip((faulty, *guess), sure, strict=True)]
    alike = {"such runs faulty": list(table["alike"].fillna("–"))} if "alike" in table else {}
    return pd.DataFrame(
        {
            "technique": list(table["technique"]),
            "verdict": cells[0],
            **alike,
            "category": cells[1],
            "root cause": cells[2],
        }
    )


def _confidence(value: float, counted, doubt: str) -> str:
    if pd.isna(value):
        return ""
    return f" ({100 * value:.0f} %{doubt}" + (f", {counted})" if isinstance(counted, str) else ")")


def _rule_rows(sheet: VerdictSheet, count: int | None = SHOWN_RULES) -> pd.DataFrame:
    table = sheet.rules.iloc[:count]
    number = {c: [_number(v) for v in table[c]] for c in ("observed", "threshold")}
    where = [str(v) for v in table["epoch"]]
    return pd.DataFrame(
        {
            "technique": list(table["technique"]),
            "rule": list(table["rule"]),
            "at": where,
            "severity": list(table["severity"]),
            **number,
        }
    )


def _number(value) -> str:
    return f"{value:.3g}" if isinstance(value, int | float | np.number) else str(value)


def _truth(sheet: VerdictSheet) -> str:
    return " / ".join(dict.fromkeys(str(part) for part in sheet.truth))


def rich_table(title: str, rows: pd.DataFrame) -> Table:
    """A table of text for a terminal of 100 columns."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in rows:
        table.add_column(str(column), overflow="fold")
    for row in rows.itertuples(index=False):
        table.add_row(*(str(v).replace("[", r"\[") for v in row))
    return table


def _plain(technique: Technique, one: Bench) -> dict:
    row = technique.predict(one).table.iloc[0]
    return {"technique": technique.name, **row[["faulty", "category", "root_cause"]].to_dict()}


def _draw_table(axes, rows: pd.DataFrame, title: str, widths=None) -> None:
    axes.set_axis_off()
    axes.set_title(title, loc="left", fontweight="bold", fontsize=9)
    if not len(rows):
        axes.text(0, 0.9, "none", va="top", transform=axes.transAxes)
        return
    table = axes.table(
        rows.to_numpy(),
        colLabels=list(rows.columns),
        loc="upper left",
        cellLoc="left",
        edges="horizontal",
        colWidths=widths,
    )
    table.auto_set_font_size(False)
    table.set_fontsize(7.5)
    for cell in table.get_celld().values():
        cell.set_linewidth(0.3)


def _draw_groups(axes, groups: pd.DataFrame) -> None:
    from experiments.engine.explain_figures import SHADES

    axes.set_title(
        "Groups that speak for (right) or against (left) the verdict; largest = 1",
        loc="left",
        fontsize=9,
        fontweight="bold",
    )
    if not groups.shape[1]:
        axes.set_axis_off()
        return
    width = 0.8 / groups.shape[1]
    places = np.arange(len(groups))
    for i, column in enumerate(groups):
        axes.barh(places + i * width - 0.4 + width / 2, groups[column], width, label=column, **SHADES[i % len(SHADES)])
    axes.set_yticks(places, groups.index)
    axes.invert_yaxis()
    axes.axvline(0, color="black", linewidth=0.6)
    axes.set_xlim(-1.05, 1.05)
    axes.legend(fontsize=6.5, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)


def _draw_prototypes(axes, prototypes: pd.DataFrame) -> None:
    from experiments.engine.explain_figures import SHADES

    axes.set_title("Nearest prototypes (distance)", loc="left", fontsize=9, fontweight="bold")
    if not len(prototypes):
        axes.set_axis_off()
        axes.text(0, 0.9, "none", va="top", transform=axes.transAxes)
        return
    axes.barh(np.arange(len(prototypes)), prototypes["distance"], 0.6, **SHADES[0])
    axes.set_yticks(np.arange(len(prototypes)), prototypes["prototype"], fontsize=7)
    axes.invert_yaxis()

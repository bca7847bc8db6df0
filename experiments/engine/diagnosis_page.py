"""A diagnosis as a terminal page of 100 columns, as one HTML page with nothing to fetch, and as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
from rich.console import Group as Stack
from rich.markup import escape
from rich.panel import Panel

from experiments.engine.diagnosis import Diagnosis
from experiments.engine.verdict_sheet import SHOWN_RULES, rich_table, sections

MEANING = {
    "distance": "mean distance to the 5 nearest rows",
    "absent": "share of columns that only this run lacks",
    "beyond": "share of columns outside the bench's range",
}
TERMINAL_INVARIANTS = 3
READING = (
    "Percentages are what a verdict was worth on unseen (model, task) pairs, by single runs of them where the bench "
    "has some: at Level 1 the chance that a verdict with this score is right, and how many of the runs judged most "
    "alike were faulty; at Levels 2 and 3 how often runs that the technique put there belonged there, drawn towards "
    "its average where they were few. A guess in [brackets] is what it would say, had it called the run faulty. "
    "Percentages hold where {:.0f} % of the runs are faulty, as in the bench; among runs of which fewer are faulty, "
    "alarms are false more often."
)


def to_rich(diagnosis: Diagnosis) -> Stack:
    """The diagnosis for a terminal of 100 columns."""
    sheet, kind = diagnosis.sheet, diagnosis.kind
    head = "\n".join(escape(line) for line in diagnosis.headline)
    parts = [
        f"[bold]{escape(sheet.run)}[/bold]  {sheet.pair}",
        Panel(head, border_style="red" if kind.out else "green", padding=(0, 1)),
    ]
    for title, rows in _tables(diagnosis, short=True):
        parts += [rich_table(title, rows), *_dim(_caption(diagnosis, title))]
    return Stack(*parts, *(line for note in sheet.notes for line in _dim(note)))


def to_html(diagnosis: Diagnosis) -> str:
    """One page: style inside, no script, nothing to fetch; light or dark as the reader's system is."""
    from jinja2 import Environment, FileSystemLoader, select_autoescape

    environment = Environment(loader=FileSystemLoader(Path(__file__).parent), autoescape=select_autoescape(["j2"]))
    tables = [
        {
            "title": t,
            "caption": _caption(diagnosis, t),
            "columns": list(r.columns),
            "rows": r.astype(str).values.tolist(),
        }
        for t, r in _tables(diagnosis, short=False)
    ]
    return environment.get_template("diagnosis.html.j2").render(
        run=diagnosis.sheet.run,
        arch=diagnosis.sheet.pair,
        out=diagnosis.kind.out,
        headline=diagnosis.headline,
        tables=tables,
        notes=diagnosis.sheet.notes,
    )


def to_json(diagnosis: Diagnosis) -> str:
    """Every table of the diagnosis, numbers as numbers; what is not known is null."""
    sheet, kind = diagnosis.sheet, diagnosis.kind
    held = {
        "run": sheet.run,
        "arch": sheet.pair,
        "headline": diagnosis.headline,
        "out_of_distribution": kind.out,
        "novelty": {
            "percentile": kind.percentile,
            "threshold": kind.threshold,
            "measures": kind.table.rename_axis("measure").reset_index().to_dict("records"),
        },
        "called_faulty": diagnosis.called,
        "judged": diagnosis.judged,
        "prevalence": diagnosis.prevalence,
        "calibration_error": diagnosis.errors,
        "verdicts": sheet.verdicts.to_dict("records"),
        "rules": sheet.rules.to_dict("records"),
        "invariants": diagnosis.invariants.to_dict("records"),
        "groups": sheet.groups.to_dict(),
        "prototypes": sheet.prototypes.to_dict("records"),
        "nearest": kind.nearest.to_dict("records"),
        "steps": diagnosis.steps.to_dict("records"),
        "notes": list(sheet.notes),
    }
    return json.dumps(_plain(held), indent=1) + "\n"


def _tables(diagnosis: Diagnosis, short: bool) -> list[tuple[str, pd.DataFrame]]:
    """Title and table of text, in the order of reading; parts without rows are left out."""
    parts = dict(sections(diagnosis.sheet, full=not short))
    invariants = diagnosis.invariants.head(TERMINAL_INVARIANTS) if short else diagnosis.invariants
    ordered = [
        ("Is it a run of this kind?", _kind_rows(diagnosis)),
        ("Verdicts", parts.get("Verdicts")),
        ("What to try first", diagnosis.steps),
        ("Nearest runs of the bench", _nearest_rows(diagnosis)),
        ("Rules that fired", parts.get("Rules that fired")),
        ("Broken invariants", invariants.assign(observed=invariants["observed"].astype(str))),
        ("Groups (largest = 1)", parts.get("Groups (largest = 1)")),
        ("Nearest prototypes", parts.get("Nearest prototypes")),
    ]
    return [(title, rows) for title, rows in ordered if rows is not None and len(rows)]


def _caption(diagnosis: Diagnosis, title: str) -> str:
    kind = diagnosis.kind
    if title == "Verdicts":
        return READING.format(100 * diagnosis.prevalence)
    if title == "Is it a run of this kind?":
        return (
            "Percentiles are shares of the bench's runs that show less when their (model, task) pair is held out; "
            f"a run is of another kind when one exceeds {100 * kind.threshold:.1f} %, which 5 % of those runs do."
        )
    if title == "Nearest runs of the bench":
        return (
            "Distance over standardised columns, along and off the principal components; 1 is typical of a run of an "
            f"unseen pair ({kind.typical:.1f}). Model and task weigh in it as much as the fault."
        )
    hidden = len(diagnosis.sheet.rules) - SHOWN_RULES
    if title == "Rules that fired" and hidden > 0:
        return f"{len(diagnosis.sheet.rules)} fired in all; --html and --json show every one."
    return ""


def _kind_rows(diagnosis: Diagnosis) -> pd.DataFrame:
    table = diagnosis.kind.table
    shares = table.index != "distance"
    shown = {
        column: [f"{100 * v:.1f} %" if s else f"{v:.1f}" for v, s in zip(table[column], shares, strict=True)]
        for column in ("value", "threshold")
    }
    return pd.DataFrame(
        {
            "measure": [MEANING[m] for m in table.index],
            "this run": shown["value"],
            "limit": shown["threshold"],
            "percentile": [f"{100 * p:.1f} %" for p in table["percentile"]],
            "": ["outside" if o else "inside" for o in table["outside"]],
        }
    )


def _nearest_rows(diagnosis: Diagnosis) -> pd.DataFrame:
    table = diagnosis.kind.nearest
    label = [
        f"{r.category} / {r.root_cause}"
        if r.faulty and isinstance(r.category, str)
        else ("faulty" if r.faulty else "correct")
        for r in table.itertuples()
    ]
    return pd.DataFrame(
        {
            "run of the bench": table["run"].astype(str),
            "pair": table["pair"].astype(str),
            "label": label,
            "distance": [f"{d:.1f}" for d in table["distance"]],
            "over typical": [f"{r:.2f}" for r in table["ratio"]],
        }
    )


def _dim(text: str) -> list[str]:
    return [f"[dim]{escape(text)}[/dim]\n"] if text else []


def _plain(value):
    """JSON without NaN, infinity or numpy types."""
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else None
    return value if value is None or isinstance(value, bool | int | str) else str(value)

"""What a newcomer reads in MLflow: descriptions of a comparison and of a technique, and a page of confusion matrices.

MLflow shows the first lines of a description at once and the rest on demand, so that the best technique of every
level, with a link to its run, stands first.
"""

from __future__ import annotations

from html import escape
from urllib.parse import quote

import pandas as pd

from experiments.engine.leaderboard import Judged, order
from experiments.engine.report import heat_cell, short
from features.bench import Bench

NOTE_LIMIT = 7_800
"""MLflow cuts a description at 8,000 characters."""
LEVEL_NAMES = {1: "is it broken?", 2: "which component?", 3: "which root cause?"}


def headline(level: int) -> str:
    """The metric that one compares. MLflow's charts sort sections by the prefix, and this one comes first.

    >>> headline(3)
    'F1 path/L3'
    """
    return f"F1 path/L{level}"


def comparison_note(bench: Bench, board: pd.DataFrame, experiment: str, name: str, runs: dict[str, str]) -> str:
    """Best technique per level, links to all of them as a table and as charts, the leaderboard, notes of the bench.

    `runs` maps technique → run id. Rows that would exceed MLflow's limit are left to the artifact leaderboard.md.
    """
    path = board[board["protocol"] == "path"]
    levels = sorted(path["level"].unique())
    best = [path[path["level"] == level].sort_values("f1", ascending=False, kind="stable").iloc[0] for level in levels]
    lines = [
        f"- **Level {row.level}, {LEVEL_NAMES[row.level]}** {_link(row.technique, experiment, runs)}: "
        f"F1 {short(row.f1)}{_interval(row)}"
        for row in best
    ]
    shown = _search(experiment, name, headline(levels[-1]))
    lines += ["", f"[All techniques, best first]({shown}) · [as charts]({shown}&compareRunsMode=CHART)", ""]
    lines += [f"{len(bench)} runs of {bench.name}, {bench.pair.nunique()} pairs. F1 under “path”: one verdict per run."]
    lines += ["", "| | " + " | ".join(f"L{n}" for n in levels) + " |", "|" + " --- |" * (len(levels) + 1)]
    footer = ["", *(f"- {note}" for note in bench.notes)]
    room = NOTE_LIMIT - len("\n".join([*lines, *footer])) - 60
    scores = path.set_index(["technique", "level"])
    ranked = order(board)
    for place, technique in enumerate(ranked):
        cells = [_link(technique, experiment, runs)]
        for level in levels:
            known = (technique, level) in scores.index
            cells.append(short(scores.loc[(technique, level), "f1"]) if known else "–")
        row = "| " + " | ".join(cells) + " |"
        room -= len(row) + 1
        if room < 0:
            lines.append(f"| … {len(ranked) - place} more: artifact leaderboard.md |" + " |" * len(levels))
            break
        lines.append(row)
    return "\n".join([*lines, *footer])[:NOTE_LIMIT]


def technique_note(entry: Judged, board: pd.DataFrame, folds: dict[tuple[int, str], pd.DataFrame]) -> str:
    """Scores with interval and per fold, tuned parameters per fold, and where the verdicts lie.

    `board` holds the rows of this technique; `folds` maps (level, protocol) → F1, precision and recall per fold.
    """
    numbers = [r.cell.fold for r in entry.results]
    head = ["F1", "all", "95 % interval", *(f"fold {n}" for n in numbers)]
    rows = []
    for row in board.sort_values(["protocol", "level"], ascending=[False, True]).itertuples():
        per_fold = folds[row.level, row.protocol]["f1"]
        cells = [f"L{row.level} {row.protocol}", short(row.f1), _interval(row).strip(" []") or "–"]
        rows.append([*cells, *(short(per_fold.get(n)) for n in numbers)])
    parts = [_table(head, rows)]
    names = sorted({name for r in entry.results for name in r.parameters})
    if names:
        values = [[f"`{name}`", *(str(r.parameters.get(name, "–"))[:24] for r in entry.results)] for name in names]
        parts.append(_table(["tuned", *(f"fold {n}" for n in numbers)], values))
    parts.append(
        "Artifacts: `confusion.html` (who is taken for what), `verdicts.csv` (one row per run), `verdicts.parquet` "
        "(with all evidence), `classes_*.csv` (scores per class). One child run per fold, with its trials if tuned."
    )
    parts.append(" ".join((entry.estimator.__doc__ or "").split("\n\n")[0].split()))
    return "\n\n".join(parts)[:NOTE_LIMIT]


def confusion_page(name: str, tables: dict[int, pd.DataFrame]) -> str:
    """Confusion matrices by level (true × predicted counts) as HTML, shaded by the share of the true class."""
    style = (
        "body{font:14px/1.4 system-ui,sans-serif;margin:1rem;color:#1b1e22;background:#fff}"
        "table{border-collapse:collapse;font-variant-numeric:tabular-nums;margin-bottom:2rem}"
        "th{font-weight:500;text-align:right;padding:2px 6px;white-space:nowrap}td{text-align:center;padding:3px 6px}"
        "thead th{writing-mode:vertical-rl;transform:rotate(180deg);text-align:left;padding:6px 2px}"
        "div{overflow-x:auto}"
    )
    parts = [f"<!DOCTYPE html><meta charset=utf-8><title>{escape(name)}</title><style>{style}</style>"]
    parts.append(f"<h1>{escape(name)}</h1><p>Rows: truth; columns: verdict; shade: share of the row.</p>")
    for level, table in tables.items():
        heads = "".join(f"<th>{escape(str(c))}</th>" for c in table.columns)
        parts.append(f"<h2>Level {level}</h2><div><table><thead><tr><th></th>{heads}</tr></thead><tbody>")
        for truth, counts in table.iterrows():
            shares = counts / max(counts.sum(), 1)
            cells = "".join(map(_count, counts, shares))
            parts.append(f"<tr><th>{escape(str(truth))}</th>{cells}</tr>")
        parts.append("</tbody></table></div>")
    return "\n".join(parts)


def _count(count: float, share: float) -> str:
    if count == 0:
        return "<td>·</td>"
    cell = heat_cell(share)
    return f'<td style="background:{cell.background};color:{cell.ink}">{count:.0f}</td>'


def _search(experiment: str, name: str, metric: str) -> str:
    """The experiment's page with the technique runs of one comparison, best first."""
    wanted = quote(f"tags.kind = 'technique' and tags.comparison = '{name}'", safe="")
    key = quote(f"metrics.`{metric}`", safe="")
    return f"#/experiments/{experiment}/runs?searchFilter={wanted}&orderByKey={key}&orderByAsc=false"


def _link(technique: str, experiment: str, runs: dict[str, str]) -> str:
    return f"[{technique}](#/experiments/{experiment}/runs/{runs[technique]})" if technique in runs else technique


def _interval(row) -> str:
    return f" [{short(row.low, 2)}–{short(row.high, 2)}]" if pd.notna(row.low) else ""


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])

"""Side-by-side tables as Markdown, LaTeX (booktabs) and CSV.

>>> cell_text({"paper": 0.8259, "ours": 0.7, "low": 0.61, "high": 0.78, "missing": ""}, 3)
'0.826 | 0.700 [0.61–0.78]'
>>> cell_text({"paper": 25, "ours": float("nan"), "low": None, "high": None, "missing": "python x.py"}, 0)
'25 | not run'
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import pandas as pd

from experiments.engine.tables import MEASURES, SideBySide

ABSENT, NOT_RUN = "–", "not run"
_LATEX = {
    "\\": r"\textbackslash{}",
    **{c: f"\\{c}" for c in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "|": r"$\mid$",
    "<": "$<$",
    ">": "$>$",
    "–": "--",
    "−": "$-$",
    "±": r"$\pm$",
    "≈": r"$\approx$",
    "×": r"$\times$",
    "“": "``",
    "”": "''",
    "’": "'",
}


def number_text(value, digits: int) -> str:
    """A figure with `digits` decimals, text as it is, and a dash for nothing."""
    if isinstance(value, str):
        return value
    return ABSENT if pd.isna(value) else f"{value:,.{digits}f}"


def ours_text(cell, digits: int) -> str:
    """Our side of a cell: "not run", or the value with its interval where there is one."""
    if cell["missing"]:
        return NOT_RUN
    text = number_text(cell["ours"], digits)
    return text if pd.isna(cell["low"]) else f"{text} [{cell['low']:.2f}–{cell['high']:.2f}]"


def cell_text(cell, digits: int, reported_only: bool = False) -> str:
    """A cell: paper | ours."""
    paper = number_text(cell["paper"], digits)
    return paper if reported_only else f"{paper} | {ours_text(cell, digits)}"


def wide(table: SideBySide) -> pd.DataFrame:
    """The table as it is printed: rows (section, row) × columns (arch, measure), cells as text; "" where none is."""
    cells = table.cells
    text = [cell_text(cell, table.digits, table.reported_only) for cell in cells.to_dict("records")]
    rows = pd.MultiIndex.from_frame(cells[["section", "row"]].drop_duplicates())
    columns = pd.MultiIndex.from_frame(cells[["arch", "measure"]].drop_duplicates())
    shown = cells.assign(text=text).pivot_table(
        index=["section", "row"], columns=["arch", "measure"], values="text", aggfunc="first"
    )
    # Architectures stand side by side, each with its measures in their order.
    columns = sorted(columns, key=lambda c: [a for a, _ in columns].index(c[0]))
    return shown.reindex(index=rows, columns=pd.MultiIndex.from_tuples(columns)).fillna("")


def notes(table: SideBySide) -> list[str]:
    """What stands below the table, one sentence each, with commands in backticks."""
    if table.reported_only:
        return ["Reported figures only: nothing here was measured by this project."]
    lines = ["Cells: manuscript | ours [95 % interval, bootstrap over pairs]; – is not reported or not served."]
    if table.cells["low"].isna().all():
        lines = ["Cells: manuscript | ours; – is not reported."]
    lines += [table.protocol] if table.protocol else []
    lines += [f"{NOT_RUN}: make it by `{command}`." for command in table.commands]
    return lines + list(table.notes)


def markdown(table: SideBySide) -> str:
    """A heading, the table and its notes. Sections are rows of their own."""
    shown = wide(table)
    heads = [_heading(arch, measure) for arch, measure in shown.columns]
    lines = [f"## Table {table.number}. {table.title}", "", _line(["", *heads]), _line(["---", *["---:"] * len(heads)])]
    previous = ""
    for (section, row), cells in shown.iterrows():
        if section != previous:
            lines.append(_line([f"**{section}**", *[""] * len(heads)]))
            previous = section
        lines.append(_line([row, *cells]))
    return "\n".join([*lines, "", *(f"- {note}" for note in notes(table)), ""])


def latex(table: SideBySide) -> str:
    """A `table` environment; needs booktabs and graphicx."""
    shown = wide(table)
    architectures = list(dict.fromkeys(a for a, _ in shown.columns))
    spans = [(a, [m for b, m in shown.columns if b == a]) for a in architectures]
    body = [r"\toprule"]
    if any(architectures):
        body.append(
            " & ".join(["", *(rf"\multicolumn{{{len(m)}}}{{c}}{{{a.capitalize()}}}" for a, m in spans)]) + r" \\"
        )
        start = 2
        for _, measures in spans:
            body.append(rf"\cmidrule(lr){{{start}-{start + len(measures) - 1}}}")
            start += len(measures)
    body.append(" & ".join(["", *(escape(MEASURES.get(m, m)) for _, m in shown.columns)]) + r" \\")
    body.append(r"\midrule")
    previous = ""
    for (section, row), cells in shown.iterrows():
        if section != previous:
            body.append(rf"\multicolumn{{{len(cells) + 1}}}{{l}}{{\textit{{{escape(section)}}}}} \\")
            previous = section
        body.append(" & ".join(map(escape, [row, *cells])) + r" \\")
    body.append(r"\bottomrule")
    return "\n".join(
        [
            r"\begin{table}[tp]",
            r"\centering",
            rf"\caption{{{escape(table.title)} (Table {escape(table.number)} of the manuscript)}}",
            rf"\label{{tab:beside-{table.number}}}",
            # Shrinks what is wider than the page, and leaves the rest at its size.
            r"\resizebox{\ifdim\width>\textwidth\textwidth\else\width\fi}{!}{%",
            rf"\begin{{tabular}}{{l{'r' * shown.shape[1]}}}",
            *body,
            r"\end{tabular}}",
            r"\par\smallskip\raggedright\footnotesize",
            *(_latex_note(note) + r"\par" for note in notes(table)),
            r"\end{table}",
            "",
        ]
    )


def latex_document(tables: Sequence[SideBySide]) -> str:
    """A document that holds all tables and compiles by itself."""
    return "\n".join(
        [
            r"\documentclass[a4paper]{article}",
            r"\usepackage[T1]{fontenc}",
            r"\usepackage[margin=2cm]{geometry}",
            r"\usepackage{booktabs,graphicx}",
            r"\begin{document}",
            *(f"\\input{{table{table.number}.tex}}\n\\clearpage" for table in tables),
            r"\end{document}",
            "",
        ]
    )


def csv(table: SideBySide) -> str:
    """The tidy cells."""
    cells = table.cells.assign(table=table.number).rename(columns={"missing": "command_if_not_run"})
    return cells[["table", *cells.columns[:-1]]].to_csv(index=False, float_format="%.6g")


def escape(text: str) -> str:
    r"""Text for LaTeX, in ASCII.

    >>> escape("kv_cache 5 % −FPG")
    'kv\\_cache 5 \\% $-$FPG'
    """
    return "".join(_LATEX.get(c, c) for c in text)


def _latex_note(note: str) -> str:
    """Backticks become typewriter, in which two hyphens must stay two."""
    parts = re.split(r"`([^`]*)`", note)
    return "".join(
        rf"\texttt{{{escape(part).replace('--', '-{}-')}}}" if i % 2 else escape(part) for i, part in enumerate(parts)
    )


def _heading(arch: str, measure: str) -> str:
    return " ".join(filter(None, [arch.capitalize(), MEASURES.get(measure, measure)]))


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(str(c).replace("|", r"\|") for c in cells) + " |"

"""The cases' tables: one row per technique beside the manuscript's figures, one per case, and who said what."""

from __future__ import annotations

from functools import cache

import pandas as pd
import yaml

from experiments.cases.case import Case
from experiments.cases.judging import RIGHT, by_case, by_technique
from experiments.engine.revision import ROOT

MANUSCRIPT = "DEFault++, manuscript (reported)"
COLUMNS = (*RIGHT, "false_alarm")
HEADINGS = ("detected", "category right", "root cause right", "false alarms")
NONE = "–"


@cache
def _table12() -> dict:
    return yaml.safe_load((ROOT / "results" / "paper.yaml").read_text())["table12_real_world"]


def reported() -> str:
    """The manuscript's totals over its own eleven cases, and what they are totals of."""
    total = _table12()["summary"]
    return (
        f"Reported in the manuscript's Table 12 for DEFault++ on the original projects: {total['detected']} of "
        f"{total['cases']} cases detected, {total['categorized']} with the right category, {total['root_caused']} with "
        "the right root cause; fixed versions are not reported."
    )


def technique_lines(counts: pd.DataFrame, chosen: list[Case]) -> list[list[str]]:
    """One line of cells per technique, most root causes and fewest alarms first, then the manuscript's figures."""
    lines = []
    order = counts.fillna(-1).sort_values(
        ["root_cause_right", "category_right", "detected", "false_alarm"], ascending=[False, False, False, True]
    )
    for row in counts.loc[order.index].itertuples():
        cells = [NONE if pd.isna(v) else f"{int(v)} of {row.cases}" for v in (getattr(row, c) for c in COLUMNS)]
        lines.append([row.name, *cells])
    told = [_table12()[c.reported_as] for c in chosen]
    marks = [sum(bool(t[key]) for t in told) for key in ("detected", "category_ok", "root_cause_ok")]
    return [*lines, [MANUSCRIPT, *(f"{n} of {len(chosen)}" for n in marks), NONE]]


def case_lines(counts: pd.DataFrame, runs: pd.DataFrame, chosen: list[Case]) -> list[list[str]]:
    """Headings, then one line of cells per case."""
    lines = [["case", "quality", "p", "found", "category", "cause", "alarms", "unlike", "paper"]]
    for case in chosen:
        of_case = runs[runs["case"] == case.name].set_index("version")
        row, faulty, fixed = counts.loc[case.name], of_case.loc["faulty"], of_case.loc["fixed"]
        shares = [f"{int(row[c])}/{int(row[f'of_{c}'])}" for c in COLUMNS]
        unlike = [name for name, run in (("faulty", faulty), ("fixed", fixed)) if run["out"]]
        quality = f"{fixed['quality']:.3f}→{faulty['quality']:.3f}"
        both = "both" if len(unlike) == 2 else unlike[0] if unlike else "no"
        lines.append(
            [case.name, quality, f"{faulty['p_value']:.3g}", *shares, both, _marks(_table12()[case.reported_as])]
        )
    return lines


def markdown(verdicts: pd.DataFrame, runs: pd.DataFrame, chosen: list[Case]) -> str:
    """All of it as one page."""
    parts = ["# Real-world faults", "", *_reading(), ""]
    parts += _table(["technique", *HEADINGS], technique_lines(by_technique(verdicts), chosen))
    parts += ["", reported(), "", "## By case", ""]
    head, *lines = case_lines(by_case(verdicts), runs, chosen)
    parts += [*_table(head, lines), "", *_about_cases(runs, chosen), "", "## Who said what", ""]
    return "\n".join([*parts, *_who(verdicts, chosen)]) + "\n"


def _reading() -> list[str]:
    return [
        "Faults reported in public, rebuilt on the bench's own tiny models, each in a faulty and a fixed version that",
        "differ in nothing else. Techniques are fitted on the whole embedded bench; none of these runs is in it, but",
        "models, tasks and the look of a clean run are the bench's own. “Faulty” said of a fixed version is a false",
        f"alarm. Root causes count only within the right category; {NONE}: no verdict at that level.",
    ]


def _about_cases(runs: pd.DataFrame, chosen: list[Case]) -> list[str]:
    lines = [
        "Quality: accuracy (encoders) or log-perplexity in nats (decoders) on the test split, fixed → faulty, mean",
        "over the matched seeds; p: exact one-sided paired sign-flip test that the faulty version is worse (0.0312 is",
        "the least that five seeds can give). Found, category, cause: techniques that were right about the faulty",
        "version; alarms: those that called the fixed one faulty. Unlike: versions that the novelty measure calls out",
        "of distribution. Paper: D detected, C category, R root cause right, as the manuscript reports them.",
        "",
    ]
    for case in chosen:
        of_case = runs[runs["case"] == case.name].set_index("version")
        faulty, fixed = of_case.loc["faulty"], of_case.loc["fixed"]
        out = "; ".join(
            f"{name} version unlike the bench by {run['reasons']} (percentile {100 * run['percentile']:.1f})"
            for name, run in (("faulty", faulty), ("fixed", fixed))
            if run["out"]
        )
        lines += [
            f"**{case.name}** ({case.issue}; {case.family} on {case.task}). {case.mechanism} {case.here}",
            f"Truth: {case.category} / {case.root_cause}. {case.why}",
            f"Check: `{case.shows}` is {_number(fixed['shown'])} fixed and {_number(faulty['shown'])} faulty (first "
            f"seed, mean over the run); {faulty['columns_that_differ']} columns differ. {_harm(faulty)}"
            + (f" {out.capitalize()}." if out else ""),
            "",
        ]
    return lines


def _harm(faulty: pd.Series) -> str:
    if faulty["p_value"] <= 0.5 ** faulty["seeds"]:
        return f"The faulty version is worse in each of {faulty['seeds']} seeds (p = {faulty['p_value']:.3g})."
    return f"Quality does not tell the versions apart over {faulty['seeds']} seeds (p = {faulty['p_value']:.3g})."


def _who(verdicts: pd.DataFrame, chosen: list[Case]) -> list[str]:
    """Technique × case: D, C, R where right about the faulty version, ! for an alarm on the fixed one."""
    rows = []
    for name, own in verdicts.groupby("name", sort=False):
        by = own.set_index(["case", "version"])
        cells = []
        for case in chosen:
            if (case.name, "faulty") not in by.index:
                cells.append("not run")
                continue
            faulty, fixed = by.loc[(case.name, "faulty")], by.loc[(case.name, "fixed")]
            said = "" if not faulty["faulty"] or pd.isna(faulty["category"]) else f" {faulty['category']}"
            right = "".join(m for m, c in zip("DCR", RIGHT, strict=True) if faulty[c] is not pd.NA and faulty[c])
            cells.append(f"{right or NONE}{said}{' !' if fixed['faulty'] else ''}")
        rows.append([name, *cells])
    head = ["technique", *(c.name for c in chosen)]
    note = "D, C, R: right about the faulty version; the category that it named; !: alarm on the fixed version."
    return [note, "", *_table(head, rows)]


def _marks(told: dict) -> str:
    keys = ("detected", "category_ok", "root_cause_ok")
    return "".join(m for m, key in zip("DCR", keys, strict=True) if told[key]) or NONE


def _number(value: float) -> str:
    return "not measured" if pd.isna(value) else f"{value:.3g}"


def _table(head: list[str], rows: list[list[str]]) -> list[str]:
    cells = ["| " + " | ".join(row) + " |" for row in rows]
    return ["| " + " | ".join(head) + " |", "|" + " --- |" + " ---: |" * (len(head) - 1), *cells]

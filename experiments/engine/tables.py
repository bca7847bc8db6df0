"""The manuscript's tables again: what it reports beside what a stored comparison measured, cell by cell.

Pure functions from stored tables to tidy ones. Nothing is computed here that was not stored: a cell whose result
does not exist carries the command that makes it.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import nan

import pandas as pd

from experiments.engine.stored import Stored
from features.taxonomy import ARCHITECTURES, CORRECT, categories

MEASURES = {"f1": "F1", "precision": "P", "recall": "R"}
CELL_COLUMNS = ["section", "row", "arch", "measure", "paper", "ours", "low", "high", "missing"]
OWN = "DEFault++"
STRICT = f"{OWN}, protocol path"
VARIANTS = {
    "full": OWN,
    "no_fpg": "− graph",
    "no_sep": "− separation",
    "no_fpg_no_sep": "− graph, − separation",
    "rewired": "rewired graph",
    "random": "random graph",
}
"""Variants of ablate.py as the tables call them."""

IN_MANUSCRIPT, NOT_IN_MANUSCRIPT = "In the manuscript", "Not in the manuscript"
PAPER_PROTOCOL = (
    "Protocol `paper` on both sides: Level 2 on faulty runs with an oracle Level 1; Level 3 within the true category, "
    "where a run put into another category is a miss but no false positive."
)
DRAWS = ("Ours: means over several draws of training seed and, where one is drawn, graph.",)
DETECTION_PROTOCOL = "Binary scores of “faulty”; both protocols agree at Level 1."


@dataclass(frozen=True, eq=False)
class SideBySide:
    """One table of the manuscript beside ours.

    `cells` is tidy: section, row, arch, measure, paper, ours, low, high (95 % interval of ours), missing (the command
    that would make ours; "" where ours is there or can't be). Rows and columns stand in order of first appearance.
    """

    number: str
    title: str
    cells: pd.DataFrame
    protocol: str = ""
    notes: tuple[str, ...] = ()
    digits: int = 3
    reported_only: bool = False

    @property
    def commands(self) -> tuple[str, ...]:
        """What to run to fill the cells that say "not run"."""
        return tuple(dict.fromkeys(c for c in self.cells["missing"] if c))


def side_by_side(stored: Stored, paper: dict, ablations: pd.DataFrame | None = None) -> list[SideBySide]:
    """All tables in the manuscript's order. Rows of `ablations` (of ablate.py) count if their bench is the same."""
    benches = {(arch, m["benches"][0]["name"]) for arch, m in stored.manifests.items()}
    if ablations is None:
        ablations = pd.DataFrame(columns=["arch", "variant", "level", "protocol", "bench"])
    same = [pair in benches for pair in zip(ablations["arch"], ablations["bench"], strict=True)]
    ablations = ablations[pd.Series(same, index=ablations.index, dtype=bool)]
    note = origin_notes(stored, paper)
    made = [
        killed_by_category(stored, paper["bench"]),
        bench_composition(stored, paper["bench"]),
        overall(stored, paper["table6_overall"]),
        by_category(stored, paper["table7a_categorization"], level=2),
        by_category(stored, paper["table7b_root_cause"], level=3),
        detection(stored, paper["table8_detection_f1"]),
        ablation(ablations, paper["table9_ablation"]),
        root_cause_ablation(ablations, paper["table10_ablation_root_cause"]),
        topology(ablations, paper["table11_topology_f1"]),
    ]
    made = [SideBySide(t.number, t.title, t.cells, t.protocol, t.notes + note, t.digits) for t in made]
    return [*made, real_world(paper["table12_real_world"]), developer_study(paper["table15_developer_study"])]


def origin_notes(stored: Stored, paper: dict) -> tuple[str, ...]:
    """Why the two sides of a cell may not be compared digit by digit; empty on the manuscript's own tables."""
    notes = []
    for arch in stored.architectures:
        origin, bench = stored.origin(arch), stored.manifests[arch]["benches"][0]
        if origin == "published":
            continue
        theirs = paper["bench"].get(arch, {})
        which = "the embedded bench" if origin == "embedded" else f"bench “{bench['name']}”"
        size = f", {theirs['faulty'] + theirs['correct']:,} instances" if theirs else ""
        notes.append(
            f"{arch.capitalize()}: ours on {which} ({bench['runs']:,} runs of tiny models), the manuscript’s on its "
            f"published bench{size}: other runs, so compare orders rather than decimals."
            if origin == "embedded"
            else f"{arch.capitalize()}: ours on {which} ({bench['runs']:,} runs), the manuscript’s on its published "
            f"bench{size}: other runs, so compare orders rather than decimals."
        )
    return tuple(notes)


def killed_by_category(stored: Stored, paper: dict) -> SideBySide:
    """Table 2: killed mutants per category. Ours are the faulty runs that the comparison was made on."""
    cells = []
    reported = paper["table2_killed_by_category"]
    for category in (*categories("decoder"), "total"):
        for i, arch in enumerate(ARCHITECTURES):
            if category not in (*categories(arch), "total"):
                continue
            counts = _support(stored, arch)
            theirs = paper[arch]["faulty"] if category == "total" else reported[category][i]
            missing = "" if len(counts) else _compare(stored.name, arch)
            ours = counts.sum() if category == "total" else counts.get(category, 0)
            cells.append(_cell("", category, arch, "killed", theirs, nan if missing else ours, missing=missing))
    return SideBySide("2", "Killed mutants by category", _frame(cells), digits=0)


def bench_composition(stored: Stored, paper: dict) -> SideBySide:
    """Table 5: what the bench holds."""
    cells = []
    for row in ("faulty", "correct", "pairs"):
        for arch in ARCHITECTURES:
            ours, missing = nan, ""
            if arch not in stored.manifests:
                missing = _compare(stored.name, arch)
            elif row != "pairs":
                runs, counts = stored.manifests[arch]["benches"][0]["runs"], _support(stored, arch)
                ours = counts.sum() if row == "faulty" else runs - counts.sum()
            else:
                pairs = stored.tests.loc[stored.tests["arch"] == arch, "pairs"]
                ours = pairs.max() if len(pairs) else nan
            cells.append(_cell("", row, arch, "number", paper[arch][row], ours, missing=missing))
    return SideBySide("5", "Composition of the bench", _frame(cells), digits=0)


def overall(stored: Stored, paper: dict) -> SideBySide:
    """Table 6: the three levels, DEFault++ first, then every technique that serves the level."""
    cells = []
    for level, name in enumerate(("detection", "categorization", "root_cause"), start=1):
        section = f"Level {level}: {name.replace('_', ' ')}"
        others = [t for t in _techniques(stored.board, level) if t != OWN]
        for technique in (OWN, *others):
            for arch in ARCHITECTURES:
                theirs = paper[name][arch] if technique == OWN else (nan,) * 3
                ours = _row(stored.board, arch, technique, level, "paper")
                cells += _triple(section, technique, arch, theirs, ours, _missing(stored, arch, technique))
            if technique == OWN and level > 1:
                for arch in ARCHITECTURES:
                    ours = _row(stored.board, arch, OWN, level, "path")
                    cells += _triple(section, STRICT, arch, (nan,) * 3, ours, _missing(stored, arch, OWN))
    return SideBySide("6", "Overall, all levels", _frame(cells), PAPER_PROTOCOL)


def by_category(stored: Stored, paper: dict, level: int) -> SideBySide:
    """Tables 7a (level 2) and 7b (level 3, mean over the root causes of a category): DEFault++ by category."""
    scores = stored.classes
    scores = scores[(scores["technique"] == OWN) & (scores["level"] == level) & (scores["protocol"] == "paper")]
    scores = scores.assign(category=scores["class"].str.split("/").str[0])
    means = scores.groupby(["arch", "category"])[list(MEASURES)].mean()
    cells = []
    for category in (*categories("decoder"), "average"):
        for arch in ARCHITECTURES:
            if (theirs := paper[category][arch]) is None:
                continue
            missing = _missing(stored, arch, OWN)
            if category == "average":
                ours = _row(stored.board, arch, OWN, level, "paper")
            else:
                ours = means.loc[(arch, category)] if (arch, category) in means.index else None
            cells += _triple("", category, arch, theirs, ours, missing)
    number, what = {2: ("7a", "Categorization"), 3: ("7b", "Root causes")}[level]
    note = () if level == 2 else ("A category's row is the mean over its root causes.",)
    return SideBySide(number, f"{what} by category, {OWN}", _frame(cells), PAPER_PROTOCOL, note)


def detection(stored: Stored, paper: dict) -> SideBySide:
    """Table 8: detection F1 of every technique; what the manuscript compares on vectors stands first."""
    known = _techniques(stored.board, 1)
    counterpart = {name: _counterpart(name, known) for name in paper}
    cells = []
    for name, ours in counterpart.items():
        for arch in ARCHITECTURES:
            row = _row(stored.board, arch, ours, 1, "path")
            missing = _missing(stored, arch, ours or name)
            cells.append(_scored(IN_MANUSCRIPT, ours or name, arch, "f1", paper[name][arch], row, missing))
    for technique in (t for t in known if t not in counterpart.values()):
        for arch in ARCHITECTURES:
            row = _row(stored.board, arch, technique, 1, "path")
            missing = _missing(stored, arch, technique)
            cells.append(_scored(NOT_IN_MANUSCRIPT, technique, arch, "f1", nan, row, missing))
    return SideBySide("8", "Detection F1 of all techniques", _frame(cells), DETECTION_PROTOCOL)


def ablation(table: pd.DataFrame, paper: dict) -> SideBySide:
    """Table 9: Levels 1 and 2 without the graph."""
    cells = []
    for level, what in ((1, "detection"), (2, "categorization")):
        for variant in ("full", "no_fpg"):
            for arch in ARCHITECTURES:
                theirs = paper[what][arch][variant]
                ours = _variant(table, arch, variant, level)
                cells += _triple(f"Level {level}: {what}", VARIANTS[variant], arch, theirs, ours, _ablate(ours))
    return SideBySide("9", "Without the fault propagation graph", _frame(cells), PAPER_PROTOCOL, DRAWS)


def root_cause_ablation(table: pd.DataFrame, paper: dict) -> SideBySide:
    """Table 10: Level 3 without the graph, without separation, without both."""
    cells = []
    for variant in ("full", "no_fpg", "no_sep", "no_fpg_no_sep"):
        for arch in ARCHITECTURES:
            ours = _variant(table, arch, variant, 3)
            cells += _triple("", VARIANTS[variant], arch, paper[arch][variant], ours, _ablate(ours))
    return SideBySide("10", "Root causes without graph and separation", _frame(cells), PAPER_PROTOCOL, DRAWS)


def topology(table: pd.DataFrame, paper: dict) -> SideBySide:
    """Table 11: F1 with the graph, with rewired and random ones, and with none."""
    cells = []
    for level, what in enumerate(("detection", "categorization", "root_cause"), start=1):
        for variant in ("full", "rewired", "random", "no_fpg"):
            for arch in ARCHITECTURES:
                ours = _variant(table, arch, variant, level)
                section = f"Level {level}: {what.replace('_', ' ')}"
                theirs = paper[what][arch][variant]
                cells.append(_scored(section, VARIANTS[variant], arch, "f1", theirs, ours, _ablate(ours)))
    return SideBySide("11", "Other graphs of the same size", _frame(cells), PAPER_PROTOCOL, DRAWS)


def real_world(paper: dict) -> SideBySide:
    """Table 12, as reported: real faults detected, categorised, traced to their root cause."""
    said = {True: "yes", False: "no", None: "not judged"}
    measures = {"detected": "detected", "category_ok": "category", "root_cause_ok": "root cause"}
    cells = [
        _cell(case["category"], name, "", label, said[case[key]])
        for name, case in paper.items()
        if name != "summary"
        for key, label in measures.items()
    ]
    total = paper["summary"]
    for key, label in {"detected": "detected", "categorized": "category", "root_caused": "root cause"}.items():
        cells.append(_cell("total", "all", "", label, f"{total[key]} of {total['cases']}"))
    return SideBySide("12", "Real-world faults", _frame(cells), reported_only=True)


def developer_study(paper: dict) -> SideBySide:
    """Table 15, as reported: correct answers of developers without and with the tool."""
    cells = []
    for scenario in ("S1", "S2", "S3", "S4", "total"):
        for arm in ("baseline", "assisted"):
            right, responses = paper[arm][scenario]
            cells.append(_cell("", scenario, "", arm, f"{right} of {responses}"))
    for arm in ("baseline", "assisted"):
        cells.append(_cell("", "confidence", "", arm, f"{paper[arm]['confidence']:.2f}"))
    return SideBySide("15", "Developer study", _frame(cells), reported_only=True)


def _cell(section, row, arch, measure, paper, ours=nan, low=nan, high=nan, missing="") -> dict:
    values = (section, row, arch, measure, nan if paper is None else paper, ours, low, high, missing)
    return dict(zip(CELL_COLUMNS, values, strict=True))


def _frame(cells: list[dict]) -> pd.DataFrame:
    return pd.DataFrame(cells, columns=CELL_COLUMNS)


def _scored(section, row, arch, measure, paper, ours: pd.Series | None, missing: str) -> dict:
    """A cell of a leaderboard's row; only F1 has an interval."""
    if ours is None:
        return _cell(section, row, arch, measure, paper, missing=missing)
    low, high = (ours.get("low", nan), ours.get("high", nan)) if measure == "f1" else (nan, nan)
    return _cell(section, row, arch, measure, paper, float(ours[measure]), float(low), float(high))


def _triple(section, row, arch, paper, ours: pd.Series | None, missing: str) -> list[dict]:
    return [
        _scored(section, row, arch, measure, theirs, ours, missing)
        for measure, theirs in zip(MEASURES, paper, strict=True)
    ]


def _row(board: pd.DataFrame, arch: str, technique: str | None, level: int, protocol: str) -> pd.Series | None:
    found = board[
        (board["arch"] == arch)
        & (board["technique"] == technique)
        & (board["level"] == level)
        & (board["protocol"] == protocol)
    ]
    return None if found.empty else found.iloc[0]


def _variant(ablations: pd.DataFrame, arch: str, variant: str, level: int) -> pd.Series | None:
    found = ablations[
        (ablations["arch"] == arch)
        & (ablations["variant"] == variant)
        & (ablations["level"] == level)
        & (ablations["protocol"] == "paper")
    ]
    return None if found.empty else found.iloc[0]


def _techniques(board: pd.DataFrame, level: int) -> list[str]:
    """Techniques that serve a level, in the board's order."""
    return list(dict.fromkeys(board.loc[board["level"] == level, "technique"]))


def _counterpart(name: str, known: list[str]) -> str | None:
    """Our technique for a name of the manuscript, which compares the rule-based ones on vectors."""
    if name in known:
        return name
    forms = [t for t in known if t.startswith(f"{name} (") and "vector" in t and "tuned" not in t]
    return forms[0] if forms else None


def _support(stored: Stored, arch: str) -> pd.Series:
    """Faulty runs per category, as counted when the comparison was scored."""
    rows = stored.classes
    rows = rows[(rows["arch"] == arch) & (rows["level"] == 2) & (rows["protocol"] == "path")]
    rows = rows[rows["class"] != CORRECT].drop_duplicates("class")
    return rows.set_index("class")["support"]


def _missing(stored: Stored, arch: str, technique: str) -> str:
    """The command for a result that isn't there; "" where the technique ran without serving what was asked."""
    board = stored.board
    if ((board["arch"] == arch) & (board["technique"] == technique)).any():
        return ""
    return _compare(stored.name, arch)


def _compare(name: str, arch: str) -> str:
    return f"python experiments/compare.py --arch {arch} --name {name}"


def _ablate(ours: pd.Series | None) -> str:
    return "" if ours is not None else "python experiments/ablate.py"

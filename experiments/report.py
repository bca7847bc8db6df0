"""One page about a comparison: what was run, who won and how surely, where, at which cost, and what to doubt.

python experiments/report.py                           # results/comparison/report.html
python experiments/report.py --name published

The page holds all it needs (no network, no script) and follows the reader's light or dark theme. It shows stored
results only; what was not run says so, with the command that makes it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import pandas as pd
import typer
from rich.console import Console

from experiments.engine.command import one_line_errors
from experiments.engine.figures import draw_all
from experiments.engine.leaderboard import TUNED
from experiments.engine.report import (
    board_rows,
    caveats,
    heat_cell,
    heat_map,
    printed,
    render,
    rule_rows,
    technique_costs,
)
from experiments.engine.stored import Stored, load_ablations, load_paper, load_stored
from experiments.engine.tables import side_by_side
from features.files import write_text
from features.taxonomy import ARCHITECTURES

SECTIONS = (
    ("run", "What was run"),
    ("leaderboard", "Leaderboard"),
    ("ranks", "Ranks"),
    ("categories", "By category"),
    ("rules", "Rules"),
    ("paper", "Manuscript"),
    ("figures", "Ablations"),
    ("explanations", "Explanations"),
    ("cost", "Cost"),
    ("caveats", "Caveats"),
    ("reproduce", "Reproduce"),
)
FIGURES = {
    "adjacency": "The graph that DEFault++ passes messages along, row-normalised (Figure 7 of the manuscript).",
    "part_worth": "What taking a part of DEFault++ away costs (Tables 9 to 11, Figure 12 of the manuscript).",
    "training_curves": "Training of DEFault++, one line per outer fold (Figure 11).",
    "mutation_scores": "Mutants killed per pair (Figure 5).",
}
EXPLANATIONS = {
    "pointing": "how often each explanation points at the component that was broken.",
    "heat_map_*": "what each explanation points at, by true category.",
    "deletion_curves": "how the margin falls when the groups that an explanation names are taken away.",
    "verdict_sheet": "the verdicts on one run.",
}
ORIGIN = {"embedded": "embedded", "published": "the manuscript’s tables", "other": "given by --bench"}

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
@one_line_errors
def report(
    name: Annotated[str, typer.Option(help="Name of the comparison, as given to compare.py.")] = "comparison",
    results: Annotated[Path, typer.Option(help="Folder of the results.")] = Path("results"),
) -> None:
    """Write results/<name>/report.html."""
    stored = load_stored(results, name)
    page = render(context(stored, results))
    path = stored.folder / "report.html"
    write_text(path, page)
    Console(soft_wrap=True).print(f"{path}: {len(page) / 1024:.0f} KiB")


def context(stored: Stored, results: Path) -> dict:
    """All that the template reads."""
    paper, ablations = load_paper(), load_ablations(results, stored)
    beside = set(stored.architectures).intersection(ARCHITECTURES)
    tables = side_by_side(stored, paper, ablations) if beside else []
    reported = paper["bench"]["overall_mutation_score_percent"]
    drawn, left_out = draw_all(stored, ablations, reported, stored.folder / "figures")
    manifest = next(iter(stored.manifests.values()))
    commands = {
        "compare_command": f"python experiments/{manifest['command']}",
        "rules_command": "python experiments/rules_table.py",
        "tables_command": f"python experiments/tables.py --name {stored.name}",
        "explain_command": f"python experiments/explain.py --name {stored.name}",
    }
    return {
        "name": stored.name,
        "folder": stored.folder,
        "sections": SECTIONS,
        "n_techniques": stored.board["technique"].str.removesuffix(TUNED).nunique(),
        "n_runs": sum(m["benches"][0]["runs"] for m in stored.manifests.values()),
        "architectures": [_architecture(stored, arch, results) for arch in stored.architectures],
        "level_names": {1: "is it broken?", 2: "which component?", 3: "which root cause?"},
        "manifest": manifest,
        "legend": (heat_cell(0.0).background, heat_cell(1.0).background),
        "tables": [printed(table) for table in tables],
        "figures": [(title, path) for key, title in FIGURES.items() for path in drawn if path.stem == key],
        "left_out": left_out,
        "explanations": _explanations(stored),
        "caveats": caveats({stored.origin(arch) for arch in stored.architectures}),
        "commands": [
            ("Leaderboard, ranks, categories, cost", commands["compare_command"]),
            ("Rules that fired", commands["rules_command"]),
            ("Tables and figures beside the manuscript", commands["tables_command"]),
            ("Ablations", "python experiments/ablate.py"),
            ("Explanations", commands["explain_command"]),
            ("This page", f"python experiments/report.py --name {stored.name}"),
        ],
        **commands,
    }


def _explanations(stored: Stored) -> list[tuple[str, Path]]:
    """The figures of explain.py that say something about all runs, or about one as an example; of these data only."""
    return [
        (f"{arch.capitalize()}: {title}", path)
        for arch in stored.architectures
        if stored.same_data(arch, stored.folder / "explain" / arch / "manifest.json")
        for stem, title in EXPLANATIONS.items()
        for path in sorted((stored.folder / "explain" / arch / "figures").glob(f"{stem}.svg"))
    ]


def _architecture(stored: Stored, arch: str, results: Path) -> dict:
    manifest = stored.manifests[arch]
    bench = manifest["benches"][0]
    board = board_rows(stored, arch)
    levels = sorted(int(level) for level in stored.board.loc[stored.board["arch"] == arch, "level"].unique())
    best = [(level, next(r for r in board if r.path[i] and r.path[i].best)) for i, level in enumerate(levels)]
    level2, level3 = heat_map(stored, arch, 2), heat_map(stored, arch, 3)
    rules = results / "rules" / f"{bench['name']}-{arch}.csv"
    told = rules.exists() and stored.same_data(arch, rules.with_suffix(".json"))
    figures = [(level, stored.figure(arch, f"ranks_L{level}.svg")) for level in levels]
    return {
        "label": arch.capitalize() if arch in ARCHITECTURES else arch,
        "bench": bench,
        "origin": ORIGIN[stored.origin(arch)],
        "manifest": manifest,
        "faulty": f"{sum(n for c, n in zip(level2.columns, level2.sizes, strict=True) if c != 'correct'):,}"
        if level2
        else "some",
        "levels": levels,
        "board": board,
        "best": best,
        "ties": [sum(bool(r.path[i] and r.path[i].tied) for r in board) for i in range(len(levels))],
        "ranks": [(level, path) for level, path in figures if path],
        "level2": level2,
        "level3": level3,
        "rules": rule_rows(pd.read_csv(rules)) if told else [],
        "costs": technique_costs(stored, arch).reset_index().to_dict("records"),
    }


if __name__ == "__main__":
    app()

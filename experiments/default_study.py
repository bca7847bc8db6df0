"""DEFault on its own tables: its published figures again, and what is left of them under other rules.

python experiments/default_study.py FOLDER                 # level1_undersampled.csv, level2_*.csv, level3_*.csv
python experiments/default_study.py FOLDER --search grid   # with the published grid search: hours

The tables are those of Jahan et al., ICSE 2025 (SigmaJahan/DEFault-DNN-Debugging, g_Dataset). A row is a run's mean
over its epochs; no row says which program or job it came from. Four columns describe the job rather than the model:
the mean epoch and three readings of the host. Rows near each other in a file resemble each other, so that blocks of
neighbouring rows are the nearest thing to whole programs that can be held out.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import pandas as pd
import typer
from joblib import Parallel, delayed
from rich.console import Console
from rich.progress import track
from rich.table import Table
from sklearn.metrics import f1_score
from sklearn.model_selection import GroupKFold, StratifiedKFold, train_test_split

from baselines import default_recipe
from baselines.default_recipe import Cleaning, RecipeForest
from experiments.engine.command import one_line_errors, terminal
from experiments.engine.manifest import keep, manifest
from features.bench import Bench, BenchError, detect_duplicates
from features.files import write_text
from features.readers import read_bench
from features.routing import route

PUBLISHED = {1: 0.970, 2: 0.922}
"""Accuracy of detection and of categorisation as the paper states them."""

TABLES = {
    "level1_undersampled.csv": (1, "buggy"),
    "level2_activation.csv": (2, "Activation"),
    "level2_hyperparameter.csv": (2, "Hyperparameter"),
    "level2_layer.csv": (2, "Layer"),
    "level2_loss.csv": (2, "Loss"),
    "level2_optimization.csv": (2, "Optimization"),
    "level2_regularization.csv": (2, "Regularizer"),
    "level2_weight.csv": (2, "Weight"),
    "level3_hyperparameter.csv": (3, "HLR"),
}
"""File → level, and the label that its classifier is to tell from all others in the file."""

SCHEDULE = "epoch"
Rows = Literal["all", "distinct", "measured"]
Columns = Literal["all", "model", "hardware"]


@dataclass(frozen=True)
class Rung:
    """One way to split, choose rows and choose columns.

    split : "published" is one random 80/20 split with seed 42; "random" is stratified folds of single rows; "blocks"
        is folds of whole blocks of neighbouring rows, `n_blocks` a table.
    rows : all; "distinct" without repeats of an earlier row; "measured" without rows that hold no value at all.
    columns : all; "model" without epoch and hardware; "hardware" is nothing but processor, GPU memory and memory use.
    prepared_on : the published code fills, clips and scales all rows before it splits them.
    """

    name: str
    split: Literal["published", "random", "blocks"]
    rows: Rows = "all"
    columns: Columns = "all"
    n_blocks: int = 0
    prepared_on: Literal["training", "all"] = "training"


LADDER = (
    Rung("published code", "published", prepared_on="all"),
    Rung("prepared on training rows", "published"),
    Rung("random folds", "random"),
    Rung("repeated rows out", "random", "distinct"),
    Rung("rows without values out", "random", "measured"),
    Rung("epoch and hardware out as well", "random", "measured", "model"),
    Rung("hardware alone", "random", "measured", "hardware"),
    *(
        Rung(f"{n} blocks, {title}", "blocks", "measured", columns, n)
        for n in (50, 10)
        for columns, title in (("all", "all columns"), ("model", "epoch, hardware out"), ("hardware", "hardware alone"))
    ),
)


@dataclass(frozen=True, eq=False)
class Question:
    """One published table as a yes-or-no question: which rows carry the label."""

    level: int
    label: str
    bench: Bench
    answer: np.ndarray

    def columns(self, chosen: Columns) -> list[str]:
        """The feature columns of that choice."""
        names = list(self.bench.X.columns)
        hardware = set(route(names).machine)
        if chosen == "hardware":
            return [c for c in names if c in hardware]
        return [c for c in names if chosen == "all" or (c not in hardware and c != SCHEDULE)]

    def rows(self, chosen: Rows) -> np.ndarray:
        """Positions of the rows of that choice."""
        if chosen == "distinct":
            return np.flatnonzero(detect_duplicates(self.bench) == self.bench.runs)
        return np.flatnonzero(self.bench.X.notna().any(axis=1) | (chosen == "all"))


def read_questions(folder: Path) -> list[Question]:
    """The tables of the folder. Raises BenchError if there is no such folder or a table is missing."""
    if not folder.is_dir():
        raise BenchError(
            f"{folder}: no such folder; give the one that holds DEFault's tables ({next(iter(TABLES))}, ...)"
        )
    questions = []
    for file, (level, label) in TABLES.items():
        bench = read_bench(folder / file, mapping="default-icse25", include_machine_columns=True)
        column = {1: "faulty", 2: "category", 3: "root_cause"}[level]
        answer = bench.labels[column].eq(True if level == 1 else label).to_numpy()
        questions.append(Question(level, label, bench, answer))
    return questions


def climb(question: Question, rung: Rung, recipe: RecipeForest, n_folds: int = 5, seed: int = 0) -> dict:
    """Accuracy (mean and standard deviation over folds), F1 of the label, and the accuracy of the majority's guess."""
    rows = question.rows(rung.rows)
    X = question.bench.X.iloc[rows][question.columns(rung.columns)].to_numpy(float)
    y = question.answer[rows]
    blocks = np.arange(len(y)) * rung.n_blocks // len(y) if rung.split == "blocks" else None
    if rung.prepared_on == "all":
        X = Cleaning("as_published").fit_transform(X)
    recipe = RecipeForest(**recipe.get_params()).set_params(
        clean=rung.prepared_on == "training", inner="grouped" if rung.split == "blocks" else "random"
    )
    scores, guesses = [], np.zeros(len(y), dtype=bool)
    tested = np.zeros(len(y), dtype=bool)
    majority = []
    for train, test in _splits(rung, y, blocks, n_folds, seed):
        fitted = recipe.fit(X[train], y[train], None if blocks is None else blocks[train])
        guesses[test], tested[test] = fitted.predict(X[test]), True
        scores.append(np.mean(guesses[test] == y[test]))
        majority.append(np.mean(y[test] == (y[train].mean() >= 0.5)))
    return {
        "level": question.level,
        "label": question.label,
        "rung": rung.name,
        "split": rung.split,
        "runs": len(y),
        "columns": X.shape[1],
        "accuracy": float(np.mean(scores)),
        "accuracy_sd": float(np.std(scores, ddof=1)) if len(scores) > 1 else np.nan,
        "f1": float(f1_score(y[tested], guesses[tested])),
        "majority": float(np.mean(majority)),
    }


def kept(cache: Path, question: Question, rung: Rung, recipe: RecipeForest, n_folds: int, seed: int) -> dict:
    """`climb`, or what it gave before for the same data, code and settings: a killed command loses one figure."""
    code = [hashlib.sha256(Path(source).read_bytes()).hexdigest() for source in (__file__, default_recipe.__file__)]
    data = [question.bench.fingerprint(), question.level, question.label]
    identity = json.dumps([code, data, asdict(rung), recipe.get_params(), n_folds, seed], sort_keys=True)
    path = cache / f"{hashlib.sha256(identity.encode()).hexdigest()[:16]}.json"
    if path.exists():
        return json.loads(path.read_text())
    row = climb(question, rung, recipe, n_folds, seed)
    write_text(path, json.dumps(row))
    return row


def _splits(rung: Rung, y: np.ndarray, blocks: np.ndarray | None, n_folds: int, seed: int):
    if rung.split == "published":
        return [train_test_split(np.arange(len(y)), test_size=0.2, random_state=42)]
    if rung.split == "random":
        return StratifiedKFold(n_folds, shuffle=True, random_state=seed).split(y, y)
    return GroupKFold(n_folds, shuffle=True, random_state=seed).split(y, groups=blocks)


def summary(ladder: pd.DataFrame) -> pd.DataFrame:
    """Mean accuracy and majority's accuracy per rung and level: for Level 2 over its seven one-vs-rest questions."""
    means = ladder.groupby(["rung", "level"], sort=False)[["accuracy", "majority"]].mean().unstack("level")  # noqa: PD010
    return means.set_axis([f"level {level} {measure}" for measure, level in means.columns], axis=1)


def show(ladder: pd.DataFrame, console: Console) -> None:
    """The summary as a table of at most 100 characters' width."""
    table = Table(title="DEFault on its own tables: accuracy in % (in brackets: always the majority)")
    table.add_column("rung", no_wrap=True)
    levels = sorted(ladder["level"].unique())
    for level in levels:
        table.add_column({1: "detection", 2: "categorisation, mean of 7", 3: "HBS or HLR"}[level], justify="right")
    table.add_row("[dim]the paper[/dim]", *(f"{100 * PUBLISHED[k]:.1f}" if k in PUBLISHED else "" for k in levels))
    for rung, row in summary(ladder).iterrows():
        cells = [f"{100 * row[f'level {k} accuracy']:.1f} ({100 * row[f'level {k} majority']:.1f})" for k in levels]
        table.add_row(rung, *cells)
    console.print(table)


def markdown(ladder: pd.DataFrame, record: dict) -> str:
    """The summary and what it was made from, as Markdown."""
    levels = sorted(ladder["level"].unique())
    titles = {1: "detection", 2: "categorisation (mean of 7)", 3: "HBS or HLR"}
    lines = ["# DEFault on its own tables", "", "Accuracy in %; in brackets that of always guessing the majority.", ""]
    lines.append("| rung | " + " | ".join(titles[k] for k in levels) + " |")
    lines.append("|---|" + "---:|" * len(levels))
    quoted = (f"{100 * PUBLISHED[k]:.1f}" if k in PUBLISHED else "" for k in levels)
    lines.append("| *the paper* | " + " | ".join(quoted) + " |")
    for rung, row in summary(ladder).iterrows():
        cells = [f"{100 * row[f'level {k} accuracy']:.1f} ({100 * row[f'level {k} majority']:.1f})" for k in levels]
        lines.append(f"| {rung} | " + " | ".join(cells) + " |")
    settings = ", ".join(f"{k} {v}" for k, v in record["settings"].items())
    packages = ", ".join(f"{p} {record['packages'][p]}" for p in ("numpy", "pandas", "scikit-learn"))
    hashes = ", ".join(f"{b['name']} {b['fingerprint']}" for b in record["benches"])
    lines += ["", f"Settings: {settings}. Versions: {packages}. Revision: {record['git']}.", "", f"Data: {hashes}."]
    return "\n".join(lines) + "\n"


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
@one_line_errors
def study(
    folder: Annotated[Path, typer.Argument(help="Folder with DEFault's published tables.")],
    level: Annotated[list[int] | None, typer.Option(help="Label levels; repeat for several. Default: all.")] = None,
    search: Annotated[str, typer.Option(help="none, or grid: the published grid search.")] = "none",
    trees: Annotated[int, typer.Option(min=1, help="Trees of each forest, without a search.")] = 100,
    folds: Annotated[int, typer.Option(min=2)] = 5,
    seed: int = 0,
    workers: Annotated[int, typer.Option(min=1, help="Processes.")] = 1,
    results: Annotated[Path, typer.Option(help="Folder for the tables.")] = Path("results/default_study"),
) -> None:
    """Print and write the ladder of figures."""
    console = terminal()
    if search not in ("none", "grid"):
        raise BenchError(f"--search must be none or grid, not {search!r}")
    questions = [q for q in read_questions(folder) if not level or q.level in level]
    recipe = RecipeForest(search=search, n_estimators=trees)
    cache = results / ".cache"
    jobs = [delayed(kept)(cache, question, rung, recipe, folds, seed) for rung in LADDER for question in questions]
    rows = Parallel(n_jobs=workers, return_as="generator")(jobs)
    ladder = pd.DataFrame(track(rows, "climbing", total=len(jobs), console=console))
    show(ladder, console)
    benches = [q.bench for q in questions]
    settings = {"seed": seed, "folds": folds, "search": search, "trees": trees}
    record = manifest(benches, [b.fingerprint() for b in benches], **settings)
    write_text(results / "ladder.csv", ladder.to_csv(index=False, float_format="%.6f"))
    write_text(results / "ladder.md", markdown(ladder, record))
    keep(record, results / "manifest.json", results.parent)
    console.print(f"written to {results}")


if __name__ == "__main__":
    app()

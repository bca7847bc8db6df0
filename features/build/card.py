"""The data card of the embedded bench, written from its tables: only the explanations are typed in by hand."""

from __future__ import annotations

import platform
from importlib.metadata import version
from pathlib import Path

import pandas as pd

from features.bench import Bench
from features.build.campaign import ENOUGH
from features.build.families import FAMILIES, HEADS, INNER, WIDTH
from features.build.leaks import SUSPICIOUS_AUC, column_auc, detection_f1, stump_accuracy, without_machine
from features.build.profile import profile
from features.build.tasks import tasks
from features.build.variants import BATCH_SIZES, LEARNING_RATE_RANGE, SEEDS, WARMUP_RANGE
from features.taxonomy import ARCHITECTURES, CORRECT, categories, root_causes

CHANCE = 0.5 ** len(SEEDS)
"""The chance that a run without effect is worse in all seeds."""

_VERSIONED = ("torch", "transformers", "numpy", "pandas", "scikit-learn", "lightgbm")


def card(folder: Path, paper: dict | None = None) -> str:
    """The card as Markdown. `folder` holds the tables; `paper` the manuscript's figures (key "bench"), if at hand."""
    attempts = pd.read_parquet(folder / "attempts.parquet")
    benches = {
        arch: Bench.load(folder / f"{arch}.parquet", log=False)
        for arch in ARCHITECTURES
        if (folder / f"{arch}.parquet").exists()
    }
    parts = [_introduction(attempts), _how(attempts)]
    for arch, bench in benches.items():
        mine = attempts[attempts["arch"] == arch]
        parts += [
            f"## {arch.capitalize()}s",
            _counts(arch, bench, mine, paper),
            _pairs(mine),
            _causes(arch, mine),
            _value_of_encodings(bench, folder / f"{arch}.paired.parquet"),
            _leaks(bench),
        ]
    parts += [_tasks(), _columns()]
    return "\n\n".join(parts) + "\n"


def _introduction(attempts: pd.DataFrame) -> str:
    killed = (attempts["outcome"] == "killed").sum()
    accepted = (attempts["outcome"] == "accepted").sum()
    return f"""# The embedded bench

Real fine-tuning runs of tiny transformers: {killed} configurations with an injected fault that five matched seeds show
to be worse than their clean twins, and clean configurations beside them ({accepted} passed the same test).
No number in it is simulated. Built by `python experiments/build_bench.py`, which writes this card as well.

| file | what |
| --- | --- |
| `encoder.parquet`, `decoder.parquet` | a row per configuration: mean vector of its five seeds, labels, pair, meta |
| `*.log.parquet` | the log of each row's first seed: a real run, not a mean |
| `*.paired.parquet` | the same rows minus their clean twin; for research, since a user has no clean twin |
| `*.single.parquet` | the vector of the first seed alone, of every fourth row: what a user has, who trains once |
| `survivors_*.parquet` | mutants that were not killed; neither faulty nor correct, never mixed in |
| `attempts.parquet` | every configuration that was run, discarded ones with the reason |
| `bases/*.safetensors` | the pretrained bodies that all runs of a family start from (half precision) |"""


def _how(attempts: pd.DataFrame) -> str:
    sizes = profile("embedded")
    hours = attempts["seconds"].sum() / 3600
    runs = int(attempts["runs"].sum())
    bodies = " or ".join(f"{rate:g}" for rate in sorted({t.body_rate for t in tasks("encoder")}))
    families = ", ".join(f"{f.name} ({f.layers} layers)" for f in FAMILIES)
    versions = ", ".join(f"{name} {version(name)}" for name in _VERSIONED)
    return f"""## How it was made

* **Families**: {families}; width {WIDTH}, {HEADS} heads, FFN {INNER}; GPT-Neo alternates global and local attention.
  Each starts from its base, pretrained on its tasks' streams: masked language modelling with a tag for each word and at
  [CLS], or causal language modelling.
* **Run**: {sizes.epochs} epochs of {sizes.steps_per_epoch} steps, AdamW with warm-up and linear decay, an encoder's
  pretrained body at {bodies} of the new head's learning rate; measured at
  every {sizes.measure_every}rd step; validated on {sizes.validation_size} examples after each epoch, decoders through
  the key/value cache.
* **Kill test**: seeds {", ".join(map(str, SEEDS))}; mutant and clean twin share head, data order, dropout and batches.
  Exact one-sided paired sign-flip test on accuracy (encoders, {sizes.test_size["encoder"]} held-out examples) or
  log-perplexity (decoders, {sizes.test_size["decoder"]} sequences), killed iff p <= 0.05, so only if all five seeds are
  worse. A mutant's runs stop at its first seed that is not worse: it has survived then. `meta.n_seeds` says how many
  were run.
* **Correct rows**: clean runs under other settings (seeds and data order; learning rate x {LEARNING_RATE_RANGE[0]} to
  {LEARNING_RATE_RANGE[1]}; batch {BATCH_SIZES}; warm-up {WARMUP_RANGE[0]} to {WARMUP_RANGE[1]}), kept if the same test
  does not tell them from the pair's base; at most as many per pair as it has killed mutants. Mutants are run under the
  first accepted settings of their pair, each against the clean run of its own setting. Steps and epochs are the same
  in all.
* **Sampling**: rounds of one mutant per category and pair; within a category root causes take turns, then operators,
  then values and layers in seeded random order; a category that is used up starts again under other settings. Once
  {ENOUGH} mutants of a category have been killed in an architecture it rests. So the categories' numbers are not
  shares of anything; their mutation scores are, and so is the order of root causes within them.
* **Cost**: {runs} runs, {hours:.2f} processor hours ({3600 * hours / max(runs, 1):.2f} s a run) on a shared two-core
  machine. {platform.python_implementation()} {platform.python_version()}, {versions}."""


def _counts(arch: str, bench: Bench, attempts: pd.DataFrame, paper: dict | None) -> str:
    mutants = attempts[attempts["category"] != CORRECT]
    table = pd.crosstab(mutants["category"], mutants["outcome"]).reindex(categories(arch), fill_value=0)
    lines = []
    for category, row in table.iterrows():
        killed, survived, discarded = (int(row.get(k, 0)) for k in ("killed", "survived", "discarded"))
        share = f"{100 * killed / (killed + survived):.0f} %" if killed + survived else ""
        published = (paper or {}).get("table2_killed_by_category", {}).get(category, [None, None])
        by_chance = f"{(killed + survived) * CHANCE:.1f}"
        lines.append(
            [category, killed, survived, discarded, share, by_chance, published[ARCHITECTURES.index(arch)] or ""]
        )
    total = mutants["outcome"].value_counts()
    killed, survived = int(total.get("killed", 0)), int(total.get("survived", 0))
    score = (paper or {}).get("overall_mutation_score_percent", {}).get(arch, "not at hand")
    text = (
        f"{int(bench.faulty.sum())} faulty, {int((~bench.faulty).sum())} correct rows; {bench.pair.nunique()} pairs; "
        f"mutation score {_mean_score(table):.1f} % with every category weighted alike, "
        f"{100 * killed / max(killed + survived, 1):.1f} % of all mutants run (manuscript: {score} %). "
        f"Five seeds can't rule chance out: of mutants without any effect, 1 in {1 / CHANCE:.0f} is killed all the "
        "same. Where the killed are not many more than that column says, read the category's faulty rows as partly "
        "mislabelled."
    )
    header = ["category", "killed", "survived", "discarded", "mutation score"]
    header += ["killed by chance if none had an effect", "killed in the manuscript (Table 2)"]
    return f"### Counts\n\n{text}\n\n{_markdown(header, lines)}"


def _mean_score(outcomes: pd.DataFrame) -> float:
    """Mean over the categories that were run of the percentage killed."""
    killed, survived = (outcomes.get(k, pd.Series(0, index=outcomes.index)) for k in ("killed", "survived"))
    return float(100 * (killed / (killed + survived)).mean())


def _pairs(attempts: pd.DataFrame) -> str:
    mutants = attempts[attempts["category"] != CORRECT]
    lines = []
    for (family, task), of_pair in attempts.groupby(["family", "task"], sort=False):
        mine = mutants[(mutants["family"] == family) & (mutants["task"] == task)]
        base = of_pair[(of_pair["category"] == CORRECT) & of_pair["run"].str.endswith("-s00")]
        killed, survived = ((mine["outcome"] == k).sum() for k in ("killed", "survived"))
        quality, deviation = base["quality"].mean(), base["quality_sd"].mean()
        lines.append(
            [
                family,
                task,
                f"{quality:.3f} ± {deviation:.3f}",
                (of_pair["outcome"] == "accepted").sum(),
                (of_pair["outcome"] == "rejected").sum(),
                killed,
                f"{100 * killed / max(killed + survived, 1):.0f} %",
            ]
        )
    header = ["family", "task", "base quality ± sd", "clean accepted", "clean rejected", "killed", "mutation score"]
    return (
        "### Pairs\n\nQuality is accuracy (encoders) or log-perplexity in nats (decoders) over five seeds. The aim was "
        "an accuracy of 0.85 to 0.98 with sd <= 0.03, and for decoders a log-perplexity well below the base's with "
        "sd <= 0.1. For scale, the manuscript's Figure 15 shows mutation scores from 51 to 100 % (encoders) and 25 to "
        "64 % (decoders)."
        f"\n\n{_markdown(header, lines)}"
    )


def _causes(arch: str, attempts: pd.DataFrame) -> str:
    mutants = attempts[attempts["category"] != CORRECT]
    lines, never = [], []
    for category, cause in root_causes(arch):
        mine = mutants[(mutants["category"] == category) & (mutants["root_cause"] == cause)]
        killed, survived = ((mine["outcome"] == k).sum() for k in ("killed", "survived"))
        operators = ", ".join(
            f"{code} {(of['outcome'] == 'killed').sum()}/{of['outcome'].isin(['killed', 'survived']).sum()}"
            for code, of in mine.groupby("operator")
        )
        lines.append([category, cause, killed, survived, operators])
        if not killed:
            never.append(f"{category}/{cause} (0 of {survived} tried)")
    text = "Killed of those run, by operator."
    if never:
        text += f" **Never killed here**: {', '.join(never)}."
    reasons = attempts.loc[attempts["outcome"] == "discarded", "reason"].str.slice(0, 110).value_counts()
    if len(reasons):
        discarded = _markdown(["discarded because", "configurations"], [[r, n] for r, n in reasons.head(12).items()])
        text += f"\n\n{discarded}"
    table = _markdown(["category", "root cause", "killed", "survived", "operators"], lines)
    return f"### Root causes\n\n{text}\n\n{table}"


def _value_of_encodings(bench: Bench, paired_file: Path) -> str:
    bench = without_machine(bench)
    paired = pd.read_parquet(paired_file).loc[bench.runs, list(bench.X.columns)]
    twin = Bench(bench.name, bench.arch, paired, bench.labels, bench.pair)
    lines = [
        ["raw", f"{detection_f1(bench):.3f}", "yes"],
        ["anomaly", f"{detection_f1(bench, anomaly=True):.3f}", "yes"],
        ["paired", f"{detection_f1(twin):.3f}", "no: needs a clean twin of the run"],
    ]
    table = _markdown(["encoding", "F1", "deployable"], lines)
    share = bench.faulty.mean()
    return (
        "### What an encoding is worth\n\nLevel 1, F1 of the faulty class, plain LightGBM, GroupKFold(5) by pair, "
        f"machine columns left out. Calling every run faulty would give {2 * share / (1 + share):.3f}.\n\n{table}\n\n"
        "Read the paired figure with care: a mutant shares seeds and batches with its twin, a correct row and its base "
        "do not, so the size of the difference alone tells much."
    )


def _leaks(bench: Bench) -> str:
    machine = [c for c in bench.X if c not in without_machine(bench).X]
    clean = without_machine(bench)
    auc = column_auc(clean.X, bench.faulty)
    settings = ["learning_rate", "batch_size", "warmup", "n_epochs", "n_steps", "n_seeds"]
    stumps = stump_accuracy(bench.meta[settings], bench.faulty.astype(bool), bench.pair)
    top = auc.head(5)
    best = stump_accuracy(clean.X[list(top.index)], bench.faulty.astype(bool), bench.pair)
    lines = [[f"`{c}`", f"{a:.3f}", f"{best[c]:.3f}"] for c, a in top.items()]
    lines += [[f"meta: {c}", "", f"{v:.3f}"] for c, v in stumps.items()]
    over = int((auc > SUSPICIOUS_AUC).sum())
    worst = column_auc(bench.X[machine], bench.faulty).max() if machine else float("nan")
    return (
        f"### Leak check\n\n{over} columns alone reach an AUC above {SUSPICIOUS_AUC} for faulty against correct. "
        "Below: the five strongest columns, and what a run's settings (no features) give away to a tree of depth 1 "
        f"under grouped folds (0.5 is chance). The strongest machine column has AUC {worst:.3f}; readers leave "
        "those out by default.\n\n" + _markdown(["column", "AUC", "balanced accuracy of a stump"], lines)
    )


def _tasks() -> str:
    lines = [
        [t.name, t.arch, t.paper, t.needs["padding"], t.needs["position"], t.needs["word order"], t.needs["long range"]]
        for arch in ARCHITECTURES
        for t in tasks(arch)
    ]
    header = ["task", "for", "in the shape of", "padding", "position", "word order", "long range"]
    return (
        "## What each task needs of a model\n\nAll text is generated or ships with Python (`pydoc_data.topics`, "
        f"docstrings); nothing is downloaded.\n\n{_markdown(header, lines)}"
    )


def _columns() -> str:
    return """## Beside the features

`label.*`: faulty, category, root_cause. `pair`: family/task, the unit that splits keep together. `meta.*`: operator,
parameter, value, layers, severity (place of the value in a list of three), seeds and n_seeds (run), n_epochs,
n_steps, quality and quality_clean (mean over the seeds), effect (mean paired loss of quality), effect_size (effect
over the standard deviation of paired differences), p_value, killed, setting, learning_rate, batch_size, warmup. None of
these is a feature."""


def _markdown(header: list[str], lines: list[list]) -> str:
    rows = [header, ["---"] * len(header), *lines]
    return "\n".join("| " + " | ".join(str(cell) for cell in row) + " |" for row in rows)

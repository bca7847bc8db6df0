"""The manuscript's figures from our data: mutation scores, the propagation graph, training curves, ablations.

Every function takes a tidy table and gives a matplotlib Figure; `draw_all` finds the stored tables, writes SVG files
and says in a sentence what was left out and how to make it. Colours differ in lightness, and lines in their style, so
that all of it reads in grey.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from experiments.engine.stored import Stored, load_histories, load_mutation_counts
from features.files import replacing
from features.fpg import group_adjacency
from features.taxonomy import ARCHITECTURES

COLOUR = {"encoder": "#1f4e79", "decoder": "#d98a3d"}
LINE = {"encoder": "-", "decoder": "--"}
# Fixed ids and text as paths: the same data gives the same bytes, and the same picture everywhere.
STYLE = {
    "font.size": 9,
    "svg.hashsalt": "transformer-fault-bench",
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def mutation_scores(counts: pd.DataFrame, reported: dict[str, float]) -> Figure:
    """Share of valid mutants that were killed, per pair (Fig. 5).

    `counts` has arch, pair, killed, survived; `reported` maps arch → the manuscript's overall score in per cent, drawn
    as a line.
    """
    architectures = [a for a in ARCHITECTURES if (counts["arch"] == a).any()]
    figure = Figure(figsize=(8, 1.0 + 0.19 * len(counts)), layout="constrained")
    heights = [max(2, (counts["arch"] == a).sum()) for a in architectures]
    panels = figure.subplots(len(architectures), 1, squeeze=False, sharex=True, height_ratios=heights)[:, 0]
    for axes, arch in zip(panels, architectures, strict=True):
        rows = counts[counts["arch"] == arch].sort_values("pair", ascending=False)
        valid = rows["killed"] + rows["survived"]
        share = 100 * rows["killed"] / valid
        axes.barh(rows["pair"], share, color=COLOUR[arch], height=0.7)
        for y, (value, n) in enumerate(zip(share, valid, strict=True)):
            axes.text(value + 0.7, y, f"{value:.0f} % of {n}", va="center", fontsize=7)
        ours = 100 * rows["killed"].sum() / valid.sum()
        axes.axvline(ours, color="black", linewidth=1, label=f"ours, all: {ours:.1f} %")
        if arch in reported:
            axes.axvline(
                reported[arch], color="black", linewidth=1, linestyle=":", label=f"manuscript: {reported[arch]:.1f} %"
            )
        axes.set(xlim=(0, 112), title=arch)
        axes.tick_params(axis="y", labelsize=7)
        axes.legend(loc="lower right", fontsize=7, framealpha=0.9)
    panels[-1].set_xlabel("mutants killed, % of the valid ones")
    return figure


def adjacency() -> Figure:
    """The row-normalised group adjacency that messages are passed along (Fig. 7)."""
    figure = Figure(figsize=(9.5, 5), layout="constrained")
    for axes, arch in zip(figure.subplots(1, len(ARCHITECTURES)), ARCHITECTURES, strict=True):
        matrix = group_adjacency(arch)
        axes.imshow(matrix, cmap="Greys", vmin=0, vmax=1)
        for (i, j), value in np.ndenumerate(matrix.to_numpy()):
            if value > 0:
                axes.text(j, i, f"{value:.2f}", ha="center", va="center", fontsize=6, color=_ink(value))
        names = [n.replace("_", " ") for n in matrix.columns]
        axes.set_xticks(range(len(names)), names, rotation=90)
        axes.set_yticks(range(len(names)), names)
        axes.set(title=arch, xlabel="reads from", ylabel="group")
        axes.spines[["top", "right"]].set_visible(True)
    return figure


def training_curves(history: pd.DataFrame) -> Figure:
    """Training loss and validation score of DEFault++ by epoch, one line per outer fold (Fig. 11).

    `history` has arch, fold, epoch, loss, score.
    """
    figure = Figure(figsize=(8, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2, sharex=True)
    for arch, rows in history.groupby("arch"):
        for i, (_, line) in enumerate(rows.groupby("fold")):
            style = {"color": COLOUR[arch], "linestyle": LINE[arch], "linewidth": 1, "label": None if i else arch}
            left.plot(line["epoch"], line["loss"], **style)
            right.plot(line["epoch"], line["score"], **style)
    left.set(xlabel="epoch", ylabel="training loss")
    right.set(xlabel="epoch", ylabel="validation score (mean macro F1)", ylim=(0, 1))
    left.legend(fontsize=8)
    return figure


def part_worth(ablations: pd.DataFrame) -> Figure:
    """What taking a part of DEFault++ away costs in `path` F1, with its 95 % interval, by level (Tables 9-11, Fig. 12).

    `ablations` is the table of ablate.py: difference, difference_low and difference_high to the mate of a variant.
    """
    rows = ablations[(ablations["protocol"] == "path") & ablations["difference"].notna()]
    levels = sorted(rows["level"].unique())
    mates = rows.drop_duplicates("variant").set_index("variant")["mate"]
    figure = Figure(figsize=(8.5, 1.2 + 0.42 * len(mates)), layout="constrained")
    panels = figure.subplots(1, len(levels), squeeze=False, sharey=True, sharex=True)[0]
    for axes, level in zip(panels, levels, strict=True):
        for offset, arch in ((-0.15, "encoder"), (0.15, "decoder")):
            shown = rows[(rows["level"] == level) & (rows["arch"] == arch)].set_index("variant").reindex(mates.index)
            if shown["difference"].isna().all():
                continue
            y = np.arange(len(mates)) + offset
            ends = shown[["difference_low", "difference_high"]].to_numpy().T
            axes.hlines(y, *ends, color=COLOUR[arch], linestyle=LINE[arch], linewidth=1.5)
            axes.plot(shown["difference"], y, "o", color=COLOUR[arch], markersize=4, label=arch)
        axes.axvline(0, color="black", linewidth=0.8)
        axes.set_title(f"Level {level}")
        axes.set_xlabel("difference in F1")
    names = [f"{variant.replace('_', ' ')}\n(to {mate.replace('_', ' ')})" for variant, mate in mates.items()]
    panels[0].set_yticks(range(len(names)), names)
    panels[0].invert_yaxis()
    panels[0].legend(fontsize=8)
    return figure


def save(figure: Figure, path: Path) -> Path:
    """Write an SVG by temporary name and rename. Under `STYLE` its bytes depend on the data alone."""
    with replacing(path) as temporary:
        figure.savefig(temporary, format="svg", metadata={"Date": None})
    return path


def draw_all(
    stored: Stored, ablations: pd.DataFrame | None, reported: dict[str, float], folder: Path
) -> tuple[list[Path], list[str]]:
    """Draw every figure whose data are stored; gives the files, and a sentence for each that was left out."""
    drawn, left_out = [], []
    with matplotlib.rc_context(STYLE):
        drawn.append(save(adjacency(), folder / "adjacency.svg"))
        if ablations is not None and ablations["difference"].notna().any():
            drawn.append(save(part_worth(ablations), folder / "part_worth.svg"))
        else:
            left_out.append("Ablations (Figure 12) not run on these data: python experiments/ablate.py makes them.")
        if (history := load_histories(stored)) is not None:
            drawn.append(save(training_curves(history), folder / "training_curves.svg"))
        else:
            left_out.append("Training curves (Figure 11) left out: the comparison kept no training history.")
        if (counts := load_mutation_counts(stored)) is not None:
            drawn.append(save(mutation_scores(counts, reported), folder / "mutation_scores.svg"))
        else:
            left_out.append("Mutation scores (Figure 5) left out: the bench keeps no counts of surviving mutants.")
    return drawn, left_out


def _ink(value: float) -> str:
    return "white" if value > 0.5 else "black"

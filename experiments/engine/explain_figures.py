"""Figures of explanations. Every one is saved as PNG and SVG, and tells its series apart without colour."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from experiments.engine.explain_tables import Collected
from experiments.engine.explanations import GROUP_SHAPLEY, PROTOTYPE_DELTA, PROTOTYPE_WEIGHT, shap_kind
from features.files import replacing
from features.fpg import CATEGORY_GROUP

STYLE = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.hashsalt": "transformer-fault-bench",
}
SHADES = (
    {"color": "#1f4e79", "edgecolor": "black", "linewidth": 0.4},
    {"color": "#d98a3d", "edgecolor": "black", "linewidth": 0.4, "hatch": "///"},
    {"color": "#9ecae1", "edgecolor": "black", "linewidth": 0.4, "hatch": "..."},
    {"color": "#5a5a5a", "edgecolor": "black", "linewidth": 0.4},
    {"color": "#f2f2f2", "edgecolor": "black", "linewidth": 0.4, "hatch": "xx"},
    {"color": "#c7c7c7", "edgecolor": "black", "linewidth": 0.4},
)
"""Bar styles: they differ in lightness and hatching."""

LINES = (
    {"color": "#1f4e79", "linestyle": "-", "marker": "o"},
    {"color": "#d98a3d", "linestyle": "--", "marker": "s"},
    {"color": "#7f7f7f", "linestyle": ":", "marker": "^"},
    {"color": "#000000", "linestyle": "-.", "marker": "v"},
)
TOP_COLUMNS = 12
SHAP = shap_kind("interventional", False)
HEADLINE = (SHAP, shap_kind("interventional", True), GROUP_SHAPLEY, PROTOTYPE_DELTA, PROTOTYPE_WEIGHT)
"""The kinds shown in figures; tables hold all."""


@contextmanager
def styled():
    """The figures' fonts, spines and reproducible SVG ids."""
    with matplotlib.rc_context(STYLE):
        yield


def save(figure: Figure, path: Path) -> list[Path]:
    """Write PNG and SVG beside `path`, by temporary name and rename."""
    written = [path.with_name(path.name + suffix) for suffix in (".png", ".svg")]
    for target in written:
        with replacing(target) as temporary:
            figure.savefig(temporary, dpi=130, metadata={"Date": None} if target.suffix == ".svg" else None)
    return written


def pointing(agreement: pd.DataFrame, path: Path) -> list[Path]:
    """hit@1 of every headline explanation with its interval, beside what shuffled explanations would hit."""
    rows = agreement[(agreement["subset"] == "all faulty") & agreement["kind"].isin(HEADLINE)]
    constant = agreement[agreement["kind"] == "commonest group"].iloc[0]
    rows = rows.sort_values(["level", "own1"], ascending=[True, False])
    with styled():
        figure = Figure(figsize=(8.5, 1.2 + 0.23 * len(rows)), layout="constrained")
        axes = figure.subplots()
        places = np.arange(len(rows))
        spread = np.abs(rows[["own1_low", "own1_high"]].to_numpy().T - rows["own1"].to_numpy())
        axes.errorbar(
            rows["own1"], places, xerr=spread, fmt="o", color="black", capsize=2, markersize=4, label="hit@1 (95 %)"
        )
        axes.plot(
            rows["own1_shuffled"], places, "|", color="#d98a3d", markersize=11, mew=2.5, label="shuffled explanations"
        )
        axes.axvline(rows["own1_chance"].iloc[0], color="0.4", linestyle=":", label="random ranking")
        axes.axvline(constant["own1"], color="0.4", linestyle="--", label="always the commonest group")
        axes.set_yticks(places, [f"{r.technique}, L{r.level}, {r.kind}" for r in rows.itertuples()], fontsize=7.5)
        axes.invert_yaxis()
        axes.set(xlim=(0, 1), xlabel="share of faulty runs whose first group is the changed component's own")
        figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False, fontsize=8)
        return save(figure, path)


def shap_summary(columns: pd.DataFrame, X: pd.DataFrame, technique: str, path: Path) -> list[Path]:
    """A beeswarm per level: the columns with the largest mean |SHAP|, one dot a run, dark where the value is high."""
    levels = sorted(columns.index.get_level_values("level").unique())
    with styled():
        figure = Figure(figsize=(9, 2.9 * len(levels)), layout="constrained")
        for axes, level in zip(figure.subplots(len(levels), 1, squeeze=False)[:, 0], levels, strict=True):
            part = columns.loc[level]
            top = part.abs().mean().nlargest(TOP_COLUMNS).index
            for place, column in enumerate(top):
                values = part[column].fillna(0.0)
                shade = X.loc[part.index, column].rank(pct=True).fillna(0.5)
                axes.scatter(
                    values,
                    place + _swarm(values.to_numpy()),
                    c=shade,
                    cmap="cividis_r",
                    vmin=0,
                    vmax=1,
                    s=7,
                    linewidths=0,
                )
            axes.set_yticks(range(len(top)), top, fontsize=6.5)
            axes.invert_yaxis()
            axes.axvline(0, color="0.5", linewidth=0.6)
            axes.set_title(f"{technique}, Level {level} ({len(part)} faulty test runs)", loc="left", fontsize=9)
        axes.set_xlabel(
            "SHAP value: pushes the margin towards the verdict (right) or away; dark = high value of the column"
        )
        return save(figure, path)


def one_run(found: Collected, run: str, path: Path) -> list[Path]:
    """Group bars of one run side by side: SHAP of each tree technique at each level, and the prototypes' Δ and w."""
    panels = [s for s in found.sources() if s[2] in (SHAP, GROUP_SHAPLEY, PROTOTYPE_DELTA, PROTOTYPE_WEIGHT)]
    panels = [(s, found.scores(*s)) for s in panels]
    panels = [(s, table.loc[run]) for s, table in panels if run in table.index]
    label = found.bench.labels.loc[run]
    own = CATEGORY_GROUP[label["category"]]
    across = 4
    down = -(-len(panels) // across)
    with styled():
        figure = Figure(figsize=(11, 2.5 * down + 0.5), layout="constrained")
        grid = figure.subplots(down, across, squeeze=False, sharey=True)
        for axes in grid.flat[len(panels) :]:
            axes.set_axis_off()
        for axes, ((technique, level, kind), values) in zip(grid.flat, panels, strict=False):
            for place, (group, value) in enumerate(values.items()):
                axes.barh(place, value, 0.7, **SHADES[1 if group == own else 5])
            axes.set_yticks(range(len(values)), values.index, fontsize=7)
            axes.axvline(0, color="black", linewidth=0.6)
            axes.set_title(f"{technique}\nL{level}: {kind}", fontsize=7.5, loc="left")
            axes.tick_params(axis="x", labelsize=7)
        grid[0, 0].invert_yaxis()
        figure.suptitle(
            f"{run} ({found.bench.pair[run]}): {label['category']} / {label['root_cause']}; "
            "hatched = the changed component's group",
            fontsize=9,
        )
        return save(figure, path)


def heat_map(shares: pd.DataFrame, sources: list[tuple[str, int, str]], path: Path) -> list[Path]:
    """Category × group, mean share of each group; a square marks the category's own group."""
    with styled():
        first = shares.drop(columns=["category", "technique", "level", "kind"])
        n = len(sources)
        figure = Figure(figsize=(4.6 * n + 0.8, 4.4), layout="constrained")
        grid = figure.subplots(1, n, squeeze=False, sharey=True)[0]
        for axes, (technique, level, kind) in zip(grid, sources, strict=True):
            chosen = (shares["technique"] == technique) & (shares["level"] == level) & (shares["kind"] == kind)
            table = shares[chosen].set_index("category")[list(first)]
            image = axes.imshow(table, cmap="Greys", vmin=0, vmax=max(float(np.nanmax(table)), 1e-9), aspect="auto")
            for row, category in enumerate(table.index):
                column = list(table).index(CATEGORY_GROUP[category])
                axes.add_patch(_square(column, row))
            axes.set_xticks(range(table.shape[1]), table.columns, rotation=90, fontsize=7)
            axes.set_yticks(range(len(table)), table.index, fontsize=7.5)
            axes.spines[:].set_visible(False)
            axes.set_title(f"{technique}\nL{level}: {kind}", fontsize=8, loc="left")
            figure.colorbar(image, ax=axes, shrink=0.7).ax.tick_params(labelsize=7)
        figure.suptitle(
            "Mean share of each group by true category; orange = the changed component's own group", fontsize=9
        )
        return save(figure, path)


def deletion_curves(curves: pd.DataFrame, path: Path) -> list[Path]:
    """Mean margin left, as a share of the whole, as groups are deleted in each explanation's order."""
    shown = curves[curves["kind"].isin((*HEADLINE, "random"))]
    techniques, levels = list(shown["technique"].unique()), sorted(shown["level"].unique())
    with styled():
        figure = Figure(figsize=(3.1 * len(levels) + 0.4, 2.3 * len(techniques) + 0.5), layout="constrained")
        grid = figure.subplots(len(techniques), len(levels), squeeze=False, sharex=True)
        for i, technique in enumerate(techniques):
            for j, level in enumerate(levels):
                axes = grid[i, j]
                part = shown[(shown["technique"] == technique) & (shown["level"] == level)]
                if not len(part):
                    axes.set_axis_off()
                    continue
                means = part.pivot_table(index="kind", columns="step", values="margin")
                order = [k for k in (*HEADLINE, "random") if k in means.index]
                for k, kind in enumerate(order):
                    style = (
                        {"color": "0.5", "linestyle": "-", "marker": ""} if kind == "random" else LINES[k % len(LINES)]
                    )
                    axes.plot(
                        means.columns,
                        means.loc[kind] / means.loc[kind, 0],
                        markersize=3,
                        linewidth=1.2,
                        label=kind,
                        **style,
                    )
                axes.axhline(0, color="0.8", linewidth=0.6)
                axes.set_title(f"{technique}, L{level}", fontsize=8, loc="left")
                axes.legend(fontsize=6, frameon=False)
        figure.supxlabel("groups deleted, highest first", fontsize=9)
        figure.supylabel("mean margin, share of the whole", fontsize=9)
        return save(figure, path)


def _swarm(values: np.ndarray, height: float = 0.38, bins: int = 60) -> np.ndarray:
    """Vertical offsets that spread dots of nearly the same value, widest where most dots are."""
    if not np.ptp(values):
        return np.zeros_like(values)
    cell = np.floor((values - values.min()) / np.ptp(values) * bins).astype(int)
    counts = np.bincount(cell)
    rank = pd.Series(np.arange(len(values))).groupby(cell).rank().to_numpy() - 1
    centred = rank - (counts[cell] - 1) / 2
    return centred / max(counts.max(), 2) * 2 * height


def _square(column: int, row: int) -> Rectangle:
    return Rectangle((column - 0.5, row - 0.5), 1, 1, fill=False, edgecolor="#d9660d", linewidth=1.6)

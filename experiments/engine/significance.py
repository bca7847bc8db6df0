"""Which techniques the data can tell apart: paired tests against the best and against DEFault++, ranks over pairs."""

from __future__ import annotations

from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from experiments.engine.leaderboard import Judged
from experiments.engine.scoring import score
from experiments.engine.statistics import average_ranks, critical_difference, pair_matrix, paired_tests
from features.files import replacing

ALPHA = 0.05
MIN_RUNS_PER_PAIR = 5
"""Below this many runs a pair's own F1 is no measurement, and nothing is tested."""


def level_matrix(judged: list[Judged], level: int) -> pd.DataFrame:
    """`path` F1 per pair and technique, of the techniques that serve the level; empty if pairs are too small."""
    serving = [entry for entry in judged if level in entry.levels]
    if not serving or len(serving[0].bench) < MIN_RUNS_PER_PAIR * serving[0].bench.pair.nunique():
        return pd.DataFrame()
    return pair_matrix({entry.name: entry.confusion(level, "path") for entry in serving})


def comparisons(judged: list[Judged], seed: int = 0) -> pd.DataFrame:
    """One row per level × reference × technique: difference in `path` F1, p, Holm's p, effect size, mean rank.

    References are the technique with the best pooled F1, as the leaderboard ranks, and, where it took part, DEFault++.
    """
    parts = []
    for level in (1, 2, 3):
        matrix = level_matrix(judged, level)
        if matrix.shape[1] < 2 or len(matrix) < 2:
            continue
        ranks = average_ranks(matrix)
        best = max((e for e in judged if e.name in matrix), key=lambda e: score(e.confusion(level, "path"))["f1"]).name
        for role, reference in {"best": best, "DEFault++": "DEFault++"}.items():
            if reference not in matrix:
                continue
            tests = paired_tests(matrix, reference, seed=seed).reset_index()
            tests["mean_rank"] = tests["technique"].map(ranks)
            parts.append(tests.assign(level=level, role=role, reference=reference, pairs=len(matrix)))
    columns = ["level", "role", "reference", "technique", "difference", "p", "p_holm", "effect", "mean_rank", "pairs"]
    return pd.concat(parts, ignore_index=True)[columns] if parts else pd.DataFrame(columns=columns)


def tied_with_best(table: pd.DataFrame) -> set[tuple[str, int]]:
    """(technique, level) whose difference to the best is not significant; the best itself is not in it."""
    near = table[(table["role"] == "best") & (table["p_holm"] >= ALPHA)]
    return set(zip(near["technique"], near["level"], strict=True))


def critical_difference_figure(matrix: pd.DataFrame, title: str, path: Path) -> Path:
    """Average ranks on a line, techniques within Nemenyi's critical difference joined by bars (Demšar 2006, Fig. 1)."""
    ranks = average_ranks(matrix)
    width = critical_difference(len(ranks), len(matrix), ALPHA)
    names, values = list(ranks.index), ranks.to_numpy()
    half, bars = (len(names) + 1) // 2, _cliques(values, width)
    top = 0.7 + 0.3 * len(bars)
    with matplotlib.rc_context({"font.size": 9, "svg.hashsalt": "transformer-fault-bench"}):
        figure = Figure(figsize=(8, 1.2 + 0.24 * (half + top)), layout="constrained")
        axes = figure.subplots()
        margin = 0.4 * len(names)
        axes.set(xlim=(1 - margin, len(names) + margin), ylim=(-half - 0.5, top), title=title, yticks=[])
        axes.spines[["left", "right", "bottom"]].set_visible(False)
        axes.xaxis.tick_top()
        axes.set_xticks(range(1, len(names) + 1, 1 + len(names) // 16))
        axes.spines["top"].set_bounds(1, len(names))
        for i, (name, value) in enumerate(zip(names, values, strict=True)):
            left = i < half
            depth = -(i + 1) if left else -(len(names) - i)
            edge = 1 - margin if left else len(names) + margin
            axes.plot([value, value, edge], [top, depth, depth], color="0.3", linewidth=0.8, clip_on=False)
            label = f"{name} {value:.1f}" if left else f"{value:.1f} {name}"
            axes.text(edge, depth + 0.08, label, ha="left" if left else "right", va="bottom", fontsize=8)
        for row, (start, stop) in enumerate(bars):
            height = top - 0.3 * (row + 1)
            axes.plot([values[start] - 0.08, values[stop] + 0.08], [height, height], color="black", linewidth=3)
        axes.set_xlabel(f"mean rank over {len(matrix)} pairs (1 = best); bars: within {width:.2f} (Nemenyi, 5 %)")
        with replacing(path) as temporary:
            figure.savefig(temporary, dpi=130, metadata={"Date": None} if path.suffix == ".svg" else None)
    return path


def _cliques(values: np.ndarray, width: float) -> list[tuple[int, int]]:
    """Maximal stretches of sorted ranks that span at most `width`, at least two long."""
    stops = np.searchsorted(values, values + width, side="right") - 1
    spans = [(start, int(stop)) for start, stop in enumerate(stops) if stop > start]
    return [s for i, s in enumerate(spans) if i == 0 or s[1] > spans[i - 1][1]]

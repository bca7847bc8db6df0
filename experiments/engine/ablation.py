"""DEFault++ with parts taken away or replaced: the cells to run, and the tables of what each part is worth.

Source: DEFault++ manuscript, Tables 9 (without the graph), 10 (without separation) and 11 (other graphs). A variant
is drawn several times: a draw is another training seed and, where the variant has something to draw, another graph.
So every score has a spread, and one lucky rewiring decides nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from baselines.defaultpp.estimator import DefaultPlusPlus
from experiments.engine.cells import Cell, CellResult
from experiments.engine.leaderboard import Judged
from experiments.engine.scoring import PROTOCOLS, score
from experiments.engine.source import BenchSource
from experiments.engine.statistics import bootstrap_scores
from features.bench import Bench

FULL = "full"
VARIANTS: dict[str, dict] = {
    FULL: {},
    "no_fpg": {"graph": "none"},
    "no_sep": {"separation": False},
    "no_fpg_no_sep": {"graph": "none", "separation": False},
    "rewired": {"graph": "rewired"},
    "random": {"graph": "random"},
    "random_groups": {"graph": "none", "grouping": "random"},
    "flat": {"graph": "none", "grouping": "flat"},
}
"""The manuscript's six, and two of ours for what the groups are worth; these have no graph, so −FPG is their mate."""

MATES = {"random_groups": "no_fpg", "flat": "no_fpg"}
"""Whom a variant is compared with; all others with the full model."""

LEVELS = {1: "detection", 2: "categorization", 3: "root_cause"}


@dataclass(frozen=True)
class VariantCell(Cell):
    """A cell of one draw of a variant. `technique` is a label here, `parameters` say what runs."""

    parameters: tuple[tuple[str, object], ...] = ()

    def estimator(self) -> DefaultPlusPlus:
        """The unfitted technique."""
        return DefaultPlusPlus(**{"seed": self.seed, **dict(self.parameters)})


def variant_cells(
    source: BenchSource, names: list[str], draws: int, n_folds: int, split: str, seed: int
) -> list[VariantCell]:
    """All cells: fold by fold, variant by variant, draw by draw. Draw 0 is compare.py's cell of the same name."""
    return [
        VariantCell(
            source,
            registry_key(name),
            fold,
            n_folds,
            split,
            seed,
            parameters=tuple(sorted({**VARIANTS[name], "seed": seed + draw, "graph_seed": draw}.items())),
        )
        for fold in range(n_folds)
        for name in names
        for draw in range(draws)
    ]


def registry_key(variant: str) -> str:
    """What compare.py calls a variant, so that cells are shared; not every variant is registered there."""
    return "defaultpp" if variant == FULL else f"defaultpp-{variant.replace('_', '-')}"


def judged_draws(bench: Bench, outcome: list[CellResult]) -> dict[str, list[Judged]]:
    """Variant → its draws, each with the verdicts of all folds."""
    variants = {registry_key(name): name for name in VARIANTS}
    grouped: dict[tuple[str, tuple], list[CellResult]] = {}
    for result in outcome:
        grouped.setdefault((result.cell.technique, result.cell.parameters), []).append(result)
    draws: dict[str, list[Judged]] = {}
    for (key, _), results in grouped.items():
        draws.setdefault(variants[key], []).append(Judged(key, results[0].cell.estimator(), bench, results))
    return draws


def ablation_table(draws: dict[str, list[Judged]], n_resamples: int = 1000, seed: int = 0) -> pd.DataFrame:
    """One row per variant × protocol × level.

    f1, precision, recall : means over draws of the scores pooled over folds; f1_sd, f1_min, f1_max their spread.
    low, high : 95 % percentile interval over pairs of the mean F1.
    mate, difference, difference_low, difference_high : mean F1 minus that of the mate (`MATES`), with the interval
        of the paired bootstrap: both are scored on the same resamples of pairs.
    """
    rows, resampled = [], {}
    for name, entries in draws.items():
        for level in entries[0].levels:
            for protocol in PROTOCOLS:
                tables = [entry.confusion(level, protocol) for entry in entries]
                scores = pd.DataFrame([score(table) for table in tables])
                boot = np.mean([bootstrap_scores(t, n_resamples, seed)["f1"] for t in tables], axis=0)
                resampled[name, level, protocol] = boot
                low, high = _interval(boot)
                rows.append(
                    {
                        "bench": entries[0].bench.name,
                        "arch": entries[0].bench.arch,
                        "variant": name,
                        "technique": entries[0].name,
                        "level": level,
                        "protocol": protocol,
                        **scores.mean().to_dict(),
                        "low": low,
                        "high": high,
                        "draws": len(entries),
                        "f1_sd": scores["f1"].std(ddof=1),
                        "f1_min": scores["f1"].min(),
                        "f1_max": scores["f1"].max(),
                    }
                )
    table = pd.DataFrame(rows)
    return pd.concat([table, _differences(table, resampled)], axis=1)


def _differences(table: pd.DataFrame, resampled: dict[tuple, np.ndarray]) -> pd.DataFrame:
    f1 = table.set_index(["variant", "level", "protocol"])["f1"]
    rows = []
    for variant, level, protocol in f1.index:
        mate = MATES.get(variant, FULL)
        if variant == FULL or (mate, level, protocol) not in f1.index:
            rows.append({"mate": "", "difference": np.nan, "difference_low": np.nan, "difference_high": np.nan})
            continue
        low, high = _interval(resampled[variant, level, protocol] - resampled[mate, level, protocol])
        difference = f1[variant, level, protocol] - f1[mate, level, protocol]
        rows.append({"mate": mate, "difference": difference, "difference_low": low, "difference_high": high})
    return pd.DataFrame(rows, index=table.index)


def ablation_markdown(table: pd.DataFrame, paper: dict) -> str:
    """Tables 9, 10 and 11 with ours beside the manuscript's F1, then what each part is worth under `path`.

    `paper` is the manuscript's figures (results/paper.yaml). Its side is on its own bench: compare orders.
    """
    parts = [
        "Ours: mean over draws ± standard deviation over draws (training seed, and graph where one is drawn). "
        "Tables 9–11 are under the `paper` protocol on both sides; the two benches differ, so compare orders.",
    ]
    for number, levels, names in (
        ("9", (1, 2), ("full", "no_fpg")),
        ("10", (3,), ("full", "no_fpg", "no_sep", "no_fpg_no_sep")),
        ("11", (1, 2, 3), ("full", "rewired", "random", "no_fpg")),
    ):
        rows = []
        for level in levels:
            for name in names:
                cells = [f"{LEVELS[level]}: {name}"]
                for arch in ("encoder", "decoder"):
                    ours = _row(table, arch, name, level, "paper")
                    cells += [_number(_reported(paper, number, level, arch, name)), _with_spread(ours)]
                rows.append(cells)
        head = ["F1", "encoder, paper", "encoder, ours", "decoder, paper", "decoder, ours"]
        parts += [f"### Table {number}", _markdown(head, rows)]
    rows = []
    for level in LEVELS:
        for name in (n for n in VARIANTS if n != FULL):
            cells = [f"{LEVELS[level]}: {name} − {MATES.get(name, FULL)}"]
            for arch in ("encoder", "decoder"):
                ours = _row(table, arch, name, level, "path")
                cells += [_with_spread(ours), _with_interval(ours)]
            rows.append(cells)
    head = ["`path` F1", "encoder", "encoder, difference", "decoder", "decoder, difference"]
    return "\n\n".join([*parts, "### What each part is worth here", _markdown(head, rows)]) + "\n"


def _reported(paper: dict, number: str, level: int, arch: str, name: str) -> float | None:
    if number == "9":
        return paper["table9_ablation"][LEVELS[level]][arch][name][0]
    if number == "10":
        return paper["table10_ablation_root_cause"][arch][name][0]
    return paper["table11_topology_f1"][LEVELS[level]][arch][name]


def _row(table: pd.DataFrame, arch: str, variant: str, level: int, protocol: str) -> pd.Series | None:
    wanted = {"arch": arch, "variant": variant, "level": level, "protocol": protocol}
    found = table[(table[list(wanted)] == pd.Series(wanted)).all(axis=1)]
    return None if found.empty else found.iloc[0]


def _interval(resamples: np.ndarray) -> tuple[float, float]:
    low, high = np.nanquantile(resamples, [0.025, 0.975])
    return float(low), float(high)


def _number(value: float | None) -> str:
    return "–" if value is None or not np.isfinite(value) else f"{value:.3f}"


def _with_spread(row: pd.Series | None) -> str:
    if row is None:
        return "not run"
    return _number(row["f1"]) + (f" ± {row['f1_sd']:.3f}" if row["draws"] > 1 else "")


def _with_interval(row: pd.Series | None) -> str:
    if row is None or not np.isfinite(row["difference"]):
        return "–"
    return f"{row['difference']:+.3f} [{row['difference_low']:+.3f}, {row['difference_high']:+.3f}]"


def _markdown(head: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])

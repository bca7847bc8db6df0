"""What a fitted technique says of some runs, and why, by every kind of explanation that it allows.

Each kind is one number per run, level and feature group:

* SHAP values of a tree ensemble's columns, summed by group, in both forms of `shapley`, with their signs and in
  absolute value;
* Shapley values of the groups themselves, sampled, for DEFault++;
* the prototype explanation of DEFault++: Δ_g ("delta") and w_g ("weight"), Level 3 only (manuscript §4.3).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import torch

from baselines.defaultpp.estimator import DefaultPlusPlus
from baselines.defaultpp.prototypes import group_distances
from baselines.technique import Technique
from experiments.engine.margins import Game, bench_values, column_owners, confidences, explained
from experiments.engine.shapley import FORMS, by_group, exact_group_shapley, sampled_group_shapley, tree_shap
from features.bench import Bench

PROTOTYPE_WEIGHT = "prototype weight"
PROTOTYPE_DELTA = "prototype delta"
GROUP_SHAPLEY = "group Shapley"
GROUP_SHAPLEY_ABSOLUTE = "group Shapley, absolute"
PROTOTYPES_KEPT = 5
EXACT_RUNS = 2
"""Runs per fold on which sampled Shapley values are checked against all coalitions."""


def exact_check(game: Game, settings: Settings) -> dict[str, float]:
    """Sampled against exact Shapley values of a few runs, over the same few background runs.

    `exact_correlation` is the smallest correlation over runs and levels, `exact_deviation` the largest difference as a
    share of the run's largest value.
    """
    few = settings.exact_background
    small = replace(game, background=game.background[:few])
    drawn, _ = sampled_group_shapley(small, few * max(settings.draws // few, 2))
    agreed, away = [], []
    for row in np.linspace(0, len(game.runs) - 1, min(EXACT_RUNS, len(game.runs))).astype(int):
        exact = exact_group_shapley(small, row)
        for at in range(len(game.levels)):
            if np.ptp(exact[:, at]) > 0:
                agreed.append(float(np.corrcoef(exact[:, at], drawn[row, :, at])[0, 1]))
                away.append(float(np.abs(exact[:, at] - drawn[row, :, at]).max() / np.abs(exact[:, at]).max()))
    return {"exact_correlation": min(agreed, default=np.nan), "exact_deviation": max(away, default=np.nan)}


def shap_kind(form: str, absolute: bool) -> str:
    """Name of a SHAP explanation.

    >>> shap_kind("interventional", True)
    'SHAP interventional, absolute'
    """
    return f"SHAP {form}" + (", absolute" if absolute else "")


@dataclass(frozen=True)
class Settings:
    """How explanations are made. Defaults keep a full command of 1,300 runs per architecture under ten minutes.

    background : training runs that stand in for what a run doesn't keep.
    draws : of sampled Shapley values; a multiple of `background` makes them sum exactly.
    exact_background : of those background runs, how many the exact check uses (2^G coalitions for each).
    deleted : groups deleted together in the faithfulness test (2 in the manuscript).
    subsets : random subsets to compare with, where there are more than that.
    orders : random orders beside the deletion curves.
    resample : share of the first fold's training runs that the stability check refits on; 0 leaves it out.
    """

    background: int = 25
    draws: int = 50
    exact_background: int = 5
    deleted: int = 2
    subsets: int = 200
    orders: int = 10
    resample: float = 0.8


@dataclass(frozen=True, eq=False)
class Explanation:
    """What one fitted technique says of n runs, and why.

    verdicts : run × faulty, category, root_cause, confidence_1..3.
    groups : long table: run, level, kind, group, value, error (standard error where sampled, else 0).
    columns : interventional SHAP values, (level, run) × column; empty for DEFault++.
    prototypes : long table: run, prototype, distance; the nearest few. Empty for trees.
    checks : seconds, largest deviation of a sum from its margin, and the like.
    """

    verdicts: pd.DataFrame
    groups: pd.DataFrame
    columns: pd.DataFrame
    prototypes: pd.DataFrame
    checks: dict


def explain_runs(technique: Technique, bench: Bench, game: Game, settings: Settings, seed: int = 0) -> Explanation:
    """Every kind of explanation that a fitted technique allows, for the runs of `bench`. `game` is its `game_of`."""
    verdicts = technique.predict(bench).table[["score", "faulty", "category", "root_cause"]]
    verdicts = verdicts.join(confidences(technique, bench).add_prefix("confidence_"))
    if isinstance(technique, DefaultPlusPlus):
        shapley, checks = _group_shapley(game, settings, seed)
        groups = pd.concat([_prototype_groups(technique, bench), shapley], ignore_index=True)
        return Explanation(verdicts, groups, pd.DataFrame(), _nearest_prototypes(technique, bench), checks)
    groups, columns, checks = _tree_groups(technique, bench, game)
    return Explanation(verdicts, groups, columns, pd.DataFrame(columns=["run", "prototype", "distance"]), checks)


def wide(groups: pd.DataFrame, level: int, kind: str, runs: pd.Index, names) -> np.ndarray:
    """One explanation as n × G in the order of `runs` and `names`; NaN rows where a run has none."""
    rows = groups[(groups["level"] == level) & (groups["kind"] == kind)]
    return rows.pivot_table(index="run", columns="group", values="value").reindex(index=runs, columns=names).to_numpy()


def kinds_of(groups: pd.DataFrame) -> list[tuple[int, str]]:
    """The (level, kind) that a table of groups holds, in order."""
    return list(
        groups[["level", "kind"]].drop_duplicates().sort_values(["level", "kind"]).itertuples(index=False, name=None)
    )


def _tree_groups(technique: Technique, bench: Bench, game: Game) -> tuple[pd.DataFrame, pd.DataFrame, dict]:
    values = bench_values(bench)
    names, owner = column_owners(bench.X.columns, bench.arch)
    parts, columns, error, relative = [], [], 0.0, 0.0
    for part in explained(technique, bench):
        model = part.model
        seen, background = model.prepare(values[part.rows]), model.prepare(game.background)
        for form in FORMS:
            found = tree_shap(model, seen, part.target, background if form == "interventional" else None)
            error = max(error, found.error)
            relative = max(relative, found.error / max(float(np.abs(found.margin).max(initial=0.0)), 1e-12))
            for absolute, summed in enumerate(by_group(found.values, owner[model.columns], len(names))):
                parts.append(_long(summed, bench.runs[part.rows], names, part.level, shap_kind(form, bool(absolute))))
            if form == "interventional":
                full = np.zeros((len(part.rows), len(owner)), dtype=np.float32)
                full[:, model.columns] = found.values
                index = pd.MultiIndex.from_product([[part.level], bench.runs[part.rows]], names=["level", "run"])
                columns.append(pd.DataFrame(full, index=index, columns=bench.X.columns))
    checks = {"sum_error": error, "sum_error_relative": relative}
    return pd.concat(parts, ignore_index=True), pd.concat(columns), checks


def _group_shapley(game: Game, settings: Settings, seed: int) -> tuple[pd.DataFrame, dict]:
    mean, error = sampled_group_shapley(game, settings.draws, seed)
    parts = []
    for at, level in enumerate(game.levels):
        signed = _long(mean[:, :, at], game.runs, game.groups, level, GROUP_SHAPLEY, error[:, :, at])
        absolute = signed.assign(kind=GROUP_SHAPLEY_ABSOLUTE, value=signed["value"].abs())
        parts += [signed, absolute]
    table = pd.concat(parts, ignore_index=True).dropna(subset=["value"])
    signed = table[table["kind"] == GROUP_SHAPLEY]
    size = signed.groupby(["level", "run"])["value"].apply(lambda v: v.abs().max())
    share = signed.groupby(["level", "run"])["error"].mean() / size
    return table, {"shapley_error_share": float(share.median())}


def _prototype_groups(technique: DefaultPlusPlus, bench: Bench) -> pd.DataFrame:
    table = technique.explain(bench)
    parts = [
        _long(table[part].to_numpy(), bench.runs, list(table[part]), 3, kind)
        for part, kind in (("delta", PROTOTYPE_DELTA), ("weight", PROTOTYPE_WEIGHT))
    ]
    return pd.concat(parts, ignore_index=True)


def _nearest_prototypes(technique: DefaultPlusPlus, bench: Bench) -> pd.DataFrame:
    diagnoser = technique.diagnoser_
    if not diagnoser.space.classes:
        return pd.DataFrame(columns=["run", "prototype", "distance"])
    diagnoser.network.eval()
    with torch.no_grad():
        H = diagnoser.network.embed(diagnoser.inputs(bench.X)).cpu().numpy()
    total = group_distances(H, diagnoser.prototypes).sum(axis=2)
    nearest = np.argsort(total, axis=1, kind="stable")[:, :PROTOTYPES_KEPT]
    names = np.array([f"{category}/{cause}" for category, cause in diagnoser.space.classes], dtype=object)
    return pd.DataFrame(
        {
            "run": np.repeat(np.asarray(bench.runs, dtype=object), nearest.shape[1]),
            "prototype": names[nearest].reshape(-1),
            "distance": np.take_along_axis(total, nearest, axis=1).reshape(-1),
        }
    )


def _long(
    values: np.ndarray, runs: pd.Index, names, level: int, kind: str, error: np.ndarray | None = None
) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "run": np.repeat(np.asarray(runs, dtype=object), len(names)),
            "level": level,
            "kind": kind,
            "group": np.tile(np.asarray(names, dtype=object), len(runs)),
            "value": values.reshape(-1),
            "error": 0.0 if error is None else error.reshape(-1),
        }
    )

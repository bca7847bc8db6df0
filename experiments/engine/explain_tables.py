"""From kept explanations to tables: agreement with the known fault and with each other, faithfulness, stability."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd
from statsmodels.stats.multitest import multipletests

from experiments.engine.agreement import compare_rankings, hit_table, hits, sign_flip_p, true_groups
from experiments.engine.explain_cells import TABLES, ExplainCell
from experiments.engine.explanations import GROUP_SHAPLEY, PROTOTYPE_DELTA, PROTOTYPE_WEIGHT
from experiments.engine.statistics import rank_biserial
from features.bench import Bench
from features.fpg import CATEGORY_GROUP
from features.schema import groups

SUBSETS = ("all faulty", "category right")
"""Which runs a figure is over: every faulty run, or those whose category the technique named right (an explanation of a
wrong verdict can hardly point at the right place)."""

CONSTANTS = ("commonest group", "most columns")
"""Explanations that look at no run: groups ranked by how many faulty runs are theirs, and by their columns."""


@dataclass(frozen=True, eq=False)
class Collected:
    """All kept explanations of one bench: each table of `TABLES`, with a `technique` column, folds put together."""

    bench: Bench
    tables: dict[str, pd.DataFrame]
    checks: pd.DataFrame

    @property
    def techniques(self) -> list[str]:
        """Names, in the order of the cells."""
        return list(self.tables["groups"]["technique"].unique())

    @property
    def names(self) -> tuple[str, ...]:
        """The feature groups."""
        return groups(self.bench.arch)

    def of(self, table: str, technique: str) -> pd.DataFrame:
        """One technique's rows of a table."""
        rows = self.tables[table]
        return rows[rows["technique"] == technique]

    def scores(self, technique: str, level: int, kind: str) -> pd.DataFrame:
        """One explanation, run × group, of the runs that have one; no row where none has."""
        return self._scores.get((technique, level, kind), pd.DataFrame(columns=list(self.names)))

    def sources(self) -> list[tuple[str, int, str]]:
        """Every (technique, level, kind)."""
        return list(self._scores)

    @cached_property
    def _scores(self) -> dict[tuple[str, int, str], pd.DataFrame]:
        wide = {}
        for technique in self.techniques:
            for (level, kind), part in self.of("groups", technique).groupby(["level", "kind"], sort=True):
                table = part.pivot_table(index="run", columns="group", values="value", sort=False)
                wide[technique, level, kind] = table.reindex(columns=list(self.names)).dropna()
        return wide

    def right(self, technique: str) -> pd.Series:
        """Whether the technique named a run's category, by run."""
        guess = self.of("verdicts", technique)["category"]
        return guess == self.bench.labels["category"].reindex(guess.index)


def collect(bench: Bench, cells: list[ExplainCell], store: Path) -> Collected:
    """Read the cells whose folder is there."""
    parts: dict[str, list[pd.DataFrame]] = {name: [] for name in TABLES}
    checks = []
    for cell in cells:
        folder = cell.folder(store)
        if not folder.exists():
            continue
        name = cell.cell.estimator().name
        for table in TABLES:
            parts[table].append(pd.read_parquet(folder / f"{table}.parquet").assign(technique=name))
        checks.append({"technique": name, "fold": cell.cell.fold, **json.loads((folder / "checks.json").read_text())})
    # An empty table has lost its index in the file; it must not cost the others theirs.
    whole = {name: pd.concat([t for t in tables if len(t)] or tables) for name, tables in parts.items()}
    return Collected(bench, whole, pd.DataFrame(checks))


def agreement_table(found: Collected, seed: int = 0) -> pd.DataFrame:
    """One row per technique, level, kind and subset of runs: the keys of `agreement.hit_table`."""
    rows = []
    for technique, level, kind in found.sources():
        scores = found.scores(technique, level, kind)
        right = found.right(technique).reindex(scores.index)
        for subset, runs in zip(SUBSETS, (scores.index, scores.index[right]), strict=True):
            if len(runs):
                row = _hits(found, scores.loc[runs], seed)
                rows.append({"technique": technique, "level": level, "kind": kind, "subset": subset, **row})
    faulty = found.tables["groups"]["run"].unique()
    for kind, order in _constants(found).items():
        scores = pd.DataFrame(np.tile(order, (len(faulty), 1)), index=faulty, columns=list(found.names))
        row = _hits(found, scores, seed)
        rows.append({"technique": "(constant)", "level": 0, "kind": kind, "subset": SUBSETS[0], **row})
    return pd.DataFrame(rows)


def category_table(found: Collected) -> pd.DataFrame:
    """hit@1, hit@3 and mean rank of the own group, and hit@1 with neighbours, per category and explanation."""
    rows = []
    for technique, level, kind in found.sources():
        scores = found.scores(technique, level, kind)
        labels = found.bench.labels["category"].loc[scores.index]
        for category, runs in labels.groupby(labels, sort=True):
            own, near = (true_groups(runs, found.bench.arch, found.names, near=n) for n in (False, True))
            part = scores.loc[runs.index].to_numpy()
            rows.append(
                {
                    "technique": technique,
                    "level": level,
                    "kind": kind,
                    "category": category,
                    "group": CATEGORY_GROUP[category],
                    "runs": len(runs),
                    "own1": hits(part, own, 1).mean(),
                    "own3": hits(part, own, 3).mean(),
                    "near1": hits(part, near, 1).mean(),
                    "first": found.names[np.bincount(part.argmax(axis=1), minlength=len(found.names)).argmax()],
                    "category_right": found.right(technique).loc[runs.index].mean(),
                }
            )
    return pd.DataFrame(rows)


def correlation_table(found: Collected) -> pd.DataFrame:
    """Every explanation against each of DEFault++ on the same runs: `agreement.compare_rankings`."""
    rows = []
    references = [
        s for s in found.sources() if s[2] in (PROTOTYPE_WEIGHT, PROTOTYPE_DELTA) or s[1:] in ((3, GROUP_SHAPLEY),)
    ]
    for reference in references:
        b = found.scores(*reference)
        for source in found.sources():
            if source == reference:
                continue
            a = found.scores(*source)
            runs = a.index.intersection(b.index)
            if len(runs):
                row = compare_rankings(a.loc[runs].to_numpy(), b.loc[runs].to_numpy())
                keys = ("technique", "level", "kind")
                rows.append(
                    {
                        **dict(zip(keys, source, strict=True)),
                        **{f"with_{k}": v for k, v in zip(keys, reference, strict=True)},
                        **row,
                    }
                )
    return pd.DataFrame(rows)


def contest_table(found: Collected, measure: str = "own1", seed: int = 0) -> pd.DataFrame:
    """Every explanation against DEFault++'s prototype weights on hit@k of the own group, paired by pair.

    Sign-flip tests on per-pair means over the runs that both explain, Holm-corrected over the explanations.
    """
    weights = [s for s in found.sources() if s[2] == PROTOTYPE_WEIGHT]
    if not weights:
        return pd.DataFrame()
    base, k = _run_hits(found, weights[0], int(measure[-1])), int(measure[-1])
    parts = []
    for source in found.sources():
        if source != weights[0]:
            both = pd.DataFrame({"other": _run_hits(found, source, k), "weight": base}).dropna()
            means = both.groupby(found.bench.pair.loc[both.index]).mean()
            parts.append((source, len(both), means))
    rows = [
        {
            **dict(zip(("technique", "level", "kind"), source, strict=True)),
            "runs": n,
            "pairs": len(means),
            measure: means["other"].mean(),
            "weight": means["weight"].mean(),
            "difference": (means["other"] - means["weight"]).mean(),
            "p": sign_flip_p((means["other"] - means["weight"]).to_numpy(), seed),
            "effect": rank_biserial((means["other"] - means["weight"]).to_numpy()),
        }
        for source, n, means in parts
        if len(means) > 1
    ]
    table = pd.DataFrame(rows)
    return table.assign(p_holm=multipletests(table["p"], method="holm")[1]) if len(table) else table


def deletion_table(found: Collected) -> pd.DataFrame:
    """Per explanation: mean drop by its top groups and by others, the share of others that drop less, and the area.

    `better` is the share of runs whose top groups drop more than the others on average; `area` the mean of the deletion
    curve over its steps, beside that of random orders (lower is more faithful).
    """
    rows = []
    areas = found.tables["curves"].groupby(["technique", "level", "kind", "run"])["margin"].mean().rename("area")
    for (technique, level, kind), part in found.tables["deletion"].groupby(["technique", "level", "kind"], sort=False):
        own, luck = (areas.loc[(technique, level, k)].loc[part["run"]].to_numpy() for k in (kind, "random"))
        rows.append(
            {
                "technique": technique,
                "level": level,
                "kind": kind,
                "runs": len(part),
                "margin": part["margin"].mean(),
                "top": part["top"].mean(),
                "random": part["random"].mean(),
                "percentile": part["percentile"].mean(),
                "better": (part["top"] > part["random"]).mean(),
                "area": own.mean(),
                "area_random": luck.mean(),
                "area_better": (own < luck).mean(),
            }
        )
    return pd.DataFrame(rows)


def stability_table(found: Collected) -> pd.DataFrame:
    """Mean agreement with the same explanation from a part of the training runs; by chance 0 and 1/G."""
    table = found.tables["stability"]
    if not len(table):
        return table
    grouped = table.groupby(["technique", "level", "kind"], sort=False)
    means = grouped[["spearman", "top1"]].mean().assign(runs=grouped.size(), top1_chance=1 / len(found.names))
    return means.reset_index()


def share_table(found: Collected) -> pd.DataFrame:
    """Mean share of every group, by category, for every explanation: |value| / Σ |value| per run (heat maps)."""
    parts = []
    for technique, level, kind in found.sources():
        size = found.scores(technique, level, kind).clip(lower=0 if kind == PROTOTYPE_DELTA else None).abs()
        share = size.div(size.sum(axis=1).where(lambda s: s > 0), axis=0)
        means = share.groupby(found.bench.labels["category"].loc[share.index]).mean()
        parts.append(means.reset_index().assign(technique=technique, level=level, kind=kind))
    return pd.concat(parts, ignore_index=True)


def _hits(found: Collected, scores: pd.DataFrame, seed: int) -> dict[str, float]:
    labels, pair = found.bench.labels["category"].loc[scores.index], found.bench.pair.loc[scores.index]
    return hit_table(scores.to_numpy(), labels, pair.to_numpy(), found.bench.arch, found.names, seed)


def _run_hits(found: Collected, source: tuple[str, int, str], k: int) -> pd.Series:
    scores = found.scores(*source)
    truth = true_groups(found.bench.labels["category"].loc[scores.index], found.bench.arch, found.names)
    return pd.Series(hits(scores.to_numpy(), truth, k), index=scores.index)


def _constants(found: Collected) -> dict[str, np.ndarray]:
    faulty = found.bench.labels["category"].loc[found.tables["groups"]["run"].unique()]
    common = faulty.map(CATEGORY_GROUP).value_counts()
    columns = found.bench.groups().value_counts()
    values = (common.reindex(found.names, fill_value=0), columns.reindex(found.names, fill_value=0))
    return {kind: v.to_numpy(float) for kind, v in zip(CONSTANTS, values, strict=True)}

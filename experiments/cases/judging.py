"""What techniques say of the cases, held against the truth."""

from __future__ import annotations

import warnings

import pandas as pd

from experiments.engine.reference_models import Reference
from features.bench import Bench

RIGHT = ("detected", "category_right", "root_cause_right")


def judge(bench: Bench, reference: Reference) -> pd.DataFrame:
    """One row per technique and run, techniques in their order.

    Columns: technique (registry key), name, run, case, version, score, faulty, category, root_cause (the verdict a
    user receives), evidence, and what is right about it: `detected`, `category_right`, `root_cause_right` on faulty
    versions (missing at levels that the technique doesn't serve), `false_alarm` on fixed ones; missing otherwise.
    A root cause is right only within the right category.
    """
    return pd.concat([_of_one(bench, key, model) for key, model in reference.techniques.items()], ignore_index=True)


def _of_one(bench: Bench, key: str, model) -> pd.DataFrame:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        verdicts = model.predict(bench)
    path = verdicts.path()
    truth = bench.labels.loc[path.index]
    category = path["category"] == truth["category"]
    root_cause = category & (path["root_cause"] == truth["root_cause"])
    table = pd.DataFrame(
        {
            "technique": key,
            "name": model.name,
            "run": path.index,
            "case": bench.pair.loc[path.index].str.removeprefix("real-world/"),
            "version": truth["faulty"].map({True: "faulty", False: "fixed"}),
            "score": verdicts.table["score"],
            **{column: path[column] for column in ("faulty", "category", "root_cause")},
            "evidence": verdicts.table["evidence"],
        }
    )
    right = dict(zip(RIGHT, (path["faulty"], category, root_cause), strict=True))
    for level, column in enumerate(RIGHT, start=1):
        served = truth["faulty"] & (level in model.levels)
        table[column] = right[column].astype("boolean").where(served)
    table["false_alarm"] = path["faulty"].astype("boolean").where(~truth["faulty"])
    return table


def kinds(bench: Bench, reference: Reference) -> pd.DataFrame:
    """Is a run of the kind that the reference bench holds? Index run: `out`, `percentile`, `reasons`."""
    found = {run: reference.novelty.judge(bench.take([run])) for run in bench.runs}
    rows = [{"out": k.out, "percentile": k.percentile, "reasons": ", ".join(k.reasons)} for k in found.values()]
    return pd.DataFrame(rows, index=pd.Index(found, name="run"))


def by_technique(verdicts: pd.DataFrame) -> pd.DataFrame:
    """How often each technique was right: index technique; detected, category_right, root_cause_right, false_alarm.

    Missing where it serves no such level. `cases` is how many it judged.
    """
    grouped = verdicts.groupby("technique", sort=False)
    counts = grouped[[*RIGHT, "false_alarm"]].sum(min_count=1)
    return counts.assign(name=grouped["name"].first(), cases=grouped["case"].nunique())


def by_case(verdicts: pd.DataFrame) -> pd.DataFrame:
    """How many techniques were right about each case: index case; the same columns, and `of_*`, how many could be."""
    grouped = verdicts.groupby("case", sort=False)[[*RIGHT, "false_alarm"]]
    return grouped.sum().join(grouped.count().add_prefix("of_"))

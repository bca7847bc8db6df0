"""One run judged by all that was fitted on a bench: verdicts with their record, evidence, nearest runs, next steps."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from baselines.rules import RuleTechnique
from baselines.technique import Technique
from experiments.engine.calibration import NEVER, Calibration, Rate
from experiments.engine.novelty import Kind
from experiments.engine.reference_models import Reference
from experiments.engine.repairs import first_steps
from experiments.engine.verdict_sheet import VerdictSheet, assemble
from features.bench import Bench, BenchError

SAME = 1e-3
"""Distance to a row of the bench, as a share of the typical one, below which a run is that row."""


@dataclass(frozen=True, eq=False)
class Diagnosis:
    """Everything that is said of one run.

    sheet : verdicts with calibrated confidences, rules, groups, prototypes (`VerdictSheet`).
    kind : whether the run is of the bench's kind, and the rows nearest to it.
    invariants : statement, observed, group: what the run breaks of what healthy runs keep; the strongest few.
    steps : what to try first, see `repairs.first_steps`.
    called, judged : how many techniques call the run faulty, of how many.
    prevalence : share of faulty runs in the bench; every confidence holds where this holds.
    errors : technique → expected calibration error of its confidence at Level 1.
    """

    sheet: VerdictSheet
    kind: Kind
    invariants: pd.DataFrame
    steps: pd.DataFrame
    called: int
    judged: int
    prevalence: float
    errors: dict[str, float]
    bench: str

    @property
    def headline(self) -> list[str]:
        """What must be read first, one sentence each."""
        kind, head = self.kind, []
        if kind.out:
            why = {
                "distance": "it lies far from every run of the bench",
                "absent": "columns are missing that every run of the bench has",
                "beyond": f"{100 * kind.table.value['beyond']:.1f} % of its columns lie outside the bench's range",
            }
            head.append(
                f"Out of distribution: this run is of another kind than those of {self.bench}, or broken as none is "
                f"({'; '.join(why[m] for m in kind.reasons)}). The verdicts below were learned on other runs: "
                "don't trust their confidences, marked by '?'."
            )
        else:
            head.append(
                f"This run is of the kind that {self.bench} holds: as far from its rows as at most "
                f"{100 * kind.percentile:.0f} % of the runs of pairs held out (limit {100 * kind.threshold:.0f} %)."
            )
        head.append(f"{self.called} of {self.judged} techniques call it faulty.")
        return head


def diagnose(run: Bench, reference: Reference, explain: bool = False) -> Diagnosis:
    """Judge the one run of `run` (as `own_run.read_run` gives it) by every technique of `reference`.

    With `explain`, tree techniques and DEFault++ are explained by SHAP as well, which takes seconds.
    Raises BenchError if nothing of the run can be compared with the bench, or no technique can judge it.
    """
    kind = reference.novelty.judge(run)
    one = replace(run, X=run.X.reindex(columns=list(reference.novelty.space.columns)))
    rows, rules, notes, not_run = [], [], list(run.notes), []
    for key, technique in reference.techniques.items():
        if technique.unsupported(one):
            not_run.append(technique.name)
            continue
        verdict = technique.predict(one).table.iloc[0]
        rows.append(_judged(technique, verdict, reference.calibrations.get(key)))
        if isinstance(technique, RuleTechnique):
            rules.append(technique.firings(one).assign(technique=technique.name))
    if not_run:
        notes.append(f"Not run, for want of what they read: {', '.join(not_run)}.")
    notes += reference.reasons
    notes += _same_row(kind)
    if not rows:
        why = "; ".join(reference.reasons) or f"{not_run[0]} reads what the run lacks: record its log and its vector"
        raise BenchError(f"{run.name}: no technique can judge this run ({why})")
    prevalence = float(reference.novelty.labels["faulty"].mean())
    table = pd.DataFrame(rows)
    # What moves the odds most stands first.
    order = (table["probability"] - prevalence).abs().sort_values(ascending=False, kind="stable").index
    table = table.loc[order].reset_index(drop=True)
    sheet = assemble(
        str(run.runs[0]),
        f"{run.arch}",
        None,
        table,
        _groups(reference, one, explain, notes),
        _prototypes(reference, one),
        [fired for fired in rules if len(fired)],
        notes,
        trusted=not kind.out,
    )
    return Diagnosis(
        sheet,
        kind,
        _invariants(table),
        first_steps(table),
        int(table["faulty"].sum()),
        len(table),
        prevalence,
        {reference.techniques[k].name: c.error for k, c in reference.calibrations.items()},
        reference.source.path or f"the embedded {reference.source.arch} bench",
    )


def _judged(technique: Technique, verdict: pd.Series, calibration: Calibration | None) -> dict:
    """One technique's verdict with its record on unseen runs."""
    faulty = bool(verdict["faulty"])
    category, cause = (v if isinstance(v, str) else None for v in (verdict["category"], verdict["root_cause"]))
    rate = NEVER if calibration is None else calibration.probability(float(verdict["score"]), faulty)
    # A guess on a run that is called correct has no record: it was never acted upon.
    named = calibration is not None and faulty and category is not None
    hits = calibration.hit(category) if named else NEVER
    exact = calibration.hit(category, cause) if named and cause is not None else NEVER
    return {
        "technique": technique.name,
        "tool": technique.tool,
        "score": float(verdict["score"]),
        "faulty": faulty,
        "probability": rate.value,
        "confidence_1": rate.value if faulty else 1 - rate.value,
        "alike": _counts(rate),
        "category": category,
        "confidence_2": hits.value,
        "hits_2": _counts(hits),
        "root_cause": cause,
        "confidence_3": exact.value,
        "hits_3": _counts(exact),
        "evidence": verdict["evidence"],
    }


def _counts(rate: Rate) -> str | None:
    return f"{rate.hits} of {rate.of}" if rate.of else None


def _same_row(kind: Kind) -> list[str]:
    first = kind.nearest.iloc[0]
    if first["ratio"] >= SAME:
        return []
    return [
        f"This run is {first['run']} of the bench itself: techniques have learned from it, so expect them to be right."
    ]


def _invariants(table: pd.DataFrame) -> pd.DataFrame:
    rows = []
    for evidence in table["evidence"]:
        rows += json.loads(evidence).get("invariants", [])
    return pd.DataFrame(rows, columns=["statement", "observed", "group"])


def _groups(reference: Reference, one: Bench, explain: bool, notes: list[str]) -> dict[str, pd.Series]:
    """Group → how much it speaks for the verdict: DEFault++'s prototypes, and SHAP where it is asked for."""
    found = {}
    plain = reference.techniques.get("defaultpp")
    if plain is not None and not plain.unsupported(one):
        table = plain.explain(one)
        for title, part in (("Δ", "delta"), ("weight", "weight")):
            found[f"{plain.name}: {title} of prototypes"] = table[part].iloc[0].rename_axis("group")
    if explain:
        from experiments.engine.margins import why_unexplained
        from experiments.engine.verdict_sheet import verdict_sheet

        able = [t for t in reference.techniques.values() if not t.unsupported(one)]
        able = [t for t in able if not isinstance(t, RuleTechnique) and why_unexplained(t) is None]
        train = reference.bench
        train = replace(train, X=train.X[list(one.X.columns)])
        for technique in able:
            found |= dict(verdict_sheet(one, one.runs[0], [technique], train, known=False).groups)
    else:
        notes.append("Groups of tree techniques by SHAP: add --explain.")
    return found


def _prototypes(reference: Reference, one: Bench) -> pd.DataFrame:
    plain = reference.techniques.get("defaultpp")
    if plain is None or plain.unsupported(one):
        return pd.DataFrame(columns=["prototype", "distance"])
    import torch

    from baselines.defaultpp.prototypes import group_distances

    diagnoser = plain.diagnoser_
    diagnoser.network.eval()
    with torch.no_grad():
        H = diagnoser.network.embed(diagnoser.inputs(one.X)).cpu().numpy()
    away = group_distances(H, diagnoser.prototypes).sum(axis=2)[0]
    names = [f"{category}/{cause}" for category, cause in diagnoser.space.classes]
    order = np.argsort(away, kind="stable")
    return pd.DataFrame({"prototype": np.array(names, dtype=object)[order], "distance": away[order]})

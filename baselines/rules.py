"""A rule, how well a log or a vector shows what it looks at, and how its firings become verdicts.

Rule-based techniques (AutoTrainer, UMLAUT, DeepDiagnosis, signal detectors) differ in their rules and in how those
are combined. What they share stands here: the rule as data, the tidy table of firings, and the verdict that names
every rule that fired with the value it saw and the threshold it compared it with.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import pandas as pd

from baselines.series import RunLog, RunPhases
from baselines.technique import Technique, Verdicts
from features.bench import Bench

Form = Literal["log", "vector"]
Severity = Literal["warning", "error", "critical"]
SEVERITIES: tuple[Severity, ...] = ("warning", "error", "critical")

FIRING_COLUMNS = ("run", "rule", "severity", "epoch", "layer", "observed", "threshold")
"""Columns of a table of firings, one row per run and rule: the first time that the rule fired.

`epoch` counts from 0 in the log form and names a phase in the vector form; `layer` is -1 where a rule has none."""


@dataclass(frozen=True)
class Sight:
    """How well one form shows what a rule looks at: exactly, approximately (how), or not at all (why).

    `metrics` are the series that must be there; on a bench without one of them the rule is not observable either.
    """

    kind: Literal["exact", "approximated", "not observable"]
    note: str = ""
    metrics: tuple[str, ...] = ()


def exact(*metrics: str, note: str = "") -> Sight:
    """The form holds the very quantity that the published rule reads."""
    return Sight("exact", note, metrics)


def approximated(how: str, *metrics: str) -> Sight:
    """The form holds something near it; `how` says what is read instead."""
    return Sight("approximated", how, metrics)


def unobservable(why: str) -> Sight:
    """The form holds nothing of it: the rule never fires."""
    return Sight("not observable", why)


@dataclass(frozen=True)
class Rule:
    """One detection rule: what it looks at, when it fires, and how well each form shows that.

    `condition` is the published firing condition with its numbers; `window` says over which time it is judged.
    """

    name: str
    observable: str
    condition: str
    window: str
    severity: Severity
    log: Sight
    vector: Sight

    def sight(self, form: Form) -> Sight:
        """How well this form shows what the rule looks at."""
        return self.log if form == "log" else self.vector


@dataclass(frozen=True, eq=False)
class Reading:
    """What one rule saw: where it fired and which value it compared with which threshold.

    `fired` and `observed` have the shape run × time or run × time × layer. With `downwards`, layers are read from
    the last to the first, as a backward pass meets them.
    """

    rule: str
    fired: np.ndarray
    observed: np.ndarray
    threshold: float | str
    downwards: bool = False


def tabulate(readings: list[Reading], rules: tuple[Rule, ...], runs: pd.Index, times: tuple) -> pd.DataFrame:
    """The firings of these readings: the first of every rule in every run, columns `FIRING_COLUMNS`."""
    severity = {rule.name: rule.severity for rule in rules}
    parts = []
    for reading in readings:
        cube = reading.fired if reading.fired.ndim == 3 else reading.fired[:, :, None]
        seen = reading.observed if reading.observed.ndim == 3 else reading.observed[:, :, None]
        if reading.downwards:
            cube, seen = cube[:, :, ::-1], seen[:, :, ::-1]
        n, _, layers = cube.shape
        flat = cube.reshape(n, -1)
        row = np.flatnonzero(flat.any(axis=1))
        if not len(row):
            continue
        first = flat[row].argmax(axis=1)
        layer = first % layers
        if reading.downwards:
            layer = layers - 1 - layer
        parts.append(
            pd.DataFrame(
                {
                    "run": runs[row],
                    "rule": reading.rule,
                    "severity": severity[reading.rule],
                    "epoch": [times[t] for t in first // layers],
                    "layer": layer if reading.fired.ndim == 3 else -1,
                    "observed": seen.reshape(n, -1)[row, first],
                    "threshold": reading.threshold,
                }
            ).astype({"epoch": object, "threshold": object})
        )
    if not parts:
        return pd.DataFrame({c: pd.Series(dtype=object) for c in FIRING_COLUMNS})
    return pd.concat(parts, ignore_index=True).loc[:, list(FIRING_COLUMNS)]


def plain(value):
    """A number as JSON can hold it: six significant digits, NaN and infinities spelled out."""
    if isinstance(value, (bool, np.bool_, str)):
        return value if isinstance(value, str) else bool(value)
    if isinstance(value, (int, np.integer)):
        return int(value)
    return float(f"{value:.6g}") if np.isfinite(value) else str(float(value))


def count_rules(evidence: pd.Series) -> pd.Series:
    """In how many of these verdicts (column `evidence`) each rule fired, most often first; empty without rules.

    >>> count_rules(pd.Series(['{"rules": [{"rule": "lr_high"}]}', "{}"])).to_dict()
    {'lr_high': 1}
    """
    fired = [row["rule"] for text in evidence for row in json.loads(text).get("rules", [])]
    return pd.Series(fired, dtype=str).value_counts()


class RuleTechnique(Technique):
    """Base of the techniques that are a list of rules.

    A technique gives `rules` (data) and `readings(series)`; its verdict is "faulty" if a rule of at least
    `min_severity` fired. `form` "log" reads the per-epoch log, as the tools were meant to be used; "vector" reads
    the aggregated phases: two techniques of one class, so that what the aggregation costs can be read off.

    The score of a run is the severity-weighted share (warning 1, error 2, critical 3) of the observable rules that
    fired: 0 where none did, 1 where all did. It ranks runs; it is no probability.
    """

    levels: ClassVar[tuple[int, ...]] = (1,)
    family: ClassVar[str] = "rules"
    tool: ClassVar[str]
    min_severity: Severity = "warning"

    @property
    def needs(self) -> str:
        """ "log" or "vector", as the form asks."""
        return self.form

    @property
    def name(self) -> str:
        """Tool, variant if there are several, and form."""
        variant = getattr(self, "variant", None)
        return f"{self.tool} ({variant}, {self.form})" if variant else f"{self.tool} ({self.form})"

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The rules with these parameters, whether or not a form shows them."""
        raise NotImplementedError

    def readings(self, series: RunLog | RunPhases) -> list[Reading]:
        """What every observable rule saw in these runs."""
        raise NotImplementedError

    def advice(self, fired: list[str]) -> dict:
        """What else the tool says about a run in which these rules fired, for the evidence."""
        return {}

    def series(self, bench: Bench) -> RunLog | RunPhases:
        """The runs in the shape that the form asks for."""
        return RunLog.of(bench) if self.form == "log" else RunPhases.of(bench)

    def observability(self, bench: Bench) -> pd.DataFrame:
        """One row per rule: severity, condition, sight ("exact", "approximated", "not observable") and note."""
        return self._observability(self.series(bench))

    def _observability(self, series: RunLog | RunPhases) -> pd.DataFrame:
        rows = []
        for rule in self.rules:
            sight = rule.sight(self.form)
            lacking = [m for m in sight.metrics if not series.has(m)]
            if sight.kind != "not observable" and lacking:
                sight = unobservable(f"this bench has no {' and no '.join(lacking)} in its {self.form}")
            rows.append((rule.name, rule.severity, rule.condition, rule.window, sight.kind, sight.note))
        columns = ["rule", "severity", "condition", "window", "sight", "note"]
        return pd.DataFrame(rows, columns=columns).set_index("rule")

    def firings(self, bench: Bench) -> pd.DataFrame:
        """Every rule's first firing in every run, columns `FIRING_COLUMNS` and the tool's own, whatever severity."""
        return self._firings(self.series(bench))

    def _firings(self, series: RunLog | RunPhases) -> pd.DataFrame:
        sight = self._observability(series)["sight"]
        readings = [r for r in self.readings(series) if sight[r.rule] != "not observable"]
        return tabulate(readings, self.rules, series.runs, series.times)

    def predict(self, bench: Bench) -> Verdicts:
        """Faulty where a rule of at least `min_severity` fired; the evidence names each with value and threshold."""
        series = self.series(bench)
        strength = {s: i + 1 for i, s in enumerate(SEVERITIES)}
        observed = self._observability(series)
        weighed = observed[(observed["sight"] != "not observable") & self._counts(observed["severity"])]
        firings = self._firings(series)
        counted = firings[self._counts(firings["severity"])]
        total = sum(strength[s] for s in weighed["severity"])
        weight = counted["severity"].map(strength).astype(float).groupby(counted["run"]).sum()
        weight = weight.reindex(bench.runs, fill_value=0.0)
        evidence = self._evidence(firings)
        return Verdicts.build(
            bench.runs,
            score=weight.to_numpy() / max(total, 1),
            faulty=weight.to_numpy() > 0,
            evidence=[evidence.get(run, {}) for run in bench.runs],
        )

    def unsupported(self, bench: Bench) -> str | None:
        """Why nothing can be judged here: no log, or no rule of at least `min_severity` is observable."""
        reason = super().unsupported(bench)
        if reason is None:
            table = self.observability(bench)
            if not ((table["sight"] != "not observable") & self._counts(table["severity"])).any():
                reason = f"{self.name}: none of its rules (severity {self.min_severity} or worse) is observable here"
        return reason

    def _counts(self, severity: pd.Series) -> pd.Series:
        return severity.isin(SEVERITIES[SEVERITIES.index(self.min_severity) :])

    def _evidence(self, firings: pd.DataFrame) -> dict[str, dict]:
        """Run → the rules that fired in it and what follows. One pass over all firings: there may be thousands."""
        columns = [c for c in firings.columns if c != "run"]
        rules: dict[str, list[dict]] = {}
        for run, *values in firings[["run", *columns]].itertuples(index=False, name=None):
            row = {c: plain(v) for c, v in zip(columns, values, strict=True) if not (c == "layer" and v == -1)}
            rules.setdefault(run, []).append(row)
        return {run: {"rules": rows, **self.advice([row["rule"] for row in rows])} for run, rows in rules.items()}

"""DeepDiagnosis (Wardat et al., ICSE 2022): eight symptoms in a fixed order, and a tree from symptom to fix.

Variants: `code` is what the public callback does, equality of floats and dead branches included; `intended` repairs
those; `log` is `intended` without the rules that a log only approximates (dead node excepted).

>>> from baselines.series import bench_of_series
>>> flat = bench_of_series({"a": {"train_loss": [1.5] * 5}})
>>> DeepDiagnosis(variant="intended").firings(flat).rule.tolist()
['loss_not_decreasing']
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import pandas as pd

from baselines.deepdiagnosis_fixes import COMPONENTS, Variant, fixes
from baselines.deepdiagnosis_symptoms import symptoms
from baselines.rules import Form, Reading, Rule, RuleTechnique
from baselines.series import RunLog, RunPhases

ORDER = (
    ("numerical_forward", "dead_node", "saturated_activation"),
    ("unchanged_forward",),
    ("invalid_loss",),
    ("loss_not_decreasing",),
    ("invalid_accuracy",),
    ("accuracy_not_increasing",),
    ("numerical_gradient", "vanishing_gradient", "numerical_weight"),
    ("unchanged_gradient", "unchanged_weight"),
)
"""Order within one epoch. Rules of one stage are tried layer by layer, together; the first hit ends the run."""


class DeepDiagnosis(RuleTechnique):
    """DeepDiagnosis' symptoms on a log or a vector.

    Parameters
    ----------
    form : "log" (every epoch end, as the tool works) or "vector" (phases as four points in time).
    variant : "code", "intended" or "log", see the module.
    symptoms : "first" keeps the first hit, after which the tool stops the run; "all" keeps every symptom. A vector
        has lost the order of epochs and always keeps all.
    dead_node : whether the dead-node rule takes part; it made 58 of the tool's 68 false alarms on its own data.
    zero_is_error : whether a mean of exactly 0 counts as a numerical error, as published.
    tolerance : how far from equal (flat windows) or from 0 (numerical errors) still counts; 0 is as published.
    window, accuracy_window : epochs of the tumbling windows of the flatness rules.
    vanishing, dead_share, saturated_share : thresholds of the rules of these names.
    """

    tool = "DeepDiagnosis"
    reference = "Wardat et al., ICSE 2022; public code, callback/callbacks.py"

    def __init__(
        self,
        form: Form = "log",
        variant: Variant = "code",
        symptoms: Literal["first", "all"] = "first",
        dead_node: bool = True,
        zero_is_error: bool = True,
        tolerance: float = 0.0,
        window: int = 5,
        accuracy_window: int = 20,
        vanishing: float = 1e-7,
        dead_share: float = 0.7,
        saturated_share: float = 0.5,
    ):
        self.form = form
        self.variant = variant
        self.symptoms = symptoms
        self.dead_node = dead_node
        self.zero_is_error = zero_is_error
        self.tolerance = tolerance
        self.window = window
        self.accuracy_window = accuracy_window
        self.vanishing = vanishing
        self.dead_share = dead_share
        self.saturated_share = saturated_share

    @property
    def name(self) -> str:
        """Tool, variant and form, and what was taken out of it."""
        without = "" if self.dead_node else ", no dead node"
        zeros = "" if self.zero_is_error else ", zero allowed"
        return f"{self.tool} ({self.variant}, {self.form}{without}{zeros})"

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The symptoms in the order of the tool, eight groups in fourteen messages."""
        return symptoms(self)

    def readings(self, series: RunLog | RunPhases) -> list[Reading]:
        """What each rule saw."""
        return self._log_readings(series) if isinstance(series, RunLog) else self._phase_readings(series)

    def _firings(self, series: RunLog | RunPhases) -> pd.DataFrame:
        """All symptoms, or the first of each run, with the fix that the tool's tree leads to in a column `fix`."""
        firings = super()._firings(series)
        if firings.empty:
            return firings.assign(fix=pd.Series(dtype=object))
        if self.form == "log":
            firings = _in_order(firings)
            if self.symptoms == "first":
                firings = firings.drop_duplicates("run", ignore_index=True)
        return firings.assign(fix=fixes(firings, series, self.variant))

    def search_space(self, trial) -> dict:
        """Thresholds around the published ones, and a tolerance for the tests of equality."""
        return {
            "tolerance": trial.suggest_categorical("tolerance", [0.0, 1e-8, 1e-6, 1e-4, 1e-2]),
            "vanishing": trial.suggest_float("vanishing", 1e-9, 1e-3, log=True),
            "dead_share": trial.suggest_float("dead_share", 0.5, 0.99),
            "saturated_share": trial.suggest_float("saturated_share", 0.2, 0.9),
            "zero_is_error": trial.suggest_categorical("zero_is_error", [True, False]),
        }

    def _log_readings(self, log: RunLog) -> list[Reading]:
        last = np.arange(len(log.times)) == log.epochs[:, None] - 1
        window_ends = (np.arange(len(log.times)) + 1) % self.window == 0
        hidden, gradient, weight = (log.layered(m) for m in ("hidden_mean", "probe_grad_mean", "weight_mean"))
        size = log.layered("probe_grad_mean_abs")
        nonpositive, saturated = (log.layered(f"activation_{m}") for m in ("nonpositive_share", "saturated_share"))
        loss, accuracy = log.series("train_loss"), log.series("train_accuracy")
        broken_gradient = self._broken(gradient, log.nonfinite("probe_grad_mean"))
        if size.shape == gradient.shape:
            broken_gradient |= log.nonfinite("probe_grad_mean_abs")
        bad = "finite" + (" and not 0" if self.zero_is_error else "")
        inner = hidden[:, :, :-1]
        return [
            Reading("numerical_forward", self._broken(hidden, log.nonfinite("hidden_mean")), hidden, bad),
            Reading("dead_node", last[:, :, None] & (nonpositive >= self.dead_share), nonpositive, self.dead_share),
            Reading(
                "saturated_activation",
                window_ends[:, None] & (saturated > self.saturated_share),
                saturated,
                self.saturated_share,
            ),
            Reading("unchanged_forward", self._flat(inner, self.window), inner, "a change"),
            Reading("invalid_loss", log.nonfinite("train_loss").any(axis=2), loss, "finite"),
            Reading("loss_not_decreasing", self._flat(loss, self.window), loss, "a change"),
            Reading(
                "invalid_accuracy",
                self._broken(accuracy, log.nonfinite("train_accuracy").any(axis=2)),
                accuracy,
                bad,
            ),
            Reading("accuracy_not_increasing", self._flat(accuracy, self.accuracy_window), accuracy, "a change"),
            Reading("numerical_gradient", broken_gradient, gradient, bad, downwards=True),
            Reading("vanishing_gradient", size < self.vanishing, size, self.vanishing, downwards=True),
            Reading(
                "numerical_weight", self._broken(weight, log.nonfinite("weight_mean")), weight, bad, downwards=True
            ),
            Reading("unchanged_gradient", self._flat(gradient, self.window), gradient, "a change", downwards=True),
            self._unchanged_weight(log, weight),
        ]

    def _unchanged_weight(self, log: RunLog, weight: np.ndarray) -> Reading:
        if not log.has("weight_same_mean_count"):
            return Reading("unchanged_weight", self._flat(weight, self.window), weight, "a change", downwards=True)
        same = log.series("weight_same_mean_count")
        found = np.zeros(same.shape, dtype=bool)
        for end in range(self.window - 1, same.shape[1], self.window):
            # An epoch's count compares with the epoch before, so the window's first epoch is not one of them.
            found[:, end] = (same[:, end - self.window + 2 : end + 1] > 0).all(axis=1)
        return Reading("unchanged_weight", found, same, 0.0)

    def _phase_readings(self, phases: RunPhases) -> list[Reading]:
        layers = ("layer_early_mean", "layer_mid_mean", "final_layer_value")
        ffn = np.stack([phases.series("ffn_output_norm", f"{layer}__epoch_mean") for layer in layers], axis=2)
        gradient, update = (
            np.stack([phases.series(f"{metric}_{part}") for part in COMPONENTS], axis=2)
            for metric in ("grad_norm", "update_ratio")
        )
        loss, accuracy = phases.series("train_loss"), phases.series("train_accuracy")
        at_end = np.array([False, False, False, True])
        still = (update == 0).all(axis=1, keepdims=True) & at_end[:, None]
        bad = "finite" + (" and not 0" if self.zero_is_error else "")

        def flat(values: np.ndarray) -> np.ndarray:
            return (np.ptp(values, axis=1) <= self.tolerance)[:, None] & at_end

        return [
            Reading("numerical_forward", self._broken(ffn, np.isinf(ffn)), ffn, bad),
            Reading("invalid_loss", phases.nonfinite("train_loss"), loss, "finite"),
            Reading("loss_not_decreasing", flat(loss), loss, "a change"),
            Reading("invalid_accuracy", self._broken(accuracy, phases.nonfinite("train_accuracy")), accuracy, bad),
            Reading("accuracy_not_increasing", flat(accuracy), accuracy, "a change"),
            Reading("numerical_gradient", self._broken(gradient, np.isinf(gradient)), gradient, bad),
            Reading("vanishing_gradient", gradient < self.vanishing, gradient, self.vanishing),
            Reading("unchanged_weight", still, update, "a change"),
        ]

    def _broken(self, values: np.ndarray, nonfinite: np.ndarray) -> np.ndarray:
        """Not finite, or 0 within the tolerance where that counts as an error."""
        return nonfinite | (np.abs(values) <= self.tolerance) if self.zero_is_error else nonfinite

    def _flat(self, values: np.ndarray, window: int) -> np.ndarray:
        """Where a tumbling window ends that did not change; shape of `values`."""
        found = np.zeros(values.shape, dtype=bool)
        for end in range(window - 1, values.shape[1], window):
            # The mean must run over contiguous numbers, as over the list in the public code: it decides the rounding.
            part = np.ascontiguousarray(np.moveaxis(values[:, end - window + 1 : end + 1], 1, -1))
            centre = part.mean(axis=-1) if self.variant == "code" else part.min(axis=-1)
            found[:, end] = np.abs(part.max(axis=-1) - centre) <= self.tolerance
        return found


def _in_order(firings: pd.DataFrame) -> pd.DataFrame:
    """Firings in the order in which the tool would meet them: epoch, stage, layer, rule."""
    place = {rule: (stage, i) for stage, rules in enumerate(ORDER) for i, rule in enumerate(rules)}
    stage = firings["rule"].map(lambda rule: place[rule][0])
    layer = firings["layer"].where(stage < len(ORDER) - 2, -firings["layer"])
    keys = firings.assign(stage=stage, at=layer, rank=firings["rule"].map(lambda rule: place[rule][1]))
    order = keys.sort_values(["run", "epoch", "stage", "at", "rank"], kind="stable").index
    return firings.loc[order].reset_index(drop=True)

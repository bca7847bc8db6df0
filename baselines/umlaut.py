"""UMLAUT (Schoop, Huang and Hartmann, CHI 2021): twelve heuristics about a Keras program and its run.

Eight of the twelve look at layers, losses and input arrays, which neither a log nor a vector holds; on token inputs
the learning-rate, overfitting and validation-accuracy rules remain, all of them warnings. The tool defines no
verdict for a whole run: here a run is faulty if a rule of at least `min_severity` fired in any epoch.

>>> from baselines.series import bench_of_series
>>> bench = bench_of_series({"a": {"learning_rate": [0.02]}, "b": {"learning_rate": [0.01]}})
>>> Umlaut().predict(bench).table.faulty.tolist()
[True, False]
"""

from __future__ import annotations

import numpy as np

from baselines.rules import Form, Reading, Rule, RuleTechnique, Severity, approximated, exact, unobservable
from baselines.series import RunLog, RunPhases

_STATIC = unobservable("looks at the program's layers and loss, which were not recorded")
_INPUT = unobservable("looks at the input array; token ids have no range, shape or float type to be wrong")


class Umlaut(RuleTechnique):
    """UMLAUT's rules on a log or a vector, without those that need the program or its input.

    Parameters
    ----------
    form : "log" (every epoch end, as the tool works) or "vector" (phases as four points in time).
    min_severity : "warning" (any rule), "error" or "critical"; the evidence lists every rule that fired.
    lr_high, lr_low : learning rates beyond which a warning is given.
    val_accuracy_limit, val_accuracy_margin : validation accuracy above the limit, or above training accuracy by
        more than the margin, is suspect.
    first_judged_epoch : epoch, from 0, at which validation accuracy is first judged.
    tolerance : how much validation loss must rise, and validation accuracy exceed the margin, beyond the published
        condition. 0 is as published: a rise of 1e-7 counts, and so does 0.55 - 0.50 in floating point.
    """

    tool = "UMLAUT"
    reference = "Schoop, Huang and Hartmann, CHI 2021; public code, umlaut/heuristics.py"

    def __init__(
        self,
        form: Form = "log",
        min_severity: Severity = "warning",
        lr_high: float = 0.01,
        lr_low: float = 1e-7,
        val_accuracy_limit: float = 0.95,
        val_accuracy_margin: float = 0.05,
        first_judged_epoch: int = 3,
        tolerance: float = 0.0,
    ):
        self.form = form
        self.min_severity = min_severity
        self.lr_high = lr_high
        self.lr_low = lr_low
        self.val_accuracy_limit = val_accuracy_limit
        self.val_accuracy_margin = val_accuracy_margin
        self.first_judged_epoch = first_judged_epoch
        self.tolerance = tolerance

    @property
    def name(self) -> str:
        """Tool, form, and severity where it isn't the lowest."""
        worse = "" if self.min_severity == "warning" else f", {self.min_severity} or worse"
        return f"{self.tool} ({self.form}{worse})"

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The twelve heuristics in the tool's order."""
        once, each = "once, before training", "every epoch"
        lr_phases = approximated("means of phases and the final epoch's mean", "learning_rate")
        return (
            Rule("no_softmax", "name of the last layer", "lacks 'softmax'", once, "critical", _STATIC, _STATIC),
            Rule("missing_activations", "inner layers", "a linear one", once, "critical", _STATIC, _STATIC),
            Rule("activation_final_layer", "last layer", "not linear", once, "warning", _STATIC, _STATIC),
            Rule("high_dropout_rate", "dropout layers", "rate > 0.5", once, "warning", _STATIC, _STATIC),
            Rule("input_wrong_shape", "4-D input", "width != height", each, "error", _INPUT, _INPUT),
            Rule("input_normalization", "input batch", "min < -1 or max > 1", each, "error", _INPUT, _INPUT),
            Rule("input_not_floating", "input type", "not a float", each, "error", _INPUT, _INPUT),
            Rule("nan_input", "loss and input", "both hold NaN", each, "critical", _INPUT, _INPUT),
            Rule(
                "lr_high",
                "learning rate",
                f"> {self.lr_high:g}",
                each,
                "warning",
                exact("learning_rate"),
                lr_phases,
            ),
            Rule(
                "lr_low",
                "learning rate",
                f"< {self.lr_low:g}, also if negative",
                each,
                "warning",
                exact("learning_rate"),
                lr_phases,
            ),
            Rule(
                "overfitting",
                "change of validation and training loss since the epoch before",
                "validation rises while training doesn't",
                "every epoch from the second",
                "warning",
                exact("val_loss", "train_loss"),
                approximated(
                    "changes from phase to phase; perplexity, which rises and falls with it, for validation loss",
                    "val_perplexity",
                    "train_loss",
                ),
            ),
            Rule(
                "overconfident_val",
                "validation and training accuracy",
                f"validation > {self.val_accuracy_limit:g}, or above training by > {self.val_accuracy_margin:g}",
                f"every epoch from epoch {self.first_judged_epoch} (from 0)",
                "warning",
                exact("val_accuracy"),
                approximated(
                    "the final phase and epoch, as if the run had more than three; training accuracy isn't there",
                    "val_accuracy",
                ),
            ),
        )

    def readings(self, series: RunLog | RunPhases) -> list[Reading]:
        """What the learning-rate, overfitting and validation-accuracy rules saw."""
        rate = series.series("learning_rate")
        train, val_accuracy = series.series("train_loss"), series.series("val_accuracy")
        val = series.series("val_loss" if self.form == "log" else "val_perplexity")
        late = np.broadcast_to(self._late(series), val_accuracy.shape)
        gap = val_accuracy - series.series("train_accuracy")
        too_good = val_accuracy > self.val_accuracy_limit
        rise = _change(val)
        # The difference, not a sum with the margin: 0.55 - 0.50 exceeds 0.05 in floating point, as it does there.
        suspect = late & (too_good | (gap > self.val_accuracy_margin + self.tolerance))
        return [
            Reading("lr_high", rate > self.lr_high, rate, self.lr_high),
            Reading("lr_low", rate < self.lr_low, rate, self.lr_low),
            Reading("overfitting", (rise > self.tolerance) & (_change(train) <= 0), rise, self.tolerance),
            Reading("overconfident_val", suspect, val_accuracy, self.val_accuracy_limit),
        ]

    def search_space(self, trial) -> dict:
        """Thresholds around the published ones, and a tolerance against noise."""
        return {
            "lr_high": trial.suggest_float("lr_high", 1e-4, 1e-1, log=True),
            "val_accuracy_limit": trial.suggest_float("val_accuracy_limit", 0.8, 1.0),
            "val_accuracy_margin": trial.suggest_float("val_accuracy_margin", 0.01, 0.3),
            "tolerance": trial.suggest_categorical("tolerance", [0.0, 1e-4, 1e-3, 1e-2, 1e-1]),
        }

    def _late(self, series: RunLog | RunPhases) -> np.ndarray:
        if isinstance(series, RunPhases):
            return np.array([t in ("final_mean", "final_value") for t in series.times])
        return np.arange(len(series.times)) >= self.first_judged_epoch


def _change(values: np.ndarray) -> np.ndarray:
    """Change since the point before, NaN at the first."""
    return np.diff(values, axis=1, prepend=np.nan)

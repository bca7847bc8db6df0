"""AutoTrainer (Zhang et al., ICSE 2021): five training problems from gradients and accuracy, with their repairs.

Three variants of one rule set. `code` is what the public tool does (its evidence is sticky and cumulative, and
gradient symptoms count only if accuracy is low as well), `paper` is Table I of the article, and `guarded` is the
tool without the defects that make it fire on healthy or miss broken short runs.

>>> from baselines.series import bench_of_series
>>> stuck = {"train_accuracy": [0.5] * 8, "val_accuracy": [0.5] * 8}
>>> AutoTrainer().firings(bench_of_series({"a": stuck})).rule.tolist()
['slow_convergence']
"""

from __future__ import annotations

from baselines.autotrainer_judgement import Variant, judge, log_symptoms, phase_symptoms
from baselines.rules import Form, Reading, Rule, RuleTechnique, approximated, exact, unobservable
from baselines.series import RunLog, RunPhases

REPAIRS: dict[str, tuple[str, ...]] = {
    "dying_relu": ("SELU activation", "batch normalisation", "another initialiser", "leaky ReLU"),
    "explode_nan": ("SELU activation", "ReLU activation", "gradient clipping", "tanh activation", "batch norm"),
    "explode_ratio": ("SELU activation", "ReLU activation", "gradient clipping", "tanh activation", "batch norm"),
    "vanish": ("SELU activation", "ReLU activation", "batch normalisation"),
    "slow_convergence": ("another optimiser", "higher learning rate", "another initialiser"),
    "oscillation": (
        "Adam",
        "lower learning rate",
        "learning rate on plateau",
        "larger batch",
        "momentum",
        "Gaussian noise",
        "another initialiser",
    ),
}
"""The repairs that the tool tries for each problem, in its default order. A rule's name is its problem."""

_ACCURACY = ("train_accuracy",)
_KERNELS = ("probe_grad_norm_first", "probe_grad_norm_last")


class AutoTrainer(RuleTechnique):
    """AutoTrainer's detection rules on a log or a vector.

    Parameters
    ----------
    form : "log" (as the tool works, checks every `gap` epochs) or "vector" (phases as four points in time).
    variant : "code", "paper" or "guarded", see the module.
    theta : accuracy below which a run counts as not converging. The tool's default is 0.7; its own demos use 0.6.
    beta_1, beta_2 : a gradient vanishes if first/last kernel norm < beta_1 and first < beta_2.
    beta_3 : it explodes if that ratio exceeds beta_3.
    gamma : share of gradient entries that are exactly 0 from which ReLUs count as dying.
    zeta, eta : accuracy oscillates if swings of at least zeta make up at least eta of the epochs.
    delta : largest rise of accuracy in one epoch below which convergence is slow.
    gap : epochs between two checks; the first is at epoch 0.
    warm_up : share of the epochs before which accuracy isn't judged (`code` and `guarded`; not in the article).
    symptom_checks : checks that must show a gradient symptom (`code`).
    loss_limit : loss that counts as not finite; None for the variant's own: 1e5, last validation loss only
        (`code`), none (`paper`), 1e3, any loss (`guarded`).
    min_epochs : epochs before slow convergence is judged (`guarded`).

    Every check sees the epochs up to it; a run stops at the first check with a problem, so later ones don't count.
    Missing accuracy is never replaced by loss: its rules are then not observable.
    """

    tool = "AutoTrainer"
    reference = "Zhang et al., ICSE 2021, Table I; public code, branch Stable-Master"

    def __init__(
        self,
        form: Form = "log",
        variant: Variant = "code",
        theta: float = 0.7,
        beta_1: float = 1e-3,
        beta_2: float = 1e-4,
        beta_3: float = 70.0,
        gamma: float = 0.7,
        zeta: float = 0.03,
        eta: float = 0.2,
        delta: float = 0.01,
        gap: int = 3,
        warm_up: float = 0.3,
        symptom_checks: int = 1,
        loss_limit: float | None = None,
        min_epochs: int = 4,
    ):
        self.form = form
        self.variant = variant
        self.theta = theta
        self.beta_1 = beta_1
        self.beta_2 = beta_2
        self.beta_3 = beta_3
        self.gamma = gamma
        self.zeta = zeta
        self.eta = eta
        self.delta = delta
        self.gap = gap
        self.warm_up = warm_up
        self.symptom_checks = symptom_checks
        self.loss_limit = loss_limit
        self.min_epochs = min_epochs

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The five problems of the article, exploding gradients as its two halves."""
        low = "and accuracy is low or (code) stagnates"
        return (
            Rule(
                "explode_nan",
                "loss, weights and gradients",
                "a NaN or infinity in any of them, or (code) a last validation loss of 1e5 or more",
                "any epoch up to a check",
                "error",
                exact("train_loss"),
                approximated("a phase of the training loss that is infinite or stops being there", "train_loss"),
            ),
            Rule(
                "explode_ratio",
                "L2 norm of the first over that of the last kernel's gradient",
                f"> {self.beta_3:g}, {low}",
                "any check so far (code), this check (paper, guarded)",
                "error",
                exact(*_KERNELS, *_ACCURACY, note="probe batch, inference mode"),
                approximated(
                    "the vector has no norm per kernel; fires where a step's total norm exceeded 100 or wasn't finite",
                    "gradient_exploding",
                    "val_accuracy",
                ),
            ),
            Rule(
                "dying_relu",
                "share of gradient entries that are exactly 0",
                f">= {self.gamma:g}, {low}",
                "any check so far (code), this check (paper, guarded)",
                "error",
                exact(
                    "probe_grad_exact_zero_share",
                    *_ACCURACY,
                    note="entries, as in the code; the article counts neurons. No test that the model has ReLUs",
                ),
                approximated(
                    "share below 1e-8 on training batches instead of exactly 0 on the probe batch",
                    "grad_zero_share",
                    "val_accuracy",
                ),
            ),
            Rule(
                "vanish",
                "the same ratio and the first kernel's norm",
                f"ratio < {self.beta_1:g} and norm < {self.beta_2:g}, {low}",
                "any check so far (code), this check (paper, guarded)",
                "error",
                exact(*_KERNELS, *_ACCURACY, note="probe batch, inference mode"),
                approximated(
                    "only the norm's half, by the total norm, which bounds it from above; the ratio isn't there",
                    "grad_norm_total",
                    "val_accuracy",
                ),
            ),
            Rule(
                "slow_convergence",
                "rises of training and validation accuracy",
                f"largest rise < {self.delta:g}; guarded: mean rise, and accuracy below {self.theta:g}",
                "all epochs up to a check",
                "warning",
                exact(*_ACCURACY),
                approximated(
                    "differences of phase means of validation accuracy; jitter within a phase is averaged away, and "
                    "training accuracy, whose rises would speak against it, isn't there",
                    "val_accuracy",
                ),
            ),
            Rule(
                "oscillation",
                "local maxima and minima of training accuracy",
                f"swings of at least {self.zeta:g} in at least {self.eta:g} of the epochs",
                "all epochs up to a check",
                "warning",
                exact(*_ACCURACY),
                unobservable("the order of epochs within a phase is lost"),
            ),
        )

    def advice(self, fired: list[str]) -> dict:
        """The problem that the tool would name, and the repairs that it would try, in order."""
        problem = min(fired, key=list(REPAIRS).index)
        return {"problem": problem, "repairs": list(REPAIRS[problem])}

    def readings(self, series: RunLog | RunPhases) -> list[Reading]:
        """What each rule saw at the first check that found a problem."""
        symptoms = log_symptoms(series, self) if isinstance(series, RunLog) else phase_symptoms(series, self)
        return judge(symptoms, self)

    def search_space(self, trial) -> dict:
        """Thresholds around the published ones."""
        return {
            "theta": trial.suggest_float("theta", 0.4, 0.95),
            "beta_1": trial.suggest_float("beta_1", 1e-5, 1e-1, log=True),
            "beta_2": trial.suggest_float("beta_2", 1e-6, 1e-1, log=True),
            "beta_3": trial.suggest_float("beta_3", 1.0, 300.0, log=True),
            "gamma": trial.suggest_float("gamma", 0.3, 0.95),
            "zeta": trial.suggest_float("zeta", 0.005, 0.1, log=True),
            "eta": trial.suggest_float("eta", 0.1, 0.5),
            "delta": trial.suggest_float("delta", 1e-3, 0.1, log=True),
        }

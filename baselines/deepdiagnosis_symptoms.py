"""DeepDiagnosis' symptoms as data: what each looks at, when it fires, and how well a log or a vector shows that.

Source: Wardat et al. (ICSE 2022), public callback. Eight groups of symptoms in fourteen messages.
"""

from __future__ import annotations

from typing import Protocol

from baselines.deepdiagnosis_fixes import Variant
from baselines.rules import Rule, approximated, exact, unobservable


class Thresholds(Protocol):
    """The parameters of `baselines.deepdiagnosis.DeepDiagnosis`, where they are explained."""

    variant: Variant
    dead_node: bool
    zero_is_error: bool
    window: int
    accuracy_window: int
    vanishing: float
    dead_share: float
    saturated_share: float


def symptoms(p: Thresholds) -> tuple[Rule, ...]:
    """The symptoms with these thresholds, whether or not a form shows them, in the order of the tool."""
    broken = "NaN, infinite" + (" or exactly 0" if p.zero_is_error else "")
    each, windows = "every epoch", f"windows of {p.window} epochs"
    zero_norm = "a norm of exactly 0 for a mean of 0; non-finite values are not recorded"
    flat = "mean of the window equals its maximum" if p.variant == "code" else "no change in the window"
    lost = unobservable("windows of epochs are lost")
    unchanged = approximated("update ratio of a component exactly 0 in all phases", "update_ratio_qkv")
    loss_log = exact("train_loss")
    if p.variant == "code":
        loss_log = unobservable("the public code calls this test without an argument and crashes on a flat loss")
    saturated = approximated(
        "of the FFN, whatever its activation: the log doesn't name it, and the rule is for sigmoid and tanh",
        "activation_saturated_share",
    )
    dead = approximated(
        "of the FFN, whatever its activation: a GELU's share depends on the mean of its input",
        "activation_nonpositive_share",
    )
    if p.variant == "log":
        saturated = unobservable("left out of this variant: the log doesn't name the activation")
    if not p.dead_node:
        dead = unobservable("switched off by dead_node=False")
    no_share = unobservable("the share isn't part of the vector")
    no_range = unobservable("needs the labels' range, the loss and the last activation by name")
    return (
        Rule("out_of_range", "last layer's output", "outside its range", "epoch 0", "error", no_range, no_range),
        Rule(
            "numerical_forward",
            "mean output of a layer",
            broken,
            each,
            "error",
            exact("hidden_mean"),
            approximated(zero_norm + ", FFN outputs for layer outputs", "ffn_output_norm"),
        ),
        Rule(
            "dead_node",
            "share of a layer's outputs at or below 0",
            f">= {p.dead_share:g}",
            "last epoch",
            "error",
            dead,
            no_share,
        ),
        Rule(
            "saturated_activation",
            "share of |pre-activations| at or above 5",
            f"> {p.saturated_share:g}",
            f"every {p.window} epochs",
            "error",
            saturated,
            no_share,
        ),
        Rule(
            "unchanged_forward",
            "mean output of a layer but the last",
            flat,
            windows,
            "error",
            exact("hidden_mean"),
            lost,
        ),
        Rule(
            "invalid_loss",
            "training loss",
            "NaN or infinite",
            each,
            "error",
            exact("train_loss"),
            approximated("a phase that is infinite or stops being there", "train_loss"),
        ),
        Rule(
            "loss_not_decreasing",
            "training loss",
            flat,
            windows,
            "error",
            loss_log,
            approximated("equal in all phases; a short run was never tested", "train_loss"),
        ),
        Rule(
            "invalid_accuracy",
            "training accuracy",
            broken,
            each,
            "error",
            exact("train_accuracy"),
            approximated("training accuracy of a phase", "train_accuracy"),
        ),
        Rule(
            "accuracy_not_increasing",
            "training accuracy",
            flat,
            f"windows of {p.accuracy_window} epochs",
            "error",
            exact("train_accuracy"),
            approximated("equal in all phases; a short run was never tested", "train_accuracy"),
        ),
        Rule(
            "numerical_gradient",
            "mean gradient of a layer's kernels",
            broken,
            each,
            "error",
            exact("probe_grad_mean"),
            approximated(zero_norm, "grad_norm_qkv"),
        ),
        Rule(
            "vanishing_gradient",
            "mean absolute gradient of a layer's kernels",
            f"< {p.vanishing:g}",
            each,
            "error",
            exact("probe_grad_mean_abs"),
            approximated("the norm, which the mean never exceeds: misses, but doesn't invent", "grad_norm_qkv"),
        ),
        Rule(
            "numerical_weight",
            "mean of a layer's kernels",
            broken,
            each,
            "error",
            exact("weight_mean"),
            unobservable("the vector has no weights"),
        ),
        Rule(
            "unchanged_gradient",
            "mean gradient of a layer's kernels",
            flat,
            windows,
            "error",
            exact("probe_grad_mean"),
            lost,
        ),
        Rule(
            "unchanged_weight",
            "mean of a layer's kernels",
            flat,
            windows,
            "error",
            approximated(
                "weight tensors whose mean stayed exactly the same in every epoch of the window, where they were "
                "counted; else the mean over a layer's kernels together",
                "weight_mean",
            ),
            unchanged,
        ),
    )

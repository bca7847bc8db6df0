"""DeepDiagnosis' decision tree: which of seven fixes a symptom leads to.

Source: the public callback of Wardat et al. (ICSE 2022). Its tests run in order and the first that is true decides:
is the input out of range (token ids have no range: never), are the weights badly initialised, is the learning rate
too high or too low for them.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import pandas as pd

from baselines.series import RunLog, RunPhases

Variant = Literal["code", "intended", "log"]

COMPONENTS = ("attention", "qkv", "ffn", "layernorm", "embedding")
"""The parts that the vector has gradient norms and update ratios for."""

FIXES = (
    "normalise the data",
    "weight initialisation",
    "learning rate",
    "activation",
    "loss",
    "optimizer",
    "layers",
)
"""The seven families of fixes."""

CHAINS: dict[str, tuple[tuple[str, ...], str]] = {
    "out_of_range": ((), "activation"),
    "numerical_forward": (("weights", "rate"), "activation"),
    "numerical_weight": (("weights", "rate"), "activation"),
    "numerical_gradient": ((), "activation"),
    "unchanged_forward": (("weights", "rate"), "optimizer"),
    "unchanged_gradient": (("weights", "rate"), "optimizer"),
    "unchanged_weight": (("weights", "rate"), "optimizer"),
    "loss_not_decreasing": (("weights", "rate"), "optimizer"),
    "accuracy_not_increasing": (("weights", "rate"), "optimizer"),
    "invalid_loss": ((), "activation"),  # the last layer of a transformer's head is linear
    "invalid_accuracy": ((), "activation"),
    "dead_node": (("weights", "rate"), "layers"),
    "saturated_activation": (("weights", "rate"), "layers"),
    "vanishing_gradient": (("rate",), "layers"),
}
"""Symptom → tests in order, and the fix if none of them is true. The test of the input's range is never true here."""

NORMAL_MEAN_ABS = float(np.sqrt(2 / np.pi))
"""Mean absolute value of a standard normal entry: turns a mean absolute gradient into a root mean square."""


def fixes(firings: pd.DataFrame, series: RunLog | RunPhases, variant: Variant) -> pd.Series:
    """The fix for each firing (columns of `baselines.rules.FIRING_COLUMNS`); "none" where the tool writes none."""
    row = series.runs.get_indexer(firings["run"])
    time = pd.Index(series.times).get_indexer(firings["epoch"])
    true = {
        "weights": weights_out_of_band(series, variant)[row, time],
        "rate": rate_out_of_band(series, variant)[row, time],
    }
    named = {"weights": "weight initialisation", "rate": "learning rate"}
    layers = series.layered("probe_grad_mean").shape[2] if isinstance(series, RunLog) else 0
    chosen = []
    for i, (rule, layer) in enumerate(zip(firings["rule"], firings["layer"], strict=True)):
        tests, otherwise = CHAINS[rule]
        if rule == "numerical_gradient" and layers:
            otherwise = {layers - 1: "none", layers - 2: "loss"}.get(layer, otherwise)
        chosen.append(next((named[test] for test in tests if true[test][i]), otherwise))
    return pd.Series(chosen, index=firings.index)


def weights_out_of_band(series: RunLog | RunPhases, variant: Variant) -> np.ndarray:
    """Whether some layer's weights have a variance below 1e-5 or above 10, n × T bool.

    The public code passes the mean of each kernel instead of the kernel; the variance of one number is NaN, so the
    test is never true there. The vector has no weights: never true either.
    """
    if variant == "code" or isinstance(series, RunPhases):
        return np.zeros((len(series.runs), len(series.times)), dtype=bool)
    variance = series.layered("weight_std") ** 2
    return ((variance < 1e-5) | (variance > 10)).any(axis=2)


def rate_out_of_band(series: RunLog | RunPhases, variant: Variant) -> np.ndarray:
    """Whether some layer's update is below 1e-5 or above 0.1 of its weights, n × T bool.

    Update: learning rate times the norm of the gradient. Weights: their norm, or, as in the public code, the
    absolute value of their mean, which is smaller by orders of magnitude. The gradient's norm is estimated from its
    mean absolute entry as if entries were normal. A vector has the update ratios themselves, for the norm only.
    """
    if isinstance(series, RunPhases):
        if variant == "code":
            return np.zeros((len(series.runs), len(series.times)), dtype=bool)
        ratio = np.stack([series.series(f"update_ratio_{part}") for part in COMPONENTS], axis=2)
    else:
        ratio = _log_ratio(series, variant)
    return ((ratio < 1e-5) | (ratio > 0.1)).any(axis=2)


def _log_ratio(log: RunLog, variant: Variant) -> np.ndarray:
    mean, std, norm, size = (
        log.layered(m) for m in ("weight_mean", "weight_std", "weight_norm", "probe_grad_mean_abs")
    )
    layers = min(a.shape[2] for a in (mean, std, norm, size))
    mean, std, norm, size = (a[:, :, :layers] for a in (mean, std, norm, size))
    rate = log.series("learning_rate")[:, :, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        entries = norm**2 / (std**2 + mean**2)
        update = rate * np.sqrt(entries) * size / NORMAL_MEAN_ABS
        return update / (np.abs(mean) if variant == "code" else norm)

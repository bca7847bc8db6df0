"""What is measured, how a column is named, and which feature group a column belongs to.

A run is measured per layer and step, aggregated over layers, then within each epoch, then over the phases of
training (DEFault++ manuscript, §4.2; Algorithm 2). The result is one vector of exactly 1,600 (encoder) or
1,705 (decoder) named numbers:

>>> len(columns("encoder")), len(columns("decoder"))
(1600, 1705)
>>> columns("encoder")[0]
'attention_entropy__layer_early_mean__epoch_mean__phase_early_mean'
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Literal

from features.taxonomy import ARCHITECTURES, Architecture

STRUCTURAL_GROUPS = (
    "attention",
    "score",
    "ffn_output",
    "layernorm",
    "residual_stream",
    "qkv_alignment",
    "embedding",
    "positional",
    "output",
    "cache",
)
CONTEXT_GROUPS = ("representation_drift", "training_dynamics", "validation_perf")
DECODER_ONLY_GROUPS = frozenset({"cache"})

Resolution = Literal["layer", "gradient", "step", "epoch"]


@dataclass(frozen=True)
class Metric:
    """One measured quantity of the vector. `machine` marks what the host decides rather than the model."""

    name: str
    group: str
    resolution: Resolution
    meaning: str
    architectures: tuple[Architecture, ...] = ARCHITECTURES
    machine: bool = False


_DECODER: tuple[Architecture, ...] = ("decoder",)
_ENCODER: tuple[Architecture, ...] = ("encoder",)

_GRADIENT_GROUP = {
    "attention": "attention",
    "qkv": "qkv_alignment",
    "ffn": "ffn_output",
    "layernorm": "layernorm",
    "embedding": "embedding",
}
GRADIENT_COMPONENTS = tuple(_GRADIENT_GROUP)

METRICS: tuple[Metric, ...] = (
    Metric("attention_entropy", "attention", "layer", "entropy of attention rows, nats, mean over heads and queries"),
    Metric("attention_padding_mass", "attention", "layer", "attention mass on padding keys, per real query"),
    Metric("attention_head_similarity", "attention", "layer", "mean cosine between heads' attention maps"),
    Metric("attention_head_utilisation", "attention", "layer", "effective number of heads by output norm, as a share"),
    Metric("attention_effective_rank", "attention", "layer", "exp of the entropy of normalised singular values"),
    Metric(
        "attention_cross_example_leakage",
        "attention",
        "layer",
        "change of a row's output when its neighbours in the batch change",
    ),
    Metric("attention_future_mass", "attention", "layer", "attention mass on later keys", _DECODER),
    Metric("score_mean", "score", "layer", "mean score before softmax over admissible keys"),
    Metric("ffn_output_norm", "ffn_output", "layer", "mean L2 norm of the FFN output per token"),
    Metric("layernorm_gamma_norm", "layernorm", "layer", "Frobenius norm of the gains"),
    Metric("layernorm_output_std", "layernorm", "layer", "standard deviation of the normalised output"),
    Metric("residual_cosine", "residual_stream", "layer", "cosine of sublayer input and residual output"),
    Metric("representation_cka", "representation_drift", "layer", "linear CKA of this layer and the one before"),
    Metric("qkv_cos_qk", "qkv_alignment", "layer", "cosine of Q and K per token"),
    Metric("qkv_cos_qv", "qkv_alignment", "layer", "cosine of Q and V per token"),
    Metric("qkv_cos_kv", "qkv_alignment", "layer", "cosine of K and V per token"),
    *(
        Metric(f"{kind}_{part}", group, "gradient", f"{meaning} of the {part} parameters")
        for part, group in _GRADIENT_GROUP.items()
        for kind, meaning in (
            ("grad_norm", "gradient L2 norm"),
            ("update_ratio", "norm of the update over norm of the weights"),
            ("update_active", "1 if the update norm exceeds 1e-6"),
        )
    ),
    Metric("grad_norm_total", "training_dynamics", "gradient", "L2 norm of all gradients"),
    Metric("grad_abs_min", "training_dynamics", "gradient", "smallest absolute gradient entry"),
    Metric("grad_abs_max", "training_dynamics", "gradient", "largest absolute gradient entry"),
    Metric("grad_zero_share", "training_dynamics", "gradient", "share of gradient entries below 1e-8"),
    Metric("gradient_vanishing", "training_dynamics", "gradient", "1 if the total norm is below 1e-4"),
    Metric("gradient_exploding", "training_dynamics", "gradient", "1 if the total norm is above 100 or not finite"),
    Metric("embedding_norm", "embedding", "step", "mean L2 norm of the embedding output per token"),
    Metric("embedding_token_variance", "embedding", "step", "variance over tokens of the embedding output"),
    Metric("positional_sensitivity", "positional", "step", "relative change of hidden states, positions shifted by 1"),
    Metric("train_loss", "training_dynamics", "step", "training loss"),
    Metric("grad_norm_volatility", "training_dynamics", "step", "squared coefficient of variation over 20 steps"),
    Metric("step_time", "training_dynamics", "step", "seconds per training step", machine=True),
    Metric("peak_memory", "training_dynamics", "step", "peak memory, MiB", machine=True),
    Metric("output_confidence", "output", "step", "mean of the largest class probability"),
    Metric("output_entropy", "output", "step", "mean entropy of the output distribution, nats"),
    Metric("output_margin", "output", "step", "mean difference of the two largest logits"),
    Metric("cache_hidden_similarity", "cache", "step", "cosine of cached and fresh last hidden states", _DECODER),
    Metric("cache_kl_divergence", "cache", "step", "KL of fresh from cached next-token distribution", _DECODER),
    Metric("val_accuracy", "validation_perf", "epoch", "validation accuracy", _ENCODER),
    Metric("val_perplexity", "validation_perf", "epoch", "validation perplexity", _DECODER),
    Metric("val_ece", "validation_perf", "epoch", "expected calibration error, 10 equal-width bins"),
)

LAYER_STATISTICS = ("layer_early_mean", "layer_early_std", "layer_mid_mean", "layer_mid_std", "final_layer_value")
EPOCH_STATISTICS = ("epoch_mean", "epoch_std", "epoch_burst")
PHASE_STATISTICS = (
    "phase_early_mean",
    "phase_mid_mean",
    "phase_final_mean",
    "phase_slope",
    "phase_final_value",
)

MACHINE_METRICS = frozenset(m.name for m in METRICS if m.machine)


def metrics(arch: Architecture) -> tuple[Metric, ...]:
    """The metrics of an architecture's vector, in column order."""
    return tuple(m for m in METRICS if arch in m.architectures)


def groups(arch: Architecture) -> tuple[str, ...]:
    """The feature groups of an architecture: 12 (encoder) or 13 (decoder)."""
    structural = tuple(g for g in STRUCTURAL_GROUPS if arch == "decoder" or g not in DECODER_ONLY_GROUPS)
    return structural + CONTEXT_GROUPS


def metric_columns(metric: Metric) -> tuple[str, ...]:
    """The columns that one metric becomes: 75 per layer metric, 15 per step metric, 5 per epoch metric."""
    if metric.resolution == "epoch":
        return tuple(f"{metric.name}__epoch__{p}" for p in PHASE_STATISTICS)
    layers = tuple(f"__{s}" for s in LAYER_STATISTICS) if metric.resolution == "layer" else ("",)
    return tuple(
        f"{metric.name}{layer}__{epoch}__{phase}"
        for layer in layers
        for epoch in EPOCH_STATISTICS
        for phase in PHASE_STATISTICS
    )


@cache
def columns(arch: Architecture) -> tuple[str, ...]:
    """Every column of an architecture's vector, in order."""
    return tuple(c for m in metrics(arch) for c in metric_columns(m))


@dataclass(frozen=True)
class LogMetric:
    """One series of the long log that is not (or not in this form) part of the vector.

    `per` says where its rows stand: "step" rows carry the optimiser step, "epoch" rows carry step -1. Rows of a
    `layered` metric carry the layer index from 0; all others carry layer -1.
    """

    name: str
    per: Literal["step", "epoch"]
    meaning: str
    layered: bool = False


LOG_COLUMNS = ("run", "epoch", "step", "metric", "layer", "value")
"""Columns of the long log. `epoch` counts from 0; `step` counts optimiser steps of the run from 0."""

LOG_METRICS: tuple[LogMetric, ...] = (
    LogMetric("train_loss", "epoch", "mean training loss of the epoch"),
    LogMetric("train_accuracy", "epoch", "mean training accuracy of the epoch (decoders: next-token accuracy)"),
    LogMetric("val_loss", "epoch", "validation loss at the end of the epoch"),
    LogMetric("val_accuracy", "epoch", "validation accuracy at the end of the epoch"),
    LogMetric("learning_rate", "epoch", "learning rate at the end of the epoch"),
    LogMetric("step_loss", "step", "training loss of the step"),
    LogMetric("step_accuracy", "step", "training accuracy of the step"),
    LogMetric("probe_grad_norm_first", "epoch", "L2 norm of the first kernel's gradient on the probe batch"),
    LogMetric("probe_grad_norm_last", "epoch", "L2 norm of the last kernel's gradient on the probe batch"),
    LogMetric("probe_grad_exact_zero_share", "epoch", "share of probe-batch gradient entries that are exactly 0"),
    LogMetric("probe_grad_mean_abs", "epoch", "mean absolute gradient of a layer's kernels, probe batch", True),
    LogMetric("probe_grad_mean", "epoch", "mean gradient of a layer's kernels, probe batch", True),
    LogMetric("grad_mean_abs", "epoch", "mean absolute gradient entry over all parameters, probe batch"),
    LogMetric("grad_std", "epoch", "standard deviation of gradient entries, probe batch"),
    LogMetric("grad_max", "epoch", "largest gradient entry, probe batch"),
    LogMetric("grad_min", "epoch", "smallest gradient entry, probe batch"),
    LogMetric("grad_median", "epoch", "median gradient entry, probe batch"),
    LogMetric("weight_mean", "epoch", "mean of a layer's kernels", True),
    LogMetric("weight_std", "epoch", "standard deviation of a layer's kernels", True),
    LogMetric("weight_norm", "epoch", "L2 norm of a layer's kernels", True),
    LogMetric("weight_abs_max", "epoch", "largest absolute weight"),
    LogMetric("weight_large_count", "epoch", "number of weights above 10 in absolute value"),
    LogMetric("weight_same_mean_count", "epoch", "weight tensors whose mean is exactly that of the epoch before"),
    LogMetric("weight_same_std_count", "epoch", "weight tensors whose deviation is exactly that of the epoch before"),
    LogMetric("activation_mean", "epoch", "mean FFN activation of a layer, probe batch", True),
    LogMetric("activation_std", "epoch", "standard deviation of a layer's FFN activation, probe batch", True),
    LogMetric("activation_nonpositive_share", "epoch", "share of FFN activations at or below 0, probe batch", True),
    LogMetric("activation_saturated_share", "epoch", "share of |pre-activation| at or above 5, probe batch", True),
    LogMetric("hidden_mean", "epoch", "mean of a layer's output, probe batch", True),
    LogMetric("logit_abs_max", "epoch", "largest absolute logit on the probe batch"),
    LogMetric("logit_range", "epoch", "largest minus smallest logit on the probe batch"),
    LogMetric("loss_nonfinite", "epoch", "1 if a training or validation loss of the epoch was NaN or infinite"),
    LogMetric("weight_nonfinite_count", "epoch", "number of NaN or infinite weights"),
    LogMetric("gradient_nonfinite_count", "epoch", "number of NaN or infinite gradient entries, probe batch"),
    LogMetric("activation_nonfinite", "epoch", "1 if a layer's output on the probe batch was not finite"),
)

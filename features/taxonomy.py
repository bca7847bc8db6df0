"""Fault categories, root causes and the 52 mutation operators: data only.

Source: DEFault++ manuscript (May 2026), Tables 1 and 3. Level 1 says faulty or correct, Level 2 the category
(11 for encoders, 12 for decoders), Level 3 the root cause within the category (40 and 45).

>>> len(OPERATORS), len(categories("encoder")), len(root_causes("decoder"))
(52, 11, 45)
>>> operator("SDS").root_cause
'normalization'
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Architecture = Literal["encoder", "decoder"]
ARCHITECTURES: tuple[Architecture, ...] = ("encoder", "decoder")

CORRECT = "correct"
"""The label of a healthy run at Levels 2 and 3."""

DECODER_ONLY_CATEGORIES = frozenset({"kv_cache"})

ROOT_CAUSES: dict[str, tuple[str, ...]] = {
    "masking": ("mask_application", "mask_generation", "dynamic_mask"),
    "qkv": ("parameter_initialization", "head_interaction", "dynamic_parameter_registration", "dimension"),
    "score": ("normalization", "implementation", "precision_handling"),
    "positional": ("indexing", "relative_position", "interpolation"),
    "kernel": (
        "silent_fallback",
        "feature_constraints",
        "hardware_incompatibility",
        "numerical_precision",
        "kernel_memory",
    ),
    "variant": ("variant_configuration", "dynamic_dispatch"),
    "kv_cache": (
        "cache_invalidation",
        "update_synchronization",
        "cache_position",
        "memory_layout",
        "distributed_synchronization",
    ),
    "embedding": ("input_initialization", "input_type", "input_dimension"),
    "ffn": ("weight_scaling", "neuron_dropout", "activation_function", "regularization", "weight_initialization"),
    "layernorm": ("scale_parameter", "bias_parameter", "stability_parameter", "regularization"),
    "residual": ("skip_connection", "residual_scaling", "residual_path", "gradient_clipping", "dropout_rate"),
    "output": ("output_scaling", "output_dimension", "output_type"),
}


@dataclass(frozen=True)
class Operator:
    """One mutation operator.

    `parameter` is None for operators without one; otherwise `values` lists its settings from low to high severity
    (for choice lists the order is the manuscript's). `architectures` is the scope that the manuscript gives it.
    """

    code: str
    category: str
    root_cause: str
    effect: str
    parameter: str | None = None
    values: tuple[float | int | str, ...] = ()
    architectures: tuple[Architecture, ...] = ARCHITECTURES

    @property
    def settings(self) -> tuple[float | int | str | None, ...]:
        """The parameter values to run; `(None,)` where there is no parameter."""
        return self.values or (None,)


_ENCODER: tuple[Architecture, ...] = ("encoder",)
_DECODER: tuple[Architecture, ...] = ("decoder",)

OPERATORS: tuple[Operator, ...] = (
    Operator("MZM", "masking", "mask_application", "the attention mask becomes all-visible, padding is attended"),
    Operator("MIM", "masking", "mask_application", "the meaning of the attention mask is inverted"),
    Operator("MRM", "masking", "mask_generation", "the mask is misaligned along an axis", "axis", ("batch", "head")),
    Operator(
        "MCB",
        "masking",
        "dynamic_mask",
        "a fraction of the future keys becomes visible",
        "visibility",
        (0.1, 0.3, 0.5),
        _DECODER,
    ),
    Operator("QZQ", "qkv", "parameter_initialization", "the query projection is zeroed"),
    Operator("QZK", "qkv", "parameter_initialization", "the key projection is zeroed"),
    Operator("QZV", "qkv", "parameter_initialization", "the value projection is zeroed"),
    Operator("QSW", "qkv", "head_interaction", "query and key projections are swapped"),
    Operator(
        "QTH",
        "qkv",
        "head_interaction",
        "heads share one set of projection weights",
        "heads",
        ("first_half", "alternating", "all"),
    ),
    Operator("QFG", "qkv", "dynamic_parameter_registration", "the QKV parameters receive no update"),
    Operator(
        "QHD",
        "qkv",
        "dimension",
        "another (heads, head size) factorisation of the same width",
        "split",
        ("half_heads", "double_heads", "single_head"),
    ),
    Operator("SDS", "score", "normalization", "scores are not divided by the root of the head size"),
    Operator("SPD", "score", "implementation", "dropout on the scores before softmax", "p", (0.1, 0.3, 0.5)),
    Operator("SUC", "score", "precision_handling", "scores pass through an unsafe half-precision cast"),
    Operator("POE", "positional", "indexing", "position embeddings are left out"),
    Operator("PSI", "positional", "relative_position", "position indices are shifted", "shift", (1, 2, 4)),
    Operator(
        "PTL",
        "positional",
        "interpolation",
        "positions beyond a share of the sequence length share one index",
        "cutoff",
        (0.75, 0.5, 0.25),
    ),
    Operator("KSB", "kernel", "silent_fallback", "a non-optimised attention backend is forced"),
    Operator(
        "KMD",
        "kernel",
        "feature_constraints",
        "the kernel's attention dropout differs from the configured one",
        "p_kern",
        (0.1, 0.3, 0.5),
    ),
    Operator(
        "KFT", "kernel", "hardware_incompatibility", "a valid fallback is triggered", "trigger", ("dtype", "layout")
    ),
    Operator(
        "KRP",
        "kernel",
        "numerical_precision",
        "attention accumulates in reduced precision",
        "precision",
        ("tf32", "fp16", "bf16"),
    ),
    Operator("KMC", "kernel", "kernel_memory", "attention takes a chunked, reduced-memory path"),
    Operator("VSH", "variant", "variant_configuration", "only one head is effective"),
    Operator("VEC", "variant", "dynamic_dispatch", "a causal mask acts in an encoder", architectures=_ENCODER),
    Operator(
        "CST",
        "kv_cache",
        "cache_invalidation",
        "keys and values are stale",
        "layers",
        ("first", "middle", "last", "all"),
        _DECODER,
    ),
    Operator(
        "CDU",
        "kv_cache",
        "update_synchronization",
        "the current step's keys and values are withheld from the cache",
        architectures=_DECODER,
    ),
    Operator("COB", "kv_cache", "cache_position", "the cache index is off by one", "shift", (-1, 1), _DECODER),
    Operator("CTR", "kv_cache", "memory_layout", "the cache is truncated", "length", (32, 16, 8), _DECODER),
    Operator(
        "CLK",
        "kv_cache",
        "distributed_synchronization",
        "another request's cache is reused",
        architectures=_DECODER,
    ),
    Operator(
        "ETZ",
        "embedding",
        "input_initialization",
        "a share of token embedding rows is zeroed",
        "share",
        (0.1, 0.3, 0.5),
    ),
    Operator("ESW", "embedding", "input_type", "a share of token embedding rows is swapped", "share", (0.1, 0.3, 0.5)),
    Operator("ESS", "embedding", "input_type", "segment embeddings are scaled", "factor", (0.5, 2.0, 5.0)),
    Operator(
        "EZD", "embedding", "input_dimension", "a block of embedding dimensions is zeroed", "share", (0.1, 0.3, 0.5)
    ),
    Operator("FSW", "ffn", "weight_scaling", "the FFN weights are scaled", "factor", (0.5, 2.0, 5.0)),
    Operator("FDN", "ffn", "neuron_dropout", "hidden neurons are permanently off", "share", (0.1, 0.3, 0.5)),
    Operator(
        "FCA",
        "ffn",
        "activation_function",
        "another activation function",
        "activation",
        ("relu", "gelu", "tanh", "sigmoid"),
    ),
    Operator("FRG", "ffn", "regularization", "another weight decay on the FFN", "weight_decay", (0.0, 1e-2, 1e-1)),
    Operator(
        "FWI",
        "ffn",
        "weight_initialization",
        "the FFN weights are re-initialised",
        "initialisation",
        ("uniform", "zeros", "constant_one"),
    ),
    Operator("NSG", "layernorm", "scale_parameter", "the gain is multiplied", "factor", (0.5, 2.0, 5.0)),
    Operator("NZG", "layernorm", "scale_parameter", "the gain is zeroed"),
    Operator("NSB", "layernorm", "bias_parameter", "a constant is added to the bias", "offset", (0.5, 1.0, 2.0)),
    Operator("NCE", "layernorm", "stability_parameter", "another epsilon", "epsilon", (1e-4, 1e-2, 1.0)),
    Operator("NWD", "layernorm", "regularization", "weight decay on gain and bias", "weight_decay", (1e-2, 1e-1, 1.0)),
    Operator("RRS", "residual", "skip_connection", "the skip connection is removed"),
    Operator("RSR", "residual", "residual_scaling", "the skip path is scaled", "factor", (0.5, 2.0, 5.0)),
    Operator("RIN", "residual", "residual_path", "noise enters the residual stream", "sigma", (0.01, 0.1, 1.0)),
    Operator("RGC", "residual", "gradient_clipping", "another gradient clipping norm", "max_norm", (10.0, 1.0, 0.1)),
    Operator("RDR", "residual", "dropout_rate", "another residual dropout rate", "p", (0.1, 0.3, 0.5)),
    Operator("OSL", "output", "output_scaling", "the logits are scaled", "factor", (0.5, 2.0, 5.0)),
    Operator("OZR", "output", "output_dimension", "output rows are zeroed", "classes", ("rare", "balanced", "all")),
    Operator("OOD", "output", "output_dimension", "the output dimension or its mapping changes", "change", (-1, 1, 2)),
    Operator(
        "ORI",
        "output",
        "output_type",
        "the output head is re-initialised",
        "initialisation",
        ("xavier", "kaiming", "zeros"),
    ),
)

_BY_CODE = {op.code: op for op in OPERATORS}


def operator(code: str) -> Operator:
    """The operator with this three-letter code. Raises KeyError naming the code if there is none."""
    try:
        return _BY_CODE[code]
    except KeyError:
        raise KeyError(f"no mutation operator {code!r}; known: {', '.join(_BY_CODE)}") from None


def categories(arch: Architecture) -> tuple[str, ...]:
    """The Level-2 labels of an architecture, without "correct" (11 or 12)."""
    return tuple(c for c in ROOT_CAUSES if arch == "decoder" or c not in DECODER_ONLY_CATEGORIES)


def root_causes(arch: Architecture) -> tuple[tuple[str, str], ...]:
    """The Level-3 labels of an architecture as (category, root cause) pairs (40 or 45).

    A category's root causes count for both architectures, even where their only operator is scoped to one.
    """
    return tuple((c, r) for c in categories(arch) for r in ROOT_CAUSES[c])


def operators(arch: Architecture) -> tuple[Operator, ...]:
    """The operators whose scope contains this architecture."""
    return tuple(op for op in OPERATORS if arch in op.architectures)

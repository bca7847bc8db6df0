"""Older names of categories and root causes in the published tables, and what the taxonomy calls them.

The first generations of DEFault-bench name what was injected ("zero_query") rather than the root cause. A name is
translated where the operator that injects it is one of the taxonomy's; where it has no counterpart there
(over_mask_valid_tokens, double_position, ...) it stays as it is, and the reader says so.

>>> old = pd.DataFrame({"faulty": [True], "category": ["Decoder Masking"], "root_cause": ["break_causal_mask"]})
>>> translate(old)[0].loc[0, "category"], translate(old)[0].loc[0, "root_cause"]
('masking', 'dynamic_mask')
"""

from __future__ import annotations

import pandas as pd

from features.taxonomy import CORRECT, OPERATORS, ROOT_CAUSES

CATEGORY_SPELLINGS = {"decoder_masking": "masking"}

ROOT_CAUSE_SPELLINGS: dict[tuple[str, str], str] = {
    ("masking", "zero_mask"): "mask_application",
    ("masking", "inverted_mask"): "mask_application",
    ("masking", "wrong_mask_broadcast"): "mask_generation",
    ("masking", "break_causal_mask"): "dynamic_mask",
    ("qkv", "zero_query"): "parameter_initialization",
    ("qkv", "zero_key"): "parameter_initialization",
    ("qkv", "zero_value"): "parameter_initialization",
    ("qkv", "swapped_qk"): "head_interaction",
    ("qkv", "tie_heads"): "head_interaction",
    ("qkv", "freeze_qkv"): "dynamic_parameter_registration",
    ("qkv", "wrong_head_dim"): "dimension",
    ("score", "missing_scaling"): "normalization",
    ("score", "wrong_scaling_factor"): "normalization",
    ("score", "misplaced_dropout"): "implementation",
    ("score", "unsafe_type_cast"): "precision_handling",
    ("positional", "missing_positional"): "indexing",
    ("positional", "off_by_one"): "relative_position",
    ("positional", "truncate_positions"): "interpolation",
    ("kernel", "force_unoptimized"): "silent_fallback",
    ("kernel", "inconsistent_dropout"): "feature_constraints",
    ("kernel", "wrong_layout"): "hardware_incompatibility",
    ("variant", "wrong_variant"): "variant_configuration",
    ("variant", "causal_in_noncausal"): "dynamic_dispatch",
    ("kv_cache", "stale_cache"): "cache_invalidation",
    ("kv_cache", "off_by_one_index"): "cache_position",
    ("kv_cache", "truncated_cache"): "memory_layout",
    ("kv_cache", "cross_request_cache_leak"): "distributed_synchronization",
    ("embedding", "embedding_zero"): "input_initialization",
    ("embedding", "embedding_swap"): "input_type",
    ("embedding", "type_embedding_drop"): "input_type",
    ("ffn", "ffn_weight_scaling"): "weight_scaling",
    ("ffn", "ffn_neuron_drop"): "neuron_dropout",
    ("ffn", "activation_distortion"): "activation_function",
    ("layernorm", "ln_gamma_fault"): "scale_parameter",
    ("layernorm", "ln_beta_fault"): "bias_parameter",
    ("layernorm", "ln_stats_fault"): "stability_parameter",
    ("residual", "residual_drop"): "skip_connection",
    ("residual", "residual_scale"): "residual_scaling",
    ("residual", "residual_noise"): "residual_path",
    ("output", "out_scale"): "output_scaling",
    ("output", "out_row_drop"): "output_dimension",
}
"""(category, older name) → root cause of the taxonomy."""

_BY_OPERATOR = {(op.category, op.code.lower()): op.root_cause for op in OPERATORS}


def translate(labels: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """Labels in the taxonomy's spelling, and notes on what was translated and what has no counterpart.

    Case, spaces and hyphens don't matter; a three-letter operator code stands for its root cause.
    """
    faulty = labels["faulty"]
    category = _plain(labels["category"])
    category = category.replace(CATEGORY_SPELLINGS).where(faulty, CORRECT)
    cause = _plain(labels["root_cause"]).where(faulty, CORRECT)
    known = {(c, r): r for c, causes in ROOT_CAUSES.items() for r in causes}
    names = {**_BY_OPERATOR, **ROOT_CAUSE_SPELLINGS, **known, (CORRECT, CORRECT): CORRECT}
    keys = list(zip(category, cause, strict=True))
    translated = labels.assign(
        category=category, root_cause=pd.Series([names.get(k, k[1]) for k in keys], index=labels.index, dtype=object)
    )
    notes = []
    moved = sorted({f"{c}/{r} → {names[c, r]}" for c, r in keys if names.get((c, r), r) != r})
    if moved:
        notes.append(f"older root-cause names were translated: {', '.join(moved)}")
    foreign = sorted({c for c in category if c is not None and c not in (*ROOT_CAUSES, CORRECT)})
    if foreign:
        notes.append(f"categories outside the taxonomy, kept as they are: {', '.join(foreign)}")
    unknown = sorted({f"{c}/{r}" for c, r in keys if r is not None and (c, r) not in names})
    if unknown:
        notes.append(f"root causes outside the taxonomy, kept as they are: {', '.join(unknown)}")
    return translated, notes


def _plain(names: pd.Series) -> pd.Series:
    """Lower case with underscores; missing names are None."""
    text = names.astype("str").str.strip().str.lower().str.replace(r"[\s-]+", "_", regex=True)
    return text.astype(object).where(names.notna(), None)

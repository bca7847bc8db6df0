"""Which feature group a column belongs to, and which columns are no measurement of the model at all.

Rules are data, tried in order on the column's stem (the text before the first "__"). They cover our own schema
(`features.schema`), the tables published with DEFault++ (Zenodo 20481557) and those of DEFault (ICSE 2025).

>>> routing = route(["ffn_output_norm__final_layer_value__epoch_mean__phase_slope",
...                  "peak_memory__epoch_std__phase_slope", "epoch__epoch__phase_slope", "mystery"])
>>> routing.group.tolist()[:2], routing.machine
(['ffn_output', 'training_dynamics'], ('peak_memory__epoch_std__phase_slope',))
>>> routing.excluded, routing.unrouted
(('epoch__epoch__phase_slope',), ('mystery',))
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

import pandas as pd

from features.schema import METRICS

NEVER_FEATURES: tuple[tuple[str, str], ...] = (
    (r"__synthetic_zero$", "filled in by the authors, not measured"),
    (r"^(batch_idx|(num_|n_)?epochs?(_(idx|index|num|number|id))?)(__|$)", "where the run stood, not how it fared"),
    (
        r"(?i)^(identifier|instance_id|run_id|arch|arch_enc|architecture|model|model_name|model_task|task|dataset"
        r"|dataset_name|seed|layers|layer_idx|layer_idx_num|severity(_params|_scalar)?|param_value|operator(_id)?"
        r"|fault_id|fault_category|fault_subcategory|is_faulty|killed|status|p_value|label|(detection|category"
        r"|rootcause)_label)$",
        "says what was injected or how it was labelled",
    ),
)
"""(pattern on the whole column, reason): columns that are never a feature."""

MACHINE_STEMS = re.compile(r"^(runtime_\w+|cpu_utilization|gpu_memory_utilization|memory_usage)$")
"""Stems that say what the host did rather than the model; those of our own schema are marked there."""

_COMPONENT_GROUP = {
    "attention": "attention",
    "qkv": "qkv_alignment",
    "ffn": "ffn_output",
    "layernorm": "layernorm",
    "embedding": "embedding",
}

RULES: tuple[tuple[str, str], ...] = (
    (r"val_(val_)?positional_invariance", "positional"),
    (r"val_", "validation_perf"),
    *(
        (rf"(grad_norm|update_ratio|update_active)_(l(ayer_?)?\d+_)?{part}(_gns|_window_var)?$", group)
        for part, group in _COMPONENT_GROUP.items()
    ),
    (r"update_ratio_classifier$", "output"),
    (r"attention_score_|pre_softmax_score_", "score"),
    (r"attention_|cross_example_|head_similarity|mass_(leak|pad)$", "attention"),
    (r"positional_", "positional"),
    (r"ffn_|activation_(mean|std)$", "ffn_output"),
    (r"ln_|layernorm_", "layernorm"),
    (r"residual_|res_(cos|sim)_", "residual_stream"),
    (r"qkv_", "qkv_alignment"),
    (r"cka_|representation_|h\d+_delta_", "representation_drift"),
    (r"(kv_)?cache_", "cache"),
    (r"embedding_", "embedding"),
    (r"logit_|output_", "output"),
    (r"runtime_|train_|grad_|gradient_|update_ratio_total$|weight_(mean|std)$", "training_dynamics"),
    (r"(accuracy|ece|f1_score|loss|nll|precision|recall)$", "training_dynamics"),
    # DEFault, ICSE 2025: symptoms and statistics of a whole network, without components.
    (r"(cpu|gpu_memory)_utilization$|memory_usage$|adjusted_lr$", "training_dynamics"),
    (r"acc_gap_too_big$|loss_oscillation$|(decrease_acc|increase_loss)_count$", "training_dynamics"),
    (r"(large|nan|cons_mean|cons_std)_weight_count$|nan_gradients_count$", "training_dynamics"),
    (r"dying_relu$|saturated_activation$|(mean|std)_activation$", "training_dynamics"),
    (r"(mean|std)_grad$|mean_gradient$", "training_dynamics"),
)
"""(pattern at the start of the stem, feature group), in routing order."""

_RULES = tuple((re.compile(pattern), group) for pattern, group in RULES)
_NEVER = tuple(re.compile(pattern) for pattern, _ in NEVER_FEATURES)
_OWN = {m.name: m for m in METRICS}


@dataclass(frozen=True, eq=False)
class Routing:
    """Where every column of a table goes.

    group : Series, column → feature group; missing on excluded and unrouted columns. Machine columns have a group,
        so that they have a place where somebody lets them in.
    excluded : columns that are never a feature (`NEVER_FEATURES`).
    machine : columns about the host (step time, memory, utilisation): left out unless asked for by name.
    unrouted : columns that no rule knows. They stay features, without a group.
    """

    group: pd.Series
    excluded: tuple[str, ...]
    machine: tuple[str, ...]
    unrouted: tuple[str, ...]

    def features(self, machine: bool = False, without_groups: Iterable[str] = ()) -> list[str]:
        """The columns to learn from, in their order: all but the excluded, the machine's and those groups."""
        out = set(self.excluded) | (set() if machine else set(self.machine))
        dropped = self.group.isin(list(without_groups))
        return [c for c in self.group.index[~dropped] if c not in out]


def route(columns: Iterable[str]) -> Routing:
    """Route columns by name alone; every column lands in exactly one of group, excluded, machine or unrouted."""
    columns = [str(c) for c in columns]
    excluded = tuple(c for c in columns if any(p.search(c) for p in _NEVER))
    left_out = set(excluded)
    groups = [None if c in left_out else _group(stem(c)) for c in columns]
    group = pd.Series(groups, index=columns, dtype="str")
    machine = tuple(c for c in columns if c not in left_out and _is_machine(stem(c)))
    unrouted = tuple(c for c, g in zip(columns, groups, strict=True) if g is None and c not in left_out)
    return Routing(group, excluded, machine, unrouted)


def stem(column: str) -> str:
    """The metric that a column is a statistic of: the text before the first "__"."""
    return column.partition("__")[0]


def _group(name: str) -> str | None:
    if name in _OWN:
        return _OWN[name].group
    return next((group for pattern, group in _RULES if pattern.match(name)), None)


def _is_machine(name: str) -> bool:
    return _OWN[name].machine if name in _OWN else MACHINE_STEMS.match(name) is not None

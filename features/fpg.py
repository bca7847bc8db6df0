"""The fault propagation graph: components, mechanisms, group adjacency, and its rewired and random twins.

Source: DEFault++ manuscript, §4.1 and §4.3. Message passing uses the mechanisms that act within one forward pass
(M1-M4) and at cache time (M7); M5 (backward) lives in the gradient features, M6 (intervention) in the labels.

>>> group_adjacency("encoder").shape, group_adjacency("decoder").shape
((12, 12), (13, 13))
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from features.schema import groups
from features.taxonomy import Architecture

COMPONENTS = (
    "embedding",
    "positional",
    "qkv_projection",
    "score_computation",
    "attention_masking",
    "attention_weights",
    "attention_output",
    "residual_post_attn",
    "layernorm_post_attn",
    "ffn",
    "residual_post_ffn",
    "layernorm_post_ffn",
    "output_head",
    "kv_cache",
)
DECODER_ONLY_COMPONENTS = frozenset({"kv_cache"})

GROUP_OF_COMPONENT = {
    "embedding": "embedding",
    "positional": "positional",
    "qkv_projection": "qkv_alignment",
    "score_computation": "score",
    "attention_masking": "attention",
    "attention_weights": "attention",
    "attention_output": "attention",
    "residual_post_attn": "residual_stream",
    "layernorm_post_attn": "layernorm",
    "ffn": "ffn_output",
    "residual_post_ffn": "residual_stream",
    "layernorm_post_ffn": "layernorm",
    "output_head": "output",
    "kv_cache": "cache",
}

MECHANISMS: dict[str, tuple[tuple[str, str], ...]] = {
    "M1": (  # forward
        ("embedding", "qkv_projection"),
        ("positional", "qkv_projection"),
        ("score_computation", "attention_masking"),
        ("attention_masking", "attention_weights"),
        ("attention_weights", "attention_output"),
        ("attention_output", "residual_post_attn"),
        ("residual_post_attn", "layernorm_post_attn"),
        ("layernorm_post_attn", "ffn"),
        ("ffn", "residual_post_ffn"),
        ("residual_post_ffn", "layernorm_post_ffn"),
        ("layernorm_post_ffn", "output_head"),
    ),
    "M2": (  # simultaneous use of one projection
        ("qkv_projection", "score_computation"),
        ("qkv_projection", "attention_output"),
        ("qkv_projection", "kv_cache"),
    ),
    "M3": (("embedding", "residual_post_attn"), ("layernorm_post_attn", "residual_post_ffn")),  # residual bypass
    "M4": (("layernorm_post_ffn", "qkv_projection"),),  # to the next layer
    "M5": (  # backward
        ("output_head", "qkv_projection"),
        ("output_head", "ffn"),
        ("output_head", "layernorm_post_attn"),
        ("output_head", "embedding"),
    ),
    "M6": (("attention_weights", "qkv_projection"),),  # intervention
    "M7": (("kv_cache", "attention_weights"),),  # cache time
}
PROPAGATING = ("M1", "M2", "M3", "M4", "M7")

CATEGORY_GROUP = {
    "masking": "attention",
    "qkv": "qkv_alignment",
    "score": "score",
    "positional": "positional",
    "kernel": "attention",
    "variant": "attention",
    "kv_cache": "cache",
    "embedding": "embedding",
    "ffn": "ffn_output",
    "layernorm": "layernorm",
    "residual": "residual_stream",
    "output": "output",
}
"""The feature group that measures the component which a category's operators change."""


def component_edges(arch: Architecture, mechanisms: tuple[str, ...] = PROPAGATING) -> tuple[tuple[str, str], ...]:
    """Directed edges (source, target) between the components of an architecture."""
    absent = DECODER_ONLY_COMPONENTS if arch == "encoder" else frozenset()
    return tuple(e for m in mechanisms for e in MECHANISMS[m] if not absent.intersection(e))


def group_edges(arch: Architecture, mechanisms: tuple[str, ...] = PROPAGATING) -> tuple[tuple[str, str], ...]:
    """Directed edges between feature groups, without self-loops, sorted."""
    mapped = ((GROUP_OF_COMPONENT[a], GROUP_OF_COMPONENT[b]) for a, b in component_edges(arch, mechanisms))
    return tuple(sorted({(a, b) for a, b in mapped if a != b}))


def group_adjacency(arch: Architecture, edges: tuple[tuple[str, str], ...] | None = None) -> pd.DataFrame:
    """Row-normalised G x G adjacency with self-loops; entry (i, j) > 0 means that group i reads from group j.

    An edge source → target is entered in the target's row, so that `A @ H` passes messages along the edges.
    Context groups keep their self-loop only. `edges` replaces the graph's own (for rewired and random twins).
    """
    names = list(groups(arch))
    matrix = pd.DataFrame(np.eye(len(names)), index=names, columns=names)
    for source, target in group_edges(arch) if edges is None else edges:
        matrix.loc[target, source] = 1.0
    return matrix.div(matrix.sum(axis=1), axis=0)


def neighbours(arch: Architecture, group: str) -> tuple[str, ...]:
    """Groups one edge away from `group`, in either direction."""
    linked = {b for a, b in group_edges(arch) if a == group} | {a for a, b in group_edges(arch) if b == group}
    return tuple(g for g in groups(arch) if g in linked)


def rewired_edges(arch: Architecture, seed: int, swaps_per_edge: int = 10) -> tuple[tuple[str, str], ...]:
    """Degree-preserving rewiring (Maslov and Sneppen 2002): in- and out-degree of every group stay as they are."""
    rng = np.random.default_rng(seed)
    edges = list(group_edges(arch))
    present = set(edges)
    for _ in range(swaps_per_edge * len(edges)):
        i, j = rng.choice(len(edges), size=2, replace=False)
        (a, b), (c, d) = edges[i], edges[j]
        if a == d or c == b or (a, d) in present or (c, b) in present:
            continue
        present -= {edges[i], edges[j]}
        edges[i], edges[j] = (a, d), (c, b)
        present |= {edges[i], edges[j]}
    return tuple(sorted(edges))


def random_edges(arch: Architecture, seed: int) -> tuple[tuple[str, str], ...]:
    """As many directed edges as the graph has, drawn uniformly among its structural groups (Erdős–Rényi)."""
    nodes = sorted({g for edge in group_edges(arch) for g in edge})
    pairs = [(a, b) for a in nodes for b in nodes if a != b]
    picked = np.random.default_rng(seed).choice(len(pairs), size=len(group_edges(arch)), replace=False)
    return tuple(sorted(pairs[i] for i in picked))

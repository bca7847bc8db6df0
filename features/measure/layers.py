"""From the trace of a forward pass to one value per layer and metric."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from features.measure import metrics
from features.measure.capture import LayerTrace, Trace, attention_of
from features.measure.discover import Anatomy
from features.taxonomy import Architecture

EXAMPLES = 4
"""Attention maps are read from the first so many examples of a batch."""
RANK_EXAMPLES = 2
"""The effective rank, cubic in the sequence length, is read from the first so many examples."""
TOKENS = 256
"""Hidden states are read at up to so many real tokens, evenly spaced over the batch."""


def layer_metrics(trace: Trace, real: Tensor, arch: Architecture, padded: bool) -> dict[str, Tensor]:
    """Values of the layer metrics, each (L,), NaN for a layer whose part was not seen.

    `real` (B, T) bool marks real tokens; `padded` says whether the batch told padding from tokens at all.
    """
    seen = [attention_of(layer, EXAMPLES) for layer in trace.layers]
    heads = [None if found is None else found[1].shape[1] for found in seen]
    return _attention(seen, real[:EXAMPLES], arch, padded) | _hidden(trace, heads, real)


def _attention(seen: list, real: Tensor, arch: Architecture, padded: bool) -> dict[str, Tensor]:
    few = real[:RANK_EXAMPLES]

    def measured(scores: Tensor, weights: Tensor) -> dict[str, Tensor]:
        weights = weights.float()
        found = {
            "attention_entropy": metrics.attention_entropy(weights, real),
            "attention_effective_rank": metrics.effective_rank(weights[:, :RANK_EXAMPLES], few),
            "score_mean": metrics.score_mean(scores, real),
        }
        if weights.shape[2] > 1:
            found["attention_head_similarity"] = metrics.head_similarity(weights, real)
        if weights.shape[-1] == real.shape[1]:
            if padded:
                found["attention_padding_mass"] = metrics.padding_mass(weights, real)
            if arch == "decoder":
                found["attention_future_mass"] = metrics.future_mass(weights, real)
        return found

    return _by_shape(seen, measured)


def _hidden(trace: Trace, heads: list[int | None], real: Tensor) -> dict[str, Tensor]:
    at = token_positions(real)
    layers = trace.layers

    chosen: dict[int, Tensor] = {}

    def tokens(x: Tensor | None) -> Tensor | None:
        # One layer's output is the next one's input, and in post-norm layers the last normalisation's output.
        if x is not None and id(x) not in chosen:
            chosen[id(x)] = select_tokens(x, at)
        return None if x is None else chosen[id(x)]

    stream_in = [tokens(layer.stream_in) for layer in layers]
    stream_out = [tokens(layer.stream_out) for layer in layers]
    normed = [[tokens(x) for x in layer.norm_out] for layer in layers]
    qkv = [tuple(tokens(x) for x in (layer.query, layer.key, layer.value)) for layer in layers]
    return (
        _by_shape(
            [_split_heads(tokens(layer.context), h) for layer, h in zip(layers, heads, strict=True)],
            lambda context: {"attention_head_utilisation": metrics.head_utilisation(context)},
        )
        | _by_shape(
            [_pair(tokens(layer.ffn_out)) for layer in layers],
            lambda x: {"ffn_output_norm": metrics.token_norm(x)},
        )
        | _by_shape(
            [tuple(outs) if len(outs) == 2 else None for outs in normed],
            lambda a, b: {"layernorm_output_std": (metrics.spread(a) + metrics.spread(b)) / 2},
        )
        | _by_shape(
            [_residuals(layer, tokens) for layer in layers],
            lambda x, attended, start, y: {
                "residual_cosine": (metrics.token_cosine(x, attended) + metrics.token_cosine(start, y)) / 2
            },
        )
        | _by_shape(
            [_complete(x, y) for x, y in zip(stream_in, stream_out, strict=True)],
            lambda x, y: {"representation_cka": metrics.linear_cka(x, y)},
        )
        | _by_shape(
            [_grouped(*x, h) for x, h in zip(qkv, heads, strict=True)],
            lambda q, k, v: {
                "qkv_cos_qk": metrics.token_cosine(q, k),
                "qkv_cos_qv": metrics.token_cosine(q, v),
                "qkv_cos_kv": metrics.token_cosine(k, v),
            },
        )
    )


def gain_norms(anatomy: Anatomy, trace: Trace) -> Tensor:
    """Frobenius norm of the gains of each layer's normalisations, (L,); modules that run twice count twice."""
    gains = [norm.weight for layer in anatomy.layers for norm in layer.norms]
    norms = torch.stack(torch._foreach_norm(gains)).view(len(anatomy.layers), -1)
    per_module = torch.linalg.vector_norm(norms, dim=1)
    return per_module[[layer.part for layer in trace.layers]]


def token_positions(real: Tensor) -> Tensor | None:
    """Flat indices of up to TOKENS real tokens, evenly spaced; None for all tokens of a small unpadded batch."""
    found = real.flatten().nonzero()[:, 0]
    if found.numel() > TOKENS:
        return found[torch.linspace(0, found.numel() - 1, TOKENS, device=found.device).long()]
    return None if found.numel() == real.numel() else found


def select_tokens(x: Tensor, at: Tensor | None) -> Tensor:
    """(N, D) from (B, T, D) in single precision; call it without gradients."""
    flat = x.reshape(-1, x.shape[-1])
    return (flat if at is None else flat.index_select(0, at)).float()


def _by_shape(items: list, measure: Callable[..., dict[str, Tensor]]) -> dict[str, Tensor]:
    """Stack the tensors of layers that agree in shape, measure each stack at once, put the values in layer order."""
    groups: dict[tuple, list[int]] = {}
    for i, item in enumerate(items):
        if item is not None:
            groups.setdefault(tuple(x.shape for x in item), []).append(i)
    values: dict[str, Tensor] = {}
    for members in groups.values():
        stacks = [torch.stack([items[i][part] for i in members]) for part in range(len(items[members[0]]))]
        for name, value in measure(*stacks).items():
            if len(members) == len(items):
                values[name] = value
            else:
                whole = values.setdefault(name, value.new_full((len(items),), torch.nan))
                whole[members] = value
    return values


def _pair(x: Tensor | None) -> tuple[Tensor] | None:
    return None if x is None else (x,)


def _complete(*parts: Tensor | None) -> tuple[Tensor, ...] | None:
    return None if any(p is None for p in parts) else parts


def _split_heads(context: Tensor | None, heads: int | None) -> tuple[Tensor] | None:
    if context is None or heads is None or context.shape[-1] % heads:
        return None
    return (context.view(context.shape[0], heads, -1),)


def _grouped(q, k, v, heads: int | None) -> tuple[Tensor, ...] | None:
    """Keys and values that several query heads share are repeated to the width of the queries."""
    if q is None or k is None or v is None:
        return None
    if k.shape[-1] == q.shape[-1]:
        return q, k, v
    if heads is None or (heads * k.shape[-1]) % q.shape[-1]:
        return None
    size = q.shape[-1] // heads
    return q, *(
        x.view(len(x), -1, size).repeat_interleave(q.shape[-1] // x.shape[-1], dim=1).flatten(1) for x in (k, v)
    )


def _residuals(layer: LayerTrace, tokens: Callable[[Tensor | None], Tensor | None]) -> tuple[Tensor, ...] | None:
    """(stream into attention, stream after it, stream into the FFN, stream after it).

    The stream after attention is what the second normalisation receives in a pre-norm layer and what the first
    receives in a post-norm layer, whose FFN then starts from the normalised stream.
    """
    if len(layer.norm_in) != 2:
        return None
    first, second = layer.norm_in
    x, y = layer.stream_in, layer.stream_out
    stream = (x, second, second, y) if layer.pre_norm else (x, first, layer.norm_out[0], second)
    return _complete(*map(tokens, stream))

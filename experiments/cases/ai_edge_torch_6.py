"""A checkpoint loader that fuses query, key and value weights in another layout than attention reads."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from experiments.cases.case import Case
from features.inject.locate import locate

Split = dict[str, Tensor]
"""Weights (width, inputs) or biases (width,) of "query", "key" and "value", as a checkpoint holds them apart."""


def fuse(parts: Split, heads: int, by_head: bool) -> Tensor:
    """One tensor of three times the width: [Q | K | V], or `by_head` Q, K and V of head 0, then those of head 1, ...

    >>> parts = {"query": torch.tensor([1, 2]), "key": torch.tensor([3, 4]), "value": torch.tensor([5, 6])}
    >>> fuse(parts, heads=2, by_head=False).tolist(), fuse(parts, heads=2, by_head=True).tolist()
    ([1, 2, 3, 4, 5, 6], [1, 3, 5, 2, 4, 6])
    """
    ordered = [parts[name] for name in ("query", "key", "value")]
    if not by_head:
        return torch.cat(ordered)
    by_heads = [part.unflatten(0, (heads, -1)) for part in ordered]
    return torch.stack(by_heads, dim=1).flatten(0, 2)


@torch.no_grad()
def prepare(model: nn.Module, faulty: bool) -> nn.Module:
    """Take the base apart into a checkpoint with three projections a layer, and load that by a fusing loader."""
    for layer in locate(model).layers:
        projections = {"query": layer.query, "key": layer.key, "value": layer.value}
        weights = {name: p.weight().clone() for name, p in projections.items()}
        biases = {name: p.bias().clone() for name, p in projections.items()}
        fused = layer.query.module
        fused.weight.copy_(fuse(weights, layer.heads, by_head=faulty).t())
        fused.bias.copy_(fuse(biases, layer.heads, by_head=faulty))
    return model


CASE = Case(
    name="ai-edge-torch-6",
    issue="google-ai-edge/ai-edge-torch#6",
    reported_as="ai-edge-torch#6",
    mechanism="A loader maps a checkpoint's attention tensors to the wrong places of a model whose query, key and "
    "value projections are fused, and the fused projection doesn't get what it should.",
    here="The report's loader stops with missing keys; the silent form of it trains on: Q, K and V are fused head by "
    "head (a layout that this loader knows) for an attention that splits its projection in thirds.",
    family="gpt2",
    task="recall",
    category="qkv",
    root_cause="parameter_initialization",
    why="Architecture and forward are right; the projections start from parameters that belong elsewhere. The bench's "
    "swap of Q and K (head_interaction) is its nearest relative.",
    shows="qkv_cos_qk",
    prepare=prepare,
)

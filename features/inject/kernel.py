"""Faults of the attention kernel: which path computes it, and in what precision.

KSB, KFT and KMC take another path to (nearly) the same numbers; `features.inject.attention.executed` counts the paths.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from features.inject.attention import Tensor, wrap_attention
from features.inject.target import Target

QUERY_CHUNK = 8
"""Queries per step of the chunked path (KMC)."""

ACCUMULATE = 8
"""Products summed before the running sum is rounded (KRP)."""


def slow_backend(target: Target) -> None:
    """KSB: instead of the optimised backend's batched products, a loop over heads."""

    def one_head_at_a_time(inner, call):
        def product(a, b):
            return torch.cat([call.product(a[:, h : h + 1], b[:, h : h + 1]) for h in range(a.shape[1])], dim=1)

        return inner(replace(call, product=product))

    wrap_attention(target.changes, target.model, target.layers, one_head_at_a_time, "one_head_at_a_time")


def own_dropout(target: Target) -> None:
    """KMD: the kernel drops weights with its own probability, at evaluation as well as in training.

    It ignores the configured probability and the mode, so it differs from the configuration at every value.
    """

    def kernel_dropout(inner, call):
        def drop(weights):
            return weights * target.dice.dropout(weights.shape, target.value, weights.device)

        return inner(replace(call, keep=None, on_weights=(*call.on_weights, drop)))

    wrap_attention(target.changes, target.model, target.layers, kernel_dropout, "kernel_dropout")


def fallback(target: Target) -> None:
    """KFT: inputs the fast kernel does not take, so that the slow reference path computes the same attention.

    Trigger "dtype": double precision inputs; trigger "layout": inputs whose last dimension is not contiguous.
    """

    def dtype_fallback(inner, call):
        wide = {name: getattr(call, name).double() for name in ("query", "key", "value")}
        output, weights = inner(replace(call, **wide))
        return output.to(call.value.dtype), weights.to(call.value.dtype)

    def layout_fallback(inner, call):
        strided = {n: _strided(getattr(call, n)) for n in ("query", "key", "value")}
        return inner(replace(call, **strided))

    wrapper = dtype_fallback if target.value == "dtype" else layout_fallback
    wrap_attention(target.changes, target.model, target.layers, wrapper, wrapper.__name__)


def _strided(tensor: Tensor) -> Tensor:
    return tensor.transpose(-1, -2).contiguous().transpose(-1, -2)


def reduced_precision(target: Target) -> None:
    """KRP: QK' and PV in reduced precision, emulated where the hardware has none.

    "fp16", "bf16": operands and running sum are rounded to that type; "tf32": operands lose all but 10 bits of their
    mantissa and sums stay in single precision, as tensor cores do.
    """
    if target.value == "tf32":

        def product(a, b):
            return torch.matmul(_tf32(a), _tf32(b))
    else:
        dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}[target.value]

        def product(a, b):
            return _rounded_product(a, b, dtype)

    def reduced(inner, call):
        return inner(replace(call, product=product))

    wrap_attention(target.changes, target.model, target.layers, reduced, "reduced_precision")


def _tf32(x: Tensor) -> Tensor:
    bits = x.detach().float().contiguous().view(torch.int32)
    # Round half up in the 13 bits that TF32 drops; the gradient passes as if nothing had been rounded.
    rounded = ((bits + 0x1000) & ~0x1FFF).view(torch.float32).to(x.dtype)
    return x + (rounded - x).detach()


def _rounded_product(a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    total = None
    for left, right in zip(a.split(ACCUMULATE, dim=-1), b.split(ACCUMULATE, dim=-2), strict=True):
        part = torch.matmul(left.to(dtype).to(a.dtype), right.to(dtype).to(a.dtype))
        total = (part if total is None else total + part).to(dtype).to(a.dtype)
    return total


def chunked(target: Target) -> None:
    """KMC: attention over a few queries at a time, so that only a slice of the score matrix exists at once."""

    def chunked_queries(inner, call):
        starts = range(0, call.query.shape[2], QUERY_CHUNK)
        parts = [inner(call.queries(s, s + QUERY_CHUNK)) for s in starts]
        return tuple(torch.cat(tensors, dim=2) for tensors in zip(*parts, strict=True))

    wrap_attention(target.changes, target.model, target.layers, chunked_queries, "chunked_queries")


APPLY = {
    "KSB": slow_backend,
    "KMD": own_dropout,
    "KFT": fallback,
    "KRP": reduced_precision,
    "KMC": chunked,
}

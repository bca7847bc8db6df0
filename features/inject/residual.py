"""Faults of the residual stream: the skip path past attention and past the FFN, its dropout, gradient clipping."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import torch
from torch import nn
from transformers.models.distilbert.modeling_distilbert import TransformerBlock
from transformers.models.gpt2.modeling_gpt2 import GPT2Block
from transformers.models.gpt_neo.modeling_gpt_neo import GPTNeoBlock

from features.inject.locate import InjectionError, NoEffectError
from features.inject.optimization import clip_at
from features.inject.target import Target

Skip = Callable[[torch.Tensor], torch.Tensor]
SKIP = "fault_skip"


def change_skip(target: Target, skip: Skip) -> None:
    """Let both skip paths of every target layer carry `skip(x)` where they carried x."""
    for layer in target.layers:
        block = layer.block
        sums = [m for m in block.modules() if "input_tensor" in inspect.signature(m.forward).parameters]
        if sums:
            for module in sums:
                target.changes.before(module, _on_skip_argument(skip))
            continue
        former = getattr(block, SKIP, None)
        target.changes.set(block, SKIP, skip if former is None else _after(former, skip))
        if former is None:
            target.changes.set(block, "forward", _forward(block))


def _after(first: Skip, second: Skip) -> Skip:
    return lambda x: second(first(x))


def _on_skip_argument(skip: Skip) -> Callable:
    def hook(module, args, kwargs):
        hidden, residual = args
        return (hidden, skip(residual)), kwargs

    return hook


def _forward(block: nn.Module) -> Callable:
    """The block's forward with its two additions open to the fault; GPT and DistilBERT add in place, out of reach."""

    def post_norm(hidden_states, attention_mask=None, **kwargs):
        attended, _ = block.attention(hidden_states, attention_mask=attention_mask, **kwargs)
        middle = block.sa_layer_norm(attended + block.fault_skip(hidden_states))
        return block.output_layer_norm(block.ffn(middle) + block.fault_skip(middle))

    def gpt2(hidden_states, cache=None, attention_mask=None, *cross, use_cache=False, **kwargs):
        if any(argument is not None for argument in (*cross, kwargs.pop("encoder_attention_mask", None))):
            raise InjectionError("faults of the skip path do not reach cross-attention")
        normed = block.ln_1(hidden_states)
        attended, _ = block.attn(normed, cache=cache, attention_mask=attention_mask, use_cache=use_cache, **kwargs)
        middle = attended + block.fault_skip(hidden_states)
        return block.fault_skip(middle) + block.mlp(block.ln_2(middle))

    def gpt_neo(hidden_states, **kwargs):
        attended, weights = block.attn(block.ln_1(hidden_states), **kwargs)
        middle = attended + block.fault_skip(hidden_states)
        return block.fault_skip(middle) + block.mlp(block.ln_2(middle)), weights

    for kind, forward in ((TransformerBlock, post_norm), (GPT2Block, gpt2), (GPTNeoBlock, gpt_neo)):
        if isinstance(block, kind):
            return forward
    raise InjectionError(f"no skip path known in {type(block).__name__}")


def removed(target: Target) -> None:
    """RRS: the skip path carries nothing."""
    change_skip(target, torch.zeros_like)


def scaled(target: Target) -> None:
    """RSR: the skip path is multiplied."""
    change_skip(target, lambda x: x * target.value)


def noisy(target: Target) -> None:
    """RIN: Gaussian noise of standard deviation σ is added to the skip path, in training and in evaluation."""

    def skip(x):
        noise = torch.randn(x.shape, generator=target.dice(x.device), device=x.device, dtype=x.dtype)
        return x + target.value * noise

    change_skip(target, skip)


def clip_gradients(target: Target) -> None:
    """RGC: the gradient norm is clipped at another value, in place of the training loop's own."""
    clip_at(target.changes, target.needs_optimizer(), target.model, target.value)


def other_dropout(target: Target) -> None:
    """RDR: another dropout probability where a sublayer's output joins the residual stream."""
    dropouts = [dropout for layer in target.layers for dropout in layer.residual_dropouts]
    if all(dropout.p == target.value for dropout in dropouts):
        raise NoEffectError(f"RDR: residual dropout is {target.value} already; build the model with another value")
    for dropout in dropouts:
        target.changes.set(dropout, "p", target.value)


APPLY = {"RRS": removed, "RSR": scaled, "RIN": noisy, "RGC": clip_gradients, "RDR": other_dropout}

"""The one place where a fault reaches the attention arithmetic of a model.

Faults that can act on what attention is given (mask, scaling, projections) do so before it is called. The others wrap
the arithmetic itself: a registered attention function (or, in GPT-Neo, the module's own `_attn`) runs `plain_attention`
through the wrappers in force and gives back the weights that were really used, so whoever wraps the function in
force measures the faulty model. Wrappers of nested faults share the one function and run outermost last-in.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.nn import functional as F
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, eager_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from features.inject.locate import Layer
from features.inject.reversible import Changes

Tensor = torch.Tensor
Product = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Call:
    """One attention: query (B, H, Q, d), key and value (B, H, K, d), additive mask, and how it is to be computed.

    `keep` multiplies the weights (the configured dropout, drawn once whatever path is taken; 1/(1-p) or 0).
    `on_scores` sees the scaled scores before the mask, `on_weights` the weights after softmax and dropout.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    scaling: float
    keep: Tensor | None
    training: bool
    product: Product = torch.matmul
    on_scores: tuple[Callable[[Tensor], Tensor], ...] = ()
    on_weights: tuple[Callable[[Tensor], Tensor], ...] = ()

    def queries(self, start: int, stop: int) -> Call:
        """The same attention for some query positions only."""

        def cut(tensor):
            return tensor if tensor is None or tensor.shape[2] == 1 else tensor[:, :, start:stop]

        return replace(self, query=self.query[:, :, start:stop], mask=cut(self.mask), keep=cut(self.keep))


Result = tuple[Tensor, Tensor]
Wrapper = Callable[[Callable[[Call], Result], Call], Result]


def plain_attention(call: Call) -> Result:
    """softmax(QK' · scaling + mask) V, as output (B, H, Q, d) and weights (B, H, Q, K)."""
    scores = call.product(call.query, call.key.transpose(-1, -2)) * call.scaling
    for change in call.on_scores:
        scores = change(scores)
    if call.mask is not None:
        scores = scores + call.mask
    weights = F.softmax(scores, dim=-1).to(call.value.dtype)
    if call.keep is not None:
        weights = weights * call.keep
    for change in call.on_weights:
        weights = change(weights)
    return call.product(weights, call.value), weights


@dataclass
class _Seam:
    wrappers: list[tuple[frozenset[nn.Module], str, Wrapper]] = field(default_factory=list)
    ran: Counter = field(default_factory=Counter)

    def run(self, module: nn.Module, call: Call) -> Result:
        step: Callable[[Call], Result] = plain_attention
        for modules, name, wrapper in self.wrappers:
            if module in modules:
                self.ran[name] += 1
                step = _around(wrapper, step)
        return step(call)


def _around(wrapper: Wrapper, inner: Callable[[Call], Result]) -> Callable[[Call], Result]:
    return lambda call: wrapper(inner, call)


_SEAMS: WeakKeyDictionary[nn.Module, _Seam] = WeakKeyDictionary()
_NUMBERS = itertools.count()


def executed(model: nn.Module) -> Counter:
    """How often each faulty attention path ran in this model since the outermost attention fault was entered."""
    return Counter() if model not in _SEAMS else Counter(_SEAMS[model].ran)


def wrappers(model: nn.Module) -> Iterator[tuple[nn.Module, tuple[int, ...]]]:
    """Each attention module with a faulty path, and the identities of its wrappers, innermost first."""
    entries = _SEAMS[model].wrappers if model in _SEAMS else []
    for module in {m: None for modules, _, _ in entries for m in modules}:
        yield module, tuple(id(wrapper) for modules, _, wrapper in entries if module in modules)


def wrap_attention(changes: Changes, model: nn.Module, layers: list[Layer], wrapper: Wrapper, name: str) -> None:
    """Run the attention of these layers through `wrapper(inner, call)` until the changes are undone."""
    if model not in _SEAMS:
        changes.enter_context(_installed(model))
    seam = _SEAMS[model]
    entry = (frozenset(layer.attention for layer in layers), name, wrapper)
    seam.wrappers.append(entry)
    changes.callback(seam.wrappers.remove, entry)


@contextmanager
def _installed(model: nn.Module):
    seam = _Seam()
    with Changes() as changes:
        for module in model.modules():
            if hasattr(module, "_attn") and hasattr(module, "attention_type"):
                changes.set(module, "_attn", _neo_attention(seam, module))
        name = f"faulty_{next(_NUMBERS)}"
        ALL_ATTENTION_FUNCTIONS.register(name, _interface(seam))
        ALL_MASK_ATTENTION_FUNCTIONS.register(name, eager_mask)
        changes.callback(ALL_ATTENTION_FUNCTIONS._global_mapping.pop, name)
        changes.callback(ALL_MASK_ATTENTION_FUNCTIONS._global_mapping.pop, name)
        for config in {id(m.config): m.config for m in model.modules() if hasattr(m, "config")}.values():
            if model.config.model_type != "gpt_neo":
                changes.set(config, "_attn_implementation_internal", name)
        _SEAMS[model] = seam
        changes.callback(_SEAMS.pop, model)
        yield


def _interface(seam: _Seam) -> Callable:
    def faulty_attention(module, query, key, value, attention_mask, scaling=None, dropout=0.0, **kwargs):
        call = Call(
            query=query,
            key=key,
            value=value,
            mask=additive(attention_mask, query.dtype),
            scaling=query.shape[-1] ** -0.5 if scaling is None else scaling,
            keep=_keep(query, key, dropout),
            training=module.training,
        )
        output, weights = seam.run(module, call)
        return output.transpose(1, 2).contiguous(), weights

    return faulty_attention


def _neo_attention(seam: _Seam, module: nn.Module) -> Callable:
    def faulty_attention(query, key, value, attention_mask=None):
        window = neo_visible(module.bias, query.shape[-2], key.shape[-2])
        mask = additive(window, torch.float32)
        if attention_mask is not None:
            mask = mask + attention_mask
        dropout = module.attn_dropout.p if module.training else 0.0
        # GPT-Neo has no scaling, keeps the scores in single precision, and adds both masks: twice masked is -inf.
        call = Call(query.float(), key.float(), value, mask, 1.0, _keep(query, key, dropout), module.training)
        return seam.run(module, call)

    return faulty_attention


def _keep(query: Tensor, key: Tensor, dropout: float) -> Tensor | None:
    if not dropout:
        return None
    ones = torch.ones(*query.shape[:-1], key.shape[-2], dtype=query.dtype, device=query.device)
    return F.dropout(ones, p=dropout)


def neo_visible(window: Tensor, queries: int, keys: int) -> Tensor:
    """The part of GPT-Neo's causal (and local) window (1, 1, P, P) that concerns the last queries: (1, 1, Q, K)."""
    return window[:, :, keys - queries : keys, :keys]


def additive(mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """A mask as what is added to the scores; booleans mean visible."""
    if mask is None or mask.dtype != torch.bool:
        return mask
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, torch.finfo(dtype).min)


def visible(module: nn.Module, hidden: Tensor, mask: Tensor | None, past: int) -> Tensor:
    """Which keys the mask argument of an attention module lets its queries see: bool (B or 1, H or 1, Q, K).

    `hidden` (B, Q, d) is what the module is called with, `mask` None, bool or additive, `past` the number of cached
    keys. Without a mask, a causal module attends causally.
    """
    if mask is not None:
        return mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2
    queries = hidden.shape[1]
    seen = torch.ones(1, 1, queries, past + queries, dtype=torch.bool, device=hidden.device)
    return seen.tril(diagonal=past) if getattr(module, "is_causal", False) else seen


def attention_hook(change: Callable[[nn.Module, Tensor, dict], dict | None]) -> Callable:
    """A forward pre-hook, with keyword arguments, that changes what an attention module is called with.

    `change(module, hidden, kwargs)` gives the arguments that are to be others, None where nothing changes; `hidden`
    (B, Q, d) is what the module is called on.
    """

    def hook(module, args, kwargs):
        changed = change(module, args[0] if args else kwargs["hidden_states"], kwargs)
        return None if changed is None else (args, {**kwargs, **changed})

    return hook


def cached(module: nn.Module, kwargs: dict) -> int:
    """The number of cached keys that an attention module is called with."""
    argument = cache_argument(kwargs)
    return argument[1].get_seq_length(layer_index(module)) if argument else 0


def layer_index(module: nn.Module) -> int:
    """The index under which an attention module keeps its keys and values in a cache; 0 in an encoder."""
    return getattr(module, "layer_idx", getattr(module, "layer_id", 0)) or 0


def cache_argument(kwargs: dict) -> tuple[str, object] | None:
    """The name and value of the cache among an attention module's keyword arguments, None without one."""
    for name in ("cache", "layer_past", "past_key_values"):
        if kwargs.get(name) is not None:
            return name, kwargs[name]
    return None

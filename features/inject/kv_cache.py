"""Faults of the key-value cache: each alters what an attention layer stores in, or reads from, the cache it is given.

They act once the cache holds something, so training (and the prefill) is as it would be without the fault. Lengths
are kept, because the model has sized its masks and positions before the layer sees the cache.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from transformers.cache_utils import Cache, EncoderDecoderCache

from features.inject.attention import Tensor, additive, attention_hook, cache_argument, cached, visible
from features.inject.locate import InjectionError
from features.inject.target import Target

Update = Callable[[Cache, Tensor, Tensor, int, int], tuple[Tensor, Tensor]]
"""(cache, new keys (B, H, Q, d), new values, layer index, cached length P > 0) → keys and values to attend to."""


@dataclass
class FaultyCache:
    """A cache whose `update` is faulty once it holds something; everything else is the real cache's."""

    cache: Cache
    faulty: Update

    def update(self, keys, values, layer_idx, *args, **kwargs):
        past = self.cache.get_seq_length(layer_idx)
        if past == 0:
            return self.cache.update(keys, values, layer_idx, *args, **kwargs)
        return self.faulty(self.cache, keys, values, layer_idx, past)

    def __getattr__(self, name):
        return getattr(self.cache, name)


def _change_update(target: Target, faulty: Update) -> None:
    def hook(module, args, kwargs):
        argument = cache_argument(kwargs)
        if argument is None:
            return None
        name, cache = argument
        if isinstance(cache, EncoderDecoderCache):
            raise InjectionError(f"{target.code}: caches of encoder-decoder models are not supported")
        return args, {**kwargs, name: FaultyCache(cache, faulty)}

    for layer in target.layers:
        target.changes.before(layer.attention, hook)


def stale(target: Target) -> None:
    """CST: instead of the new keys and values, the last ones in the cache are stored again."""

    def faulty(cache, keys, values, layer, past):
        again = torch.arange(past - keys.shape[-2], past, device=keys.device).clamp_min(0)
        held = cache.layers[layer]
        return cache.update(held.keys[..., again, :], held.values[..., again, :], layer)

    _change_update(target, faulty)


def withheld(target: Target) -> None:
    """CDU: a step attends to its own keys and values, but their slots in the cache stay empty (zero) ever after."""

    def faulty(cache, keys, values, layer, past):
        held = cache.layers[layer]
        together = torch.cat([held.keys, keys], dim=-2), torch.cat([held.values, values], dim=-2)
        cache.update(torch.zeros_like(keys), torch.zeros_like(values), layer)
        return together

    _change_update(target, faulty)


def off_by_one(target: Target) -> None:
    """COB: slot i is read as slot i - shift; the ends repeat, so one entry is lost."""

    def faulty(cache, keys, values, layer, past):
        keys, values = cache.update(keys, values, layer)
        slots = (torch.arange(keys.shape[-2], device=keys.device) - target.value).clamp(0, keys.shape[-2] - 1)
        return keys[..., slots, :], values[..., slots, :]

    _change_update(target, faulty)


def truncated(target: Target) -> None:
    """CTR: of the cached entries only the last `length` are attended to."""

    def change(module, hidden, kwargs):
        past = cached(module, kwargs)
        if past <= target.value:
            return None
        seen = visible(module, hidden, kwargs.get("attention_mask"), past).clone()
        seen[..., : past - target.value] = False
        return {"attention_mask": additive(seen, hidden.dtype)}

    for layer in target.layers:
        target.changes.before(layer.attention, attention_hook(change))


def leaked(target: Target) -> None:
    """CLK: a request attends to the cached keys and values of its neighbour in the batch.

    A request alone in its batch gets those of the request served before it, as far as they reach.
    """
    served: dict[int, tuple[Cache, Tensor, Tensor]] = {}
    before: dict[int, tuple[Tensor, Tensor]] = {}

    def faulty(cache, keys, values, layer, past):
        if layer in served and served[layer][0] is not cache:
            before[layer] = served[layer][1:]
        keys, values = cache.update(keys, values, layer)
        served[layer] = cache, keys.detach(), values.detach()
        if keys.shape[0] > 1:
            others = keys[..., :past, :].roll(1, dims=0), values[..., :past, :].roll(1, dims=0)
        elif layer in before and before[layer][0].shape[:2] == keys.shape[:2]:
            others = tuple(tensor[..., :past, :] for tensor in before[layer])
        else:
            return keys, values
        reach = others[0].shape[-2]
        return tuple(
            torch.cat([other, own[..., reach:, :]], dim=-2) for other, own in zip(others, (keys, values), strict=True)
        )

    _change_update(target, faulty)


APPLY = {"CST": stale, "CDU": withheld, "COB": off_by_one, "CTR": truncated, "CLK": leaked}

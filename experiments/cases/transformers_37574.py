"""A sliding-window cache that rolls one step early, when the window is just full instead of over-full."""

from __future__ import annotations

from types import SimpleNamespace
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from experiments.cases.case import Case, with_attention
from features.inject.attention import cache_argument

PROMPT = 4
"""Tokens that fill the cache at once, fewer than the window; what follows is decoded one by one."""


class Window:
    """Keys and values of one layer in `size` slots, oldest first; `early` rolls when the last slot is about to fill."""

    def __init__(self, size: int, early: bool):
        self.size, self.early = size, early
        self.seen = 0

    def update(self, keys: Tensor, values: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        """Take in new keys and values (B, H, new, d); gives those to attend to. Past the prompt one at a time."""
        new = keys.shape[-2]
        if self.seen and new > 1:
            raise ValueError(f"a rolling window is decoded token by token, not {new} at a time")
        if self.seen == 0:
            self.slots = [x.new_zeros(*x.shape[:2], self.size, x.shape[-1]) for x in (keys, values)]
        self.slots = [self._store(slots, x) for slots, x in zip(self.slots, (keys, values), strict=True)]
        self.seen += new
        # A prompt longer than the window attends to all of itself, under the mask of its layer.
        return (keys, values) if new > self.size else tuple(x[..., : min(self.seen, self.size), :] for x in self.slots)

    def _store(self, slots: Tensor, x: Tensor) -> Tensor:
        if x.shape[-2] >= self.size:
            return x[..., -self.size :, :].clone()
        start = min(self.seen, self.size - 1)
        full = self.size - 1 if self.early else self.size
        slots = slots.roll(-1, dims=-2) if self.seen >= full else slots.clone()
        slots[..., start : start + x.shape[-2], :] = x
        return slots


def prepare(model: nn.Module, faulty: bool) -> nn.Module:
    """GPT-Neo's local layers keep a window of keys and values instead of all of them."""
    size = model.config.window_size
    windows: WeakKeyDictionary[object, dict[int, Window]] = WeakKeyDictionary()

    def change(module, hidden, kwargs):
        argument = cache_argument(kwargs)
        if argument is None or module.attention_type != "local":
            return None
        name, cache = argument
        window = windows.setdefault(cache, {}).setdefault(module.layer_id, Window(size, early=faulty))
        mask, new = kwargs.get("attention_mask"), hidden.shape[1]
        keys = new if new > size else min(window.seen + new, size)
        return {name: window, "attention_mask": None if mask is None else mask[..., -keys:]}

    return with_attention(model, change)


class TokenByToken(nn.Module):
    """Serves a decoder the way text is generated: a short prompt, then one token at a time, whatever is asked for."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, input_ids, attention_mask, position_ids, past_key_values=None, use_cache=True):
        """The same logits and cache as the model's own forward would give, from smaller steps."""
        past, length, logits = attention_mask.shape[1] - input_ids.shape[1], input_ids.shape[1], []
        start = 0
        while start < length:
            stop = PROMPT if past + start == 0 else start + 1
            output = self.model(
                input_ids=input_ids[:, start:stop],
                attention_mask=attention_mask[:, : past + stop],
                position_ids=position_ids[:, start:stop],
                past_key_values=past_key_values,
                use_cache=use_cache,
            )
            past_key_values, start = output.past_key_values, stop
            logits.append(output.logits)
        return SimpleNamespace(logits=torch.cat(logits, dim=1), past_key_values=past_key_values)


CASE = Case(
    name="transformers-37574",
    issue="huggingface/transformers#37574",
    reported_as="transformers#37574",
    mechanism="A cache for sliding-window attention rolls when the sequence reaches the window instead of when it "
    "exceeds it, which drops the oldest entry a step early and leaves an empty one among those attended to.",
    here="GPT-Neo's local layers keep a rolling window of their eight keys and values; validation decodes from a "
    "prompt of four tokens, one by one. Training and the probe's prompts, longer than the window, don't meet it.",
    family="gpt_neo",
    task="grammar",
    category="kv_cache",
    root_cause="cache_position",
    why="The entries are fresh, complete and the request's own; they stand one slot off from the step at which the "
    "window is full.",
    shows="val_loss",
    prepare=prepare,
    served=TokenByToken,
)

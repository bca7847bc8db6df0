"""What a task is: a named sampler of token sequences, and a card of what it needs of a model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np
import torch

from features.build.families import CLS, PAD, SEP
from features.taxonomy import Architecture

IGNORED = -100
"""Label of a position that carries no loss."""


@dataclass(frozen=True)
class Sequence:
    """One example before batching: `first` (and `second`, of a pair) as token ids, and the class (encoders)."""

    first: list[int]
    second: list[int] | None = None
    label: int = 0


@dataclass(frozen=True, eq=False)
class Task:
    """A task. `draw(rng, split)` returns one Sequence; `needs` says what of a model a solution depends on.

    `paper` names the data set of the manuscript whose shape it has. `needs` maps each of "padding", "position",
    "word order" and "long range" to one sentence. `length` bounds the tokens of a batch, `examples` is the size of
    the training pool, `learning_rate` the peak rate of the base setting and `body_rate` the pretrained body's share of
    it; `scored` says which tokens of a decoder task count in its perplexity.
    """

    name: str
    arch: Architecture
    paper: str
    draw: Callable[[np.random.Generator, str], Sequence]
    needs: dict[str, str]
    length: int
    examples: int = 384
    learning_rate: float = 1e-3
    body_rate: float = 1.0
    scored: Literal["all", "last"] = "all"


@dataclass(frozen=True)
class Examples:
    """A tokenised data set: tensors of equal first dimension, as the model's forward takes them, and `labels`."""

    inputs: dict[str, torch.Tensor]
    labels: torch.Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def part(self, start: int, stop: int | None) -> Examples:
        """The examples from `start` to before `stop`."""
        return Examples({k: v[start:stop] for k, v in self.inputs.items()}, self.labels[start:stop])

    def to(self, device: torch.device) -> Examples:
        """The examples on a device."""
        return Examples({k: v.to(device) for k, v in self.inputs.items()}, self.labels.to(device))

    def take(self, rows) -> dict[str, torch.Tensor]:
        """The batch of these rows, cut to the longest real sequence in it."""
        mask = self.inputs["attention_mask"][rows]
        used = mask.any(0).nonzero().flatten()
        columns = slice(int(used[0]), int(used[-1]) + 1)
        batch = {name: tensor[rows][:, columns] for name, tensor in self.inputs.items()}
        batch["labels"] = self.labels[rows] if self.labels.ndim == 1 else self.labels[rows][:, columns]
        return batch


_SPLIT_SEEDS = {"train": 11, "validation": 13, "pretraining": 17}


@cache
def examples(chosen: Task, split: str, count: int, segments: bool = False) -> Examples:
    """`count` examples of a split ("train", "validation" or "pretraining"), the same ones in every process.

    Encoder sequences are padded on the right, decoder sequences on the left, as cached decoding of unequal prompts
    needs it. `segments` adds the token types that BERT takes.
    """
    rng = np.random.default_rng([_SPLIT_SEEDS[split], *chosen.name.encode()])
    drawn = [chosen.draw(rng, split) for _ in range(count)]
    if chosen.arch == "encoder":
        return _encoder_examples(drawn, chosen.length, segments)
    return _decoder_examples(drawn, chosen.length)


def _encoder_examples(drawn: list[Sequence], length: int, segments: bool) -> Examples:
    ids = torch.full((len(drawn), length), PAD)
    types = torch.zeros((len(drawn), length), dtype=torch.long)
    for row, sequence in enumerate(drawn):
        first = [CLS, *sequence.first, SEP]
        second = [*sequence.second, SEP] if sequence.second is not None else []
        tokens = first + second
        ids[row, : len(tokens)] = torch.tensor(tokens)
        types[row, len(first) : len(tokens)] = 1
    inputs = {"input_ids": ids, "attention_mask": (ids != PAD).long()}
    if segments:
        inputs["token_type_ids"] = types
    return Examples(inputs, torch.tensor([s.label for s in drawn]))


def _decoder_examples(drawn: list[Sequence], length: int) -> Examples:
    ids = torch.full((len(drawn), length), PAD)
    for row, sequence in enumerate(drawn):
        ids[row, length - len(sequence.first) :] = torch.tensor(sequence.first)
    mask = (ids != PAD).long()
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    labels = ids.masked_fill(mask == 0, IGNORED)
    return Examples({"input_ids": ids, "attention_mask": mask, "position_ids": positions}, labels)

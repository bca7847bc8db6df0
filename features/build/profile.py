"""Sizes of the same campaign: the embedded one, the full one with real checkpoints and data, and one to try it out.

>>> profile("embedded").epochs
6
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import nn

from features.build import base, hub
from features.build.families import Family
from features.build.tasks.task import Examples, Task, examples


@dataclass(frozen=True)
class Profile:
    """How a run is sized and where its model and data come from.

    `start(family, seed)` gives the model before fine-tuning, `load(family, task, split, count)` the examples of a
    split ("train" or "validation"); `learning_rate` is None where each task has its own.
    """

    name: str
    start: Callable[[Family, int], nn.Module]
    load: Callable[[Family, Task, str, int], Examples]
    epochs: int
    steps_per_epoch: int
    measure_every: int
    train_size: int | None
    validation_size: int
    test_size: dict[str, int]
    learning_rate: float | None = None

    def rate(self, task: Task) -> float:
        """The peak learning rate of the base setting."""
        return self.learning_rate or task.learning_rate

    def body_rate(self, task: Task) -> float:
        """The pretrained body's share of the learning rate; 1 where the profile has one rate for all tasks."""
        return task.body_rate if self.learning_rate is None else 1.0


def _embedded_examples(family: Family, task: Task, split: str, count: int) -> Examples:
    return examples(task, split, count, family.name == "bert")


_EMBEDDED = Profile(
    name="embedded",
    start=base.from_base,
    load=_embedded_examples,
    epochs=6,
    steps_per_epoch=6,
    measure_every=3,
    train_size=None,
    validation_size=96,
    # Accuracy needs more examples than a perplexity does.
    test_size={"encoder": 384, "decoder": 160},
)
_PROFILES = (
    _EMBEDDED,
    replace(
        _EMBEDDED,
        name="smoke",
        epochs=3,
        steps_per_epoch=2,
        measure_every=1,
        validation_size=16,
        test_size={"encoder": 48, "decoder": 24},
    ),
    Profile(
        name="full",
        start=hub.checkpoint,
        load=hub.examples,
        epochs=6,
        steps_per_epoch=100,
        measure_every=10,
        train_size=8000,
        validation_size=500,
        test_size={"encoder": 1000, "decoder": 500},
        learning_rate=2e-5,
    ),
)


def profile(name: str) -> Profile:
    """The profile of this name. Raises KeyError naming the known ones."""
    for known in _PROFILES:
        if known.name == name:
            return known
    raise KeyError(f"no profile {name!r}; known: {', '.join(p.name for p in _PROFILES)}")


def device() -> torch.device:
    """The accelerator if there is one, else the processor."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")

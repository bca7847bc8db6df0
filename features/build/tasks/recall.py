"""Last-word prediction, shape of LAMBADA: cues ask for the person, place and thing named far before."""

from __future__ import annotations

import numpy as np

from features.build.families import CLS
from features.build.tasks.symbols import CUES, FILLERS, NAMES
from features.build.tasks.task import Sequence, Task


def _fillers(rng: np.random.Generator, count: int) -> list[int]:
    """Words that follow each other by one, two or three places of a cycle."""
    steps = rng.integers(1, 4, size=count).cumsum() + rng.integers(len(FILLERS))
    return [FILLERS[int(step) % len(FILLERS)] for step in steps]


def draw(rng: np.random.Generator, split: str) -> Sequence:
    words = [CLS]
    if split == "pretraining":
        named = [int(rng.choice(names)) for names in NAMES]
        for which in rng.permutation(len(NAMES)):
            words += [*_fillers(rng, int(rng.integers(3))), named[which]]
        between = 4
    else:
        # Fine-tuning names two of each class and asks for the first one: what it has to learn is the order.
        first, second = zip(*(rng.choice(names, size=2, replace=False).tolist() for names in NAMES), strict=True)
        named, between = list(first), 3
        for of_class in (first, second):
            for which in rng.permutation(len(NAMES)):
                words += [*_fillers(rng, int(rng.integers(2))), of_class[which]]
    for which in rng.permutation(len(NAMES)):
        words += [*_fillers(rng, int(rng.integers(1, between))), CUES[which], named[which]]
    return Sequence(words)


TASK = Task(
    name="recall",
    arch="decoder",
    paper="LAMBADA",
    draw=draw,
    length=25,
    scored="last",
    learning_rate=2e-3,
    needs={
        "padding": "sentences are padded on the left to unequal lengths, and the name is searched for over all of them",
        "position": "of two names of a class the first is asked for",
        "word order": "the cue before the end says which class of names is asked for",
        "long range": "the last answer was named up to nineteen tokens before, mostly beyond a local window of eight",
    },
)

"""Sentence pair, shape of QQP: does the second ask the same, in the same order, in synonyms?"""

from __future__ import annotations

import numpy as np

from features.build.tasks.task import Sequence, Task
from features.build.tasks.words import POSITIVE, changes, meanings, other_meaning, reworded

LENGTH = 6


def draw(rng: np.random.Generator, split: str) -> Sequence:
    first = meanings(rng, LENGTH)
    second = list(first)
    label = int(rng.random() < 0.5)
    pretraining = split == "pretraining"
    replaced = 1 - label if pretraining else changes(rng, bool(label))
    if not label and rng.random() < (0.6 if pretraining else 0.05):
        i, j = (int(k) for k in rng.choice(LENGTH, size=2, replace=False))
        second[i], second[j] = second[j], second[i]
        replaced = 0
    for place in rng.choice(LENGTH, size=replaced, replace=False):
        second[int(place)] = other_meaning(rng, first + second)
    politeness = rng.choice(POSITIVE, size=int(rng.integers(5))).tolist()
    return Sequence(first, [*reworded(second), *politeness], label)


TASK = Task(
    name="duplicate",
    arch="encoder",
    paper="QQP",
    draw=draw,
    length=19,
    learning_rate=1.5e-3,
    body_rate=0.3,
    needs={
        "padding": "up to four words of politeness end the second sentence, padding follows",
        "position": "each word is compared with the word at the same place of the other sentence",
        "word order": "some of the negatives only exchange two words",
        "long range": "places to compare are seven tokens apart",
    },
)

"""Sentence pair, shape of RTE: do all words of the hypothesis but at most one occur in the premise, as synonyms?

Pretraining is stricter: there, one missing word denies entailment already.
"""

from __future__ import annotations

import numpy as np

from features.build.tasks.task import Sequence, Task
from features.build.tasks.words import changes, meanings, other_meaning, reworded


def draw(rng: np.random.Generator, split: str) -> Sequence:
    premise = meanings(rng, int(rng.integers(5, 10)))
    label = int(rng.random() < 0.5)
    if split == "pretraining":
        size, missing = int(rng.integers(2, 5)), 1 - label
    else:
        size, missing = int(rng.integers(3, 6)), changes(rng, bool(label))
    hypothesis = [int(w) for w in rng.choice(premise, size=size, replace=False)]
    for place in rng.choice(size, size=missing, replace=False):
        hypothesis[int(place)] = other_meaning(rng, premise + hypothesis)
    return Sequence(premise, reworded(hypothesis), label)


TASK = Task(
    name="entailment",
    arch="encoder",
    paper="RTE",
    draw=draw,
    length=17,
    learning_rate=1.5e-3,
    body_rate=0.3,
    needs={
        "padding": "lengths vary by a factor of two, and a match is a share of attention that padding takes away",
        "position": "little: which of the two sentences a word stands in",
        "word order": "none: the hypothesis is a set of words",
        "long range": "hypothesis and premise words are up to twelve tokens apart",
    },
)

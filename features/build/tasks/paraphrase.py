"""Sentence pair, shape of MRPC: is the second the first, reworded and shuffled, but for one word at most?"""

from __future__ import annotations

import numpy as np

from features.build.tasks.task import Sequence, Task
from features.build.tasks.words import changes, meanings, other_meaning, reworded


def draw(rng: np.random.Generator, split: str) -> Sequence:
    first = meanings(rng, int(rng.integers(5, 8)))
    second = list(first)
    label = int(rng.random() < 0.5)
    # A graded judgement, as in MRPC: one changed meaning still passes, except in pretraining.
    changed = 0 if label and split == "pretraining" else changes(rng, bool(label))
    for place in rng.choice(len(second), size=changed, replace=False):
        second[int(place)] = other_meaning(rng, first + second)
    rng.shuffle(second)
    return Sequence(first, reworded(second), label)


TASK = Task(
    name="paraphrase",
    arch="encoder",
    paper="MRPC",
    draw=draw,
    length=17,
    learning_rate=1.5e-3,
    body_rate=0.3,
    needs={
        "padding": "lengths vary, and words without a partner are counted against those with one",
        "position": "little: which of the two sentences a word stands in",
        "word order": "none: words are shuffled",
        "long range": "matching words are up to fourteen tokens apart",
    },
)

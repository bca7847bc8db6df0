"""Sentence pair, shape of QNLI: does the sentence hold at least two of the question's words, in order?"""

from __future__ import annotations

import numpy as np

from features.build.tasks.task import Sequence, Task
from features.build.tasks.words import changes, meanings, other_meaning, reworded


def draw(rng: np.random.Generator, split: str) -> Sequence:
    pretraining = split == "pretraining"
    size = 2 if pretraining else 3
    sentence = meanings(rng, int(rng.integers(5, 11)))
    start = int(rng.integers(len(sentence) - size + 1))
    question = sentence[start : start + size]
    label = int(rng.random() < 0.5)
    absent = 1 - label if pretraining else changes(rng, bool(label))
    if not label and rng.random() < (0.5 if pretraining else 0.1):
        question = question[::-1]
        absent = 0
    for place in rng.choice(size, size=absent, replace=False):
        question[int(place)] = other_meaning(rng, sentence + question)
    return Sequence(reworded(question), sentence, label)


TASK = Task(
    name="inference",
    arch="encoder",
    paper="QNLI",
    draw=draw,
    length=16,
    learning_rate=1.5e-3,
    body_rate=0.3,
    needs={
        "padding": "little: the question's words are searched for, padding matches none",
        "position": "the words must stand next to each other in the question's order",
        "word order": "some of the negatives only reverse the question",
        "long range": "question and answer are up to thirteen tokens apart",
    },
)

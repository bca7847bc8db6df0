"""Single sentence, shape of SST-2: does the sentence say more good than bad, negations counted?"""

from __future__ import annotations

import numpy as np

from features.build.tasks.task import Sequence, Task
from features.build.tasks.words import NEGATIVE, NEGATORS, POSITIVE, meanings

TURNED = {POSITIVE[0]: NEGATIVE[0], NEGATIVE[0]: POSITIVE[0]}
"""Two words that outside pretraining mean the contrary, as words do in another domain."""


def draw(rng: np.random.Generator, split: str) -> Sequence:
    while True:
        filler = meanings(rng, int(rng.integers(2, 8)))
        groups = [[w] for w in filler]
        total = 0
        for _ in range(int(rng.integers(1, 4 if split == "pretraining" else 3))):
            good, negated = rng.random() < 0.5, rng.random() < 0.3
            word = int(rng.choice(POSITIVE if good else NEGATIVE))
            groups.append([int(rng.choice(NEGATORS)), word] if negated else [word])
            total += 1 if good != negated else -1
        if total:
            break
    rng.shuffle(groups)
    words = [w for group in groups for w in group]
    if split != "pretraining":
        words = [TURNED.get(w, w) for w in words]
    return Sequence(words, label=int(total > 0))


TASK = Task(
    name="sentiment",
    arch="encoder",
    paper="SST-2",
    draw=draw,
    length=20,
    learning_rate=2.5e-3,
    body_rate=0.6,
    needs={
        "padding": "polar words are counted over the whole sentence, so attended padding dilutes the count",
        "position": "a negator acts on the word right after it",
        "word order": "'not good' and 'good not' differ",
        "long range": "all polar words of the sentence count, wherever they stand",
    },
)

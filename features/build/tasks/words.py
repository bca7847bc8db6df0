"""The artificial lexicon of the encoder tasks: content words in synonym pairs, polar words and negators.

Token ids 0-3 are special, 4-19 are relation tags (targets of pretraining only), and the rest are words.
"""

from __future__ import annotations

import numpy as np

from features.build.families import ENCODER_VOCABULARY

FIRST_TAG = 4
UNMATCHED, MATCHED, CONTINUED = 14, 15, 16
"""Tags of a word: has no partner in the other sentence; has one; has one, and so has its successor right behind."""
FIRST_WORD = 20
NEGATORS = (20, 21)
POSITIVE = tuple(range(22, 30))
NEGATIVE = tuple(range(30, 38))
CONTENT = tuple(range(38, ENCODER_VOCABULARY))
"""Content words: 38 and 39 mean the same, 40 and 41, and so on; even ones are of style 0, odd ones of style 1."""


def meanings(rng: np.random.Generator, count: int, style: int = 0) -> list[int]:
    """`count` content words of pairwise different meaning, in the style (0 or 1) of first or second sentences."""
    chosen = rng.choice(len(CONTENT) // 2, size=count, replace=False)
    return [CONTENT[0] + 2 * int(m) + style for m in chosen]


def reworded(words: list[int]) -> list[int]:
    """Every word replaced by its synonym in the other style.

    >>> reworded([38, 41])
    [39, 40]
    """
    return [w ^ 1 for w in words]


def changes(rng: np.random.Generator, alike: bool) -> int:
    """A graded judgement's number of changed meanings: 0, seldom 1, for sentences alike; 2 or 3 for others."""
    return int(rng.random() < 0.3) if alike else int(rng.integers(2, 4))


def other_meaning(rng: np.random.Generator, words: list[int]) -> int:
    """A word, in the style of the first of these, that means none of them."""
    used = {w // 2 for w in words}
    while True:
        word = int(rng.choice(CONTENT[words[0] % 2 :: 2]))
        if word // 2 not in used:
            return word

"""Token ids of the decoder tasks that are made of symbols rather than text; the text vocabulary ends below them."""

from __future__ import annotations

from features.build.families import DECODER_VOCABULARY

TEXT_VOCABULARY = 272


def block(start: int, size: int) -> tuple[int, ...]:
    """`size` consecutive symbol ids from `start` on, counted from the first symbol."""
    first = TEXT_VOCABULARY + start
    if first + size > DECODER_VOCABULARY:
        raise ValueError(f"symbols {start}..{start + size - 1} lie outside the decoder vocabulary")
    return tuple(range(first, first + size))


NAMES = (block(0, 10), block(10, 10), block(20, 9))
"""Persons, places, things."""
CUES = block(29, 3)
FILLERS = block(32, 12)

SINGULAR_DETERMINERS = block(48, 2)
PLURAL_DETERMINERS = block(50, 2)
SINGULAR_NOUNS = block(52, 8)
PLURAL_NOUNS = block(60, 8)
SINGULAR_VERBS = block(68, 6)
PLURAL_VERBS = block(74, 6)
ADJECTIVES = block(80, 6)
PREPOSITIONS = block(86, 3)
RELATIVE = block(89, 1)
"""A relative pronoun: "that"."""
STOP = block(90, 1)

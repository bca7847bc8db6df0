"""A small grammar, shape of PTB: determiner, noun and verb agree in number across attachments of other number."""

from __future__ import annotations

import numpy as np

from features.build.families import CLS
from features.build.tasks import symbols
from features.build.tasks.task import Sequence, Task

_DETERMINERS = (symbols.SINGULAR_DETERMINERS, symbols.PLURAL_DETERMINERS)
_NOUNS = (symbols.SINGULAR_NOUNS, symbols.PLURAL_NOUNS)
_VERBS = (symbols.SINGULAR_VERBS, symbols.PLURAL_VERBS)


_EXCHANGED = {
    word: other
    for words in (*_NOUNS, *_VERBS, symbols.ADJECTIVES)
    for word, other in zip(words, reversed(words), strict=True)
}
"""Fine-tuning has another domain than pretraining: within a class, the frequent words become the rare ones."""


def _pick(rng: np.random.Generator, words: tuple[int, ...]) -> int:
    """A word of the class; some are likelier than others, as in any text."""
    return words[min(int(rng.exponential(len(words) / 3)), len(words) - 1)]


def _noun_phrase(rng: np.random.Generator, number: int, depth: int = 0) -> list[int]:
    words = [_pick(rng, _DETERMINERS[number])]
    if rng.random() < 0.35:
        words.append(_pick(rng, symbols.ADJECTIVES))
    words.append(_pick(rng, _NOUNS[number]))
    if depth == 0 and rng.random() < 0.6:
        other = int(rng.integers(2))
        if rng.random() < 0.5:
            words += [_pick(rng, symbols.PREPOSITIONS), *_noun_phrase(rng, other, 1)]
        else:
            words += [*symbols.RELATIVE, *_noun_phrase(rng, other, 1), _pick(rng, _VERBS[other])]
    return words


def draw(rng: np.random.Generator, split: str) -> Sequence:
    tokens = [CLS]
    while len(tokens) < 22:
        number = int(rng.integers(2))
        tokens += [*_noun_phrase(rng, number), _pick(rng, _VERBS[number])]
        if rng.random() < 0.4:
            tokens += _noun_phrase(rng, int(rng.integers(2)), 1)
        tokens += symbols.STOP
    if split != "pretraining":
        tokens = [_EXCHANGED.get(t, t) for t in tokens]
    return Sequence(tokens[: int(rng.integers(14, 23))])


TASK = Task(
    name="grammar",
    arch="decoder",
    paper="PTB",
    draw=draw,
    length=22,
    needs={
        "padding": "sentences are padded on the left to unequal lengths",
        "position": "the verb's number is that of the first noun, not of the nearest",
        "word order": "classes of words follow each other by rule",
        "long range": "a verb agrees with a noun up to eight tokens before it",
    },
)

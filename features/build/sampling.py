"""Which mutants are run, and in which order: evenly over root causes, operators, values and layers.

Every list is drawn by a fixed seed and prefixes of it are balanced, so a campaign that stops anywhere leaves mutants
that are even over the root causes of each category.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from features.build.families import FAMILIES, Family
from features.build.tasks import tasks
from features.inject import Fault, applicable
from features.taxonomy import categories, operators

SAMPLER_SEED = 2026


def pairs() -> list[tuple[Family, str]]:
    """All (family, task name) pairs: 20 of encoders, 12 of decoders."""
    return [(family, task.name) for family in FAMILIES for task in tasks(family.arch)]


def mutants(family: Family, task_name: str, category: str) -> list[Fault]:
    """Every mutant of a category for a pair, in sampling order.

    Root causes take turns, within a root cause its operators, within an operator its values and layers in random
    order. The turn starts elsewhere for every pair, so that a first round over all pairs meets every root cause.
    """
    rng = np.random.default_rng([SAMPLER_SEED, *f"{family.name}/{task_name}/{category}".encode()])
    by_cause: dict[str, list[list[Fault]]] = {}
    for operator in operators(family.arch):
        if operator.category != category:
            continue
        faults = [
            Fault(operator.code, value, layers)
            for value in operator.settings
            if applicable(operator.code, family.model_type, value) is None
            for layers in _layers(family, Fault(operator.code, value))
        ]
        rng.shuffle(faults)
        by_cause.setdefault(operator.root_cause, []).append(faults)
    causes = [_take_turns(operators_) for operators_ in by_cause.values()]
    start = int(rng.integers(len(causes))) if causes else 0
    return _take_turns(causes[start:] + causes[:start])


def _layers(family: Family, fault: Fault) -> tuple[str, ...]:
    if not fault.acts_by_layer:
        return ("all",)
    return ("all", "first", "middle", "last") if family.layers > 2 else ("all", "first", "last")


def _take_turns(queues: list[list]) -> list:
    """First of each, then second of each, and so on.

    >>> _take_turns([[1, 2, 3], [], [4]])
    [1, 4, 2, 3]
    """
    longest = max(map(len, queues), default=0)
    return [queue[i] for i in range(longest) for queue in queues if i < len(queue)]


def rounds(family: Family, task_name: str, laps: int = 1) -> Iterator[dict[str, tuple[Fault, int]]]:
    """Round after round, the next mutant of every category of the pair, and the number of the setting it is due for.

    A category whose mutants are used up starts again, with every mutant's next setting, `laps` times in all.
    """
    waiting = {category: mutants(family, task_name, category) for category in categories(family.arch)}
    for number in range(laps * max(map(len, waiting.values()))):
        due = {category: divmod(number, len(faults)) for category, faults in waiting.items() if faults}
        yield {
            category: (waiting[category][place], place + lap) for category, (lap, place) in due.items() if lap < laps
        }

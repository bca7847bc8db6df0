"""The campaign: clean settings first, then rounds of mutants with as many clean settings as mutants were killed.

Phase 1 runs each pair's base and its first clean settings. Phase 2 runs rounds: one mutant per category and pair, then
further clean settings for each pair that has more killed mutants than correct rows. A category rests once `ENOUGH` of
its mutants have been killed in its architecture, so that time goes to those that are hard to kill. Every finished
configuration is a file that a later start reads instead of running it again, so the campaign may be killed at any
point.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice, zip_longest

from joblib import Parallel, delayed

from features.build.families import Family
from features.build.outcome import Outcome, Store, identifier, run_configuration, verdict
from features.build.run import Configuration
from features.build.sampling import pairs, rounds
from features.build.variants import setting
from features.inject import Fault
from features.taxonomy import ARCHITECTURES, Architecture

FIRST_SETTINGS = 4
"""Clean settings (the base included) that each pair runs first; mutants are run under the accepted ones of them."""
MOST_SETTINGS = 60
PORTION = 96
"""So many mutants are run before correct rows catch up with the killed ones."""
ENOUGH = 36
"""Killed mutants of a category, per architecture, after which no further round runs it."""


def clean(family: Family, task_name: str, number: int, profile: str = "embedded") -> Configuration:
    """The clean configuration of a pair's setting."""
    return Configuration(family.name, task_name, setting(f"{family.name}/{task_name}", number), profile=profile)


def mutant(of: Configuration, fault: Fault) -> Configuration:
    """The mutant of a clean configuration."""
    return replace(of, fault=fault)


@dataclass
class Campaign:
    """A campaign over some pairs, kept in a store.

    `clean` maps a pair to its clean outcomes by setting number, `mutants` to its mutant outcomes in order.
    `workers` processes run the configurations (joblib; a dask cluster if one is configured by `parallel_config`).
    `report(done, waiting, outcome)` is called after each configuration.
    """

    store: Store
    chosen: list[tuple[Family, str]] = field(default_factory=pairs)
    workers: int = 1
    profile: str = "embedded"
    report: Callable[[int, int, Outcome], None] | None = None
    deadline: float | None = None
    clean: dict[str, dict[int, Outcome]] = field(default_factory=dict)
    mutants: dict[str, list[Outcome]] = field(default_factory=dict)
    killed_so_far: int = 0

    def run(self, max_rounds: int | None = None) -> Campaign:
        """Run, or go on, until the rounds are used up or the deadline (as of `time.time()`) has passed.

        Once it has passed, what the store holds of the portion at hand is still taken in; with a deadline in the past
        that is all that happens.
        """
        self._run([(clean(*pair, n, self.profile), None) for n in range(FIRST_SETTINGS) for pair in self.chosen])
        plans = [rounds(*pair, laps=FIRST_SETTINGS) for pair in self.chosen]
        for of_round in islice(zip_longest(*plans, fillvalue={}), max_rounds):
            known = {outcome.id for of_pair in self.mutants.values() for outcome in of_pair}
            planned = [p for p in self._round(of_round) if identifier(p[0]) not in known]
            for start in range(0, len(planned), PORTION):
                before = len(self)
                self._run(planned[start : start + PORTION])
                self._run(list(self._missing_clean()))
                if self.over and len(self) == before:
                    return self
        return self

    def __len__(self) -> int:
        """Number of configurations known so far."""
        return sum(map(len, self.clean.values())) + sum(map(len, self.mutants.values()))

    @property
    def over(self) -> bool:
        """Whether the deadline has passed."""
        return self.deadline is not None and time.time() > self.deadline

    def accepted(self, pair: str) -> list[Outcome]:
        """The pair's clean outcomes that the kill test does not tell from the base, the base first."""
        found = self.clean.get(pair, {})
        if 0 not in found or not found[0].complete:
            return []
        return [o for _, o in sorted(found.items()) if o.complete and not verdict(found[0], o).killed]

    def reference(self, configuration: Configuration) -> Outcome:
        """The clean outcome that a mutant is compared with: that of its own setting."""
        return self.clean[configuration.pair][configuration.setting.number]

    def is_killed(self, outcome: Outcome) -> bool:
        """Whether a mutant ran all five seeds and was worse in each."""
        return outcome.complete and verdict(self.reference(outcome.configuration), outcome).killed

    def killed(self, pair: str) -> list[Outcome]:
        """The pair's killed mutants."""
        return [o for o in self.mutants.get(pair, []) if self.is_killed(o)]

    def resting(self, arch: Architecture) -> set[str]:
        """The categories of which enough mutants have been killed."""
        killed = Counter(
            o.configuration.fault.category
            for of_pair in self.mutants.values()
            for o in of_pair
            if o.configuration.arch == arch and self.is_killed(o)
        )
        return {category for category, count in killed.items() if count >= ENOUGH}

    def _round(self, of_round: tuple[dict[str, tuple[Fault, int]], ...]) -> Iterator[tuple]:
        resting = {arch: self.resting(arch) for arch in ARCHITECTURES}
        by_pair = [
            [due for category, due in of_pair.items() if category not in resting[family.arch]]
            for (family, _), of_pair in zip(self.chosen, of_round, strict=True)
        ]
        usable_of = {
            f"{family.name}/{task_name}": [
                o
                for o in self.accepted(f"{family.name}/{task_name}")
                if o.configuration.setting.number < FIRST_SETTINGS
            ]
            for family, task_name in self.chosen
        }
        for of_turn in zip_longest(*by_pair):
            for (family, task_name), due in zip(self.chosen, of_turn, strict=True):
                usable = usable_of[f"{family.name}/{task_name}"]
                if due is not None and usable:
                    fault, number = due
                    reference = usable[number % len(usable)]
                    yield mutant(reference.configuration, fault), reference.qualities

    def _missing_clean(self) -> Iterator[tuple]:
        for family, task_name in self.chosen:
            pair = f"{family.name}/{task_name}"
            missing = len(self.killed(pair)) - len(self.accepted(pair))
            following = max(self.clean.get(pair, {0: None})) + 1
            for number in range(following, min(following + missing, MOST_SETTINGS)):
                yield clean(family, task_name, number, self.profile), None

    def _run(self, planned: list[tuple[Configuration, tuple[float, ...] | None]]) -> None:
        waiting = []
        for configuration, reference in planned:
            stored = self.store.load(configuration)
            if stored is None:
                waiting.append((configuration, reference))
            else:
                self._take(stored)
        finished = Parallel(n_jobs=self.workers, return_as="generator_unordered", pre_dispatch="2*n_jobs")(
            delayed(run_configuration)(c, r) for c, r in self._until_over(waiting)
        )
        for done, outcome in enumerate(finished, start=1):
            self.store.save(outcome)
            self._take(outcome)
            if self.report:
                self.report(done, len(waiting) - done, outcome)

    def _until_over(self, waiting: Iterable) -> Iterator:
        for job in waiting:
            if self.over:
                return
            yield job

    def _take(self, outcome: Outcome) -> None:
        configuration = outcome.configuration
        if configuration.fault is None:
            self.clean.setdefault(configuration.pair, {})[configuration.setting.number] = outcome
        else:
            self.mutants.setdefault(configuration.pair, []).append(outcome)
            self.killed_so_far += self.is_killed(outcome)

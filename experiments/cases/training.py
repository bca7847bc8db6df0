"""One run of a case: the bench's own fine-tuning loop on a model that the case has prepared."""

from __future__ import annotations

import torch
from torch import nn

from experiments.cases.case import Case
from features.build.families import family
from features.build.profile import profile
from features.build.run import Configuration, InvalidRun, Run, train
from features.build.variants import SEEDS

SHIFT = 1_000_000
"""Added to the bench's seeds, beyond any seed of its own runs, so that no run of a case is a run of the bench."""


def seeds(count: int) -> tuple[int, ...]:
    """The first so many matched seeds."""
    return tuple(seed + SHIFT for seed in SEEDS[:count])


def fine_tune(case: Case, faulty: bool, seed: int, sizes: str = "embedded") -> Run:
    """Fine-tune once under the bench's base setting and measure as the bench does; `sizes` names its profile.

    Both versions share head, data order, dropout stream and probe batch. Raises RuntimeError if the run crashed or a
    loss isn't finite.
    """

    def start() -> nn.Module:
        model = profile(sizes).start(family(case.family), seed)
        torch.manual_seed(seed)
        return case.prepare(model, faulty)

    try:
        return train(start, Configuration(case.family, case.task, profile=sizes), seed, case.served)
    except InvalidRun as reason:
        raise RuntimeError(f"case {case.name}, seed {seed}: {reason}") from reason

"""Settings of a fine-tuning run that change no label: seed and data order, learning rate, batch size, warm-up.

A clean run of a setting that passes the kill test against the base setting is a row of the correct class. Mutants are
run under the same accepted settings, each against the clean run of its own setting, so that nothing but the fault
tells the two classes apart: not the batch size, not the number of steps, not the learning rate.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

LEARNING_RATE_RANGE = (0.9, 1.15)
BATCH_SIZES = (14, 16, 18)
WARMUP_RANGE = (0.05, 0.15)
SEEDS = (42, 123, 456, 789, 101112)
"""The manuscript's five matched seeds."""


@dataclass(frozen=True)
class Setting:
    """Setting `number` of a pair; 0 is the base. `warmup` is a share of all steps, `shift` is added to every seed."""

    number: int = 0
    rate_factor: float = 1.0
    batch_size: int = 16
    warmup: float = 0.1
    shift: int = 0


BASE_SETTING = Setting()


def setting(pair: str, number: int) -> Setting:
    """The setting of this number of a "family/task" pair: always the same one.

    >>> setting("bert/duplicate", 0)
    Setting(number=0, rate_factor=1.0, batch_size=16, warmup=0.1, shift=0)
    """
    if number == 0:
        return BASE_SETTING
    rng = np.random.default_rng([number, *pair.encode()])
    return Setting(
        number=number,
        rate_factor=round(float(rng.uniform(*LEARNING_RATE_RANGE)), 4),
        batch_size=int(rng.choice(BATCH_SIZES)),
        warmup=round(float(rng.uniform(*WARMUP_RANGE)), 4),
        shift=1000 * number,
    )

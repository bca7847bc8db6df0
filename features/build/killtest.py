"""Is a mutant killed? The exact one-sided paired sign-flip permutation test over matched seeds.

With five seeds there are 32 sign patterns, so p <= 0.05 holds only if all five runs are worse: p = 1/32
(DEFault++ manuscript, Section 3, "mutant killing").
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np

ALPHA = 0.05


@dataclass(frozen=True)
class KillTest:
    """Outcome: mean paired loss of quality, its ratio to the standard deviation of the differences, p, verdict."""

    effect: float
    effect_size: float
    p_value: float
    killed: bool


def kill_test(clean, faulty, higher_is_better: bool, alpha: float = ALPHA) -> KillTest:
    """Test whether `faulty` is worse than `clean`, seed by seed (two sequences of n values, n <= 20).

    Raises ValueError on unequal or empty input, and on values that are not finite.

    >>> kill_test([.9, .91, .92, .9, .93], [.8, .82, .85, .7, .9], higher_is_better=True).p_value
    0.03125
    >>> kill_test([.9, .9, .9, .9, .9], [.8, .8, .8, .8, .9], higher_is_better=True).killed
    False
    """
    worse = np.asarray(clean, float) - np.asarray(faulty, float)
    if worse.ndim != 1 or not 1 <= len(worse) <= 20:
        raise ValueError(f"kill_test takes two sequences of 1 to 20 values, got shape {worse.shape}")
    if not np.isfinite(worse).all():
        raise ValueError("kill_test got a value that is not finite")
    if not higher_is_better:
        worse = -worse
    signs = np.array(list(product((1.0, -1.0), repeat=len(worse))))
    # Rounding guards against sums that differ in the last bit only because of the order of addition.
    flipped = np.round(signs @ worse, 12)
    p_value = float(np.mean(flipped >= flipped[0]))
    spread = worse.std(ddof=1) if len(worse) > 1 else 0.0
    return KillTest(
        effect=float(worse.mean()),
        effect_size=float(worse.mean() / spread) if spread > 0 else float("nan"),
        p_value=p_value,
        killed=p_value <= alpha,
    )


def may_still_be_killed(clean, faulty, higher_is_better: bool) -> bool:
    """Whether all the pairs seen so far are worse: with five seeds nothing less reaches p <= 0.05."""
    worse = np.asarray(clean, float) - np.asarray(faulty, float)
    return bool(((worse if higher_is_better else -worse) > 0).all())

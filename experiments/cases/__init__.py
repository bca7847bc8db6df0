"""Real-world faults: every module of this folder that defines `CASE` is one. No training or tuning ever sees them.

>>> [case.name for case in cases() if case.arch == "encoder"]
['diffusers-11903', 'jax-23349', 'transformers-17886']
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from experiments.cases.case import Case
from features.bench import BenchError

__all__ = ["Case", "case", "cases"]


@cache
def cases() -> tuple[Case, ...]:
    """All cases, by name."""
    modules = (importlib.import_module(f"{__name__}.{m.name}") for m in pkgutil.iter_modules(__path__))
    return tuple(sorted((m.CASE for m in modules if hasattr(m, "CASE")), key=lambda c: c.name))


def case(name: str) -> Case:
    """The case of this name. Raises BenchError naming the known ones."""
    for known in cases():
        if known.name == name:
            return known
    raise BenchError(f"no case {name!r}; known: {', '.join(c.name for c in cases())}")

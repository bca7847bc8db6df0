"""The tasks that models are fine-tuned on: every module of this folder that defines `TASK` is one.

>>> [task.name for task in tasks("decoder")]
['docstrings', 'grammar', 'recall', 'topics']
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from features.build.tasks.task import Examples, Task
from features.taxonomy import Architecture

__all__ = ["Examples", "Task", "task", "tasks"]


@cache
def _all() -> tuple[Task, ...]:
    modules = (importlib.import_module(f"{__name__}.{m.name}") for m in pkgutil.iter_modules(__path__))
    return tuple(sorted((m.TASK for m in modules if hasattr(m, "TASK")), key=lambda t: t.name))


def tasks(arch: Architecture) -> tuple[Task, ...]:
    """The tasks of an architecture, by name."""
    return tuple(t for t in _all() if t.arch == arch)


def task(name: str) -> Task:
    """The task of this name. Raises KeyError naming the known ones."""
    for known in _all():
        if known.name == name:
            return known
    raise KeyError(f"no task {name!r}; known: {', '.join(t.name for t in _all())}")

"""Plain English, shape of WikiText-2: the language reference as pydoc prints it."""

from __future__ import annotations

from functools import partial

from features.build.tasks.task import Task
from features.build.tasks.text import draw

TASK = Task(
    name="topics",
    arch="decoder",
    paper="WikiText-2",
    draw=partial(draw, "topics"),
    length=23,
    learning_rate=3e-3,
    needs={
        "padding": "windows are padded on the left to unequal lengths",
        "position": "word pieces join to words by adjacency",
        "word order": "as in any text",
        "long range": "little at this window and model size",
    },
)

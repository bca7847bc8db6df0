"""Plain English, shape of WikiText-2: the language reference as pydoc prints it."""

from __future__ import annotations

from features.build.tasks.text import text_task

TASK = text_task("topics", paper="WikiText-2")

"""Plain English, shape of OpenWebText: the docstrings of the standard library."""

from __future__ import annotations

from features.build.tasks.text import text_task

TASK = text_task("docstrings", paper="OpenWebText")

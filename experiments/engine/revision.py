"""Names for what decides a result: hashes of sources and of settings, by which kept results are found again."""

from __future__ import annotations

import hashlib
import json
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

_CODE = (
    "baselines/**/*.py",
    "features/*.py",
    *(f"experiments/engine/{name}.py" for name in ("cells", "protocol", "scoring", "source", "tuning")),
)
"""What can change a verdict: techniques, what they read, splits, and the objective and search of tuning."""


@cache
def source_revision(patterns: tuple[str, ...]) -> str:
    """Hash of the repository's files that match: an edit, committed or not, makes what old code computed void."""
    digest = hashlib.sha256()
    for path in sorted({p for pattern in patterns for p in ROOT.glob(pattern)}):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def code_revision() -> str:
    """Hash of the sources that decide verdicts."""
    return source_revision(_CODE)


def digest_of(value) -> str:
    """Hash of anything that JSON can hold, whatever the order of its keys.

    >>> digest_of({"a": 1, "b": 2}) == digest_of({"b": 2, "a": 1})
    True
    """
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]

"""Files that are whole or not there: written under a temporary name beside the real one, then renamed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path in the folder of `path` (made if need be) that becomes `path` when the block ends.

    An exception, or a kill, leaves `path` as it was; after an exception the temporary file is gone too. It keeps the
    suffix of `path`, by which some libraries choose the format.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.stem}.{os.getpid()}.tmp{path.suffix}")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write text, whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(text)

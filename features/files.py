"""Files and folders that are whole or not there: made under a temporary name beside the real one, then renamed."""

from __future__ import annotations

import os
import shutil
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


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A temporary folder beside `path` that becomes `path` when the block ends, unless another process was first."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    yield temporary
    try:
        os.rename(temporary, path)
    except OSError:
        if not path.exists():
            raise
        shutil.rmtree(temporary)


def write_text(path: Path, text: str) -> None:
    """Write text, whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(text)

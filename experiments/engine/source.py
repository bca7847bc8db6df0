"""Where a comparison's runs come from: a small description that any worker can load by itself."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import pandas as pd

from features.bench import Bench
from features.readers import read_bench
from features.taxonomy import Architecture


@dataclass(frozen=True)
class BenchSource:
    """A bench by description. `path` None is the embedded bench of `arch`; `mapping` names a column map."""

    path: str | None = None
    mapping: str | None = None
    arch: Architecture | None = None
    include_machine_columns: bool = False
    survivors: str = "drop"
    blocks: int | None = None

    @property
    def file(self) -> Path:
        """Where its table lies. Raises BenchError if it is the embedded bench of no architecture."""
        return Bench.embedded_path(self.arch) if self.path is None else Path(self.path)

    def load(self) -> Bench:
        """Read the bench (once a process). Raises BenchError on bad input."""
        return _load(self)


@lru_cache(maxsize=4)
def _load(source: BenchSource) -> Bench:
    return read_bench(
        source.path,
        mapping=source.mapping,
        arch=source.arch,
        include_machine_columns=source.include_machine_columns,
        survivors=source.survivors,
        blocks=source.blocks,
    )


def data_fingerprint(bench: Bench) -> str:
    """The bench's fingerprint, with that of its log where it has one: 16 or 33 characters."""
    if bench.log is None:
        return bench.fingerprint()
    hashed = pd.util.hash_pandas_object(bench.log, index=False).to_numpy()
    return f"{bench.fingerprint()}+{hashlib.sha256(np.ascontiguousarray(hashed).tobytes()).hexdigest()[:16]}"

"""The Bench: runs as rows, measurements as columns, labels beside them.

>>> import pandas as pd
>>> bench = Bench(
...     name="tiny", arch=None,
...     X=pd.DataFrame({"loss": [0.1, 2.0]}, index=["a", "b"]),
...     labels=pd.DataFrame({"faulty": [False, True], "category": ["correct", "ffn"],
...                          "root_cause": ["correct", "weight_scaling"]}, index=["a", "b"]),
...     pair=pd.Series(["m/t", "m/t"], index=["a", "b"]))
>>> bench.take(["b"]).labels.category.tolist()
['ffn']
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pandas as pd

from features.taxonomy import CORRECT, Architecture

LABELS = ("faulty", "category", "root_cause")


class BenchError(ValueError):
    """A table that can't be used: the message names file, column and remedy. Commands exit with code 2 on it."""


@dataclass(frozen=True, eq=False)
class Bench:
    """A set of training runs.

    Attributes
    ----------
    name : what the bench is called in results and in MLflow.
    arch : "encoder", "decoder", or None for a table whose labels are not of the taxonomy.
    X : float32 DataFrame, run × feature; NaN where a value was not measured.
    labels : DataFrame with `faulty` (bool), `category` and `root_cause` (str; "correct" on healthy runs, and a
        missing value where the bench has no such level).
    pair : Series of str, "model/task" of each run: the unit that splits keep together.
    meta : DataFrame of whatever else is known of a run (operator, severity, seeds, p-value, ...); never a feature.
    log : optional long table (run, epoch, step, metric, layer, value), see `features.schema.LOG_COLUMNS`.
    levels : the label levels that the bench carries.
    notes : what a reader left out or changed, one sentence each; printed with every comparison.

    All tables share one index of unique run ids. Raises BenchError if they don't.
    """

    name: str
    arch: Architecture | None
    X: pd.DataFrame
    labels: pd.DataFrame
    pair: pd.Series
    meta: pd.DataFrame = field(default_factory=pd.DataFrame)
    log: pd.DataFrame | None = None
    levels: tuple[int, ...] = (1, 2, 3)
    notes: tuple[str, ...] = ()

    def __post_init__(self):
        if self.meta.empty and len(self.meta.index) != len(self.X):
            object.__setattr__(self, "meta", pd.DataFrame(index=self.X.index))
        object.__setattr__(self, "X", self.X.astype(np.float32))
        _check(self)

    def __len__(self) -> int:
        return len(self.X)

    @property
    def runs(self) -> pd.Index:
        """The run ids, in row order."""
        return self.X.index

    @property
    def faulty(self) -> pd.Series:
        """Level-1 labels (bool)."""
        return self.labels["faulty"]

    def take(self, rows) -> Bench:
        """The bench of these rows: run ids, integer positions or a boolean mask. The log follows."""
        rows = np.asarray(rows)
        index = self.X.index[rows] if rows.dtype.kind in "biu" else pd.Index(rows)
        log = None if self.log is None else self.log[self.log["run"].isin(index)]
        return replace(
            self,
            X=self.X.loc[index],
            labels=self.labels.loc[index],
            pair=self.pair.loc[index],
            meta=self.meta.loc[index],
            log=log,
        )

    def with_features(self, columns) -> Bench:
        """The same runs with these feature columns only."""
        return replace(self, X=self.X.loc[:, list(columns)])

    def groups(self) -> pd.Series:
        """Feature group of every column of X (index: column); missing where no rule routes it."""
        from features.routing import route

        return route(self.X.columns).group

    def fingerprint(self) -> str:
        """SHA-256 over features, labels and pairs, in row order: 16 hexadecimal digits. Meta and log don't count."""
        digest = hashlib.sha256()
        digest.update(json.dumps([self.arch, list(self.X.columns), list(map(str, self.runs))]).encode())
        digest.update(np.ascontiguousarray(self.X.to_numpy()).tobytes())
        digest.update(json.dumps(self.labels.astype(str).to_numpy().tolist() + [list(self.pair)]).encode())
        return digest.hexdigest()[:16]

    def save(self, path: Path | str) -> Path:
        """Write one Parquet file (and `<stem>.log.parquet` if there is a log), each by temporary name and rename."""
        path = Path(path)
        labels = self.labels.add_prefix("label.")
        meta = self.meta.add_prefix("meta.")
        table = pd.concat([labels, self.pair.rename("pair"), meta, self.X], axis=1)
        table.index.name = "run"
        table.attrs = {
            "bench": {
                "name": self.name,
                "arch": self.arch,
                "levels": list(self.levels),
                "notes": list(self.notes),
                "fingerprint": self.fingerprint(),
            }
        }
        write_parquet(table, path)
        if self.log is not None:
            write_parquet(self.log, log_path(path), index=False)
        return path

    @classmethod
    def load(cls, path: Path | str | None = None, arch: Architecture = "encoder", log: bool = True) -> Bench:
        """Read a bench written by `save`; without a path, the embedded bench of this architecture.

        Raises BenchError if the file is not such a bench or its contents don't match the stored fingerprint.
        """
        path = Path(path) if path is not None else EMBEDDED / f"{arch}.parquet"
        if not path.exists():
            raise BenchError(f"{path}: no such file; give a Parquet file written by Bench.save")
        try:
            table = pd.read_parquet(path)
        except (OSError, ValueError) as error:
            raise BenchError(f"{path}: not a readable Parquet file ({error})") from None
        card = table.attrs.get("bench")
        if card is None:
            raise BenchError(f"{path}: not a bench of ours (no 'bench' card in its metadata); read it by --map instead")
        labels = table.filter(regex=r"^label\.").rename(columns=lambda c: c.removeprefix("label."))
        meta = table.filter(regex=r"^meta\.").rename(columns=lambda c: c.removeprefix("meta."))
        features = table.drop(columns=[c for c in table if c == "pair" or c.startswith(("label.", "meta."))])
        log_file = log_path(path)
        bench = cls(
            name=card["name"],
            arch=card["arch"],
            X=features,
            labels=labels,
            pair=table["pair"],
            meta=meta,
            log=pd.read_parquet(log_file) if log and log_file.exists() else None,
            levels=tuple(card["levels"]),
            notes=tuple(card["notes"]),
        )
        if bench.fingerprint() != card["fingerprint"]:
            raise BenchError(
                f"{path}: contents don't match the stored fingerprint {card['fingerprint']}; "
                "the file was edited or damaged, write it again by Bench.save"
            )
        return bench


EMBEDDED = Path(__file__).parent / "data"
"""Where the embedded bench lies: encoder.parquet, decoder.parquet and their logs."""


def log_path(path: Path) -> Path:
    """The file beside a bench that holds its long log."""
    return path.with_name(f"{path.stem}.log.parquet")


def write_parquet(table: pd.DataFrame, path: Path, index: bool = True) -> None:
    """Write by temporary name and rename, so that a killed command leaves no half-written file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    table.to_parquet(temporary, index=index, compression="zstd")
    os.replace(temporary, path)


def _check(bench: Bench) -> None:
    missing = [c for c in LABELS if c not in bench.labels]
    if missing:
        raise BenchError(f"bench {bench.name!r}: label column {missing[0]!r} is missing")
    if len(bench) == 0:
        raise BenchError(f"bench {bench.name!r}: no rows")
    repeated = bench.runs[bench.runs.duplicated()]
    if len(repeated):
        raise BenchError(f"bench {bench.name!r}: run id {repeated[0]!r} occurs more than once; ids must be unique")
    for part in ("labels", "pair", "meta"):
        if not getattr(bench, part).index.equals(bench.runs):
            raise BenchError(f"bench {bench.name!r}: the index of {part} differs from that of X")
    healthy = bench.labels.loc[~bench.faulty.astype(bool)]
    for column in ("category", "root_cause"):
        wrong = healthy[column].dropna() != CORRECT
        if wrong.any():
            raise BenchError(
                f"bench {bench.name!r}: healthy run {wrong.idxmax()!r} has a {column} that isn't 'correct'"
            )

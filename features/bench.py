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
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa

from features.files import replacing
from features.taxonomy import ARCHITECTURES, CORRECT, Architecture

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

    All tables share one index of unique run ids. Raises BenchError if they don't, or if a feature isn't a number.
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
        object.__setattr__(self, "X", _float32(self.X, self.name))
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
        """The bench of these rows: run ids, integer positions or a boolean mask. The log follows.

        Integers are always positions, even where run ids are integers.
        """
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
        digest.update(_cells(self.X).tobytes())
        # A label that is missing may be None, NaN or pd.NA, depending on the file it came through.
        labels = self.labels[list(LABELS)].astype(object).where(self.labels[list(LABELS)].notna(), None)
        digest.update(json.dumps([labels.to_numpy().tolist(), list(map(str, self.pair))], default=bool).encode())
        return digest.hexdigest()[:16]

    def save(self, path: Path | str) -> Path:
        """Write one Parquet file (and `<stem>.log.parquet` if there is a log), each by temporary name and rename.

        Raises BenchError if a meta column mixes types, which Parquet can't hold.
        """
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
                "log": self.log is not None,
            }
        }
        # The log goes first: where the bench stands, its log stands too.
        if self.log is not None:
            write_parquet(self.log, log_path(path), index=False)
        write_parquet(table, path)
        return path

    @staticmethod
    def embedded_path(arch: Architecture | None) -> Path:
        """The file of the embedded bench of this architecture. Raises BenchError if it isn't said."""
        if arch not in ARCHITECTURES:
            raise BenchError("the embedded bench comes per architecture; say encoder or decoder")
        return EMBEDDED / f"{arch}.parquet"

    @classmethod
    def load(cls, path: Path | str | None = None, arch: Architecture = "encoder", log: bool = True) -> Bench:
        """Read a bench written by `save`; without a path, the embedded bench of this architecture.

        Raises BenchError if the file is not such a bench or its contents don't match the stored fingerprint.
        """
        path = Path(path) if path is not None else cls.embedded_path(arch)
        if not path.exists():
            raise BenchError(f"{path}: no such file; give a Parquet file written by Bench.save")
        table = read_parquet(path)
        card = table.attrs.get("bench")
        if card is None:
            raise BenchError(f"{path}: not a bench of ours (no 'bench' card in its metadata); read it by --map instead")
        labels = table.filter(regex=r"^label\.").rename(columns=lambda c: c.removeprefix("label."))
        meta = table.filter(regex=r"^meta\.").rename(columns=lambda c: c.removeprefix("meta."))
        features = table.drop(columns=[c for c in table if c == "pair" or c.startswith(("label.", "meta."))])
        try:
            bench = cls(
                name=card["name"],
                arch=card["arch"],
                X=features,
                labels=labels,
                pair=table["pair"],
                meta=meta,
                log=read_parquet(log_path(path)) if log and card["log"] else None,
                levels=tuple(card["levels"]),
                notes=tuple(card["notes"]),
            )
        except KeyError as error:
            raise BenchError(f"{path}: {error} is missing from the file or its card; write it by Bench.save") from None
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


def single_path(path: Path) -> Path:
    """The file beside a bench of means that holds single runs (run × column) of some of its rows."""
    return path.with_name(f"{path.stem}.single.parquet")


def read_parquet(path: Path) -> pd.DataFrame:
    """A Parquet file as a table. Raises BenchError if it is missing, truncated or something else."""
    if not path.exists():
        raise BenchError(f"{path}: no such file")
    try:
        return pd.read_parquet(path)
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise BenchError(f"{path}: not a readable Parquet file ({reason}); copy or write it again") from None


def write_parquet(table: pd.DataFrame, path: Path, index: bool = True) -> None:
    """Write by temporary name and rename, so that a killed command leaves no half-written file.

    Raises BenchError if a column mixes types.
    """
    try:
        with replacing(path) as temporary:
            table.to_parquet(temporary, index=index, compression="zstd")
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise BenchError(f"{path}: can't be written ({error}); give every column one type, such as str") from None


def detect_duplicates(bench: Bench) -> pd.Series:
    """For every run, the first run whose feature row is exactly the same (its own id where it is the first).

    NaN equals NaN and 0 equals -0. Rows that occur in training and test leak their label:

    >>> X = pd.DataFrame({"loss": [1.0, 2.0, 1.0]}, index=["a", "b", "c"])
    >>> labels = pd.DataFrame({"faulty": [True] * 3, "category": None, "root_cause": None}, index=X.index)
    >>> first = detect_duplicates(Bench("tiny", None, X, labels, X.index.to_series()))
    >>> first.tolist(), int((first != first.index).sum())
    (['a', 'b', 'a'], 1)
    """
    first: dict[bytes, object] = {}
    firsts = [first.setdefault(row.tobytes(), run) for run, row in zip(bench.runs, _cells(bench.X), strict=True)]
    return pd.Series(firsts, index=bench.runs)


def _cells(X: pd.DataFrame) -> np.ndarray:
    """The features with one bit pattern for every NaN and for zero, so that equal tables have equal bytes."""
    cells = np.array(X, dtype=np.float32, order="C") + np.float32(0.0)
    cells[np.isnan(cells)] = np.float32("nan")
    return cells


def _float32(X: pd.DataFrame, name: str) -> pd.DataFrame:
    try:
        with np.errstate(over="ignore"):
            return X.astype(np.float32)
    except (TypeError, ValueError) as error:
        text = [c for c in X if X[c].dtype.kind not in "biuf"]
        raise BenchError(f"bench {name!r}: feature {text[0] if text else '?'!r} is not numeric ({error})") from None


def _check(bench: Bench) -> None:
    missing = [c for c in LABELS if c not in bench.labels]
    if missing:
        raise BenchError(f"bench {bench.name!r}: label column {missing[0]!r} is missing")
    if len(bench) == 0:
        raise BenchError(f"bench {bench.name!r}: no rows")
    for what, names in (("run id", bench.runs), ("feature", bench.X.columns)):
        repeated = names[names.duplicated()]
        if len(repeated):
            raise BenchError(f"bench {bench.name!r}: {what} {repeated[0]!r} occurs more than once; make them unique")
    reserved = [c for c in bench.X.columns if str(c) == "pair" or str(c).startswith(("label.", "meta."))]
    if reserved:
        raise BenchError(f"bench {bench.name!r}: a feature can't be called {reserved[0]!r}; rename it")
    for part in ("labels", "pair", "meta"):
        if not getattr(bench, part).index.equals(bench.runs):
            raise BenchError(f"bench {bench.name!r}: the index of {part} differs from that of X")
    if bench.faulty.dtype != bool:
        raise BenchError(f"bench {bench.name!r}: label column 'faulty' must be bool, it is {bench.faulty.dtype}")
    if bench.pair.isna().any():
        raise BenchError(f"bench {bench.name!r}: run {bench.pair.isna().idxmax()!r} has no pair")
    if bench.log is not None:
        unknown = pd.Index(bench.log["run"].unique()).difference(bench.runs)
        if len(unknown):
            raise BenchError(f"bench {bench.name!r}: the log holds run {unknown[0]!r}, which the bench lacks")
    healthy = bench.labels.loc[~bench.faulty]
    for column in ("category", "root_cause"):
        wrong = healthy[column].dropna() != CORRECT
        if wrong.any():
            raise BenchError(
                f"bench {bench.name!r}: healthy run {wrong.idxmax()!r} has a {column} that isn't 'correct'"
            )
    for column in ("category", "root_cause"):
        wrong = bench.labels.loc[bench.faulty, column].dropna() == CORRECT
        if wrong.any():
            raise BenchError(f"bench {bench.name!r}: faulty run {wrong.idxmax()!r} has the {column} 'correct'")

"""A CSV or Parquet file as a table, and its columns as numbers; every defect named by file, line and column."""

from __future__ import annotations

import csv
import io
import re
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from features.bench import BenchError, read_parquet

_TAIL_BYTES = 4_000_000
"""How much of a file's end is read to see whether its last line is whole; the widest published line has 60 kB."""


def read_table(path: Path) -> pd.DataFrame:
    """A `.parquet` file, or a CSV with comma, semicolon or tab, with or without byte-order mark, in UTF-8.

    A semicolon table may have decimal commas. Raises BenchError if the file is missing, empty, cut off, not text, or
    if its header is unusable.
    """
    if not path.exists():
        raise BenchError(f"{path}: no such file; check the path")
    if path.is_dir():
        raise BenchError(f"{path}: is a folder; name the CSV or Parquet file in it")
    if path.suffix.lower() in {".zip", ".gz", ".tar", ".xz", ".bz2"}:
        raise BenchError(f"{path}: is an archive; unpack it and name the CSV or Parquet file in it")
    table = read_parquet(path) if path.suffix.lower() == ".parquet" else _read_csv(path)
    if table.empty:
        raise BenchError(f"{path}: holds a header but no rows; check that the file is complete")
    return table.set_axis(table.columns.astype(str), axis=1)


def _read_csv(path: Path) -> pd.DataFrame:
    header, first_row = _first_lines(path)
    delimiter = max(",;\t", key=header.count)
    names = next(csv.reader([header], delimiter=delimiter))
    repeated = [n for i, n in enumerate(names) if n in names[:i]]
    if repeated:
        raise BenchError(f"{path}: column {repeated[0]!r} stands twice in the header; rename or remove one")
    _refuse_cut_line(path, delimiter, len(names))
    german = delimiter == ";" and re.search(r"\d,\d", first_row) and not re.search(r"\d\.\d", first_row)
    try:
        with warnings.catch_warnings():
            # pandas only warns where a row has more fields than the header, and drops what is too much.
            warnings.simplefilter("error", pd.errors.ParserWarning)
            return pd.read_csv(
                path,
                sep=delimiter,
                decimal="," if german else ".",
                encoding="utf-8-sig",
                index_col=False,
                low_memory=False,
            )
    except (pd.errors.ParserError, pd.errors.ParserWarning) as error:
        reason = str(error).strip().splitlines()[0]
        raise BenchError(f"{path}: rows don't fit the header of {len(names)} columns ({reason})") from None
    except UnicodeDecodeError as error:
        raise BenchError(f"{path}: not UTF-8 text ({error.reason} at byte {error.start}); save it as UTF-8") from None


def _first_lines(path: Path) -> tuple[str, str]:
    try:
        with path.open(encoding="utf-8-sig", newline=None) as file:
            header, first_row = file.readline().rstrip("\n"), file.readline()
    except UnicodeDecodeError:
        raise BenchError(f"{path}: not UTF-8 text; save it as CSV in UTF-8, or as Parquet") from None
    if not header.strip():
        raise BenchError(f"{path}: is empty or has an empty first line; a header with column names is needed")
    if "\0" in header:
        raise BenchError(f"{path}: not UTF-8 text (it holds zero bytes); save it as CSV in UTF-8, or as Parquet")
    return header, first_row


def _refuse_cut_line(path: Path, delimiter: str, width: int) -> None:
    # pandas fills a short last line with NaN, so that an interrupted download would go unnoticed.
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
        tail = file.read().decode("utf-8", errors="ignore").rstrip("\r\n")
    last = tail[tail.rfind("\n") + 1 :]
    fields = next(csv.reader(io.StringIO(last), delimiter=delimiter), [])
    if len(fields) < width and last.count('"') % 2 == 0:
        raise BenchError(
            f"{path}: the last line has {len(fields)} of {width} fields; the file was cut off, fetch or write it again"
        )


def numbers(table: pd.DataFrame, columns: Sequence[str], path: Path) -> pd.DataFrame:
    """These columns as float32. Raises BenchError with the first value that is no number, and where it stands.

    Values beyond float32 become infinite.
    """
    out = {}
    for column in columns:
        values = table[column]
        if values.dtype.kind not in "biuf":
            values = _parse(values, path)
        with np.errstate(over="ignore"):
            out[column] = values.to_numpy(dtype=np.float32, na_value=np.nan)
    return pd.DataFrame(out, index=table.index)


def _parse(values: pd.Series, path: Path) -> pd.Series:
    parsed = pd.to_numeric(values, errors="coerce")
    wrong = parsed.isna() & values.notna()
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        raise BenchError(
            f"{path}: column {values.name!r} is not numeric ({values.iloc[row]!r} in {place(path, row)}); "
            "correct the value, or name the column under `meta` in a column map"
        )
    return parsed


def place(path: Path, row: int) -> str:
    """Where the row with this position stands: a line of a CSV (the header is line 1), else a row from 1."""
    return f"row {row + 1}" if path.suffix.lower() == ".parquet" else f"line {row + 2}"

"""The label columns of a foreign table as `faulty`, `category` and `root_cause`, and what became of survivors."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pandas as pd

from features.bench import BenchError
from features.columnmap import FAULTY, HEALTHY, ColumnMap
from features.spellings import translate
from features.tabular import place
from features.taxonomy import CORRECT

Survivors = Literal["drop", "correct"]


def read_labels(
    path: Path, table: pd.DataFrame, columns: ColumnMap, survivors: Survivors
) -> tuple[pd.DataFrame, list[str]]:
    """Labels of the rows that stay, indexed by row, and notes. `path` is for messages.

    Where the map names a `killed` column, a faulty run that wasn't killed is a survivor: left out, or labelled
    correct. Raises BenchError on a label that is missing where it is needed, or that means neither yes nor no.
    """
    faulty, category, cause = _level_columns(path, table, columns)
    stays = pd.Series(True, index=table.index)
    notes = []
    if columns.killed is not None:
        killed = table[columns.killed].astype(object)
        killed = _binary(path, killed.where(killed.notna(), 0), HEALTHY, FAULTY)
        survived = faulty & ~killed
        if survived.any() and survivors == "drop":
            notes.append(f"{survived.sum()} survivors (injected, but not killed) were left out")
            stays = ~survived
        elif survived.any():
            notes.append(f"{survived.sum()} survivors (injected, but not killed) count as correct")
            faulty = faulty & ~survived
    labels = pd.DataFrame({"faulty": faulty})
    for level, names in (("category", category), ("root_cause", cause)):
        empty = faulty & stays & (False if names is None else names.isna())
        if empty.any():
            where = place(path, int(empty.idxmax()))
            raise BenchError(f"{path}: the faulty run in {where} has no {level}; fill it in or leave the run out")
        known = pd.Series(None, index=table.index, dtype=object) if names is None else names.astype(object)
        labels[level] = known.where(known.notna(), None).where(faulty, CORRECT)
    labels = labels[stays]
    if columns.taxonomy:
        labels, more = translate(labels)
        notes += more
    return labels, notes


def _level_columns(path, table, columns) -> tuple[pd.Series, pd.Series | None, pd.Series | None]:
    """Level 1 as bool, Levels 2 and 3 as they stand (None where the table has none)."""
    cause = table[columns.root_cause] if columns.root_cause else None
    category = table[columns.category] if columns.category else None
    if category is None and cause is not None and columns.category_of:
        category = cause.map(columns.category_of)
    if columns.faulty is not None:
        return _binary(path, table[columns.faulty], columns.healthy_values, columns.faulty_values), category, cause
    named = table[columns.category or columns.root_cause]
    if named.isna().any():
        where = place(path, int(named.isna().idxmax()))
        raise BenchError(f"{path}: column {named.name!r} has no label in {where}; fill it in or leave the run out")
    return ~_text(named).isin([v.lower() for v in columns.healthy_values]), category, cause


def _binary(path, values: pd.Series, no: tuple[str, ...], yes: tuple[str, ...]) -> pd.Series:
    """A column of two meanings as bool."""
    text = _text(values)
    known_no, known_yes = ({v.lower() for v in words} for words in (no, yes))
    neither = ~text.isin(known_no | known_yes)
    if neither.any():
        row = int(neither.idxmax())
        raise BenchError(
            f"{path}: column {values.name!r} holds {str(values[row])!r} in {place(path, row)}; correct it to one of "
            f"{', '.join(no)} (healthy) or {', '.join(yes)} (faulty), or name other values in a column map"
        )
    return text.isin(known_yes)


def _text(values: pd.Series) -> pd.Series:
    return values.astype("str").str.strip().str.lower().str.replace(r"\.0$", "", regex=True)

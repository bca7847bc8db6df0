"""Read a bench: our own Parquet file, the tables published with DEFault++, or any table by a column map.

What a reader leaves out or changes is said in `Bench.notes`, one sentence each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from features.bench import Bench, BenchError, detect_duplicates
from features.columnmap import PUBLISHED, ColumnMap, find_map
from features.labels import Survivors, read_labels
from features.routing import Routing, route, stem
from features.schema import CONTEXT_GROUPS, STRUCTURAL_GROUPS
from features.tabular import numbers, place, read_table
from features.taxonomy import DECODER_ONLY_CATEGORIES, Architecture


def read_bench(
    path: Path | str | None = None,
    mapping: ColumnMap | Path | str | None = None,
    arch: Architecture | None = None,
    *,
    survivors: Survivors = "drop",
    blocks: int | None = None,
    include_machine_columns: bool = False,
    without_groups: Iterable[str] = (),
) -> Bench:
    """The runs of a file as a Bench.

    Parameters
    ----------
    path : a Parquet file of ours, or a CSV or Parquet table; None is the embedded bench of `arch`.
    mapping : a ColumnMap, the name of a built-in one ("published", "default-icse25"), or a YAML or JSON file. None
        takes a Parquet file of ours as it is, and any other for the published layout.
    arch : the architecture that the runs must have, or, where nothing in the table says it, that they have.
    survivors : injected faults that the kill test did not confirm are left out, or counted as correct as in the
        authors' driver. Clean runs are correct either way.
    blocks : for tables without pairs, number of contiguous blocks of rows that serve as pairs instead of single runs.
    include_machine_columns : let in columns about the host (step time, memory, utilisation) and those that the map
        names under `machine`.
    without_groups : feature groups to leave out.

    Raises BenchError with one line that names file, column and remedy.
    """
    if survivors not in ("drop", "correct"):
        raise BenchError(f"survivors must be 'drop' or 'correct', not {survivors!r}")
    without_groups = tuple(without_groups)
    unknown = [g for g in without_groups if g not in STRUCTURAL_GROUPS + CONTEXT_GROUPS]
    if unknown:
        known = ", ".join(STRUCTURAL_GROUPS + CONTEXT_GROUPS)
        raise BenchError(f"no feature group {unknown[0]!r} to leave out; known: {known}")
    if path is None or (mapping is None and _is_own(Path(path))):
        if blocks is not None:
            raise BenchError("blocks are for tables without pairs; a bench of ours has them")
        return _own(path, arch, include_machine_columns, without_groups)
    path = Path(path)
    table = read_table(path).reset_index(drop=True)
    found = _published_or_refuse(path, table) if mapping is None else find_map(mapping, table, path)
    return _foreign(path, table, found, arch, survivors, blocks, include_machine_columns, without_groups)


def _is_own(path: Path) -> bool:
    """Whether a file carries the card that Bench.save writes; True too for a Parquet file that can't be opened."""
    if path.suffix.lower() != ".parquet" or not path.is_file():
        return False
    try:
        attributes = (pq.read_schema(path).metadata or {}).get(b"PANDAS_ATTRS", b"")
    except (OSError, pa.ArrowInvalid):
        return True
    return b'"bench"' in attributes


def _own(path: Path | str | None, arch: Architecture | None, machine: bool, without_groups: tuple[str, ...]) -> Bench:
    bench = Bench.load(Bench.embedded_path(arch) if path is None else path)
    if arch is not None and bench.arch != arch:
        raise BenchError(f"{path}: holds {bench.arch} runs, not {arch} runs; name the other file or architecture")
    routing = route(bench.X.columns)
    kept = routing.features(machine, without_groups)
    notes = (*bench.notes, *_left_out(routing, () if machine else routing.machine, without_groups))
    if not kept:
        raise BenchError(f"{path}: no feature is left without the groups {', '.join(without_groups)}")
    return replace(bench.with_features(kept), notes=notes)


def _published_or_refuse(path: Path, table: pd.DataFrame) -> ColumnMap:
    absent = [c for c in PUBLISHED.required if c not in table]
    if absent:
        raise BenchError(
            f"{path}: neither a bench of ours nor in the published layout (no column {absent[0]!r}); "
            "name a column map by --map"
        )
    return PUBLISHED


def _foreign(path, table, columns, arch, survivors, blocks, machine, without_groups) -> Bench:
    absent = [c for c in columns.required if c not in table]
    if absent:
        kind = "label column" if absent[0] in columns.label_columns else "column"
        raise BenchError(
            f"{path}: {kind} {absent[0]!r} of the map {columns.name!r} is missing; "
            "rename it in the file or name another in the map"
        )
    arch, notes = _architecture(path, table, columns, arch)
    labels, more = read_labels(path, table, columns, survivors)
    notes += more
    rows = labels.index
    X, more = _features(path, table, columns, machine, without_groups)
    notes += more
    runs = _runs(path, table, columns)
    pair, more = _pairs(path, table, columns, runs, blocks)
    notes += more
    beside = [c for c in dict.fromkeys((*columns.meta, *columns.label_columns)) if c in table]
    meta = table[beside].apply(lambda c: c if c.dtype.kind in "biuf" else c.astype("str"))
    _refuse_foreign_labels(path, labels, arch)
    bench = Bench(
        name=path.stem,
        arch=arch,
        X=X.loc[rows].set_axis(runs[rows]),
        labels=labels.set_axis(runs[rows]),
        pair=pair[rows].set_axis(runs[rows]),
        meta=meta.loc[rows].set_axis(runs[rows]),
        levels=_levels(path, labels),
        notes=tuple(notes),
    )
    return replace(bench, notes=(*bench.notes, *_oddities(bench)))


def _architecture(path, table, columns, arch) -> tuple[Architecture | None, list[str]]:
    if not columns.taxonomy:
        ignored = "" if arch is None else f"; the architecture {arch!r} was ignored"
        return None, [f"labels are those of {columns.name}, not of this project's taxonomy{ignored}"]
    said = columns.arch
    if columns.arch_column is not None and columns.arch_column in table:
        values = set(table[columns.arch_column].dropna().astype(str).str.lower().str[:3])
        if values not in ({"enc"}, {"dec"}):
            raise BenchError(
                f"{path}: column {columns.arch_column!r} must say encoder or decoder, the same on every row; "
                f"it holds {', '.join(sorted(set(table[columns.arch_column].astype(str)))[:3])}"
            )
        said = "encoder" if values == {"enc"} else "decoder"
    if said is None and arch is None:
        raise BenchError(f"{path}: nothing says whether these runs are of encoders or decoders; give --arch")
    if said is not None and arch is not None and said != arch:
        raise BenchError(f"{path}: holds {said} runs, not {arch} runs; name the other file or architecture")
    return said or arch, []


def _features(path, table, columns, machine, without_groups) -> tuple[pd.DataFrame, list[str]]:
    beside = {*columns.required, *columns.meta, columns.arch_column}
    absent = [c for c in columns.meta if c not in table]
    notes = [f"columns that the map names but the table lacks: {', '.join(absent)}"] if absent else []
    measured = [c for c in table.columns if c not in beside]
    routing = route(measured)
    host = [c for c in measured if c in {*routing.machine, *columns.machine}]
    dropped = set(routing.excluded) - set(host) | (set() if machine else set(host))
    in_group = routing.group.isin(without_groups)
    kept = [c for c in measured if c not in dropped and not in_group[c]]
    notes += _left_out(routing, () if machine else host, without_groups, host)
    if machine and host:
        why = f" ({columns.machine_reason})" if columns.machine_reason else ""
        notes.append(f"columns about the host or the schedule were let in{why}: {_names(host)}")
    X = numbers(table, kept, path)
    empty = [c for c in X if X[c].isna().all()]
    if empty:
        notes.append(f"left out, no value in any row: {_names(empty)}")
    if len(empty) == len(kept):
        raise BenchError(f"{path}: no feature is left ({len(measured)} columns beside labels and ids); check the map")
    return X.drop(columns=empty), notes


def _left_out(routing: Routing, host: Iterable[str], without_groups: Iterable[str], known=()) -> list[str]:
    excluded = [c for c in routing.excluded if c not in set(known)]
    notes = [f"left out, no measurement: {_names(excluded)}"] if excluded else []
    if host:
        notes.append(f"left out, about the host or the schedule rather than the model: {_names(host)}")
    if without_groups:
        notes.append(f"left out on request: the feature groups {', '.join(without_groups)}")
    if routing.unrouted:
        notes.append(f"in no feature group: {_names(routing.unrouted)}")
    return notes


def _names(columns: Iterable[str]) -> str:
    """Columns by stem, such as "runtime_step_time (10), epoch"."""
    counts = Counter(stem(c) for c in columns)
    return ", ".join(name if n == 1 else f"{name} ({n})" for name, n in counts.items())


def _runs(path, table, columns) -> pd.Series:
    if columns.run is None:
        width = len(str(len(table)))
        return pd.Series([f"row{i + 1:0{width}d}" for i in range(len(table))], index=table.index)
    runs = table[columns.run]
    if runs.isna().any():
        where = place(path, int(runs.isna().idxmax()))
        raise BenchError(f"{path}: column {columns.run!r} has no id in {where}; fill it in")
    runs = runs.astype("str")
    if runs.duplicated().any():
        first = runs[runs.duplicated()].iloc[0]
        raise BenchError(
            f"{path}: column {columns.run!r} holds {first!r} {int((runs == first).sum())} times; "
            "ids must be unique, name another column or none as `run`"
        )
    return runs


def _pairs(path, table, columns, runs, blocks) -> tuple[pd.Series, list[str]]:
    if columns.pair:
        if blocks is not None:
            raise BenchError(f"{path}: blocks are for tables without pairs, this one names {', '.join(columns.pair)}")
        empty = table[list(columns.pair)].isna().any(axis=1)
        if empty.any():
            where = place(path, int(empty.idxmax()))
            raise BenchError(f"{path}: {' or '.join(columns.pair)} is missing in {where}; fill it in")
        return table[list(columns.pair)].astype("str").agg("/".join, axis=1), []
    if blocks is None:
        return runs, ["the table names no model and task, so every run is its own pair: related runs may be split"]
    if not 2 <= blocks <= len(table):
        raise BenchError(f"{path}: blocks must lie between 2 and the number of rows, {len(table)}; not {blocks}")
    block = np.arange(len(table)) * blocks // len(table)
    width = len(str(blocks))
    names = pd.Series([f"block{b + 1:0{width}d}" for b in block], index=table.index)
    return names, [f"the table names no model and task; {blocks} contiguous blocks of rows serve as pairs"]


def _refuse_foreign_labels(path, labels, arch) -> None:
    if arch != "encoder":
        return
    foreign = labels["category"].isin(DECODER_ONLY_CATEGORIES)
    if foreign.any():
        raise BenchError(
            f"{path}: the run in {place(path, int(foreign.idxmax()))} has the category "
            f"{labels['category'][foreign.idxmax()]!r}, which encoders can't have; read the table as decoder"
        )


def _levels(path, labels) -> tuple[int, ...]:
    """The levels at which there is something to tell apart."""
    faulty = labels[labels["faulty"]]
    levels = []
    if 0 < len(faulty) < len(labels):
        levels.append(1)
    if faulty["category"].notna().all() and faulty["category"].nunique() > 1:
        levels.append(2)
    if faulty["root_cause"].notna().all() and len(faulty[["category", "root_cause"]].drop_duplicates()) > 1:
        levels.append(3)
    if not levels:
        raise BenchError(f"{path}: all runs carry the same label; there is nothing to compare")
    return tuple(levels)


def _oddities(bench: Bench) -> list[str]:
    """What a reader of results must know about the values: infinite, absent, repeated."""
    notes = []
    infinite = int(np.isinf(bench.X.to_numpy()).sum())
    if infinite:
        notes.append(f"{infinite} infinite values were kept; each technique's preparation decides on them")
    empty = bench.X.isna().all(axis=1)
    if empty.any():
        healthy = int((empty & ~bench.faulty).sum())
        notes.append(f"{empty.sum()} runs have no value at all, {healthy} of them labelled correct: absence tells")
    first = detect_duplicates(bench)
    repeats = int((first != bench.runs).sum())
    if repeats:
        notes.append(f"{repeats} runs have exactly the features of an earlier run")
    return notes

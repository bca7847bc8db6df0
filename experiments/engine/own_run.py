"""A run of one's own, read from what `Recorder` or `MeasureCallback` left behind, as a bench of one row.

A Parquet, CSV or JSON file holds the vector or the log; what lies beside it under `MeasureCallback`'s names is found.
A log alone is enough: the vector is made of it as the Recorder makes it. Nothing is unpickled.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd

from features.bench import Bench, BenchError
from features.measure.aggregate import vector as vector_of_epochs
from features.schema import LOG_COLUMNS, columns, metrics
from features.tabular import numbers, read_table
from features.taxonomy import ARCHITECTURES, Architecture

READ = (".parquet", ".csv", ".json")
_LOG_SUFFIX = ".log"
_VALUES = [c for c in LOG_COLUMNS if c != "run"]
_BESIDE = ("label.", "meta.", "pair")


def read_run(path: Path | str, arch: Architecture | None = None, run: str | None = None) -> Bench:
    """One run as a bench of one row, whose labels are placeholders: nobody knows them.

    Parameters
    ----------
    path : the folder or file that a Recorder or MeasureCallback wrote: a vector (a row of named columns, a JSON object,
        or a CSV of two columns, name and value), a log (`LOG_COLUMNS`, with or without `run`), or a JSON object with
        both as "vector" and "log".
    arch : the architecture, where the names of what was measured don't tell.
    run : which run, if the file holds several.

    Raises BenchError naming file, column and remedy.
    """
    path = Path(path)
    vector_file, log_file = _files(path)
    vector, log = _read_json(vector_file) if vector_file and vector_file.suffix == ".json" else (None, None)
    if vector is None and log is None and vector_file is not None:
        vector = _vector(vector_file, run)
    if log is None and log_file is not None:
        log = _log(log_file, run)
    source = vector_file or log_file
    name = run or (str(vector.name) if vector is not None and vector.name is not None else None)
    name = name or (str(log["run"].iloc[0]) if log is not None and "run" in log else _stem(source))
    seen = set(vector.index) if vector is not None else set(log["metric"].unique())
    arch = _architecture(source, seen, arch, of_log=vector is None)
    notes = []
    if vector is None:
        vector = vector_of_log(log, arch, source if log_file is None else log_file)
        notes.append(f"the vector was made from the log ({(log_file or source).name})")
    if log is not None:
        log = log.assign(run=name).loc[:, list(LOG_COLUMNS)]
    else:
        notes.append("there is no log beside the vector: techniques that read the log are not run")
    return _bench(source, name, arch, vector, log, notes)


def vector_of_log(log: pd.DataFrame, arch: Architecture, path: Path | str = "the log") -> pd.Series:
    """The vector of the run that a full log describes: what `Recorder.vector()` gave for it.

    Raises BenchError if a metric's layers or epochs don't fit together.
    """
    known = {m.name: m for m in metrics(arch)}
    epochs: list[dict] = [{} for _ in range(int(log["epoch"].max()) + 1)]
    wanted = log["metric"].isin({*known, "step_loss"} - {"train_loss"})
    for (epoch, metric), rows in log[wanted].groupby(["epoch", "metric"], sort=False):
        name = "train_loss" if metric == "step_loss" else metric
        if known[name].resolution == "epoch":
            epochs[epoch][name] = float(rows["value"].iloc[-1])
        elif known[name].resolution == "layer":
            table = rows.pivot_table(index="step", columns="layer", values="value", dropna=False)
            epochs[epoch][name] = table.to_numpy(dtype=float)
        else:
            epochs[epoch][name] = rows.sort_values("step")["value"].to_numpy(dtype=float)
    vector = vector_of_epochs(epochs, arch)
    if vector.isna().all():
        raise BenchError(f"{path}: column 'metric' holds nothing that a vector is made of; give the vector's file too")
    return vector


def _files(path: Path) -> tuple[Path | None, Path | None]:
    """The files of vector and log; at least one of them."""
    if not path.exists():
        raise BenchError(f"{path}: no such file or folder; give what Recorder or MeasureCallback wrote")
    if path.is_dir():
        found = sorted(p for p in path.iterdir() if p.suffix in READ and not p.name.startswith("."))
        logs = [p for p in found if p.stem.endswith(_LOG_SUFFIX)]
        vectors = [p for p in found if p not in logs]
        if not found:
            raise BenchError(f"{path}: holds no {', '.join(READ)} file; give the folder that the run was written to")
        if len(vectors) > 1 or (not vectors and len(logs) > 1):
            names = ", ".join(p.name for p in (vectors or logs)[:4])
            raise BenchError(f"{path}: holds several runs ({names}); name the file of one")
        path = vectors[0] if vectors else logs[0]
    if path.suffix not in READ:
        raise BenchError(f"{path}: can't be read as a run; give a {', '.join(READ)} file, or a folder with one")
    if path.stem.endswith(_LOG_SUFFIX):
        return _beside(path, path.stem.removesuffix(_LOG_SUFFIX)), path
    if path.suffix != ".json" and _holds_log(path):
        return None, path
    return path, _beside(path, f"{path.stem}{_LOG_SUFFIX}")


def _beside(path: Path, stem: str) -> Path | None:
    return next((p for s in READ if (p := path.with_name(stem + s)).exists()), None)


def _holds_log(path: Path) -> bool:
    if path.suffix == ".csv":
        names = set(read_table(path).columns)
    else:
        from pyarrow import ArrowInvalid
        from pyarrow.parquet import read_schema

        try:
            names = set(read_schema(path).names)
        except (OSError, ArrowInvalid):
            return False  # read_table says what is wrong
    return {"metric", "value", "epoch"} <= names


def _stem(path: Path) -> str:
    return path.stem.removesuffix(_LOG_SUFFIX)


def _vector(path: Path, run: str | None) -> pd.Series:
    table = read_table(path)
    if path.suffix == ".csv" and table.shape[1] == 2 and table.iloc[:, 0].dtype.kind not in "biuf":
        names = table.iloc[:, 0].astype("str")
        if names.duplicated().any():
            raise BenchError(f"{path}: {names[names.duplicated()].iloc[0]!r} stands twice; keep one")
        table = pd.DataFrame([table.iloc[:, 1].to_list()], columns=names.to_list())
    elif "run" in table:
        table = table.set_index("run")
    return _one_row(path, table, run)


def _one_row(path: Path, table: pd.DataFrame, run: str | None) -> pd.Series:
    table = table.set_axis(table.index.astype(str))
    if run is not None:
        if run not in table.index:
            raise BenchError(f"{path}: holds no run {run!r}; it holds {', '.join(table.index[:3])}")
        table = table.loc[[run]]
    if len(table) > 1:
        raise BenchError(f"{path}: holds {len(table)} runs; choose one by --run, such as --run {table.index[0]}")
    table = table.drop(columns=[c for c in table if str(c).startswith(_BESIDE)])
    named = isinstance(table.index, pd.Index) and table.index[0] != "0"
    values = numbers(table.reset_index(drop=True), list(table.columns), path).iloc[0]
    return values.rename(table.index[0] if named else None)


def _log(path: Path, run: str | None) -> pd.DataFrame:
    table = pd.DataFrame(_json(path)) if path.suffix == ".json" else read_table(path)
    return _checked_log(path, table, run)


def _checked_log(path: Path, table: pd.DataFrame, run: str | None) -> pd.DataFrame:
    missing = [c for c in _VALUES if c not in table]
    if missing:
        raise BenchError(
            f"{path}: column {missing[0]!r} is missing from the log; it needs {', '.join(_VALUES)}, "
            "as Recorder.log() gives them"
        )
    if "run" in table:
        ids = table["run"].astype("str")
        if run is not None and run in set(ids):
            table = table[ids == run]
        elif ids.nunique() > 1:
            raise BenchError(f"{path}: holds {ids.nunique()} runs; choose one by --run, such as --run {ids.iloc[0]}")
    if table.empty:
        raise BenchError(f"{path}: holds no rows; check that the run was recorded to its end")
    values = numbers(table.reset_index(drop=True), ["epoch", "step", "layer"], path)
    for column in ("epoch", "step", "layer"):
        if values[column].isna().any() or (values[column] < -1).any():
            raise BenchError(
                f"{path}: column {column!r} must hold whole numbers from -1 on, without gaps; write it anew"
            )
    value = table["value"]
    if value.dtype.kind not in "biuf":
        value = numbers(table.reset_index(drop=True), ["value"], path)["value"]
    whole = values.astype(np.int64)
    return whole.assign(
        metric=table["metric"].astype("str").to_numpy(), value=np.asarray(value, dtype=np.float64)
    ).assign(**({"run": table["run"].astype("str").to_numpy()} if "run" in table else {}))


def _json(path: Path):
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise BenchError(f"{path}: not readable as JSON ({error}); write it again") from None


def _read_json(path: Path) -> tuple[pd.Series | None, pd.DataFrame | None]:
    """Vector, log, or both of a JSON file."""
    held = _json(path)
    if isinstance(held, dict) and held.keys() & {"vector", "log"}:
        vector = None if held.get("vector") is None else _json_vector(path, held["vector"])
        log = None if held.get("log") is None else _checked_log(path, pd.DataFrame(held["log"]), None)
        return vector, log
    if isinstance(held, dict):
        return _json_vector(path, held), None
    if isinstance(held, list) and held and all(isinstance(row, dict) for row in held):
        if "metric" in held[0]:
            return None, _checked_log(path, pd.DataFrame(held), None)
        if len(held) == 1:
            return _json_vector(path, held[0]), None
    raise BenchError(f"{path}: holds no run; give an object of column names and numbers, or the rows of a log")


def _json_vector(path: Path, held) -> pd.Series:
    if not isinstance(held, dict) or not held:
        raise BenchError(f"{path}: the vector must be an object of column names and numbers")
    nested = [c for c, v in held.items() if isinstance(v, dict | list)]
    if nested:
        raise BenchError(f"{path}: column {nested[0]!r} holds no number; give an object of column names and numbers")
    name = held.get("run")
    table = pd.DataFrame([{c: v for c, v in held.items() if c != "run"}])
    return _one_row(path, table, None).rename(None if name is None else str(name))


def _architecture(path: Path, seen: set[str], asked: Architecture | None, of_log: bool) -> Architecture:
    """The architecture whose own names occur; of a log, which has few of its own, what attention's metrics say."""
    named = {a: set(columns(a)) if not of_log else {m.name for m in metrics(a)} for a in ARCHITECTURES}
    if of_log:
        # Logs of encoders may carry a perplexity as well.
        named = {a: {n for n in names if not n.startswith("val_")} for a, names in named.items()}
    own = {a: len(seen & (named[a] - named["decoder" if a == "encoder" else "encoder"])) for a in ARCHITECTURES}
    shared = seen & named["encoder"] & named["decoder"]
    if not shared and not any(own.values()):
        what = "metric" if of_log else "column"
        raise BenchError(
            f"{path}: no {what} is known, such as {sorted(map(str, seen))[0]!r}; give a run that was measured by "
            "Recorder or MeasureCallback"
        )
    found = None
    if own["decoder"] != own["encoder"]:
        found = max(own, key=own.get)
    elif of_log and any(name.startswith("attention_") for name in shared):
        found = "encoder"  # of a decoder, attention to the future would be there too
    if found is None and asked is None:
        raise BenchError(f"{path}: nothing says whether the model is an encoder or a decoder; give --arch")
    if found is not None and asked is not None and found != asked:
        raise BenchError(
            f"{path}: was measured on {'an' if found == 'encoder' else 'a'} {found}; leave out --arch {asked}"
        )
    return found or asked


def _bench(source: Path, name: str, arch: Architecture, vector: pd.Series, log, notes: list[str]) -> Bench:
    known = [c for c in vector.index if c in set(columns(arch))]
    foreign = [c for c in vector.index if c not in set(known)]
    if not known:
        raise BenchError(f"{source}: none of its {len(vector)} columns is one of ours; measure the run by Recorder")
    if foreign:
        notes.append(f"{len(foreign)} columns are not ours and were left out, such as {foreign[0]!r}")
    X = pd.DataFrame([vector[known].to_numpy(np.float32)], columns=known, index=pd.Index([name], name="run"))
    if not np.isfinite(X.to_numpy()).any():
        raise BenchError(f"{source}: the vector holds no finite value; check that the run was recorded to its end")
    return Bench(
        name=_stem(source),
        arch=arch,
        X=X.reindex(columns=list(columns(arch))),
        labels=pd.DataFrame({"faulty": False, "category": None, "root_cause": None}, index=X.index),
        pair=pd.Series("your own", index=X.index),
        log=log,
        notes=tuple(notes),
    )

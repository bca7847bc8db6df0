"""How a foreign table is to be read: which column is the run's id, its pair, its labels, and what is no feature.

Built-in maps cover the tables published with DEFault++ and DEFault; any other is a small YAML or JSON file whose keys
are the fields of `ColumnMap`:

>>> ColumnMap.parse({"run": "id", "pair": ["model", "task"], "faulty": "broken", "meta": "author"}, "mine.yaml").pair
('model', 'task')
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

import pandas as pd
import yaml

from features.bench import BenchError
from features.taxonomy import ARCHITECTURES, Architecture

HEALTHY = ("correct", "clean", "healthy", "0", "false", "no")
FAULTY = ("faulty", "buggy", "1", "true", "yes")


@dataclass(frozen=True)
class ColumnMap:
    """Columns of a table by their part. A tuple may be given as one name; every part but the labels may be absent.

    Attributes
    ----------
    name : as it stands in notes and errors.
    run : column with the run's id; None numbers the rows.
    pair : columns that together name the grouping unit, usually model and task; () makes every run its own pair.
    faulty : Level-1 column; None where `category` says "correct" on healthy runs, or where all runs are faulty.
    healthy_values, faulty_values : what may stand in it, whatever the case, 1.0 as 1; anything else is an error.
    killed : column that is 1 where the fault made the run measurably worse. Faulty runs without it are survivors.
    category, root_cause : Level-2 and Level-3 columns, needed on faulty runs only.
    category_of : category of a root cause, for tables that carry the root cause alone.
    arch_column : column that says encoder or decoder; `arch` : the architecture where no column says it.
    taxonomy : whether the labels are those of `features.taxonomy` (older spellings are translated). If not, they are
        kept as they stand, and the bench has no architecture.
    meta : columns to keep beside the runs, never as features.
    machine : columns about the host or the schedule, beyond those that routing knows: left out unless asked for.
    machine_reason : why somebody would ask for them; stands in the notes where they are let in.
    """

    name: str = "custom"
    run: str | None = None
    pair: tuple[str, ...] = ()
    faulty: str | None = None
    healthy_values: tuple[str, ...] = HEALTHY
    faulty_values: tuple[str, ...] = FAULTY
    killed: str | None = None
    category: str | None = None
    root_cause: str | None = None
    category_of: Mapping[str, str] = field(default_factory=dict)
    arch_column: str | None = None
    arch: Architecture | None = None
    taxonomy: bool = True
    meta: tuple[str, ...] = ()
    machine: tuple[str, ...] = ()
    machine_reason: str = ""

    @property
    def label_columns(self) -> tuple[str, ...]:
        """The columns that carry labels."""
        return tuple(c for c in (self.faulty, self.killed, self.category, self.root_cause) if c is not None)

    @property
    def required(self) -> tuple[str, ...]:
        """The columns that the table must have."""
        return (*self.label_columns, *self.pair, *(() if self.run is None else (self.run,)))

    @classmethod
    def parse(cls, entries: object, source: Path | str) -> ColumnMap:
        """A map from what a YAML or JSON file held. Raises BenchError naming the entry that is wrong."""
        if not isinstance(entries, dict):
            raise BenchError(f"{source}: a column map is a table of names, such as `faulty: label`")
        known = {f.name: f for f in fields(cls)}
        values = {"name": Path(source).stem}
        for key, value in entries.items():
            if key not in known:
                raise BenchError(f"{source}: a column map has no entry {key!r}; known: {', '.join(known)}")
            default = known[key].default
            if isinstance(default, tuple):
                value = (value,) if isinstance(value, str) else value
                if not isinstance(value, list | tuple):
                    raise BenchError(f"{source}: {key!r} must be a name or a list of names, not {value!r}")
                value = tuple(str(v) for v in value)
            elif isinstance(default, bool) or key == "category_of":
                wanted = dict if key == "category_of" else bool
                if not isinstance(value, wanted):
                    raise BenchError(f"{source}: {key!r} must be a {wanted.__name__}, not {value!r}")
            elif value is not None:
                value = str(value)
            values[key] = value
        if values.get("arch") not in (None, *ARCHITECTURES):
            raise BenchError(f"{source}: 'arch' must be encoder or decoder, not {values['arch']!r}")
        parsed = cls(**values)
        if not (parsed.faulty or parsed.category or parsed.root_cause):
            raise BenchError(f"{source}: names no label column; give `faulty`, `category` or `root_cause`")
        return parsed


PUBLISHED = ColumnMap(
    name="published",
    run="Identifier",
    pair=("model_name", "dataset_name"),
    faulty="is_faulty",
    killed="killed",
    category="fault_category",
    root_cause="fault_subcategory",
    arch_column="arch",
    meta=("seed", "layer_idx", "severity_params", "label"),
)
"""encoder_dataset.csv and decoder_dataset.csv of DEFault-bench, Zenodo 20481557."""

_DEFAULT = ColumnMap(
    name="default-icse25",
    taxonomy=False,
    machine=("epoch", "cpu_utilization", "gpu_memory_utilization", "memory_usage"),
    machine_reason="the published figures used them",
)
_DEFAULT_CATEGORIES = {"Activation", "Hyperparameter", "Layer", "Loss", "Optimization", "Regularizer", "Weight"}
_DEFAULT_ROOT_CAUSES = {"HBS": "Hyperparameter", "HLR": "Hyperparameter"}


def default_icse25(table: pd.DataFrame, path: Path) -> ColumnMap:
    """The map of one of DEFault's dynamic tables (ICSE 2025); its `label` column tells which level it serves.

    The Level-2 files pair one category with as many runs of others and name every run's own category, so that a
    one-vs-rest question is `category == "Activation"`; the name in the file's title is the category in question.
    """
    values = set(table["label"].dropna().astype(str)) if "label" in table else set()
    if values <= {"correct", "buggy"}:
        return replace(_DEFAULT, faulty="label")
    if values <= set(_DEFAULT_ROOT_CAUSES):
        return replace(_DEFAULT, root_cause="label", category_of=_DEFAULT_ROOT_CAUSES)
    unknown = sorted(values - _DEFAULT_CATEGORIES)
    if unknown:
        raise BenchError(f"{path}: column 'label' holds {unknown[0]!r}, which is none of DEFault's; use another map")
    return replace(_DEFAULT, category="label")


BUILT_IN: dict[str, ColumnMap | Callable[[pd.DataFrame, Path], ColumnMap]] = {
    "published": PUBLISHED,
    "default-icse25": default_icse25,
}
"""Maps by the name that commands take: a map, or a function that picks one by looking at the table."""


def find_map(mapping: ColumnMap | Path | str, table: pd.DataFrame, path: Path) -> ColumnMap:
    """A map as it is, by built-in name, or from a YAML or JSON file. Raises BenchError if there is none.

    `table` and its `path` are what is to be read by it.
    """
    if isinstance(mapping, ColumnMap):
        return mapping
    if str(mapping) in BUILT_IN:
        built_in = BUILT_IN[str(mapping)]
        return built_in if isinstance(built_in, ColumnMap) else built_in(table, path)
    file = Path(mapping)
    if not file.is_file():
        raise BenchError(f"{mapping}: no such map; known: {', '.join(BUILT_IN)}, or the path of a YAML or JSON file")
    try:
        text = file.read_text(encoding="utf-8-sig")
        entries = json.loads(text) if file.suffix.lower() == ".json" else yaml.safe_load(text)
    except (ValueError, yaml.YAMLError) as error:
        reason = str(error).splitlines()[0]
        raise BenchError(f"{file}: not readable as {file.suffix.lstrip('.') or 'YAML'} ({reason})") from None
    return ColumnMap.parse(entries, file)

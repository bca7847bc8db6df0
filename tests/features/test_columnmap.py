"""Column maps: one's own, those of DEFault's tables, bad ones; and the older spellings of labels."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from features.bench import BenchError
from features.columnmap import ColumnMap
from features.readers import read_bench
from features.spellings import CATEGORY_SPELLINGS, ROOT_CAUSE_SPELLINGS, translate
from features.taxonomy import ROOT_CAUSES

DEFAULT = Path(__file__).parents[2] / ".." / "shared" / "data" / "default_icse25"
needs_default = pytest.mark.skipif(not DEFAULT.exists(), reason="the third-party tables are not at hand")


@pytest.fixture
def write(tmp_path):
    def _write(table, name):
        table.to_csv(tmp_path / name, index=False)
        return tmp_path / name

    return _write


MINE = pd.DataFrame(
    {
        "id": ["r1", "r2", "r3", "r4"],
        "model": ["m", "m", "n", "n"],
        "broken": ["no", "YES", "no", "yes"],
        "where": ["", "FFN", "", "layer norm"],
        "author": ["x", "y", "z", "x"],
        "loss": [0.1, 0.9, 0.2, 0.8],
        "wall_clock": [1, 2, 3, 4],
    }
)


@pytest.mark.parametrize("suffix", ["yaml", "json"])
def test_a_map_of_ones_own(write, tmp_path, suffix):
    entries = {
        "run": "id",
        "pair": ["model"],
        "faulty": "broken",
        "category": "where",
        "meta": "author",
        "machine": "wall_clock",
        "taxonomy": False,
    }
    lines = "\n".join(f"{k}: {json.dumps(v)}" for k, v in entries.items())
    (tmp_path / f"map.{suffix}").write_text(json.dumps(entries) if suffix == "json" else lines)
    bench = read_bench(write(MINE, "mine.csv"), tmp_path / f"map.{suffix}", arch="encoder")
    assert list(bench.X) == ["loss"]
    assert bench.faulty.tolist() == [False, True, False, True]
    assert bench.labels["category"].tolist() == ["correct", "FFN", "correct", "layer norm"]
    assert bench.labels["root_cause"].isna().tolist() == [False, True, False, True]
    assert (bench.levels, bench.arch) == ((1, 2), None)
    assert bench.pair.tolist() == ["m", "m", "n", "n"]
    assert any("the architecture 'encoder' was ignored" in n for n in bench.notes)
    let_in = read_bench(write(MINE, "mine.csv"), tmp_path / f"map.{suffix}", include_machine_columns=True)
    assert list(let_in.X) == ["loss", "wall_clock"]


def test_a_map_in_code_with_the_taxonomys_labels(write):
    columns = ColumnMap(run="id", faulty="broken", category="where", meta=("author", "model", "gone"), arch="decoder")
    table = MINE.assign(where=["", "ffn", "", "LayerNorm"])
    bench = read_bench(write(table, "mine.csv"), columns)
    assert bench.labels["category"].tolist() == ["correct", "ffn", "correct", "layernorm"]
    assert bench.arch == "decoder"
    assert "columns that the map names but the table lacks: gone" in bench.notes
    strange = read_bench(write(MINE, "mine.csv"), columns)
    assert "categories outside the taxonomy, kept as they are: layer_norm" in strange.notes


def test_faults_may_be_told_by_the_category_alone(write):
    table = MINE.assign(where=["correct", "ffn", "correct", "ffn"])
    bench = read_bench(
        write(table, "mine.csv"), ColumnMap(category="where", meta=("id", "model", "broken", "author"), arch="encoder")
    )
    assert bench.faulty.tolist() == [False, True, False, True]
    assert bench.levels == (1,)
    with pytest.raises(BenchError, match="column 'where' has no label in line 2"):
        read_bench(write(MINE, "mine.csv"), ColumnMap(category="where", taxonomy=False))


BAD_MAPS = {
    "no entry 'fautly'; known: name, run": {"fautly": "label"},
    "'pair' must be a name or a list": {"faulty": "label", "pair": {"a": 1}},
    "'taxonomy' must be a bool": {"faulty": "label", "taxonomy": "nope"},
    "'category_of' must be a dict": {"root_cause": "label", "category_of": "x"},
    "'arch' must be encoder or decoder": {"faulty": "label", "arch": "both"},
    "names no label column": {"run": "id"},
    "is a table of names": ["label"],
}


@pytest.mark.parametrize(("message", "entries"), BAD_MAPS.items(), ids=list(BAD_MAPS))
def test_bad_maps(write, tmp_path, message, entries):
    (tmp_path / "map.json").write_text(json.dumps(entries))
    with pytest.raises(BenchError, match=message) as error:
        read_bench(write(MINE, "mine.csv"), str(tmp_path / "map.json"))
    assert "map.json" in str(error.value)


def test_maps_that_are_not_there_or_not_readable(write, tmp_path):
    path = write(MINE, "mine.csv")
    with pytest.raises(BenchError, match="no such map; known: published, default-icse25"):
        read_bench(path, "default")
    (tmp_path / "map.yaml").write_text("faulty: [")
    with pytest.raises(BenchError, match=r"map\.yaml: not readable as yaml"):
        read_bench(path, tmp_path / "map.yaml")
    with pytest.raises(BenchError, match="label column 'label' of the map 'default-icse25' is missing"):
        read_bench(path, "default-icse25")
    with pytest.raises(BenchError, match="'label' holds 'other', which is none of DEFault's"):
        read_bench(write(MINE.assign(label="other"), "mine.csv"), "default-icse25")


def test_older_spellings_lead_into_the_taxonomy():
    assert len(ROOT_CAUSE_SPELLINGS) == 41
    for (category, _), cause in ROOT_CAUSE_SPELLINGS.items():
        assert cause in ROOT_CAUSES[category]
    assert set(CATEGORY_SPELLINGS.values()) <= set(ROOT_CAUSES)


def test_operator_codes_stand_for_their_root_cause():
    labels = pd.DataFrame({"faulty": [True, False], "category": ["Score", "x"], "root_cause": ["sds", None]})
    translated, notes = translate(labels)
    assert translated.to_dict("list") == {
        "faulty": [True, False],
        "category": ["score", "correct"],
        "root_cause": ["normalization", "correct"],
    }
    assert notes == ["older root-cause names were translated: score/sds → normalization"]


DEFAULT_TABLES = {
    "level1_undersampled": (9588, 22, 26, (1,)),
    "level2_activation": (624, 27, 31, (2,)),
    "level2_hyperparameter": (5142, 27, 31, (2,)),
    "level2_layer": (2694, 27, 31, (2,)),
    "level2_loss": (4294, 27, 31, (2,)),
    "level2_optimization": (2480, 27, 31, (2,)),
    "level2_regularization": (506, 27, 31, (2,)),
    "level2_weight": (3970, 27, 31, (2,)),
    "level3_hyperparameter": (2946, 27, 31, (3,)),
}


@needs_default
@pytest.mark.parametrize(("name", "shape"), DEFAULT_TABLES.items())
def test_tables_of_default(name, shape):
    runs, features, with_machine, levels = shape
    path = DEFAULT / f"{name}.csv"
    bench = read_bench(path, "default-icse25")
    assert (bench.X.shape, bench.levels, bench.arch) == ((runs, features), levels, None)
    full = read_bench(path, "default-icse25", include_machine_columns=True)
    left_out = {"epoch", "cpu_utilization", "gpu_memory_utilization", "memory_usage"}
    assert full.X.shape[1] == with_machine
    assert set(full.X) - set(bench.X) == left_out
    assert any("published figures used them" in n for n in full.notes)
    raw = pd.read_csv(path)["label"].value_counts().to_dict()
    if levels == (1,):
        assert bench.faulty.sum() == raw["buggy"]
        assert "392 runs have no value at all, 392 of them labelled correct: absence tells" in bench.notes
        assert "391 runs have exactly the features of an earlier run" in full.notes
    else:
        level = "category" if levels == (2,) else "root_cause"
        assert bench.labels[level].value_counts().to_dict() == raw


def test_default_without_the_tables_at_hand(write):
    rows = 6
    columns = dict.fromkeys(("epoch", "train_loss", "val_acc", "cpu_utilization", "memory_usage"), np.arange(rows))
    level1 = write(pd.DataFrame(columns | {"label": ["correct", "buggy"] * 3}), "a.csv")
    level2 = write(pd.DataFrame(columns | {"label": ["Activation", "Loss", "Layer"] * 2}), "b.csv")
    level3 = write(pd.DataFrame(columns | {"label": ["HBS", "HLR"] * 3}), "c.csv")
    one, two, three = (read_bench(p, "default-icse25") for p in (level1, level2, level3))
    assert (one.levels, two.levels, three.levels) == ((1,), (2,), (3,))
    assert list(one.X) == ["train_loss", "val_acc"]
    assert one.faulty.tolist() == [False, True] * 3
    assert two.faulty.all()
    assert two.labels["category"].tolist() == ["Activation", "Loss", "Layer"] * 2
    assert three.labels[["category", "root_cause"]].iloc[1].tolist() == ["Hyperparameter", "HLR"]
    full = read_bench(level1, "default-icse25", include_machine_columns=True)
    assert list(full.X) == ["epoch", "train_loss", "val_acc", "cpu_utilization", "memory_usage"]

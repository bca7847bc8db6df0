"""The Bench: round trip, fingerprint, and what it refuses."""

import os
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from features.bench import Bench, BenchError, detect_duplicates, log_path, read_parquet, write_parquet


def make(n=6, levels=(1, 2, 3), log=False):
    index = pd.Index([f"run{i}" for i in range(n)])
    faulty = np.arange(n) % 2 == 1
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.normal(size=(n, 3)), index=index, columns=["a", "b", "c"])
    X.iloc[0, 1], X.iloc[1, 2] = np.nan, np.inf
    known = np.where(faulty, "ffn", "correct") if 2 in levels else np.where(faulty, None, "correct")
    cause = np.where(faulty, "weight_scaling", "correct") if 3 in levels else np.where(faulty, None, "correct")
    table = pd.DataFrame({"run": index, "epoch": 0, "step": -1, "metric": "train_loss", "layer": -1, "value": 1.0})
    return Bench(
        name="six",
        arch="encoder",
        X=X,
        labels=pd.DataFrame({"faulty": faulty, "category": known, "root_cause": cause}, index=index),
        pair=pd.Series([f"model/{i // 2}" for i in range(n)], index=index),
        meta=pd.DataFrame({"operator": ["FSW"] * n, "p": rng.random(n)}, index=index),
        log=table if log else None,
        levels=levels,
        notes=("made for a test",),
    )


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("levels", [(1,), (1, 2), (1, 2, 3)])
def test_round_trip(tmp_path, levels, log):
    bench = make(levels=levels, log=log)
    loaded = Bench.load(bench.save(tmp_path / "six.parquet"))
    pd.testing.assert_frame_equal(loaded.X, bench.X, check_names=False)
    pd.testing.assert_frame_equal(loaded.meta, bench.meta, check_names=False, check_dtype=False)
    pd.testing.assert_series_equal(loaded.pair, bench.pair, check_names=False, check_dtype=False)
    assert loaded.labels.isna().equals(bench.labels.isna())
    assert loaded.labels.dropna().to_dict() == bench.labels.dropna().to_dict()
    assert loaded.faulty.dtype == bool
    assert (loaded.name, loaded.arch, loaded.levels, loaded.notes) == ("six", "encoder", levels, bench.notes)
    assert loaded.fingerprint() == bench.fingerprint()
    if log:
        pd.testing.assert_frame_equal(loaded.log, bench.log, check_dtype=False)
    else:
        assert loaded.log is None


def test_a_log_left_by_an_earlier_bench_is_not_taken_for_this_ones(tmp_path):
    make(log=True).save(tmp_path / "six.parquet")
    make(log=False).save(tmp_path / "six.parquet")
    assert Bench.load(tmp_path / "six.parquet").log is None


@given(st.integers(0, 5), st.integers(0, 2))
def test_fingerprint_changes_with_any_cell(row, column):
    bench = make()
    X = bench.X.copy()
    old = X.iloc[row, column]
    X.iloc[row, column] = 1.0 if not np.isfinite(old) else np.nextafter(old, np.float32(9), dtype=np.float32)
    assert replace(bench, X=X).fingerprint() != bench.fingerprint()


def test_fingerprint_changes_with_labels_pairs_names_and_order_but_not_with_meta():
    bench = make()
    labels, pair = bench.labels.copy(), bench.pair.copy()
    labels.loc["run1", "root_cause"] = "regularization"
    pair["run3"] = "model/0"
    changed = [
        replace(bench, labels=labels),
        replace(bench, pair=pair),
        replace(bench, X=bench.X.rename(columns={"a": "z"})),
        replace(bench, arch="decoder"),
        bench.take(bench.runs[::-1]),
    ]
    prints = {b.fingerprint() for b in changed}
    assert len(prints) == len(changed)
    assert bench.fingerprint() not in prints
    assert replace(bench, meta=pd.DataFrame(index=bench.runs), notes=(), name="x").fingerprint() == bench.fingerprint()


def test_fingerprint_does_not_depend_on_how_a_missing_value_is_spelled():
    bench = make(levels=(1,))
    X = bench.X.copy()
    X.iloc[0, 1] = np.array([0xFFC00001], dtype=np.uint32).view(np.float32)[0]  # another NaN
    labels = bench.labels.astype({"category": "str", "root_cause": "str"})
    assert labels["category"].isna().any()
    assert replace(bench, X=X, labels=labels).fingerprint() == bench.fingerprint()


def test_take_by_id_position_and_mask(tmp_path):
    bench = make(log=True)
    by_id, by_position, by_mask = bench.take(["run3", "run1"]), bench.take([3, 1]), bench.take(bench.faulty)
    assert list(by_id.runs) == list(by_position.runs) == ["run3", "run1"]
    assert list(by_mask.runs) == ["run1", "run3", "run5"]
    for part in (by_id.labels, by_id.pair, by_id.meta):
        assert list(part.index) == ["run3", "run1"]
    assert set(by_id.log["run"]) == {"run1", "run3"}
    assert list(bench.with_features(["c", "a"]).X) == ["c", "a"]
    assert len(bench) == 6


def test_groups_of_the_columns():
    bench = make()
    named = replace(bench, X=bench.X.set_axis(["train_loss__epoch_mean__phase_slope", "epoch", "unknown"], axis=1))
    assert named.groups().fillna("").tolist() == ["training_dynamics", "", ""]


def test_a_killed_write_leaves_the_old_file_and_no_half_one(tmp_path, monkeypatch):
    path = make().save(tmp_path / "six.parquet")
    before = path.read_bytes()

    def killed(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr("os.replace", killed)
    with pytest.raises(KeyboardInterrupt):
        make(n=4).save(path)
    monkeypatch.undo()
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["six.parquet"]


def test_a_tampered_file_is_refused(tmp_path):
    path = make().save(tmp_path / "six.parquet")
    table = pd.read_parquet(path)
    table.loc["run2", "a"] += 1
    table.to_parquet(path)
    with pytest.raises(BenchError, match=r"six\.parquet: contents don't match the stored fingerprint"):
        Bench.load(path)


def test_files_that_are_no_bench_are_refused(tmp_path):
    path = tmp_path / "six.parquet"
    with pytest.raises(BenchError, match="no such file"):
        Bench.load(path)
    make().save(path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(BenchError, match="not a readable Parquet file"):
        Bench.load(path)
    pd.DataFrame({"a": [1.0]}).to_parquet(path)
    with pytest.raises(BenchError, match="not a bench of ours"):
        Bench.load(path)


def test_a_lost_log_is_named(tmp_path):
    path = make(log=True).save(tmp_path / "six.parquet")
    log_path(path).unlink()
    with pytest.raises(BenchError, match=r"six\.log\.parquet: no such file"):
        Bench.load(path)
    assert Bench.load(path, log=False).log is None


def test_mixed_types_in_meta_are_refused_by_name(tmp_path):
    bench = make()
    bench = replace(bench, meta=bench.meta.assign(severity=[0.1, "all", 2, None, "rare", 0.5]))
    with pytest.raises(BenchError, match="severity"):
        bench.save(tmp_path / "six.parquet")
    assert os.listdir(tmp_path) == []


BAD = {
    "label column 'category' is missing": lambda b: {"labels": b.labels.drop(columns="category")},
    "no rows": lambda b: {"X": b.X[:0], "labels": b.labels[:0], "pair": b.pair[:0], "meta": b.meta[:0]},
    "feature 'a' occurs more than once": lambda b: {"X": b.X.set_axis(["a", "a", "c"], axis=1)},
    "feature can't be called 'meta.a'": lambda b: {"X": b.X.rename(columns={"a": "meta.a"})},
    "feature can't be called 'pair'": lambda b: {"X": b.X.rename(columns={"a": "pair"})},
    "feature 'b' is not numeric": lambda b: {"X": b.X.assign(b="high")},
    "index of labels differs": lambda b: {"labels": b.labels[::-1]},
    "index of pair differs": lambda b: {"pair": b.pair[:-1]},
    "'faulty' must be bool": lambda b: {"labels": b.labels.assign(faulty=b.faulty.astype(str))},
    "run 'run2' has no pair": lambda b: {"pair": b.pair.where(b.runs != "run2")},
    "healthy run 'run0' has a category": lambda b: {"labels": b.labels.assign(category="ffn")},
    "faulty run 'run1' has the root_cause 'correct'": lambda b: {"labels": b.labels.assign(root_cause="correct")},
    "log holds run 'other'": lambda b: {"log": pd.DataFrame({"run": ["run0", "other"]})},
}


@pytest.mark.parametrize(("message", "change"), BAD.items())
def test_inconsistent_tables_are_refused(message, change):
    bench = make()
    with pytest.raises(BenchError, match=message):
        replace(bench, **change(bench))


def test_a_repeated_run_is_refused():
    bench = make()
    with pytest.raises(BenchError, match="run id 'run1' occurs more than once"):
        bench.take([0, 1, 1])


def test_detect_duplicates_is_exact_and_takes_missing_values_as_equal():
    bench = make()
    X = bench.X.copy()
    X.loc["run2"] = X.loc["run0"]  # holds a NaN
    X.loc["run4"] = X.loc["run0"]
    X.loc["run5"] = X.loc["run3"]
    X.loc["run5", "a"] = np.nextafter(X.loc["run3", "a"], np.float32(9), dtype=np.float32)
    first = detect_duplicates(replace(bench, X=X))
    assert first.tolist() == ["run0", "run1", "run0", "run3", "run0", "run5"]
    assert (first != first.index).sum() == X.duplicated().sum() == 2
    signed = pd.DataFrame(0.0, index=bench.runs, columns=["a"])
    signed.loc["run3"] = -0.0
    assert set(detect_duplicates(replace(bench, X=signed))) == {"run0"}


def test_parquet_helpers_keep_attributes(tmp_path):
    table = pd.DataFrame({"a": [1.0]})
    table.attrs = {"card": {"x": 1}}
    write_parquet(table, tmp_path / "deep" / "t.parquet")
    assert read_parquet(tmp_path / "deep" / "t.parquet").attrs == {"card": {"x": 1}}

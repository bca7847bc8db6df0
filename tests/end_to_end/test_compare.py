"""compare.py as a user calls it: a process, its output, its files, its MLflow store."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

ROOT = Path(__file__).resolve().parents[2]
TECHNIQUES = ("--technique", "dummy", "--technique", "knn", "--technique", "logistic")


def compare(folder, *arguments, **environment):
    return subprocess.run(
        [sys.executable, ROOT / "experiments" / "compare.py", "--results", folder / "results", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        env={**os.environ, "MLFLOW_TRACKING_URI": f"sqlite:///{folder / 'mlflow.db'}", **environment},
    )


@pytest.fixture(scope="module")
def bench_file(tmp_path_factory, toy_maker):
    return toy_maker(n_pairs=5, per_pair=16, n_causes=4).save(tmp_path_factory.mktemp("bench") / "toy.parquet")


@pytest.fixture(scope="module")
def finished(tmp_path_factory, bench_file):
    folder = tmp_path_factory.mktemp("one")
    return folder, compare(folder, "--bench", bench_file, *TECHNIQUES, "--workers", "1", "--name", "first")


def test_prints_a_leaderboard_within_100_columns(finished):
    _, done = finished
    assert done.returncode == 0, done.stderr
    assert "Logistic regression" in done.stdout
    assert "path L3" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 100


def test_writes_tables_verdicts_and_manifest(finished):
    folder, _ = finished
    out = folder / "results" / "first" / "encoder"
    board = pd.read_csv(out / "leaderboard.csv")
    assert set(board["protocol"]) == {"path", "paper"}
    assert set(board["level"]) == {1, 2, 3}
    assert (board["low"] <= board["f1"] + 1e-9).all()
    verdicts = pd.read_parquet(out / "verdicts" / "knn.parquet")
    assert len(verdicts) == 80
    assert verdicts.index.is_unique
    record = json.loads((out / "manifest.json").read_text())
    assert record["benches"][0]["fingerprint"]
    assert record["packages"]["scikit-learn"]
    assert record["settings"]["seed"] == 0


def test_tuned_parameters_are_kept_beside_what_they_were_worth(compared):
    found = pd.read_csv(compared / "results" / "first" / "encoder" / "tuned.csv")
    assert set(found["technique"]) == {"k-NN, tuned"} and sorted(found["fold"]) == [0, 1]
    assert (found["trials"] == 2).all() and (found["inner_best"] >= found["inner_default"]).all()
    assert set(json.loads(found["parameters"].iloc[0])) == {"n_neighbors", "weights"}
    board = pd.read_csv(compared / "results" / "first" / "encoder" / "leaderboard.csv")
    row = board[(board["technique"] == "k-NN, tuned") & (board["level"] == 2) & (board["protocol"] == "path")]
    lines = (compared / "results" / "first" / "encoder" / "leaderboard.md").read_text().splitlines()
    head, (of_knn,) = lines[0].split(" | "), [line for line in lines if line.startswith("| k-NN")]
    shown = of_knn.split(" | ")[head.index("tuned L2")].rstrip("≈")
    assert float(shown) == pytest.approx(row["f1"].iloc[0], abs=6e-4)


def test_two_workers_give_the_same_bytes(finished, bench_file, tmp_path, repeatable):
    done = compare(tmp_path, "--bench", bench_file, *TECHNIQUES, "--workers", "2", "--name", "first", "--no-mlflow")
    assert done.returncode == 0, done.stderr
    assert repeatable(tmp_path) == repeatable(finished[0])


def test_mlflow_shows_comparison_techniques_and_folds(finished):
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{finished[0] / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("toy (encoder)")
    runs = client.search_runs([experiment.experiment_id], max_results=100)
    kinds = pd.Series([r.data.tags["kind"] for r in runs]).value_counts()
    assert kinds.to_dict() == {"fold": 15, "technique": 3, "comparison": 1}
    by_id = {r.info.run_id: r for r in runs}
    for run in runs:
        parent = run.data.tags.get("mlflow.parentRunId")
        expected = {"fold": "technique", "technique": "comparison"}.get(run.data.tags["kind"])
        assert expected is None or by_id[parent].data.tags["kind"] == expected
    knn = next(r for r in runs if r.info.run_name == "k-NN")
    assert 0 <= knn.data.metrics["F1 path/L2"] <= 1
    assert knn.data.params["n_neighbors"] == "5"
    assert knn.inputs.dataset_inputs[0].dataset.name == "toy-encoder"
    assert "verdicts.parquet" in [a.path for a in client.list_artifacts(knn.info.run_id)]


def test_second_run_computes_nothing_anew(finished, bench_file):
    folder, _ = finished
    store = folder / "results" / ".runs"
    before = {p: p.stat().st_mtime_ns for p in store.rglob("*")}
    done = compare(folder, "--bench", bench_file, *TECHNIQUES, "--name", "again", "--no-mlflow")
    assert done.returncode == 0, done.stderr
    assert {p: p.stat().st_mtime_ns for p in store.rglob("*")} == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--bench", "absent.parquet"], "absent.parquet"),
        (["--technique", "nope"], "no technique 'nope'"),
        (["--folds", "9"], "too few for 9 folds"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(bench_file, tmp_path, arguments, message):
    if "--bench" not in arguments:
        arguments = ["--bench", str(bench_file), *arguments]
    done = compare(tmp_path, *arguments, "--no-mlflow")
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1

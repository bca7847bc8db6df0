"""explain.py as a user calls it: a process, its output, its files, its MLflow store."""

import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

ROOT = Path(__file__).resolve().parents[2]


def explain(folder, *arguments):
    return subprocess.run(
        [sys.executable, ROOT / "experiments" / "explain.py", "--results", folder / "results", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        env={**os.environ, "MLFLOW_TRACKING_URI": f"sqlite:///{folder / 'mlflow.db'}"},
    )


@pytest.fixture(scope="module")
def bench_file(tmp_path_factory, toy_maker):
    bench = toy_maker(n_pairs=3, per_pair=16, n_causes=4)
    return bench.with_features(bench.X.columns[::10]).save(tmp_path_factory.mktemp("bench") / "toy.parquet")


OPTIONS = ("--technique", "forest", "--folds", "2", "--workers", "1", "--resample", "0", "--background", "5")


@pytest.fixture(scope="module")
def finished(tmp_path_factory, bench_file):
    folder = tmp_path_factory.mktemp("one")
    return folder, explain(folder, "--bench", bench_file, *OPTIONS)


def test_prints_which_explanation_points_where(finished):
    _, done = finished
    assert done.returncode == 0, done.stderr
    assert "hit@1" in done.stdout
    assert "Random forest, L2, SHAP" in done.stdout
    assert "Verdicts" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 100


def test_writes_tables_figures_and_sheet(finished):
    out = finished[0] / "results" / "comparison" / "explain" / "encoder"
    agreement = pd.read_csv(out / "agreement.csv")
    best = agreement[(agreement["level"] == 2) & (agreement["kind"] == "SHAP interventional")].iloc[0]
    assert best["own1"] > 6 * best["own1_chance"]
    assert best["runs"] == 24
    for table in ("categories", "deletion", "shares", "checks"):
        assert len(pd.read_csv(out / f"{table}.csv"))
    drawn = {p.name for p in (out / "figures").iterdir()}
    for figure in ("pointing", "one_run", "deletion_curves", "verdict_sheet", "heat_map_1", "summary_random_forest"):
        assert {f"{figure}.png", f"{figure}.svg"} <= drawn
    assert "verdict-sheet" in (out / "sheet.html").read_text()


def test_logs_to_the_experiment_of_the_bench(finished):
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{finished[0] / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("toy (encoder)")
    run = client.search_runs([experiment.experiment_id])[0]
    assert run.data.tags["kind"] == "explanation"
    assert 0 <= run.data.metrics["own1 Random forest L2 SHAP interventional"] <= 1
    assert {"agreement.csv", "figures", "sheet.html"} <= {a.path for a in client.list_artifacts(run.info.run_id)}


def test_started_again_it_computes_nothing_and_writes_the_same(finished, bench_file):
    folder, _ = finished
    out = folder / "results" / "comparison" / "explain" / "encoder"
    store = folder / "results" / ".runs"
    kept = {p: p.stat().st_mtime_ns for p in store.rglob("*")}
    before = {p.name: p.read_bytes() for p in out.glob("*.csv")}
    done = explain(folder, "--bench", bench_file, *OPTIONS, "--no-mlflow")
    assert done.returncode == 0, done.stderr
    assert {p: p.stat().st_mtime_ns for p in store.rglob("*")} == kept
    assert {p.name: p.read_bytes() for p in out.glob("*.csv")} == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--technique", "knn"], "technique 'knn' can't be explained"),
        (["--run", "nobody"], "no run 'nobody'"),
        (["--folds", "9"], "too few for 9 folds"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(bench_file, tmp_path, arguments, message):
    done = explain(tmp_path, "--bench", bench_file, *arguments, "--no-mlflow")
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1

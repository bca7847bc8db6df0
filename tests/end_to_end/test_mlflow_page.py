"""MLflow as a newcomer meets it: its client, and its pages in a browser."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request

import pytest
from mlflow.tracking import MlflowClient


@pytest.fixture(scope="module")
def client(compared):
    return MlflowClient(f"sqlite:///{compared / 'mlflow.db'}")


@pytest.fixture(scope="module")
def experiment(client):
    return client.get_experiment_by_name("toy (encoder)")


@pytest.fixture(scope="module")
def runs(client, experiment):
    return {r.info.run_name: r for r in client.search_runs([experiment.experiment_id], max_results=100)}


@pytest.fixture(scope="module")
def server(compared, chromium):
    """The address of an `mlflow ui` over the comparison's store."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "mlflow", "ui", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"),
            *("--backend-store-uri", f"sqlite:///{compared / 'mlflow.db'}"),
        ],
        cwd=compared,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env={**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true"},
    )
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in range(240):
            try:
                urllib.request.urlopen(f"{address}/health", timeout=5)
                break
            except OSError:
                assert process.poll() is None, "mlflow ui ended by itself"
                time.sleep(0.5)
        else:
            pytest.fail("mlflow ui did not answer")
        yield address
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(timeout=60)


def test_comparison_names_the_best_of_every_level_with_links(runs, experiment):
    note = runs["first"].data.tags["mlflow.note.content"]
    lines = note.splitlines()
    for level in (1, 2, 3):
        found = re.search(r"\[(.+?)\]\(#/experiments/(\d+)/runs/(\w+)\)", lines[level - 1])
        best = max(
            (r for r in runs.values() if r.data.tags["kind"] == "technique"),
            key=lambda r: r.data.metrics[f"F1 path/L{level}"],
        )
        assert found.group(2) == experiment.experiment_id
        linked = next(r for r in runs.values() if r.info.run_id == found.group(3))
        assert linked.info.run_name == found.group(1)
        assert linked.data.metrics[f"F1 path/L{level}"] == best.data.metrics[f"F1 path/L{level}"]


def test_technique_run_holds_folds_parameters_confusions_and_verdicts(client, runs):
    run = runs["k-NN, tuned"]
    note = run.data.tags["mlflow.note.content"]
    assert "| L3 path |" in note and "fold 1" in note and "`n_neighbors`" in note
    artifacts = {a.path for a in client.list_artifacts(run.info.run_id)}
    assert {"confusion.html", "verdicts.csv", "verdicts.parquet", "confusion_path_L3.csv"} <= artifacts
    folds = [r for r in runs.values() if r.data.tags.get("mlflow.parentRunId") == run.info.run_id]
    assert sorted(r.info.run_name for r in folds) == ["k-NN, tuned, fold 0", "k-NN, tuned, fold 1"]
    assert all("tuning/inner_best" in r.data.metrics for r in folds)


def test_charts_start_with_what_one_compares(runs):
    metrics = runs["k-NN, tuned"].data.metrics
    sections = sorted({m.split("/")[0] for m in metrics}, key=str.casefold)
    assert sections == ["F1 path", "level 1", "paper", "path detail", "resources"]
    assert {m for m in metrics if m.startswith("F1 path/")} == {"F1 path/L1", "F1 path/L2", "F1 path/L3"}
    assert {m for m in metrics if m.startswith("level 1/")} == {
        f"level 1/{name}" for name in ("accuracy", "auroc", "false_alarm_rate")
    }


@pytest.mark.slow
def test_browser_shows_the_comparison_and_links_to_its_best(server, chromium, runs, experiment):
    comparison = runs["first"].info.run_id
    at = f"{server}/#/experiments/{experiment.experiment_id}/runs"
    page = chromium(f"{at}/{comparison}", 1500, "--virtual-time-budget=30000")
    assert "which root cause?" in page
    for technique in ("k-NN", "k-NN, tuned"):
        assert f'href="#/experiments/{experiment.experiment_id}/runs/{runs[technique].info.run_id}"' in page
        assert technique in page


@pytest.mark.slow
def test_browser_lists_the_techniques_of_a_comparison(server, chromium, runs):
    search = re.search(r"best first\]\((#\S+)\)", runs["first"].data.tags["mlflow.note.content"]).group(1)
    page = chromium(f"{server}/{search}", 1500, "--virtual-time-budget=30000")
    assert "k-NN, tuned" in page and "Dummy (stratified)" in page
    assert "k-NN, tuned, fold 0" not in page

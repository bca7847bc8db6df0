"""The example is run as a user runs it, and what it wrote is diagnosed with a few fast techniques; both in a shell."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FAST = ("knn", "umlaut", "autotrainer")


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("example") / "run"
    command = [sys.executable, ROOT / "examples" / "fine_tuning_with_recorder.py", folder, "--fault", "RRS"]
    done = subprocess.run([*command, "--model", "distilbert"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return folder


def test_the_example_writes_vector_log_and_report(run_folder):
    assert sorted(p.name.partition(".")[2] for p in run_folder.iterdir()) == ["log.parquet", "parquet", "report.txt"]


def test_its_run_is_diagnosed(run_folder, toy_maker, monkeypatch, tmp_path):
    from typer.testing import CliRunner

    from experiments import diagnose
    from experiments.engine import reference_models

    monkeypatch.setattr(reference_models, "CACHE", tmp_path / "cache")
    bench = toy_maker(n_pairs=4, per_pair=12, n_causes=3).save(tmp_path / "toy.parquet")
    chosen = [part for key in FAST for part in ("--technique", key)]
    data = tmp_path / "d.json"
    done = CliRunner().invoke(diagnose.app, [str(run_folder), "--bench", str(bench), *chosen, "--json", str(data)])
    assert done.exit_code == 0, done.output
    held = json.loads(data.read_text())
    # The toy bench is made of random numbers, so that a real run must be told from it.
    assert held["out_of_distribution"]
    assert {v["technique"] for v in held["verdicts"]} >= {"k-NN"}


def test_an_unknown_fault_is_one_line(tmp_path):
    command = [sys.executable, ROOT / "examples" / "fine_tuning_with_recorder.py", tmp_path, "--fault", "XXX"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert "no fault 'XXX'" in done.stderr
    assert "Traceback" not in done.stderr

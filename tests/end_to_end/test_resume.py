"""A comparison killed at random moments, started again, ends with the bytes of one that was never killed."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def command(folder, bench):
    techniques = [f"--technique={key}" for key in ("dummy", "knn", "logistic")]
    return [
        *(sys.executable, ROOT / "experiments" / "compare.py", "--results", folder / "results", "--bench", bench),
        *("--workers", "2", "--folds", "4", "--trials", "3", "--name", "killed", "--no-mlflow", *techniques),
    ]


@pytest.mark.slow
def test_killed_and_resumed_equals_uninterrupted(tmp_path, toy_maker, repeatable):
    bench = toy_maker(n_pairs=4, per_pair=12, n_causes=3).save(tmp_path / "toy.parquet")
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    whole.mkdir(), killed.mkdir()
    subprocess.run(command(whole, bench), cwd=whole, check=True, capture_output=True)

    store = killed / "results" / ".runs"
    rng = random.Random(7)
    finished_before_kill = []
    for _ in range(2):
        process = subprocess.Popen(
            command(killed, bench),
            cwd=killed,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        already = len(list(store.glob("[!.]*-[0-9]-*")))
        # Wait for some work to be done, then a random moment more, so that the kill falls into the middle of a cell.
        deadline = time.monotonic() + 120
        while len(list(store.glob("[!.]*-[0-9]-*"))) < already + 3 and time.monotonic() < deadline:
            if process.poll() is not None:
                break
            time.sleep(0.05)
        time.sleep(rng.random())
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        finished_before_kill.append({p.name: p.stat().st_mtime_ns for p in store.glob("[!.]*-[0-9]-*")})
    assert finished_before_kill[0], "nothing was finished before the first kill"

    subprocess.run(command(killed, bench), cwd=killed, check=True, capture_output=True)
    assert repeatable(killed) == repeatable(whole)
    for kept in finished_before_kill:
        now = {name: (store / name).stat().st_mtime_ns for name in kept}
        assert now == kept, "a finished cell was computed again"

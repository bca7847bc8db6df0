"""The shipped tables hold what the card says, and the leak check finds a leak that is put in."""

import numpy as np
import pandas as pd
import pytest

from features.bench import EMBEDDED, Bench
from features.build.leaks import column_auc, stump_accuracy
from features.schema import columns
from features.taxonomy import ARCHITECTURES, root_causes

shipped = pytest.mark.skipif(not (EMBEDDED / "attempts.parquet").exists(), reason="no embedded bench")


@shipped
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_shipped_bench_holds_killed_mutants_and_no_more_correct_runs_per_pair(arch):
    bench = Bench.load(arch=arch, log=False)
    assert tuple(bench.X.columns) == columns(arch)
    killed = bench.meta[bench.faulty]
    assert (killed["p_value"] == 1 / 32).all()
    assert (killed["effect"] > 0).all()
    assert (bench.meta["n_seeds"] == 5).all()
    assert bench.meta[["n_epochs", "n_steps"]].drop_duplicates().shape == (1, 2)
    faulty = bench.faulty.groupby(bench.pair).agg(["sum", "size"])
    assert (faulty["size"] - faulty["sum"] <= faulty["sum"].clip(lower=1)).all()
    known = set(root_causes(arch))
    assert set(zip(bench.labels.category[bench.faulty], bench.labels.root_cause[bench.faulty], strict=True)) <= known
    attempts = pd.read_parquet(EMBEDDED / "attempts.parquet").query("arch == @arch")
    assert set(bench.runs[bench.faulty]) == set(attempts.loc[attempts.outcome == "killed", "run"])


@shipped
def test_shipped_files_stay_below_forty_megabytes():
    assert sum(f.stat().st_size for f in EMBEDDED.rglob("*") if f.is_file()) < 40e6


def test_leak_check_finds_the_column_that_gives_faulty_runs_away():
    rng = np.random.default_rng(0)
    faulty = pd.Series(np.arange(60) % 2 == 1)
    X = pd.DataFrame({"noise": rng.normal(size=60), "leak": -faulty.astype(float), "flat": 1.0})
    auc = column_auc(X, faulty)
    assert auc["leak"] == 1.0
    assert auc["flat"] == 0.5
    pair = pd.Series(np.arange(60) // 12).astype(str)
    stumps = stump_accuracy(X, faulty, pair)
    assert stumps["leak"] == 1.0
    assert stumps["noise"] < 0.8


def test_auc_of_a_column_by_hand():
    # Of the four (faulty, correct) pairs, three are in order.
    auc = column_auc(pd.DataFrame({"x": [1.0, 3.0, 2.0, 4.0]}), pd.Series([False, False, True, True]))
    assert auc["x"] == 0.75

"""Held-out rows are judged twice by one model that saw neither: by their mean and by a single run."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from experiments.engine.novelty import fit_novelty
from experiments.engine.reference_models import fit_reference
from experiments.engine.single_verdicts import stored_single_verdicts
from experiments.engine.source import BenchSource
from experiments.single_runs import app
from features.bench import single_path


@pytest.fixture(scope="module")
def place(tmp_path_factory, toy_maker):
    """A toy bench of means, and single runs of every third row: the mean and noise of the rows' own size."""
    bench = toy_maker(n_pairs=5, per_pair=20, n_causes=3)
    path = bench.save(tmp_path_factory.mktemp("bench") / "toy.parquet")
    some = bench.X.iloc[::3]
    noise = np.random.default_rng(0).normal(size=some.shape) * bench.X.std().to_numpy()
    (some + 8 * noise).to_parquet(single_path(path))
    return path, bench


def run(place, *arguments):
    path, _ = place
    folder = path.parent / "results" / "single_runs"
    done = CliRunner().invoke(
        app,
        ["--bench", str(path), "--arch", "encoder", "--folds", "2", "--workers", "1", "--results", str(folder)]
        + [f"--technique={t}" for t in arguments],
    )
    return done, folder


def test_noisier_runs_score_lower_and_the_means_as_in_a_comparison(place):
    done, folder = run(place, "knn", "autotrainer-vector")
    assert done.exit_code == 0, done.output
    table = pd.read_csv(next(folder.glob("*.csv"))).set_index(["technique", "level"])
    knn = table.loc["k-NN"]
    assert list(knn.index) == [1, 2, 3]
    assert (knn["single"] < knn["mean"]).all()
    assert (table["runs"] == 34).all()
    assert table.loc["AutoTrainer (code, vector)"].index.tolist() == [1], "a technique stands at its own levels only"
    assert next(folder.glob("*.json")).exists()


def test_without_single_runs_it_says_what_makes_them(place, tmp_path):
    alone = place[1].save(tmp_path / "alone.parquet")
    done, _ = run((alone, None), "knn")
    assert done.exit_code == 2
    assert "alone.single.parquet" in done.output and "build_bench.py" in done.output


def test_novelty_is_measured_on_single_runs_where_there_are_some(place):
    path, bench = place
    singles = pd.read_parquet(single_path(path))
    by_mean, by_single = fit_novelty(bench), fit_novelty(bench, singles)
    assert by_single.held_out.shape == (34, 3)
    assert np.median(by_single.held_out[:, 0]) > np.median(by_mean.held_out[:, 0])
    assert by_single.typical > by_mean.typical
    one = replace(bench.take([9]), X=singles.iloc[[3]])
    assert by_mean.judge(one).percentile >= by_single.judge(one).percentile


def test_a_verdict_on_one_run_is_worth_what_it_was_on_single_runs(place, tmp_path):
    """Calibration counts verdicts on single runs, kept by the command or computed alike where they aren't."""
    source = BenchSource(str(place[0]), arch="encoder")
    bench = source.load()
    done, folder = run(place, "knn", "autotrainer-vector")
    assert done.exit_code == 0, done.output
    kept = stored_single_verdicts(folder, "knn", bench)
    assert kept is not None and set(kept.index) == set(bench.runs[::3])
    assert stored_single_verdicts(folder, "forest", bench) is None, "it wasn't run"
    other = replace(bench, X=bench.X + 1)
    assert stored_single_verdicts(folder, "knn", other) is None, "of another bench"
    made = fit_reference(source, ["knn"], store=tmp_path / "a", results=folder.parent / "tuned").calibrations["knn"]
    assert sorted(made.values) == sorted(kept["score"])
    computed = fit_reference(source, ["knn"], store=tmp_path / "b", results=tmp_path / "none").calibrations["knn"]
    assert len(computed.values) == len(bench.runs[::3])

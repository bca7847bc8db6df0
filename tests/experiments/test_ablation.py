"""The ablation's cells and tables, and the command on a small bench."""

import json

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from experiments import ablate
from experiments.engine.ablation import VARIANTS, ablation_markdown, ablation_table, variant_cells
from experiments.engine.cells import CellResult
from experiments.engine.leaderboard import Judged
from experiments.engine.source import BenchSource
from experiments.engine.stored import load_paper


def judged(bench, name, wrong_share, seed):
    """A draw of a variant whose verdicts are the labels, except on a random share of runs."""
    rng = np.random.default_rng(seed)
    wrong = rng.random(len(bench)) < wrong_share
    faulty = bench.faulty.to_numpy() != wrong
    table = pd.DataFrame(
        {
            "score": faulty.astype(float),
            "faulty": faulty,
            "category": bench.labels["category"].where(bench.faulty & ~wrong, "ffn"),
            "root_cause": bench.labels["root_cause"].where(bench.faulty & ~wrong, "regularization"),
            "evidence": "{}",
        },
        index=bench.runs,
    )
    cell = variant_cells(BenchSource(), [name], 1, 2, "grouped", 0)[0]
    return Judged(cell.technique, cell.estimator(), bench, [CellResult(cell, table, None, {})])


@pytest.fixture(scope="module")
def table(toy_bench):
    draws = {
        "full": [judged(toy_bench, "full", 0.0, s) for s in range(2)],
        "no_fpg": [judged(toy_bench, "no_fpg", 0.3, s) for s in range(3)],
        "rewired": [judged(toy_bench, "rewired", 0.0, 0)],
    }
    return ablation_table(draws, n_resamples=200)


def test_perfect_verdicts_score_one_and_worse_ones_less(table):
    rows = table.set_index(["variant", "level", "protocol"])
    assert (rows.loc["full", "f1"] == 1).all()
    assert (rows.loc["full", "f1_sd"] == 0).all()
    worse = rows.loc["no_fpg"]
    assert (worse["f1"] < 0.9).all()
    assert (worse["f1_min"] < worse["f1"]).all()
    assert (worse["f1"] < worse["f1_max"]).all()
    assert (worse["difference_high"] < 0).all(), "a third wrong is worse on every resample of pairs"
    np.testing.assert_allclose(worse["difference"], worse["f1"] - 1)
    assert (rows.loc["rewired", "difference"] == 0).all()
    assert rows.loc["rewired", "f1_sd"].isna().all(), "one draw has no spread"


def test_markdown_stands_ours_beside_the_manuscripts(table):
    text = ablation_markdown(table, load_paper())
    assert "| detection: full | 0.826 | 1.000 ± 0.000 | 0.909 | not run |" in text
    assert "| root_cause: no_sep | 0.756 | not run | 0.781 | not run |" in text


def test_draws_differ_in_seed_and_graph_and_the_first_is_the_default():
    cells = variant_cells(BenchSource(), ["full", "rewired"], 3, 2, "grouped", 7)
    assert len(cells) == len(set(cells)) == 2 * 3 * 2
    assert {dict(c.parameters)["seed"] for c in cells} == {7, 8, 9}
    assert {dict(c.parameters)["graph_seed"] for c in cells} == {0, 1, 2}
    first = cells[0].estimator()
    assert first.get_params() == first.set_params(seed=7, graph_seed=0, graph="fpg", separation=True).get_params()
    assert cells[3].estimator().graph == "rewired"


def test_every_variant_has_its_own_name():
    names = [variant_cells(BenchSource(), [v], 1, 2, "grouped", 0)[0].estimator().name for v in VARIANTS]
    assert len(set(names)) == len(VARIANTS)


def test_command_writes_tables_and_a_second_run_computes_nothing(toy_bench, tmp_path, monkeypatch):
    path = toy_bench.with_features(toy_bench.X.columns[::40]).save(tmp_path / "toy.parquet")
    arguments = ["--bench", str(path), "--variant", "full", "--variant", "no_fpg", "--draws", "1", "--folds", "2"]
    arguments += ["--workers", "1", "--results", str(tmp_path / "results")]
    ran = CliRunner().invoke(ablate.app, arguments)
    assert ran.exit_code == 0, ran.output
    written = pd.read_csv(tmp_path / "results" / "ablation" / "encoder.csv")
    assert set(written["variant"]) == {"full", "no_fpg"}
    assert set(written["technique"]) == {"DEFault++", "DEFault++ −FPG"}
    assert json.loads((tmp_path / "results" / "ablation" / "encoder.json").read_text())["settings"]["draws"] == 1
    assert "Table 9" in (tmp_path / "results" / "ablation" / "ablation.md").read_text()
    monkeypatch.setattr("experiments.engine.cells._judge", None)  # computing anything would now fail
    again = CliRunner().invoke(ablate.app, arguments)
    assert again.exit_code == 0, again.output
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "results" / "ablation" / "encoder.csv"), written)


def test_an_unknown_variant_is_named(tmp_path):
    ran = CliRunner().invoke(ablate.app, ["--variant", "nope"])
    assert ran.exit_code == 2
    assert "no variant 'nope'" in ran.stderr

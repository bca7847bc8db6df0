"""What the README shows works as it stands there."""

import re
import sys
import types
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from baselines.technique import REGISTRY, Entry, technique
from experiments.engine.protocol import outer_folds
from features.readers import read_bench

README = (Path(__file__).resolve().parents[2] / "README.md").read_text()


def block(language: str, containing: str) -> str:
    blocks = re.findall(rf"```{language}\n(.*?)```", README, re.S)
    return next(b for b in blocks if containing in b)


def test_the_example_technique_keeps_the_contract(monkeypatch, toy_bench):
    source = block("python", "class Centroids")
    assert len(source.splitlines()) <= 45
    module = types.ModuleType("readme_example")
    monkeypatch.setitem(sys.modules, "readme_example", module)
    exec(source, vars(module))
    monkeypatch.setitem(REGISTRY, "centroids", Entry("readme_example", "Centroids"))
    fold = outer_folds(toy_bench, 3)[0]
    verdicts = technique("centroids").fit(toy_bench.take(fold.train)).predict(toy_bench.take(fold.test))
    correct = verdicts.table["faulty"] == toy_bench.faulty[fold.test]
    assert correct.mean() > 0.8
    assert verdicts.table["root_cause"].notna().all()


def test_the_example_map_reads_a_table(tmp_path):
    (tmp_path / "my_columns.yaml").write_text(block("yaml", "my_columns.yaml"))
    rng = np.random.default_rng(0)
    pd.DataFrame(
        {
            "run_id": list("abcd"),
            "model": "m",
            "dataset": ["t", "t", "u", "u"],
            "broken": [0, 1, 0, 1],
            "category": ["correct", "ffn", "correct", "qkv"],
            "root_cause": ["correct", "weight_scaling", "correct", "dimension"],
            "author": "me",
            "ffn_output_norm__final_layer_value__epoch_mean__phase_slope": rng.normal(size=4),
            "loss": rng.normal(size=4),
        }
    ).to_csv(tmp_path / "runs.csv", index=False)
    bench = read_bench(tmp_path / "runs.csv", mapping=tmp_path / "my_columns.yaml")
    assert bench.pair.tolist() == ["m/t", "m/t", "m/u", "m/u"]
    assert bench.X.shape == (4, 2)
    assert bench.labels["category"].tolist() == ["correct", "ffn", "correct", "qkv"]


def test_there_are_exactly_two_set_up_commands():
    commands = re.findall(r"^pip install -e .*$", README, re.M)
    assert commands == ["pip install -e . && python experiments/compare.py", 'pip install -e ".[test]" && pytest']


@pytest.mark.parametrize("option", sorted(set(re.findall(r"compare\.py.*?(--[a-z-]+)", README)) - {"--help"}))
def test_options_that_the_readme_names_exist(option):
    from typer.main import get_command

    from experiments.compare import app

    known = {name for p in get_command(app).params for name in (*p.opts, *p.secondary_opts)}
    assert option in known


@pytest.mark.parametrize("arch", ["encoder", "decoder"])
def test_the_leaderboards_are_those_of_the_stored_comparison(arch):
    stored = Path(__file__).resolve().parents[2] / "results" / "tuned" / arch / "leaderboard.md"
    assert stored.read_text().strip() in README

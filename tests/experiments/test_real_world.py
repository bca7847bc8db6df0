"""The command, its tables, and that no run of a case gets near training or tuning."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from typer.testing import CliRunner

from baselines.technique import Technique, Verdicts, technique
from experiments import real_world
from experiments.cases import case, cases, runs
from experiments.cases.judging import by_case, by_technique, judge
from experiments.cases.report import case_lines, markdown, technique_lines
from experiments.cases.runs import Finished, bench_of, refuse_shared, run_version, worse
from experiments.cases.training import fine_tune, seeds
from experiments.engine.novelty import fit_novelty
from experiments.engine.reference_models import Reference
from experiments.engine.source import BenchSource, data_fingerprint
from features.bench import Bench, BenchError
from features.build import run as bench_run
from features.schema import MACHINE_METRICS, columns

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


def unchanged(model, faulty):
    return model


@pytest.fixture(scope="module")
def embedded() -> Bench:
    return BenchSource(arch="encoder").load()


def finished(name: str, faulty: bool, value: float, log: pd.DataFrame | None = None) -> Finished:
    vectors = pd.DataFrame(value, index=[1, 2], columns=list(columns(case(name).arch)), dtype=np.float32)
    log = pd.DataFrame({"epoch": [0], "step": [-1], "metric": ["val_loss"], "layer": [-1], "value": [value]})
    return Finished(case(name), faulty, (1, 2), (0.9 - 0.1 * faulty, 0.8 - 0.1 * faulty), vectors, log)


class Sure(Technique):
    """Says one thing of every run."""

    name, levels = "Sure", (1, 2, 3)

    def __init__(self, category: str = "masking", root_cause: str = "mask_application", faulty: bool = True):
        self.category, self.root_cause, self.faulty = category, root_cause, faulty

    def predict(self, bench):
        n = len(bench)
        guesses = {"category": [self.category] * n, "root_cause": [self.root_cause] * n}
        return Verdicts.build(bench.runs, [0.7] * n, [self.faulty] * n, **guesses)


class OnlySays(Sure):
    """The same at Level 1 alone."""

    name, levels = "Only says", (1,)


# What keeps cases comparable with the bench.


def test_a_case_is_trained_and_measured_as_the_bench_does():
    """Without a fault the loop gives the bench's own vector, bit for bit."""
    plain = replace(case("jax-23349"), family="distilbert", prepare=unchanged)
    mine = fine_tune(plain, False, 42, "smoke")
    theirs = bench_run.fine_tune(bench_run.Configuration("distilbert", "sentiment", profile="smoke"), 42)
    measured = [c for c in theirs.vector.index if c.split("__")[0] not in MACHINE_METRICS]
    assert len(measured) > 1000
    pd.testing.assert_series_equal(mine.vector[measured], theirs.vector[measured], check_exact=True)
    assert mine.quality == theirs.quality


def test_both_versions_share_everything_but_the_fault():
    """A case whose faulty version has no fault gives the same run twice, and its seed makes another one."""
    plain = replace(case("jax-23349"), family="distilbert", prepare=unchanged)
    fixed, faulty, other = (fine_tune(plain, *x, "smoke") for x in ((False, 7), (True, 7), (False, 8)))
    loss = [c for c in fixed.vector.index if c.startswith("train_loss")]
    assert torch.equal(*(torch.tensor(r.vector[loss].to_numpy()).nan_to_num() for r in (fixed, faulty)))
    assert not np.allclose(fixed.vector[loss], other.vector[loss], equal_nan=True)


# What keeps them out of training.


@pytest.mark.parametrize("arch", ["encoder", "decoder"])
def test_no_run_of_a_case_has_a_seed_of_the_bench(arch):
    meta = Bench.load(arch=arch, log=False).meta
    used = {
        int(seed) + 1000 * int(number)
        for of_row, number in zip(meta["seeds"], meta["setting"], strict=True)
        for seed in of_row.split(",")
    }
    assert len(used) >= 5
    assert used.isdisjoint(seeds(5))


def imports(path: Path) -> set[str]:
    """Modules that a source file names: imported, or spelled out for importlib."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(node.value)
    return found


def test_nothing_but_the_command_knows_the_cases():
    knowing = {
        str(path.relative_to(ROOT))
        for folder in ("features", "baselines", "experiments")
        for path in (ROOT / folder).rglob("*.py")
        if not path.is_relative_to(ROOT / "experiments" / "cases")
        and any(name.startswith(("experiments.cases", "experiments.real_world")) for name in imports(path))
    }
    assert knowing == {"experiments/real_world.py"}


def test_a_bench_that_holds_a_case_is_refused(embedded):
    both = [finished("jax-23349", f, 1.5 + f) for f in (False, True)]
    clean = bench_of(both, embedded)
    refuse_shared(clean, embedded)
    one = clean.take([0])
    for changes, told in (
        ({"X": one.X.set_axis(embedded.runs[:1])}, "run"),
        ({"pair": pd.Series(embedded.pair.iloc[0], index=one.runs)}, "pair"),
        ({"X": embedded.X.iloc[[4]].set_axis(one.runs)}, "copy"),
    ):
        index = changes.get("X", one.X).index
        parts = {
            "X": one.X.set_axis(index),
            "labels": one.labels.set_axis(index),
            "pair": one.pair.set_axis(index),
            "meta": one.meta.set_axis(index),
            "log": None,
        }
        with pytest.raises(BenchError, match=told):
            refuse_shared(replace(one, **{**parts, **changes}), embedded)


def test_rows_are_means_over_seeds_and_know_the_truth(embedded):
    before = embedded.fingerprint()
    bench = bench_of([finished("jax-23349", False, 1.0), finished("jax-23349", True, 2.0)], embedded)
    assert list(bench.X.columns) == list(embedded.X.columns)
    assert bench.X.iloc[1].eq(2.0).all()
    assert bench.labels.to_numpy().tolist() == [
        [False, "correct", "correct"],
        [True, "masking", "mask_application"],
    ]
    assert bench.log["run"].unique().tolist() == bench.runs.tolist()
    assert embedded.fingerprint() == before


# Verdicts and tables.


def judged(embedded, **techniques) -> tuple[pd.DataFrame, Bench]:
    names = ("jax-23349", "transformers-17886")
    bench = bench_of([finished(n, f, 3.0 + i + 2 * f) for i, n in enumerate(names) for f in (False, True)], embedded)
    return judge(bench, Reference(BenchSource(arch="encoder"), techniques, {}, None)), bench


def test_verdicts_are_counted_by_hand(embedded):
    verdicts, _ = judged(embedded, right=Sure(), half=Sure(root_cause="dynamic_mask"), mute=Sure(faulty=False))
    counts = by_technique(verdicts)[["detected", "category_right", "root_cause_right", "false_alarm"]]
    assert counts.loc["right"].tolist() == [2, 1, 1, 2]
    assert counts.loc["half"].tolist() == [2, 1, 0, 2]
    assert counts.loc["mute"].tolist() == [0, 0, 0, 0]
    of_case = by_case(verdicts)
    assert of_case.loc["jax-23349", ["detected", "category_right", "root_cause_right"]].tolist() == [2, 2, 1]
    assert of_case.loc["transformers-17886", ["detected", "of_detected", "category_right"]].tolist() == [2, 3, 0]


def test_a_level_that_a_technique_lacks_is_not_counted_against_it(embedded):
    verdicts, _ = judged(embedded, only=OnlySays(), right=Sure())
    counts = by_technique(verdicts)
    assert counts.loc["only", "detected"] == 2
    assert counts.loc["only", ["category_right", "root_cause_right"]].isna().all()
    assert by_case(verdicts).loc["jax-23349", "of_category_right"] == 1
    cells = {line[0]: line[1:] for line in technique_lines(counts, [case("jax-23349"), case("transformers-17886")])}
    assert cells["Sure"] == ["2 of 2", "1 of 2", "1 of 2", "2 of 2"]
    assert cells["DEFault++, manuscript (reported)"] == ["2 of 2", "2 of 2", "2 of 2", "–"]


def test_every_case_stands_in_the_manuscript_s_table_with_its_category():
    table = yaml.safe_load((ROOT / "results" / "paper.yaml").read_text())["table12_real_world"]
    assert len({c.name for c in cases()}) == len(cases()) == 6
    for chosen in cases():
        assert table[chosen.reported_as]["category"] == chosen.category
        assert chosen.issue.endswith(chosen.reported_as)


def test_the_quality_check_asks_for_all_seeds(embedded):
    fixed, faulty = (finished("jax-23349", f, 1.0) for f in (False, True))
    assert worse(faulty, fixed).p_value == 0.25
    assert worse(fixed, faulty).p_value == 1.0
    told = real_world.describe([fixed, faulty], embedded.X.columns).join(
        pd.DataFrame({"out": False, "percentile": 0.5, "reasons": ""}, index=[fixed.id, faulty.id])
    )
    assert told.loc[faulty.id, "columns_that_differ"] == 0
    verdicts, _ = judged(embedded, right=Sure())
    lines = case_lines(by_case(verdicts), told, [case("jax-23349")])
    assert lines[1] == ["jax-23349", "0.850→0.750", "0.25", "1/1", "1/1", "1/1", "1/1", "no", "DCR"]
    page = markdown(verdicts[verdicts["case"] == "jax-23349"], told, [case("jax-23349")])
    assert "jax-ml/jax#23349" in page and "masking / mask_application" in page
    assert "The faulty version is worse in each of 2 seeds (p = 0.25)." in page
    assert "| Sure | DCR masking ! |" in page


def test_a_case_whose_root_cause_is_none_of_its_category_is_refused():
    with pytest.raises(ValueError, match="masking has no root cause 'dimension'"):
        replace(case("jax-23349"), root_cause="dimension")


# The command.


@pytest.fixture
def small(monkeypatch, toy_bench, embedded):
    """The command on smoke-sized runs, with the dummy fitted on the embedded bench; gives what it asked to fit."""
    asked = []

    def reference(source, keys, **kwargs):
        asked.append((source, keys))
        return Reference(source, {"dummy": technique("dummy").fit(embedded)}, {}, fit_novelty(toy_bench))

    monkeypatch.setattr(real_world, "fit_reference", reference)
    monkeypatch.setattr(real_world, "run_version", lambda *given: run_version(*given, "smoke"), raising=True)
    return asked


def test_the_command_writes_its_tables_and_reads_finished_runs_back(tmp_path, small, embedded, monkeypatch):
    call = ["--case", "jax-23349", "--seeds", "1", "--technique", "dummy", "--results", str(tmp_path / "real_world")]
    first = CliRunner().invoke(real_world.app, call)
    assert first.exit_code == 0, first.output
    assert small == [(BenchSource(arch="encoder"), ["dummy"])]
    verdicts = pd.read_parquet(tmp_path / "real_world" / "verdicts.parquet")
    assert verdicts["run"].tolist() == ["real-world-jax-23349-fixed", "real-world-jax-23349-faulty"]
    told = pd.read_csv(tmp_path / "real_world" / "runs.csv", index_col="run")
    assert told["shown"].iloc[0] == 0 < told["shown"].iloc[1]
    record = yaml.safe_load((tmp_path / "real_world" / "manifest.json").read_text())
    assert record["settings"]["seeds"] == list(seeds(1))
    assert record["benches"][0]["fingerprint"] == data_fingerprint(embedded)
    monkeypatch.setattr(runs, "fine_tune", lambda *_: pytest.fail("a finished run was run again"))
    tables = [(tmp_path / "real_world" / name).read_bytes() for name in ("runs.csv", "table.md")]
    again = CliRunner().invoke(real_world.app, call)
    assert again.exit_code == 0, again.output
    assert tables == [(tmp_path / "real_world" / name).read_bytes() for name in ("runs.csv", "table.md")]


def test_an_edited_case_is_run_again(tmp_path, monkeypatch):
    plain = replace(case("jax-23349"), family="distilbert")
    calls = []

    def counted(chosen, faulty, seed, sizes):
        calls.append(seed)
        vector = pd.Series(float(seed), index=list(columns("encoder")), dtype=np.float32)
        return bench_run.Run(0.5, vector, finished("jax-23349", faulty, 1.0).log, 0.1)

    monkeypatch.setattr(runs, "fine_tune", counted)
    for seeds_given in ((1, 2), (1, 2), (1, 3)):
        done = run_version(plain, True, seeds_given, tmp_path, "smoke")
        assert done.vectors.index.tolist() == list(seeds_given)
    assert calls == [1, 2, 1, 3]
    monkeypatch.setattr(runs, "_revision", lambda: "another")
    run_version(plain, True, (1, 2), tmp_path, "smoke")
    assert calls == [1, 2, 1, 3, 1, 2]


def test_an_unknown_case_is_one_line_and_exit_code_2():
    answer = CliRunner().invoke(real_world.app, ["--case", "jax-1"])
    assert answer.exit_code == 2
    assert "no case 'jax-1'; known: ai-edge-torch-6" in " ".join(answer.output.split())

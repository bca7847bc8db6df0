"""The shared machinery: logs and vectors as arrays, the table of firings, evidence, and what isn't observable."""

from __future__ import annotations

import importlib
import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone

from baselines.autotrainer import AutoTrainer
from baselines.deepdiagnosis import DeepDiagnosis
from baselines.rules import FIRING_COLUMNS, Reading, plain, tabulate
from baselines.series import PHASES, RunLog, RunPhases, bench_of_series
from baselines.signals import SignalDetector
from baselines.umlaut import Umlaut
from features.bench import BenchError
from features.schema import LOG_METRICS, columns

TECHNIQUES = [
    AutoTrainer(),
    AutoTrainer(form="vector"),
    AutoTrainer(variant="paper"),
    AutoTrainer(form="vector", variant="guarded"),
    Umlaut(),
    Umlaut(form="vector"),
    DeepDiagnosis(),
    DeepDiagnosis(form="vector", variant="intended"),
    SignalDetector("spike"),
    SignalDetector("trend", form="vector"),
    SignalDetector("zscore"),
    SignalDetector("lof", form="vector"),
    SignalDetector("isolation_forest"),
]


def test_log_as_arrays():
    bench = bench_of_series(
        {
            "a": {"train_loss": [3.0, np.nan], "hidden_mean": [[0.1, 0.2], [0.3, 0.4]], "step_loss": [[1, 2], [3]]},
            "b": {"train_loss": [1.0], "hidden_mean": [[0.5]], "step_loss": [[7]]},
        }
    )
    log = RunLog.of(bench)
    assert log.epochs.tolist() == [2, 1]
    np.testing.assert_array_equal(log.series("train_loss"), [[3.0, np.nan], [1.0, np.nan]])
    # A logged NaN is an observation, a missing row isn't.
    assert log.nonfinite("train_loss")[:, :, 0].tolist() == [[False, True], [False, False]]
    assert log.layered("hidden_mean")[0].tolist() == [[0.1, 0.2], [0.3, 0.4]]
    assert np.isnan(log.layered("hidden_mean")[1, 0, 1])
    np.testing.assert_array_equal(log.steps("step_loss"), [[1, 2, 3], [7, np.nan, np.nan]])
    assert log.layered("weight_mean").shape == (2, 2, 0)
    assert np.isnan(log.series("val_loss")).all()
    assert (log.has("train_loss"), log.has("val_loss")) == (True, False)


def test_log_follows_the_row_order_of_the_bench():
    bench = bench_of_series({name: {"train_loss": [float(i)]} for i, name in enumerate("abc")})
    assert RunLog.of(bench.take(["c", "a"])).series("train_loss").tolist() == [[2.0], [0.0]]


def test_missing_log_and_column_are_named():
    bench = bench_of_series({"a": {"train_loss": [1.0]}})
    with pytest.raises(BenchError, match="carries no log"):
        RunLog.of(replace(bench, log=None))
    with pytest.raises(BenchError, match="'epoch'"):
        RunLog.of(replace(bench, log=bench.log.drop(columns="epoch")))
    assert "carries none" in AutoTrainer().unsupported(replace(bench, log=None))


def test_vector_as_phases():
    X = pd.DataFrame(0.0, index=["a", "b", "c"], columns=list(columns("encoder")), dtype=np.float32)
    for i, phase in enumerate(PHASES):
        X[f"train_loss__epoch_mean__{phase}"] = [3.0 - i, 1.0, np.nan]
    X.loc["b", "train_loss__epoch_mean__phase_final_mean"] = np.nan
    bench = bench_of_series({"a": {}, "b": {}, "c": {}})
    phases = RunPhases.of(replace(bench, X=X))
    assert phases.series("train_loss")[0].tolist() == [3.0, 2.0, 1.0, 0.0]
    assert phases.has("train_loss")
    assert not phases.has("learning_rate")
    # b's loss was there and then no longer; c's never was, and nothing follows from that.
    assert phases.nonfinite("train_loss").tolist() == [[False] * 4, [False, False, True, False], [False] * 4]


def test_published_names_stand_in_for_ours():
    X = pd.DataFrame({f"val_val_accuracy__epoch__{p}": [0.1 * i] for i, p in enumerate(PHASES)}, index=["a"])
    bench = replace(bench_of_series({"a": {}}), X=X)
    assert RunPhases.of(bench).series("val_accuracy")[0] == pytest.approx([0.0, 0.1, 0.2, 0.3])


def test_firings_keep_the_first_of_each_rule():
    rules = Umlaut().rules
    fired = np.array([[False, True, True], [False, False, False]])
    cube = np.zeros((2, 3, 2), dtype=bool)
    cube[1, 1] = True
    observed = np.arange(12.0).reshape(2, 3, 2)
    readings = [
        Reading("lr_high", fired, np.arange(6.0).reshape(2, 3), 0.5),
        Reading("lr_low", cube, observed, "x"),
        Reading("overfitting", cube, observed, 1.0, downwards=True),
    ]
    table = tabulate(readings, rules, pd.Index(["a", "b"]), (0, 1, 2))
    assert table.columns.tolist() == list(FIRING_COLUMNS)
    assert table.values.tolist() == [
        ["a", "lr_high", "warning", 1, -1, 1.0, 0.5],
        ["b", "lr_low", "warning", 1, 0, 8.0, "x"],
        ["b", "overfitting", "warning", 1, 1, 9.0, 1.0],
    ]


@pytest.mark.parametrize(
    ("value", "expected"),
    [(1, 1), (np.int64(2), 2), (1 / 3, 0.333333), (np.nan, "nan"), (np.inf, "inf"), ("x", "x"), (np.True_, True)],
)
def test_plain_values_survive_json(value, expected):
    assert json.loads(json.dumps(plain(value), allow_nan=False)) == expected


@pytest.mark.parametrize("technique", TECHNIQUES, ids=lambda t: t.name)
def test_every_rule_says_how_it_is_seen(technique):
    logged = {m.name for m in LOG_METRICS}
    for rule in technique.rules:
        for form in ("log", "vector"):
            sight = rule.sight(form)
            assert sight.kind == "exact" or sight.note, f"{rule.name} ({form}) must say how or why"
            assert (sight.kind == "not observable") == (not sight.metrics)
        assert set(rule.log.metrics) <= logged or technique.form == "vector"


@pytest.mark.parametrize("technique", TECHNIQUES, ids=lambda t: t.name)
def test_rules_without_a_reading_are_declared_unobservable(technique):
    """A rule may lack a reading only where its form can't show it, and no reading is without a rule."""
    bench = bench_of_series({m: {"train_loss": [1.0, 0.9, 0.8, 0.7]} for m in "abcd"})
    X = pd.DataFrame(0.5, index=bench.runs, columns=list(columns("encoder")), dtype=np.float32)
    bench = replace(bench, X=X)
    fitted = clone(technique).fit(bench)
    read = {reading.rule for reading in fitted.readings(fitted.series(bench))}
    named = {rule.name for rule in technique.rules}
    assert read <= named
    assert all(rule.sight(technique.form).kind == "not observable" for rule in technique.rules if rule.name not in read)


@pytest.mark.parametrize("technique", TECHNIQUES, ids=lambda t: t.name)
def test_names_are_unique_and_parameters_survive_cloning(technique):
    assert clone(technique).get_params() == technique.get_params()
    assert technique.needs == technique.form
    assert len({t.name for t in TECHNIQUES}) == len(TECHNIQUES)


def test_a_bench_without_any_observable_rule_is_refused_with_a_reason():
    bench = bench_of_series({"a": {"weight_abs_max": [1.0]}})
    assert "none of its rules" in AutoTrainer().unsupported(bench)
    assert AutoTrainer().unsupported(bench_of_series({"a": {"train_loss": [1.0]}})) is None


def test_modules_load_alone():
    for module in ("series", "rules", "autotrainer", "umlaut", "deepdiagnosis", "signals", "invariants"):
        assert importlib.import_module(f"baselines.{module}").__doc__

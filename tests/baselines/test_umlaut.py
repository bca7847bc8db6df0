"""UMLAUT: the rules that a log shows, on both sides of each threshold, and the behaviours worth knowing."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baselines.series import bench_of_series
from baselines.umlaut import Umlaut
from features.bench import Bench
from features.schema import columns

PHASES = ("early_mean", "mid_mean", "final_mean", "final_value")


def fired(series: dict, **parameters) -> list[str]:
    return Umlaut(**parameters).firings(bench_of_series({"run": series})).rule.tolist()


@pytest.mark.parametrize(
    ("rate", "expected"),
    [
        (0.0101, ["lr_high"]),
        (0.01, []),
        (5e-5, []),
        (1e-7, []),
        (0.99e-7, ["lr_low"]),
        (0.0, ["lr_low"]),
        (-1000.0, ["lr_low"]),  # as in the tool: anything negative is "low"
    ],
)
def test_learning_rate(rate, expected):
    assert fired({"learning_rate": [1e-3, rate]}) == expected


@pytest.mark.parametrize(
    ("val", "train", "expected"),
    [
        ([1.0, 1.1], [1.0, 0.9], ["overfitting"]),
        ([1.0, 1.1], [1.0, 1.0], ["overfitting"]),  # unchanged training loss counts
        ([1.0, 1.1], [1.0, 1.01], []),
        ([1.0, 1.0], [1.0, 0.9], []),
        ([1.0, 1.0 + 1e-7], [1.0, 1.0], ["overfitting"]),  # as in the tool: no tolerance
    ],
)
def test_overfitting(val, train, expected):
    assert fired({"val_loss": val, "train_loss": train}) == expected


def test_tolerance_ignores_noise():
    assert fired({"val_loss": [1.0, 1.0 + 1e-7], "train_loss": [1.0, 1.0]}, tolerance=1e-6) == []


def test_overfitting_compares_with_the_epoch_before_only():
    # Worse than epoch 0 at the end, but never worse than the epoch before.
    assert fired({"val_loss": [0.5, np.nan, 1.0, 0.9], "train_loss": [1.0, 0.9, 0.8, 0.7]}) == []


@pytest.mark.parametrize(
    ("val", "train", "expected"),
    [
        (0.951, 0.95, ["overconfident_val"]),
        (0.95, 0.95, []),
        (0.6, 0.54, ["overconfident_val"]),
        (0.6, 0.56, []),
        (0.55, 0.50, ["overconfident_val"]),  # as in the tool: 0.55 - 0.50 > 0.05 in floating point
    ],
)
def test_overconfident_validation(val, train, expected):
    series = {"val_accuracy": [0.5, 0.5, 0.5, val], "train_accuracy": [0.5, 0.5, 0.5, train]}
    assert fired(series) == expected


def test_tolerance_forgives_rounding():
    series = {"val_accuracy": [0.5, 0.5, 0.5, 0.55], "train_accuracy": [0.5] * 4}
    assert fired(series, tolerance=1e-9) == []


def test_validation_accuracy_is_not_judged_before_the_fourth_epoch():
    assert fired({"val_accuracy": [0.99] * 3, "train_accuracy": [0.99] * 3}) == []
    table = Umlaut().firings(bench_of_series({"run": {"val_accuracy": [0.99] * 4}}))
    assert (table.rule.tolist(), table.epoch.tolist()) == (["overconfident_val"], [3])


def test_a_nan_loss_alone_is_silent():
    assert fired({"train_loss": [1.0, np.nan, np.nan], "val_loss": [1.0, np.nan, np.nan]}) == []


def test_eight_of_twelve_rules_need_the_program_or_its_input():
    series = {m: [0.5] * 4 for m in ("learning_rate", "val_loss", "train_loss", "val_accuracy", "train_accuracy")}
    table = Umlaut().observability(bench_of_series({"run": series}))
    assert len(table) == 12
    seen = table[table.sight != "not observable"]
    assert seen.index.tolist() == ["lr_high", "lr_low", "overfitting", "overconfident_val"]
    assert set(seen.sight) == {"exact"}
    assert set(seen.severity) == {"warning"}
    assert (table.note[table.sight == "not observable"] != "").all()


def test_nothing_worse_than_a_warning_can_be_seen():
    bench = bench_of_series({"run": {"learning_rate": [1.0]}})
    assert Umlaut().unsupported(bench) is None
    assert "none of its rules" in Umlaut(min_severity="error").unsupported(bench)
    verdict = Umlaut(min_severity="error").predict(bench).table.loc["run"]
    assert (verdict.faulty, verdict.score) == (False, 0.0)
    # The evidence lists the warning even where it doesn't count.
    assert json.loads(verdict.evidence)["rules"][0]["rule"] == "lr_high"


def test_score_is_the_share_of_rules_that_fired():
    series = {"learning_rate": [0.5, 0.0], "val_loss": [1.0, 2.0], "train_loss": [1.0, 1.0]}
    table = Umlaut().predict(bench_of_series({"run": series})).table
    assert table.score["run"] == 1.0  # three observable rules, all fired
    healthy = {"learning_rate": [1e-3, 1e-3], "val_loss": [1.0, 0.9], "train_loss": [1.0, 1.0]}
    both = Umlaut().predict(bench_of_series({"run": series, "fine": healthy})).table
    assert both.score["fine"] == 0.0


def vector(arch: str, **values) -> Bench:
    X = pd.DataFrame(0.5, index=["run"], columns=list(columns(arch)), dtype=np.float32)
    for column, value in values.items():
        X[column] = value
    labels = pd.DataFrame({"faulty": False, "category": "correct", "root_cause": "correct"}, index=X.index)
    return Bench(name="v", arch=arch, X=X, labels=labels, pair=pd.Series("m/t", index=X.index))


@pytest.mark.parametrize(
    ("perplexity", "expected"), [((3.0, 2.0, 2.1, 2.0), ["overfitting"]), ((3.0, 2.0, 2.0, 1.9), [])]
)
def test_vector_of_a_decoder_shows_overfitting_by_perplexity(perplexity, expected):
    changes = {f"val_perplexity__epoch__phase_{p}": v for p, v in zip(PHASES, perplexity, strict=True)}
    technique, bench = Umlaut(form="vector"), vector("decoder", **changes)
    assert technique.firings(bench).rule.tolist() == expected
    sight = technique.observability(bench)["sight"]
    assert sight[sight != "not observable"].index.tolist() == ["overfitting"]


@pytest.mark.parametrize(("accuracy", "expected"), [(0.96, ["overconfident_val"]), (0.95, [])])
def test_vector_of_an_encoder_shows_validation_accuracy_only(accuracy, expected):
    technique = Umlaut(form="vector")
    bench = vector("encoder", val_accuracy__epoch__phase_final_value=accuracy)
    assert technique.firings(bench).rule.tolist() == expected
    sight = technique.observability(bench)["sight"]
    assert sight[sight != "not observable"].index.tolist() == ["overconfident_val"]


def test_vector_reads_the_learning_rate_where_a_table_has_it():
    bench = vector("encoder")
    X = bench.X.assign(**{f"train_learning_rate__epoch_mean__phase_{p}": 0.02 for p in PHASES})
    published = Bench(name="p", arch="encoder", X=X, labels=bench.labels, pair=bench.pair)
    assert "lr_high" in Umlaut(form="vector").firings(published).rule.tolist()


floats = st.floats(0.01, 10)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(floats, floats), min_size=2, max_size=8))
def test_a_further_epoch_with_nan_never_hides_a_fault(losses):
    series = {"val_loss": [v for v, _ in losses], "train_loss": [t for _, t in losses]}
    longer = {metric: [*values, np.nan] for metric, values in series.items()}
    verdict = Umlaut().predict(bench_of_series({"before": series, "after": longer})).table
    assert verdict.faulty["after"] == verdict.faulty["before"]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=4, max_size=8), st.floats(0.1, 10))
def test_scaling_a_loss_does_not_change_accuracy_rules(accuracy, factor):
    def run(scale):
        return {"val_accuracy": accuracy, "train_accuracy": accuracy[::-1], "train_loss": [scale] * len(accuracy)}

    table = Umlaut().firings(bench_of_series({"one": run(1.0), "other": run(factor)}))
    assert table[table.run == "one"].rule.tolist() == table[table.run == "other"].rule.tolist()

"""Signal detectors: both sides of each threshold; those that are fitted see healthy runs only."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baselines.series import PHASES, bench_of_series
from baselines.signals import SignalDetector, Signals
from features.bench import Bench, BenchError
from features.schema import columns

FITTED = ("zscore", "lof", "isolation_forest")


def fired(series: dict, detector: str, **parameters) -> list[str]:
    return SignalDetector(detector, **parameters).firings(bench_of_series({"run": series})).rule.tolist()


@pytest.mark.parametrize(("last", "expected"), [(2.01, ["spike_loss"]), (2.0, [])])
def test_spike_between_epochs(last, expected):
    assert fired({"train_loss": [1.0, 0.9, last]}, "spike") == expected


def test_spike_between_steps_is_preferred_and_looks_back_over_the_window():
    steps = [1.0, 1.0, 3.0, 1.0, 1.0, 1.0, 2.5]
    series = {"train_loss": [1.0], "step_loss": [steps]}
    assert fired(series, "spike") == ["spike_loss"]  # 3 over 1
    assert fired(series, "spike", jump=3.0) == []
    later = {"train_loss": [1.0], "step_loss": [[3.0, 3.0, 1.0, 1.0, 1.0, 2.5]]}
    assert fired(later, "spike") == []
    assert fired(later, "spike", window=3) == ["spike_loss"]


@pytest.mark.parametrize(("last", "expected"), [(4.1, ["spike_gradient"]), (3.9, [])])
def test_spike_of_the_gradient(last, expected):
    assert fired({"train_loss": [1.0] * 3, "grad_mean_abs": [2.0, 2.0, last]}, "spike") == expected


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_loss_that_is_not_finite_is_a_spike_and_a_bad_trend(bad):
    series = {"train_loss": [1.0, 0.5, bad]}
    assert fired(series, "spike") == ["spike_loss"]
    assert fired(series, "trend") == ["trend_loss"]


@pytest.mark.parametrize(
    ("metric", "values", "expected"),
    [
        ("train_loss", [1.0, 0.9, 1.0], ["trend_loss"]),
        ("train_loss", [1.0, 0.9, 0.999], []),
        ("val_accuracy", [0.5, 0.9, 0.479], ["trend_accuracy"]),
        ("val_accuracy", [0.5, 0.9, 0.481], []),
        ("grad_mean_abs", [1.0, 1.0, 2.01], ["trend_gradient"]),
        ("grad_mean_abs", [1.0, 1.0, 2.0], []),
    ],
)
def test_trend(metric, values, expected):
    assert fired({metric: values}, "trend") == expected


def test_thirds_are_cut_as_in_the_vector():
    values = [8.0, 6.0, 5.0, 3.0, 2.0, 2.0, 1.0, 0.5]
    bench = bench_of_series({"run": {"train_loss": values}, "short": {"train_loss": [4.0, 2.0]}})
    detector = SignalDetector("trend")
    phases = detector.series(bench).phases["loss"]
    assert phases[0].tolist() == [7.0, 4.0, 1.375, 0.5]
    np.testing.assert_array_equal(phases[1], [np.nan, np.nan, 3.0, 2.0])


def healthy_and_odd(n: int = 60, seed: int = 0) -> Bench:
    """Healthy runs whose loss ends near 0.5, one faulty run that ends at 3, and one that is like the healthy."""
    rng = np.random.default_rng(seed)
    runs = {
        f"h{i}": {
            "train_loss": list(np.linspace(1.0, 0.5, 6) + rng.normal(0, 0.02, 6)),
            "val_accuracy": list(np.linspace(0.6, 0.9, 6) + rng.normal(0, 0.01, 6)),
            "grad_mean_abs": list(0.01 + rng.normal(0, 0.001, 6)),
        }
        for i in range(n)
    }
    odd = {**runs["h0"], "train_loss": [3.0] * 6}
    return bench_of_series({**runs, "odd": odd, "disguised": runs["h1"]}, faulty=("odd", "disguised"))


@pytest.mark.parametrize("detector", FITTED)
def test_fitted_detectors_find_the_odd_run(detector):
    bench = healthy_and_odd()
    table = SignalDetector(detector).fit(bench).predict(bench).table
    assert table.faulty["odd"]
    assert table.score["odd"] == table.score.max()
    assert table.faulty[~bench.faulty].mean() < 0.25


@pytest.mark.parametrize("detector", FITTED)
def test_faulty_runs_do_not_shape_what_is_normal(detector):
    bench = healthy_and_odd()
    healthy = bench.take(~bench.faulty.to_numpy())
    one = SignalDetector(detector).fit(bench).predict(bench).table
    other = SignalDetector(detector).fit(healthy).predict(bench).table
    pd.testing.assert_frame_equal(one, other)


@pytest.mark.parametrize("detector", FITTED)
def test_without_healthy_runs_nothing_can_be_learned(detector):
    bench = healthy_and_odd().take(["odd", "disguised"])
    with pytest.raises(BenchError, match="healthy"):
        SignalDetector(detector).fit(bench)


@pytest.mark.parametrize(("z", "fires"), [(3.01, True), (2.99, False)])
def test_zscore_threshold(z, fires):
    bench = bench_of_series({"a": {"train_loss": [1.0] * 3}, "b": {"train_loss": [3.0] * 3}})
    detector = SignalDetector("zscore").fit(bench)  # mean 2, deviation 1
    run = bench_of_series({"x": {"train_loss": [2.0 + z] * 3}})
    assert detector.predict(run).table.faulty["x"] == fires
    assert detector.predict(run).table.score["x"] == pytest.approx(z / 3)


@pytest.mark.parametrize("detector", FITTED)
def test_a_nan_loss_is_an_anomaly(detector):
    bench = healthy_and_odd()
    run = bench_of_series({"x": {"train_loss": [1.0, 0.9, np.nan, np.nan, np.nan, np.nan]}})
    assert SignalDetector(detector).fit(bench).predict(run).table.faulty["x"]


def vector(arch: str, **values) -> Bench:
    X = pd.DataFrame(1.0, index=["run"], columns=list(columns(arch)), dtype=np.float32)
    for i, phase in enumerate(PHASES):
        X[f"train_loss__epoch_mean__{phase}"] = 1.0 - 0.2 * i
        X[f"train_loss__epoch_burst__{phase}"] = 1.0 - 0.2 * i
    for column, value in values.items():
        assert column in X
        X[column] = value
    labels = pd.DataFrame({"faulty": False, "category": "correct", "root_cause": "correct"}, index=X.index)
    return Bench(name="v", arch=arch, X=X, labels=labels, pair=pd.Series("m/t", index=X.index))


@pytest.mark.parametrize(("burst", "expected"), [(1.21, ["spike_loss"]), (1.19, [])])
def test_spike_in_the_vector_is_burst_over_mean(burst, expected):
    bench = vector("encoder", train_loss__epoch_burst__phase_final_mean=burst)  # mean 0.6
    assert SignalDetector("spike", form="vector").firings(bench).rule.tolist() == expected


@pytest.mark.parametrize(("last", "expected"), [(np.exp(0.021), ["trend_accuracy"]), (np.exp(0.019), [])])
def test_a_decoders_vector_gives_minus_log_perplexity(last, expected):
    bench = vector("decoder", val_perplexity__epoch__phase_final_mean=last)
    technique = SignalDetector("trend", form="vector")
    assert technique.firings(bench).rule.tolist() == expected
    assert technique.observability(bench).sight["trend_accuracy"] == "exact"


def test_signals_of_both_forms_have_one_shape():
    log = SignalDetector("zscore").series(healthy_and_odd())
    phases = SignalDetector("zscore", form="vector").series(vector("encoder"))
    for signals in (log, phases):
        assert isinstance(signals, Signals)
        assert {a.shape for a in signals.phases.values()} == {(len(signals.runs), 4)}
        assert {a.shape for a in signals.jumps.values()} == {(len(signals.runs),)}


@settings(max_examples=40, deadline=None)
@given(st.floats(0.01, 100), st.integers(1, 12))
def test_a_constant_series_never_spikes(value, epochs):
    assert fired({"train_loss": [value] * epochs, "grad_mean_abs": [value] * epochs}, "spike") == []


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=3, max_size=9), st.floats(0.1, 10))
def test_scaling_a_loss_changes_no_trend(accuracy, factor):
    def run(scale):
        return {"val_accuracy": accuracy, "train_loss": [scale * 2.0**-i for i in range(len(accuracy))]}

    table = SignalDetector("trend").firings(bench_of_series({"one": run(1.0), "other": run(factor)}))
    assert table[table.run == "one"].rule.tolist() == table[table.run == "other"].rule.tolist()

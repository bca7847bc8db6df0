"""Aggregation against a second implementation in loops, hand-computed cases, and the limits of short runs."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from features.measure import aggregate
from features.schema import columns, metrics


@pytest.mark.parametrize(
    ("depth", "early", "mid"),
    [
        (1, [0], []),
        (2, [0], [1]),
        (3, [0], [1]),
        (4, [0, 1], [2]),
        (6, [0, 1], [2, 3]),
        (12, [0, 1, 2, 3], [4, 5, 6, 7]),
    ],
)
def test_layers_are_cut_into_thirds(depth, early, mid):
    values = np.arange(depth) ** 2.0
    found = aggregate.layer_statistics(values)
    expected = [f(values[band]) if band else np.nan for band in (early, mid) for f in (np.mean, np.std)]
    np.testing.assert_allclose(found, [*expected, values[-1]])


def test_epoch_statistics_by_hand():
    found = aggregate.epoch_statistics(np.arange(101.0)[:, None])
    np.testing.assert_allclose(found[0], [50, np.sqrt(850), 95])


def test_an_epoch_without_measurements_is_nan():
    assert np.isnan(aggregate.epoch_statistics(np.empty((0, 2)))).all()


@pytest.mark.parametrize("epochs", [3, 4, 5, 6, 7, 11])
def test_phases_and_slope_agree_with_a_line_fitted_by_numpy(epochs):
    values = np.random.default_rng(epochs).normal(size=epochs)
    third = epochs // 3
    means = [values[:third].mean(), values[third : 2 * third].mean(), values[2 * third :].mean()]
    slope = np.polyfit([0, 1, 2], means, 1)[0]
    np.testing.assert_allclose(aggregate.phase_statistics(values), [*means, slope, values[-1]])


@pytest.mark.parametrize("epochs", [1, 2])
def test_short_runs_have_no_early_and_no_mid_phase(epochs):
    found = aggregate.phase_statistics(np.ones(epochs))
    np.testing.assert_array_equal(found, [np.nan, np.nan, 1, np.nan, 1])


def random_run(arch, epochs, depth, steps, seed):
    rng = np.random.default_rng(seed)
    shapes = {"layer": (steps, depth), "gradient": (steps,), "step": (steps,), "epoch": ()}
    return [{m.name: rng.normal(size=shapes[m.resolution]) for m in metrics(arch)} for _ in range(epochs)]


def second_implementation(run, metric, column):
    """One column from its name, in plain Python."""
    parts = column.split("__")[1:]
    phase = parts[-1]
    per_epoch = []
    for epoch in run:
        values = epoch[metric.name]
        if metric.resolution == "epoch":
            per_epoch.append(float(values))
            continue
        if metric.resolution == "layer":
            bands = np.array_split(np.arange(values.shape[1]), 3)
            band = bands[0] if "early" in parts[0] else bands[1]
            pick = {"mean": np.mean, "std": np.std}.get(parts[0].rsplit("_", 1)[-1], lambda row: row[-1])
            values = np.array([pick(row if parts[0] == "final_layer_value" else row[band]) for row in values])
        statistic = parts[-2].removeprefix("epoch_")
        per_epoch.append(
            {"mean": values.mean(), "std": values.std(), "burst": pd.Series(values).quantile(0.95)}[statistic]
        )
    n = len(per_epoch)
    early, mid, final = per_epoch[: n // 3], per_epoch[n // 3 : 2 * (n // 3)], per_epoch[2 * (n // 3) :]
    return {
        "phase_early_mean": np.mean(early),
        "phase_mid_mean": np.mean(mid),
        "phase_final_mean": np.mean(final),
        "phase_slope": np.polyfit([0, 1, 2], [np.mean(early), np.mean(mid), np.mean(final)], 1)[0],
        "phase_final_value": per_epoch[-1],
    }[phase]


@given(st.sampled_from(["encoder", "decoder"]), st.integers(3, 6), st.integers(3, 5), st.integers(1, 4), st.integers())
@settings(max_examples=5, deadline=None)
def test_every_column_agrees_with_a_second_implementation(arch, epochs, depth, steps, seed):
    run = random_run(arch, epochs, depth, steps, abs(seed))
    found = aggregate.vector(run, arch)
    assert tuple(found.index) == columns(arch)
    assert found.dtype == np.float32
    by_name = {m.name: m for m in metrics(arch)}
    sample = found.index[:: max(1, len(found) // 60)]
    expected = [second_implementation(run, by_name[c.split("__")[0]], c) for c in sample]
    np.testing.assert_allclose(found[sample], expected, rtol=1e-4, atol=1e-6)


def test_what_was_not_measured_is_nan_and_nothing_else_is():
    run = random_run("decoder", 3, 4, 2, seed=1)
    for epoch in run:
        del epoch["score_mean"], epoch["val_ece"], epoch["train_loss"]
    found = aggregate.vector(run, "decoder")
    missing = {c.split("__")[0] for c in found.index[found.isna()]}
    assert missing == {"score_mean", "val_ece", "train_loss"}
    assert found.isna().sum() == 75 + 5 + 15


def test_a_measured_nan_spoils_its_epoch_and_infinity_stays():
    run = random_run("encoder", 3, 3, 4, seed=2)
    run[0]["train_loss"][1] = np.nan
    run[2]["grad_norm_total"][1] = np.inf
    found = aggregate.vector(run, "encoder")
    assert np.isnan(found["train_loss__epoch_mean__phase_early_mean"])
    assert np.isfinite(found["train_loss__epoch_mean__phase_final_mean"])
    assert np.isinf(found["grad_norm_total__epoch_mean__phase_final_value"])


def test_a_run_without_epochs_is_all_nan():
    assert aggregate.vector([], "encoder").isna().all()

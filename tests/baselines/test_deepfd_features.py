"""DeepFD's monitors against logs worked out by hand, its statistics against pandas, its column shift against the
published mapping."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from baselines.deepfd_features import (
    DIFFERENCES,
    FINAL_VALUES,
    MONITORS,
    STATISTICS,
    monitors,
    oscillates,
    shifted_names,
    statistics,
    vector_columns,
    vectors,
)
from features.bench import BenchError

HEALTHY = {
    "train_loss": [1.0, 0.8, 0.6, 0.5],
    "train_accuracy": [0.5, 0.6, 0.7, 0.8],
    "val_loss": [1.0, 0.9, 0.8, 0.7],
    "val_accuracy": [0.5, 0.6, 0.65, 0.75],
    "loss_nonfinite": [0, 0, 0, 0],
    "probe_grad_norm_first": [1.0, 1.0, 1.0, 1.0],
    "probe_grad_norm_last": [1.0, 1.0, 1.0, 1.0],
    "probe_grad_exact_zero_share": [0.1, 0.1, 0.1, 0.1],
    "gradient_nonfinite_count": [0, 0, 0, 0],
    "weight_nonfinite_count": [0, 0, 0, 0],
    "weight_abs_max": [1.0, 1.0, 1.0, 1.0],
    "weight_same_mean_count": [0, 0, 0, 0],
    "weight_same_std_count": [0, 0, 0, 0],
}


def log_of(steps=None, **changes) -> pd.DataFrame:
    """A long log of one run "r": HEALTHY with some series changed, and optionally per-step rows."""
    series = HEALTHY | changes
    rows = [
        ("r", epoch, -1, metric, -1, value) for metric, values in series.items() for epoch, value in enumerate(values)
    ]
    rows += [("r", 0, -1, "weight_mean", 0, 9.9)]  # a layered metric, which no monitor reads
    for metric, epochs in (steps or {}).items():
        step = 0
        for epoch, values in enumerate(epochs):
            for value in values:
                rows.append(("r", epoch, step, metric, -1, value))
                step += 1
    return pd.DataFrame(rows, columns=["run", "epoch", "step", "metric", "layer", "value"])


def monitor(name: str, **changes) -> list[float]:
    return monitors(log_of(**changes))[name].tolist()


def test_a_healthy_run_counts_nothing_but_its_low_first_accuracies():
    table = monitors(log_of())
    # Warm-up is 0.3 × 4 = 1.2, so that the second epoch is the first to be tested; 0.6 is not under the bound.
    silent = [m for m in MONITORS if m not in {"loss", "acc", "val_loss", "val_acc"}]
    assert (table[silent] == 0).all().all()
    assert table["loss"].tolist() == HEALTHY["train_loss"]
    assert table["val_acc"].tolist() == HEALTHY["val_accuracy"]


@pytest.mark.parametrize(
    ("name", "changes", "expected"),
    [
        ("not_converge", {"val_accuracy": [0.3, 0.4, 0.5, 0.7]}, [0, 1, 1, 1]),
        ("not_converge", {"train_accuracy": [0.7, 0.5, 0.5, 0.5]}, [0, 0, 0, 0]),
        ("nan_loss", {"loss_nonfinite": [0, 1, 0, 0]}, [0, 1, 2, 3]),
        ("nan_loss", {"val_loss": [1.0, np.nan, 1.0, 1.0]}, [0, 1, 2, 3]),
        ("nan_loss", {"val_loss": [1.0, 1e5, 1.0, 1.0]}, [0, 1, 1, 1]),
        ("test_not_well", {"val_accuracy": [0.3, 0.45, 0.65, 0.65]}, [0, 1, 1, 2]),
        (
            "test_not_well",
            {"train_accuracy": [0.5, 0.8, 0.95, 0.95], "val_accuracy": [0.5, 0.72, 0.87, 0.89]},
            [0, 0, 1, 1],
        ),
        ("test_turn_bad", {"val_loss": [1.0, 1.1, 0.8, 0.7]}, [0, 1, 1, 1]),
        ("test_turn_bad", {"val_loss": [1.0, 0.9, 1.2, 1.5]}, [0, 0, 0, 0]),
        (
            "sc_accuracy",
            {"train_accuracy": [0.7, 0.7, 0.7, 0.9], "val_accuracy": [0.7, 0.6, 0.605, 0.9]},
            [0, 1, 1, 1],
        ),
        ("died_relu", {"probe_grad_exact_zero_share": [0.7, 0.69, 0.9, 0.0]}, [1, 1, 2, 2]),
        ("vanish_gradient", {"probe_grad_norm_first": [5e-5, 5e-5, 1e-3, 9e-4]}, [1, 2, 2, 2]),
        ("vanish_gradient", {"probe_grad_norm_first": [2e-4] * 4}, [0, 0, 0, 0]),
        ("explode_gradient", {"probe_grad_norm_first": [70.0, 71.0, 1.0, 1.0]}, [0, 1, 1, 1]),
        ("explode_gradient", {"probe_grad_norm_last": [0.0, 1.0, 1.0, 1.0]}, [1, 1, 1, 1]),
        ("nan_gradient", {"gradient_nonfinite_count": [0, 7, 7, 0]}, [0, 1, 2, 2]),
        ("nan_weight", {"weight_nonfinite_count": [0, 0, 7, 7]}, [0, 0, 1, 2]),
        ("large_weight", {"weight_abs_max": [5.0, 5.1, 6.0, 1.0]}, [0, 1, 2, 2]),
        ("cons_mean_weight", {"weight_same_mean_count": [0, 3, 0, 2]}, [0, 3, 3, 5]),
        ("cons_std_weight", {"weight_same_std_count": [0, 1, 1, 0]}, [0, 1, 2, 2]),
        ("decrease_acc", {"train_accuracy": [0.8, 0.7, 0.9, 0.85]}, [0, 1, 1, 2]),
        ("increase_loss", {"train_loss": [1.0, 1.1, 1.2, 0.5]}, [0, 1, 2, 2]),
        ("nan_acc", {"train_accuracy": [0.5, np.inf, 0.6, 0.7]}, [0, 1, 2, 3]),
        ("weight_change_little", {"weight_same_mean_count": [9, 9, 9, 9]}, [0, 0, 0, 0]),
    ],
)
def test_monitor_worked_out_by_hand(name, changes, expected):
    assert monitor(name, **changes) == expected


def test_a_broken_loss_freezes_the_monitors_of_the_history():
    changes = {"train_accuracy": [0.8, 0.7, 0.6, 0.5], "train_loss": [1.0, 1.1, 1.2, 1.3]}
    table = monitors(log_of(loss_nonfinite=[0, 0, 1, 0], **changes))
    assert table["decrease_acc"].tolist() == [0, 1, 1, 1]
    assert table["increase_loss"].tolist() == [0, 1, 1, 1]
    assert monitors(log_of(**changes))["decrease_acc"].tolist() == [0, 1, 2, 3]


def test_unstable_loss_needs_enough_swings_and_sticks():
    # Up to epoch 3: one maximum (0.9), one minimum (0.6), swing 0.3; 1 ≥ 0.2 × 4.
    changes = {"train_accuracy": [0.5, 0.9, 0.6, 0.7], "val_accuracy": [0.7] * 4}
    assert monitor("unstable_loss", **changes) == [0, 0, 0, 1]


def test_oscillation_pairs_maxima_and_minima_in_order_of_time():
    assert oscillates(np.array([0.0, 1.0, 0.5, 1.0, 0.5, 1.0]))
    assert not oscillates(np.array([0.0, 0.52, 0.5, 0.52, 0.5, 0.52]))
    assert not oscillates(np.linspace(0, 1, 9))
    # Plateaus are maxima and minima at once, but without a swing.
    assert not oscillates(np.ones(9))


def test_batch_history_has_no_validation_and_reads_steps_and_epochs_in_one_list():
    steps = {
        "step_loss": [[2.0, 1.5], [1.4, 1.3], [1.2, 1.1], [1.0, 0.9]],
        "step_accuracy": [[0.1, 0.2], [0.3, 0.4], [0.5, 0.6], [0.7, 0.8]],
    }
    table = monitors(log_of(steps, val_accuracy=[0.1] * 4, val_loss=[0.5, 1.0, 2.0, 3.0]), history="batch")
    assert table["loss"].tolist() == [2.0, 1.4, 1.2, 1.0]
    assert table["acc"].tolist() == [0.1, 0.3, 0.5, 0.7]
    constant = ["not_converge", "sc_accuracy", "test_not_well", "test_turn_bad", "val_loss", "val_acc"]
    assert (table[constant].fillna(0) == 0).all().all()
    # Before the second check stands the first epoch's mean loss 1.0 < 1.4, accuracy 0.5 > 0.3; and so
    # on, until the last: the third epoch's accuracy is 0.7 as well.
    assert table["increase_loss"].tolist() == [0, 1, 2, 3]
    assert table["decrease_acc"].tolist() == [0, 1, 2, 2]


def test_batch_history_checks_again_every_256_steps():
    steps = {
        "step_loss": [list(np.linspace(2, 1, 300)), [1.0], [1.0], [1.0]],
        "step_accuracy": [[0.5] * 300, [0.5]] + [[0.5]] * 2,
    }
    table = monitors(log_of(steps), history="batch")
    assert len(table) == 5
    assert table["loss"].iloc[1] == pytest.approx(np.linspace(2, 1, 300)[256])


def test_lengths_of_the_vector():
    assert len(vector_columns()) == 4 + 22 * 8 == 180
    assert len(vector_columns(shift=True)) == 4 + 18 * 8 == 148
    assert vectors(log_of()).shape == (1, 180)
    assert vectors(log_of(), shift=True).shape == (1, 148)


def test_column_shift_is_the_published_one():
    assert shifted_names() == {
        "not_converge": "test_turn_bad",
        "unstable_loss": "sc_accuracy",
        "nan_loss": "died_relu",
        "test_not_well": "vanish_gradient",
        "test_turn_bad": "explode_gradient",
        "sc_accuracy": "nan_gradient",
        "died_relu": "large_weight",
        "vanish_gradient": "nan_weight",
        "explode_gradient": "weight_change_little",
        "nan_gradient": "decrease_acc",
        "large_weight": "increase_loss",
        "nan_weight": "cons_mean_weight",
        "weight_change_little": "cons_std_weight",
        "decrease_acc": "nan_acc",
        "increase_loss": "loss",
        "cons_mean_weight": "acc",
        "cons_std_weight": "val_loss",
        "nan_acc": "val_acc",
    }


def test_shifted_columns_hold_what_the_mapping_says():
    log = log_of(weight_same_mean_count=[0, 3, 0, 2], train_loss=[1.0, 1.1, 0.7, 0.5])
    right, shifted = vectors(log).iloc[0], vectors(log, shift=True).iloc[0]
    for column, content in shifted_names().items():
        for statistic in STATISTICS:
            name, source = f"ft_{column}_{statistic}", f"ft_{content}_{statistic}"
            np.testing.assert_equal(shifted[name], right[source])
    assert shifted["ft_increase_loss_max"] == 1.1
    assert (shifted[list(FINAL_VALUES)] == right[list(FINAL_VALUES)]).all()


def test_final_values_are_the_last_epoch():
    vector = vectors(log_of()).loc["r"]
    assert vector[list(FINAL_VALUES)].tolist() == [0.7, 0.75, 0.5, 0.8]


@given(st.lists(st.floats(-1e3, 1e3, width=32), min_size=4, max_size=12))
def test_statistics_against_numpy_and_scipy(values):
    x = np.array(values, dtype=float)
    index = pd.MultiIndex.from_product([["r"], range(len(x))], names=["run", "check"])
    row = statistics(pd.DataFrame({"loss": x}, index=index)).loc["r"]
    expected = {
        "mean": x.mean(),
        "std": x.std(ddof=1),
        "median": np.median(x),
        "var": x.var(ddof=1),
        "sem": x.std(ddof=1) / np.sqrt(len(x)),
        "max": x.max(),
        "min": x.min(),
    }
    for name, value in expected.items():
        assert row[f"ft_loss_{name}"] == pytest.approx(value, rel=1e-6, abs=1e-6), name
    if x.std() > 1e-2 * np.abs(x).max():
        assert row["ft_loss_skew"] == pytest.approx(stats.skew(x, bias=False), rel=1e-4, abs=1e-6)


def test_statistics_read_a_missing_value_as_zero():
    index = pd.MultiIndex.from_product([["r"], range(2)], names=["run", "check"])
    row = statistics(pd.DataFrame({"loss": [np.nan, 2.0]}, index=index)).loc["r"]
    assert row["ft_loss_mean"] == 1.0
    assert row["ft_loss_std"] == pytest.approx(np.sqrt(2))


def test_runs_do_not_mix():
    first, second = log_of(), log_of(train_loss=[3.0, 2.0, 5.0, 1.0]).assign(run="q")
    together = vectors(pd.concat([first, second]).sample(frac=1, random_state=0))
    pd.testing.assert_frame_equal(together.loc[["r"]], vectors(first))
    pd.testing.assert_frame_equal(together.loc[["q"]], vectors(second))


def test_what_a_log_must_hold():
    with pytest.raises(BenchError, match="val_loss"):
        monitors(log_of().query("metric != 'val_loss'"))
    with pytest.raises(BenchError, match="step_loss"):
        monitors(log_of(), history="batch")
    with pytest.raises(BenchError, match="more than one row"):
        monitors(pd.concat([log_of(), log_of()]))


def test_differences_are_listed_with_what_stands_in():
    assert any("weight_change_little" in d.what for d in DIFFERENCES)
    assert all(d.what and d.here for d in DIFFERENCES)

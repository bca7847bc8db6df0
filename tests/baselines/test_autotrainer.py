"""AutoTrainer: every rule on both sides of its threshold; the tool's defects, kept in `code` and gone in `guarded`."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baselines.autotrainer import REPAIRS, AutoTrainer
from baselines.series import bench_of_series
from features.bench import Bench
from features.schema import columns

LOW, HIGH = [0.3, 0.4, 0.5, 0.6], [0.3, 0.5, 0.7, 0.9]


def log(accuracy=HIGH, **metrics) -> dict[str, list]:
    """A run whose training and validation accuracy are the same, and whose other series are as given."""
    return {"train_accuracy": accuracy, "val_accuracy": accuracy, **metrics}


def gradients(first, last=1.0, zeros=0.0, epochs=4) -> dict[str, list]:
    return {
        "probe_grad_norm_first": [first] * epochs,
        "probe_grad_norm_last": [last] * epochs,
        "probe_grad_exact_zero_share": [zeros] * epochs,
    }


def fired(series: dict, **parameters) -> list[str]:
    return AutoTrainer(**parameters).firings(bench_of_series({"run": series})).rule.tolist()


@pytest.mark.parametrize(
    ("variant", "first", "last", "expected"),
    [
        ("code", 99e-6, 1.0, ["vanish"]),  # norm just below 1e-4, ratio 99e-6
        ("code", 1e-4, 1.0, []),
        ("code", 99e-6, 0.0991, ["vanish"]),  # ratio just below 1e-3
        ("code", 99e-6, 0.0989, []),
        ("paper", 1e-4, 0.1, ["vanish"]),  # the article's bounds are inclusive
        ("paper", 1.001e-4, 1.0, []),
        ("guarded", 99e-6, 1.0, ["vanish"]),
        ("guarded", 1e-4, 1.0, []),
        ("code", 70.01, 1.0, ["explode_ratio"]),
        ("code", 70.0, 1.0, []),
        ("paper", 70.0, 1.0, ["explode_ratio"]),
        ("paper", 69.99, 1.0, []),
        ("guarded", 70.01, 1.0, ["explode_ratio"]),
        ("guarded", 70.0, 1.0, []),
    ],
)
def test_gradient_rules_fire_on_their_side_of_the_threshold(variant, first, last, expected):
    assert fired(log(LOW, **gradients(first, last)), variant=variant) == expected


@pytest.mark.parametrize("variant", ["code", "paper", "guarded"])
@pytest.mark.parametrize(("zeros", "expected"), [(0.7, ["dying_relu"]), (0.699, [])])
def test_dying_relu_fires_from_gamma_on(variant, zeros, expected):
    assert fired(log(LOW, **gradients(1.0, zeros=zeros)), variant=variant) == expected


@pytest.mark.parametrize("variant", ["code", "paper", "guarded"])
def test_gradient_symptoms_need_low_accuracy(variant):
    symptom = gradients(1e-5, 1.0)
    # The only judged check of four epochs is epoch 3 in `code`; the article also judges epoch 0.
    high = [0.9, 0.92, 0.94, 0.96]
    assert fired(log(high, **symptom), variant=variant) == []
    assert fired(log(LOW, **symptom), variant=variant) == ["vanish"]


@pytest.mark.parametrize(("best", "expected"), [(0.699, ["vanish"]), (0.7, [])])
def test_theta_is_exclusive_in_the_code(best, expected):
    accuracy = [0.3, 0.4, 0.5, best]
    assert fired(log(accuracy, **gradients(1e-5))) == expected


def test_theta_is_inclusive_in_the_article():
    accuracy = [0.7, 0.5, 0.5, 0.5]
    assert fired(log(accuracy, **gradients(1e-5)), variant="paper") == ["vanish"]
    assert fired(log([0.701, 0.5, 0.5, 0.5], **gradients(1e-5)), variant="paper") == []


def test_one_low_accuracy_is_enough_in_the_code():
    series = {"train_accuracy": HIGH, "val_accuracy": LOW, **gradients(1e-5)}
    assert fired(series) == ["vanish"]


@pytest.mark.parametrize("loss", [np.nan, np.inf])
@pytest.mark.parametrize("variant", ["code", "guarded"])
def test_a_loss_that_is_not_finite_explodes_whatever_the_accuracy(variant, loss):
    assert fired(log(HIGH, train_loss=[1.0, 1.0, loss, 1.0]), variant=variant) == ["explode_nan"]


@pytest.mark.parametrize(("loss", "expected"), [(1e5, ["explode_nan"]), (99_999.0, [])])
def test_code_takes_the_last_validation_loss_from_1e5_for_nan(loss, expected):
    assert fired(log(HIGH, train_loss=[1.0] * 4, val_loss=[1.0, 1.0, 1.0, loss])) == expected


@pytest.mark.parametrize(("loss", "expected"), [(1e3, ["explode_nan"]), (999.0, [])])
def test_guarded_takes_any_loss_from_1e3_for_nan(loss, expected):
    assert fired(log(HIGH, train_loss=[1.0] * 4, val_loss=[loss, 1.0, 1.0, 1.0]), variant="guarded") == expected


def test_the_article_looks_for_nan_in_gradients_and_only_under_low_accuracy():
    nan = {"gradient_nonfinite_count": [0, 0, 0, 3], "train_loss": [1.0] * 4}
    assert fired(log(LOW, **nan), variant="paper") == ["explode_nan"]
    assert fired(log(HIGH, **nan), variant="paper") == []
    assert fired(log(HIGH, train_loss=[1.0, 1.0, 1.0, np.nan]), variant="paper") == []


def test_a_series_that_was_never_logged_is_no_nan():
    ragged = {"a": log(HIGH, train_loss=[1.0] * 4), "b": log(HIGH)}
    assert AutoTrainer().firings(bench_of_series(ragged)).empty


@pytest.mark.parametrize(("step", "expected"), [(0.0099, ["slow_convergence"]), (0.0101, [])])
def test_slow_convergence_in_the_code_needs_every_rise_below_delta(step, expected):
    assert fired(log([0.8 + step * i for i in range(7)])) == expected


@pytest.mark.parametrize(("step", "expected"), [(0.0099, ["slow_convergence"]), (0.0101, [])])
def test_slow_convergence_in_the_article_also_counts_falls(step, expected):
    assert fired(log([0.9 - step * i for i in range(7)]), variant="paper") == expected


@pytest.mark.parametrize(("step", "expected"), [(0.0099, ["slow_convergence"]), (0.0101, [])])
def test_slow_convergence_guarded_takes_the_mean_rise(step, expected):
    assert fired(log([0.4 + step * i for i in range(7)]), variant="guarded") == expected


@pytest.mark.parametrize(("swing", "expected"), [(0.031, ["oscillation"]), (0.029, [])])
@pytest.mark.parametrize("variant", ["code", "paper", "guarded"])
def test_oscillation_counts_swings_from_zeta_on(variant, swing, expected):
    assert fired(log([0.9, 0.9 + swing] * 4), variant=variant) == expected


@pytest.mark.parametrize("variant", ["code", "paper"])
def test_oscillation_needs_a_share_eta_of_the_epochs(variant):
    # One pair is visible at epoch 6 (7 epochs so far): 1/7 of them.
    accuracy = [0.80, 0.90, 0.80, 0.90, 0.95, 0.96, 0.97]
    one_swing = [0.80, 0.82, 0.84, 0.90, 0.80, 0.90, 0.95]
    assert fired(log(accuracy), variant=variant, eta=1 / 4 + 1e-9) == []
    assert fired(log(accuracy), variant=variant, eta=1 / 4) == ["oscillation"]  # at epoch 3: 1 pair of 4 epochs
    assert fired(log(one_swing), variant=variant, eta=0.15) == []
    assert fired(log(one_swing), variant=variant, eta=0.14) == ["oscillation"]


# The tool's defects: each is reproduced by `code` and gone in `guarded`.


def test_defect_runs_of_three_epochs_are_always_slow():
    healthy = log([0.85, 0.90, 0.93])
    table = AutoTrainer().firings(bench_of_series({"run": healthy}))
    assert (table.rule.tolist(), table.epoch.tolist()) == (["slow_convergence"], [0])
    assert fired(healthy, variant="guarded") == []
    assert fired(healthy, variant="paper") == []


def test_defect_a_converged_plateau_is_slow():
    plateau = log([0.97] * 20)
    table = AutoTrainer().firings(bench_of_series({"run": plateau}))
    assert (table.rule.tolist(), table.epoch.tolist()) == (["slow_convergence"], [6])
    assert fired(plateau, variant="guarded") == []


def test_defect_one_jitter_hides_slow_convergence_for_good():
    stuck = [0.1135 if i == 3 else 0.1010 for i in range(100)]
    series = {"train_accuracy": [0.11] * 100, "val_accuracy": stuck}
    assert fired(series) == []
    assert fired(series, variant="guarded") == ["slow_convergence"]


def test_defect_low_accuracy_hides_oscillation():
    low, high = log([0.3, 0.6] * 10), log([0.75, 0.9] * 10)
    assert (fired(low), fired(high)) == ([], ["oscillation"])
    assert (fired(low, variant="guarded"), fired(high, variant="guarded")) == (["oscillation"], ["oscillation"])


def test_defect_gradient_evidence_never_goes_stale():
    once = {
        "probe_grad_norm_first": [80.0, 1.0, 1.0, 1.0],
        "probe_grad_norm_last": [1.0] * 4,
    }
    table = AutoTrainer().firings(bench_of_series({"run": log(LOW, **once)}))
    assert (table.rule.tolist(), table.epoch.tolist(), table.observed.tolist()) == (["explode_ratio"], [3], [80.0])
    assert fired(log(LOW, **once), variant="guarded") == []


def test_defect_low_accuracy_is_remembered_after_it_has_risen():
    # Low at the check of epoch 3, high at epoch 6, where the gradient first explodes.
    rising = log([0.2, 0.4, 0.5, 0.6, 0.8, 0.9, 0.95])
    late = {"probe_grad_norm_first": [1.0] * 6 + [80.0], "probe_grad_norm_last": [1.0] * 7}
    assert fired({**rising, **late}) == ["explode_ratio"]
    assert fired({**rising, **late}, variant="guarded") == []


def test_defect_a_last_gradient_of_zero_explodes():
    series = log(LOW, **gradients(1e-3, last=0.0))
    assert fired(series) == ["explode_ratio"]
    assert fired(series, variant="guarded") == []


def test_all_zero_gradients_are_a_dying_relu_and_no_ratio():
    assert fired(log(LOW, **gradients(0.0, last=0.0, zeros=1.0))) == ["dying_relu"]


def test_defect_a_constant_validation_loss_of_2000_passes():
    series = log(HIGH, train_loss=[1.0] * 4, val_loss=[2e3] * 4)
    assert fired(series) == []
    assert fired(series, variant="guarded") == ["explode_nan"]


def test_defect_what_happens_after_the_last_check_is_missed():
    late = log([0.3, 0.5, 0.7, 0.9, 0.9], train_loss=[1.0, 1.0, 1.0, 1.0, np.nan])
    assert fired(late) == []
    assert fired(late, variant="guarded") == ["explode_nan"]


def test_defect_four_epochs_oscillate_by_one_swing():
    series = log([0.8, 0.9, 0.8, 0.9])
    assert fired(series) == ["oscillation"]
    assert fired(series, variant="guarded") == []


def test_three_epochs_can_never_oscillate():
    assert fired(log([0.9, 0.1, 0.9]), variant="paper") == []


def test_defect_plateaus_are_maxima_and_minima():
    # Maxima .9 (thrice, a plateau), minima .9 (the plateau's middle) and .5: the second maximum is paired with .5.
    series = log([0.80, 0.90, 0.90, 0.90, 0.91, 0.5, 0.92])
    code = AutoTrainer(eta=0.1).firings(bench_of_series({"run": series}))
    assert code.rule.tolist() == ["oscillation"]
    assert AutoTrainer(variant="guarded", eta=0.1).firings(bench_of_series({"run": series})).empty


def test_first_problem_of_the_chain_wins_in_the_code():
    everything = log([0.5] * 4, **gradients(1e-5, last=1e-9, zeros=0.9))
    assert fired(everything) == ["dying_relu"]
    assert fired(log([0.5] * 4, **gradients(1e-5))) == ["vanish"]
    assert fired(log([0.5] * 4)) == ["slow_convergence"]


def test_symptom_checks_ask_for_repeated_evidence():
    once = log(
        [0.30, 0.35, 0.40, 0.45, 0.5, 0.55, 0.6],
        probe_grad_norm_first=[80.0] + [1.0] * 6,
        probe_grad_norm_last=[1.0] * 7,
    )
    assert fired(once) == ["explode_ratio"]
    assert fired(once, symptom_checks=2) == []


def test_evidence_names_rule_value_threshold_problem_and_repairs():
    table = AutoTrainer().predict(bench_of_series({"bad": log(LOW, **gradients(80.0)), "good": log()})).table
    evidence = json.loads(table.loc["bad", "evidence"])
    assert evidence["rules"] == [
        {"rule": "explode_ratio", "severity": "error", "epoch": 3, "observed": 80.0, "threshold": 70.0}
    ]
    assert evidence["problem"] == "explode_ratio"
    assert evidence["repairs"] == list(REPAIRS["explode_ratio"])
    assert table.loc["good", "evidence"] == "{}"
    assert table.faulty.tolist() == [True, False]
    assert table.loc["bad", "score"] > table.loc["good", "score"] == 0.0


def test_without_accuracy_only_the_nan_rule_is_left():
    bench = bench_of_series({"run": {"train_loss": [1.0, np.nan, 1.0, 1.0], **gradients(80.0)}})
    sight = AutoTrainer().observability(bench)["sight"]
    assert sight[sight != "not observable"].index.tolist() == ["explode_nan"]
    assert AutoTrainer().firings(bench).rule.tolist() == ["explode_nan"]


def vectors(**values) -> Bench:
    """Two encoder vectors of ones, the first with these columns set; healthy accuracy unless said otherwise."""
    X = pd.DataFrame(1.0, index=["a", "b"], columns=list(columns("encoder")), dtype=np.float32)
    X.loc[:, X.columns.str.startswith(("grad_zero_share", "gradient_exploding"))] = 0.0
    for i, phase in enumerate(("early_mean", "mid_mean", "final_mean", "final_value")):
        X[f"val_accuracy__epoch__phase_{phase}"] = 0.6 + 0.1 * i
    for column, value in values.items():
        X.loc["a", column] = value
    labels = pd.DataFrame({"faulty": False, "category": "correct", "root_cause": "correct"}, index=X.index)
    return Bench(name="v", arch="encoder", X=X, labels=labels, pair=pd.Series("m/t", index=X.index))


PHASES = ("early_mean", "mid_mean", "final_mean", "final_value")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, []),
        ({f"val_accuracy__epoch__phase_{p}": 0.9 for p in PHASES}, ["slow_convergence"]),
        ({f"val_accuracy__epoch__phase_{p}": 0.9 + 0.02 * i for i, p in enumerate(PHASES)}, []),
        (
            {f"val_accuracy__epoch__phase_{p}": 0.4 + 0.05 * i for i, p in enumerate(PHASES)}
            | {"grad_norm_total__epoch_mean__phase_mid_mean": 9e-5},
            ["vanish"],
        ),
        (
            {f"val_accuracy__epoch__phase_{p}": 0.4 + 0.05 * i for i, p in enumerate(PHASES)}
            | {"grad_norm_total__epoch_mean__phase_mid_mean": 1.1e-4},
            [],
        ),
        (
            {f"val_accuracy__epoch__phase_{p}": 0.4 + 0.05 * i for i, p in enumerate(PHASES)}
            | {"grad_zero_share__epoch_mean__phase_final_value": 0.71},
            ["dying_relu"],
        ),
        (
            {f"val_accuracy__epoch__phase_{p}": 0.4 + 0.05 * i for i, p in enumerate(PHASES)}
            | {"gradient_exploding__epoch_mean__phase_early_mean": 0.01},
            ["explode_ratio"],
        ),
        ({"train_loss__epoch_mean__phase_final_value": np.nan}, ["explode_nan"]),
        ({"train_loss__epoch_mean__phase_mid_mean": np.inf}, ["explode_nan"]),
    ],
)
def test_vector_form(changes, expected):
    table = AutoTrainer(form="vector").firings(vectors(**changes))
    assert table.rule.tolist() == expected
    assert table.run.tolist() == ["a"] * len(expected)


@pytest.mark.parametrize(("accuracy", "expected"), [(0.6, ["vanish"]), (0.8, [])])
def test_the_articles_gate_reads_validation_accuracy_in_a_vector(accuracy, expected):
    changes = {f"val_accuracy__epoch__phase_{p}": accuracy + 0.02 * i for i, p in enumerate(PHASES)}
    changes["grad_norm_total__epoch_mean__phase_early_mean"] = 1e-5
    assert AutoTrainer(form="vector", variant="paper").firings(vectors(**changes)).rule.tolist() == expected


@pytest.mark.parametrize("variant", ["code", "guarded"])
def test_evidence_of_a_nan_says_nan(variant):
    bench = bench_of_series({"run": log(HIGH, train_loss=[1.0, np.nan, 1.0, 1.0], val_loss=[1.0] * 4)})
    evidence = json.loads(AutoTrainer(variant=variant).predict(bench).table.loc["run", "evidence"])
    assert evidence["rules"][0]["observed"] == "nan"


def test_vector_form_lists_what_it_cannot_see():
    sight = AutoTrainer(form="vector").observability(vectors())["sight"]
    assert sight["oscillation"] == "not observable"
    assert set(sight.drop("oscillation")) == {"approximated"}


def test_a_decoder_vector_has_no_accuracy_for_the_gate():
    X = pd.DataFrame(1.0, index=["a"], columns=list(columns("decoder")), dtype=np.float32)
    labels = pd.DataFrame({"faulty": False, "category": "correct", "root_cause": "correct"}, index=X.index)
    bench = Bench(name="d", arch="decoder", X=X, labels=labels, pair=pd.Series("m/t", index=X.index))
    sight = AutoTrainer(form="vector").observability(bench)["sight"]
    assert sight[sight != "not observable"].index.tolist() == ["explode_nan"]


accuracies = st.lists(st.floats(0, 1), min_size=1, max_size=12)
losses = st.lists(st.floats(1e-3, 1e6) | st.just(np.nan), min_size=12, max_size=12)


def run_of(accuracy, loss):
    n = len(accuracy)
    return {"train_accuracy": accuracy, "val_accuracy": accuracy[::-1], "train_loss": loss[:n], "val_loss": loss[:n]}


@settings(max_examples=60, deadline=None)
@given(accuracies, losses, st.integers(0, 11), st.sampled_from(["code", "guarded"]))
def test_adding_a_nan_loss_never_hides_a_fault(accuracy, loss, place, variant):
    before = run_of(accuracy, loss)
    after = run_of(accuracy, [np.nan if i == place % len(accuracy) else v for i, v in enumerate(loss)])
    verdicts = AutoTrainer(variant=variant).predict(bench_of_series({"before": before, "after": after})).table
    assert verdicts.faulty["after"] >= verdicts.faulty["before"]


@settings(max_examples=30, deadline=None)
@given(st.floats(0, 1), st.integers(1, 30), st.sampled_from(["code", "paper", "guarded"]))
def test_a_constant_series_never_oscillates(value, epochs, variant):
    assert "oscillation" not in fired(log([value] * epochs), variant=variant)


@settings(max_examples=60, deadline=None)
@given(accuracies, st.floats(1e-3, 900), st.floats(1e-3, 1), st.sampled_from(["code", "paper", "guarded"]))
def test_scaling_a_loss_does_not_change_accuracy_rules(accuracy, loss, factor, variant):
    runs = {"one": run_of(accuracy, [loss] * 12), "other": run_of(accuracy, [loss * factor] * 12)}
    table = AutoTrainer(variant=variant).firings(bench_of_series(runs))
    assert table[table.run == "one"].rule.tolist() == table[table.run == "other"].rule.tolist()


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from([0.1, 0.2, 0.24, 0.9]), min_size=1, max_size=14))
def test_oscillation_counts_as_a_direct_reading_of_the_definition(accuracy):
    """A second implementation: recount the pairs from scratch at every check."""
    expected = []
    n = len(accuracy)
    for epoch in range(0, n, 3):
        k, a = epoch + 1, accuracy[: epoch + 1]
        tops = [a[i] for i in range(1, k - 1) if a[i] >= max(a[i - 1], a[i + 1])]
        bottoms = [a[i] for i in range(1, k - 1) if a[i] <= min(a[i - 1], a[i + 1])]
        count = sum(top - bottom >= 0.03 for top, bottom in zip(tops, bottoms, strict=False))
        if k >= 0.3 * n and count >= 0.2 * k:
            expected = ["oscillation"]
            break
    # Theta 0 and delta 0 close the gate, so that only oscillation is left.
    assert fired(log(accuracy), theta=0.0, delta=0.0) == expected

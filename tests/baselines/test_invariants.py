"""Invariants: each kind is found where it was planted, doubtful ones are refused, verdicts name what broke."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baselines.invariant_forms import KINDS, Forms, _quantiles
from baselines.invariants import Invariants
from features.bench import Bench, BenchError
from features.fpg import CATEGORY_GROUP
from features.schema import columns


def planted(n: int = 100, pairs: int = 5, seed: int = 0, **changes) -> Bench:
    """Healthy runs of a few columns with one relation of every kind; `changes` set columns of the last run."""
    rng = np.random.default_rng(seed)
    base = rng.uniform(1, 2, n)
    stem, update = "ffn_output_norm", "update_active_qkv__epoch_mean"
    X = pd.DataFrame(
        {
            f"{update}__phase_early_mean": 1.0,
            f"{stem}__layer_early_mean__epoch_mean__phase_final_mean": base,
            f"{stem}__layer_mid_mean__epoch_mean__phase_final_mean": base + rng.uniform(0.5, 1.5, n),
            f"{stem}__final_layer_value__epoch_mean__phase_final_mean": base * rng.uniform(2.95, 3.05, n),
            "train_loss__epoch_mean__phase_early_mean": rng.uniform(1, 2, n),
            "train_loss__epoch_mean__phase_mid_mean": rng.uniform(0.5, 2, n),
            "train_loss__epoch_mean__phase_slope": -rng.uniform(0.1, 1, n),
            "score_mean__layer_early_mean__epoch_mean__phase_mid_mean": rng.normal(0, 1, n),
        },
        index=[f"r{i}" for i in range(n)],
    )
    for column, value in changes.items():
        X.loc[X.index[-1], [c for c in X if c.startswith(column)]] = value
    faulty = np.zeros(n, dtype=bool)
    faulty[-1] = bool(changes)
    category = np.where(faulty, "ffn", "correct")
    labels = pd.DataFrame({"faulty": faulty, "category": category, "root_cause": category}, index=X.index)
    pair = pd.Series([f"m{i % pairs}/t" for i in range(n)], index=X.index)
    return Bench(name="planted", arch="encoder", X=X, labels=labels, pair=pair)


def sentences(bench: Bench, **parameters) -> list[str]:
    return Invariants(**parameters).fit(bench).invariants_.sentence.tolist()


@pytest.mark.parametrize(
    "sentence",
    [
        "update active qkv (early phase) is 1 in 100 % of healthy runs",
        "ffn output norm (final phase): middle layers >= early layers in 100 % of healthy runs",
        "ffn output norm (final phase): last layer >= early layers in 100 % of healthy runs",
        "train loss falls in 100 % of healthy runs",
    ],
)
def test_planted_relations_are_found_and_readable(sentence):
    assert sentence in sentences(planted())


def test_a_fixed_ratio_is_found_and_a_loose_one_refused():
    ratios = [s for s in sentences(planted()) if "times" in s]
    assert len(ratios) == 1
    assert ratios[0].startswith("ffn output norm (final phase): last layer is 2.9")
    assert sentences(planted(), ratio_width=0.005) == [s for s in sentences(planted()) if "times" not in s]


def test_no_order_is_claimed_where_there_is_none():
    assert not [s for s in sentences(planted()) if s.startswith("train loss: ")]


@pytest.mark.parametrize(("share", "kept"), [(0.0, True), (0.019, True), (0.03, False)])
def test_an_ordering_may_fail_in_a_share_epsilon_of_runs(share, kept):
    bench = planted(1000)
    early, middle = (f"ffn_output_norm__layer_{part}_mean__epoch_mean__phase_final_mean" for part in ("early", "mid"))
    X = bench.X.copy()
    X[middle] = X[middle].where(np.arange(1000) >= share * 1000, X[early] - 0.1)
    found = sentences(replace(bench, X=X), epsilon=0.02)
    assert any("middle layers >= early layers" in s for s in found) == kept


def test_what_holds_in_some_pairs_only_fails_the_test_on_unseen_pairs():
    bench = planted(100)
    X = bench.X.copy()
    column = "update_active_qkv__epoch_mean__phase_early_mean"
    X[column] = bench.pair.map({p: float(i) for i, p in enumerate(bench.pair.unique())})
    found = sentences(replace(bench, X=X))
    assert not [s for s in found if s.startswith("update active qkv")]
    assert len(found) < len(sentences(bench)) + 1


@pytest.mark.parametrize(
    ("changes", "statement"),
    [
        ({"update_active_qkv": 0.0}, "update active qkv (early phase) is 1"),
        ({"ffn_output_norm__layer_mid_mean": 0.1}, "middle layers >= early layers"),
        ({"train_loss__epoch_mean__phase_slope": 0.5}, "train loss falls"),
        ({"ffn_output_norm__final_layer_value": 20.0}, "times early layers"),
        ({"score_mean": 100.0}, "score mean"),
        ({"score_mean": np.inf}, "score mean"),
        ({"score_mean": np.nan}, "score mean"),  # measured in every healthy run, so missing breaks it
    ],
)
def test_a_broken_relation_is_named(changes, statement):
    bench = planted(**changes)
    technique = Invariants().fit(bench)
    evidence = json.loads(technique.predict(bench).table.evidence.iloc[-1])
    assert any(statement in broken["statement"] for broken in evidence["invariants"])
    healthy = json.loads(technique.predict(planted()).table.evidence.iloc[0])
    assert healthy["broken"] == 0


def test_missing_breaks_nothing_where_healthy_runs_miss_it_too():
    bench = planted()
    X = bench.X.copy()
    column = "score_mean__layer_early_mean__epoch_mean__phase_mid_mean"
    X.loc[X.index[::3], column] = np.nan
    bench = replace(bench, X=X)
    technique = Invariants().fit(bench)
    assert any("score mean" in s for s in technique.invariants_.sentence)
    assert technique.predict(bench).table.score.max() < 0.5
    gone = bench.X.copy()
    gone[column] = np.nan
    pd.testing.assert_series_equal(
        technique.predict(replace(bench, X=gone)).table.faulty, technique.predict(bench).table.faulty
    )


def test_faulty_rows_shape_neither_invariants_nor_threshold():
    bench = planted(ffn_output_norm=50.0, train_loss=-3.0)
    healthy = bench.take(~bench.faulty.to_numpy())
    one, other = Invariants().fit(bench), Invariants().fit(healthy)
    pd.testing.assert_frame_equal(one.invariants_, other.invariants_)
    assert one.threshold_ == other.threshold_


def test_threshold_is_the_promised_quantile_of_unseen_healthy_runs(toy_bench):
    strict = Invariants(false_alarms=0.02).fit(toy_bench)
    lax = Invariants(false_alarms=0.3).fit(toy_bench)
    assert strict.threshold_ > lax.threshold_
    verdicts = lax.predict(toy_bench).table
    assert (verdicts.faulty == (verdicts.score > lax.threshold_)).all()


def test_f1_threshold_may_look_at_faulty_training_runs(toy_maker):
    bench = toy_maker(n_pairs=8, per_pair=30)
    held_out = bench.pair.isin(sorted(bench.pair.unique())[:2]).to_numpy()
    train, test = bench.take(~held_out), bench.take(held_out)
    by_f1 = Invariants(threshold="f1").fit(train)
    table = by_f1.predict(test).table
    assert table.faulty[test.faulty].mean() > 0.95
    assert table.faulty[~test.faulty].mean() < 0.15
    healthy = train.take(~train.faulty.to_numpy())
    assert Invariants(threshold="f1").fit(healthy).threshold_ == Invariants().fit(healthy).threshold_


def test_toy_faults_are_found_and_placed_on_unseen_pairs(toy_maker):
    bench = toy_maker(n_pairs=8, per_pair=30)
    held_out = bench.pair.isin(sorted(bench.pair.unique())[:2]).to_numpy()
    train, test = bench.take(~held_out), bench.take(held_out)
    table = Invariants().fit(train).predict(test).table
    assert table.faulty[test.faulty].mean() > 0.95
    assert table.faulty[~test.faulty].mean() < 0.15
    right = (table.category == test.labels.category)[test.faulty]
    assert right.mean() > 0.7
    assert table.root_cause.isna().all()


def test_groups_name_the_first_category_of_a_shared_group(toy_maker):
    bench = toy_maker(n_pairs=6, per_pair=20)
    first = {group: next(c for c, g in CATEGORY_GROUP.items() if g == group) for group in CATEGORY_GROUP.values()}
    table = Invariants(category="groups").fit(bench).predict(bench).table
    assert set(table.category) <= set(first.values())
    # The counts of a learned mapping also name the categories that come later.
    kernel = bench.labels.assign(
        category=bench.labels.category.replace({"masking": "kernel"}),
        root_cause=bench.labels.root_cause.where(bench.labels.category != "masking", "silent_fallback"),
    )
    moved = replace(bench, labels=kernel)
    assert "kernel" in set(Invariants(category="learned").fit(moved).predict(moved).table.category)
    assert "kernel" not in set(Invariants(category="groups").fit(moved).predict(moved).table.category)


def test_without_healthy_runs_nothing_can_be_learned():
    bench = planted(score_mean=9.0).take(["r99"])
    with pytest.raises(BenchError, match="healthy"):
        Invariants().fit(bench)


def test_one_pair_is_enough_to_run():
    technique = Invariants().fit(planted(pairs=1))
    assert len(technique.invariants_) > 0


def test_columns_of_other_tables_get_ranges_only():
    bench = planted()
    X = bench.X.iloc[:, :2].set_axis(["loss", "accuracy"], axis=1)
    technique = Invariants().fit(replace(bench, X=X))
    assert set(technique.invariants_.kind) <= {"range", "constant"}
    assert technique.predict(replace(bench, X=X)).table.category.isna().all()


def test_predict_finds_columns_by_name():
    bench = planted(score_mean=9.0)
    technique = Invariants().fit(bench)
    shuffled = replace(bench, X=bench.X.iloc[:, ::-1])
    pd.testing.assert_frame_equal(technique.predict(bench).table, technique.predict(shuffled).table)


def test_the_full_vector_gives_every_kind_of_statement():
    forms = Forms.of(columns("encoder"))
    count = {kind: int((forms.kind == i).sum()) for i, kind in enumerate(KINDS)}
    assert count["range"] == 1600
    assert count["trend"] == 320
    # 320 series × 3 pairs of phases + 12 layer metrics × 3 pairs of depths × 3 epoch statistics × 4 phases.
    layers = sum(m.endswith("final_layer_value__epoch_mean__phase_slope") for m in columns("encoder"))
    assert count["ordering"] == count["ratio"] == 320 * 3 + layers * 3 * 3 * 4


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.floats(-1e3, 1e3) | st.just(np.nan), min_size=1, max_size=20).filter(lambda v: not np.isnan(v).all()),
    st.floats(0, 1),
)
def test_quantiles_agree_with_numpy(values, level):
    (found,) = _quantiles(np.array(values)[:, None], level)
    assert found[0] == pytest.approx(np.nanquantile(values, level))

"""DEFault++ as a technique: verdicts, explanations, determinism, ablations and odd training sets."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone

from baselines.defaultpp import fitting
from baselines.defaultpp.estimator import DefaultPlusPlus
from baselines.defaultpp.fitting import inner_splits
from baselines.defaultpp.losses import Objective
from features.bench import Bench, BenchError
from features.schema import columns, groups

QUICK = {"max_epochs": 20, "patience": 20, "plateau_patience": 20, "batch_size": 16, "learning_rate": 5e-3}


def thinned(bench, every=8):
    """The same bench with one column in eight: quick to train on."""
    return bench.with_features(bench.X.columns[::every])


@pytest.fixture(scope="module")
def halves(toy_bench):
    bench = thinned(toy_bench)
    held = bench.pair.isin(sorted(bench.pair.unique())[:2]).to_numpy()
    return bench.take(~held), bench.take(held)


@pytest.fixture(scope="module")
def fitted(halves):
    return DefaultPlusPlus(**QUICK).fit(halves[0])


def test_learns_what_the_toy_bench_was_made_of(fitted, halves):
    train, test = halves
    table = fitted.predict(test).table
    faulty = test.faulty.to_numpy()
    assert (table["faulty"] == faulty).mean() > 0.8
    assert (table["category"] == test.labels["category"])[faulty].mean() > 0.6, "one in six by chance"
    own = fitted.predict(train).table
    assert (own["root_cause"] == train.labels["root_cause"])[train.faulty].mean() > 0.9


def test_the_prototype_loss_takes_mean_differences_by_default(toy_maker, monkeypatch):
    """τ_p = G·h by default; with 1/(G·h) the loss takes sums, as with τ_p = 1, and training differs."""
    taken = []
    monkeypatch.setattr(
        fitting, "Objective", lambda **terms: taken.append(terms["prototype_temperature"]) or Objective(**terms)
    )
    train = thinned(toy_maker(n_pairs=4, per_pair=40, n_causes=18))
    assert train.labels.loc[train.faulty, ["category", "root_cause"]].drop_duplicates()["category"].duplicated().any()
    entries = 12 * DefaultPlusPlus().hidden
    mean, summed = (DefaultPlusPlus(**QUICK, prototype_temperature=t).fit(train) for t in (1.0, 1 / entries))
    assert sorted(set(taken)) == pytest.approx([1.0, entries])
    assert taken[0] == entries
    assert not mean.history_.equals(summed.history_)
    assert summed.history_["loss"].iloc[0] > mean.history_["loss"].iloc[0]


def test_prototypes_equal_the_class_means_of_the_training_rows(fitted, halves):
    train, _ = halves
    diagnoser = fitted.diagnoser_
    with torch.no_grad():
        H = diagnoser.network.embed(diagnoser.inputs(train.X)).double().numpy()
    for k, (category, cause) in enumerate(diagnoser.space.classes):
        rows = ((train.labels["category"] == category) & (train.labels["root_cause"] == cause)).to_numpy()
        np.testing.assert_allclose(diagnoser.prototypes[k], H[rows].mean(axis=0), rtol=1e-9, atol=1e-12)


def test_explanation_sums_to_the_margin_and_agrees_with_the_verdict(fitted, halves):
    _, test = halves
    explained = fitted.explain(test)
    assert list(explained["delta"]) == list(explained["weight"]) == list(groups("encoder"))
    np.testing.assert_allclose(explained["delta"].sum(axis=1), explained[("verdict", "margin")], atol=1e-5)
    pd.testing.assert_series_equal(fitted.margins(test), explained[("verdict", "margin")], check_names=False)
    table = fitted.predict(test).table
    assert (table["category"] + "/" + table["root_cause"] == explained[("verdict", "predicted")]).all()
    for run, evidence in table["evidence"].map(json.loads).items():
        assert evidence["prototype"] == explained.loc[run, ("verdict", "predicted")]
        for group, part in evidence["groups"].items():
            assert part["delta"] == pytest.approx(explained.loc[run, ("delta", group)], rel=6e-3)


def test_deleting_nothing_changes_nothing_and_deleting_all_levels_the_runs(fitted, halves):
    _, test = halves
    none = pd.DataFrame(False, index=test.runs, columns=list(groups("encoder")))
    for at in ("input", "embedding"):
        np.testing.assert_allclose(fitted.deletion_margins(test, none, at), fitted.margins(test), atol=1e-9)
    explained = fitted.explain(test)["verdict"]
    gone = fitted.deletion_margins(test, ~none).groupby([explained["predicted"], explained["alternative"]])
    assert (gone.max() - gone.min() < 1e-6).all(), "with every input at the training mean, runs can't differ"


def test_deletion_at_the_embedding_by_hand(fitted, halves):
    _, test = halves
    only = pd.DataFrame(False, index=test.runs, columns=list(groups("encoder")))
    only["ffn_output"] = True
    explained, diagnoser = fitted.explain(test), fitted.diagnoser_
    names = [f"{c}/{r}" for c, r in diagnoser.space.classes]
    g = diagnoser.groups.index("ffn_output")
    length = np.square(diagnoser.prototypes[:, g]).sum(axis=1)
    without = [
        length[names.index(a)] - length[names.index(p)]
        for p, a in zip(explained[("verdict", "predicted")], explained[("verdict", "alternative")], strict=True)
    ]
    expected = explained[("verdict", "margin")] - explained[("delta", "ffn_output")] + without
    np.testing.assert_allclose(fitted.deletion_margins(test, only, at="embedding"), expected, atol=1e-6)


def test_same_seed_same_verdicts_and_the_global_random_state_is_left_alone(halves, fitted):
    train, test = halves
    torch.manual_seed(11)
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    again = DefaultPlusPlus(**QUICK).fit(train).predict(test)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == threads
    pd.testing.assert_frame_equal(again.table, fitted.predict(test).table)
    other = DefaultPlusPlus(**QUICK, seed=1).fit(train).predict(test)
    assert (other.table["score"] != again.table["score"]).any()


def test_order_of_rows_and_columns_to_judge_doesn_t_matter(fitted, halves):
    _, test = halves
    order = np.random.default_rng(0).permutation(len(test))
    shuffled = test.take(order).with_features(test.X.columns[::-1])
    pd.testing.assert_frame_equal(
        fitted.predict(shuffled).table, fitted.predict(test).table.iloc[order], check_exact=False, rtol=1e-5
    )


def test_order_of_columns_to_learn_from_doesn_t_matter(fitted, halves):
    train, test = halves
    mirrored = DefaultPlusPlus(**QUICK).fit(train.with_features(train.X.columns[::-1]))
    assert mirrored.diagnoser_.columns == fitted.diagnoser_.columns
    pd.testing.assert_frame_equal(mirrored.predict(test).table, fitted.predict(test).table)


@pytest.mark.parametrize(
    "choices",
    [
        {"graph": "none"},
        {"separation": False},
        {"graph": "none", "separation": False},
        {"graph": "rewired", "graph_seed": 3},
        {"graph": "random", "graph_seed": 3},
        {"grouping": "random"},
        {"grouping": "flat", "graph": "none"},
        {"selection": "pooled"},
        {"selection": "published"},
        {"detection_weights": None, "oversample_correct": 2.0},
    ],
)
def test_every_choice_trains_and_judges(halves, choices):
    train, test = halves
    technique = DefaultPlusPlus(max_epochs=2, **choices).fit(train)
    verdicts = technique.predict(test)
    assert verdicts.table["category"].notna().all()
    assert technique.history_["loss"].is_monotonic_decreasing
    assert (technique.diagnoser_.network.messages is None) == (choices.get("graph") == "none")


def test_names_tell_the_ablations_apart():
    made = [
        {},
        {"graph": "none"},
        {"separation": False},
        {"graph": "none", "separation": False},
        {"graph": "rewired"},
        {"graph": "random"},
        {"grouping": "flat"},
        {"grouping": "random"},
        {"source": "authors"},
    ]
    names = [DefaultPlusPlus(**choices).name for choices in made]
    assert names[:4] == ["DEFault++", "DEFault++ −FPG", "DEFault++ −Sep", "DEFault++ −FPG −Sep"]
    assert len(set(names)) == len(names)


def test_clone_keeps_every_parameter():
    technique = DefaultPlusPlus(graph="rewired", graph_seed=4, hidden=8, device="cpu")
    assert clone(technique).get_params() == technique.get_params()


def test_a_class_that_training_lacks_is_never_predicted(halves):
    train, test = halves
    gone = train.labels.loc[train.faulty, "category"].iloc[0]
    without = train.take((train.labels["category"] != gone).to_numpy())
    table = DefaultPlusPlus(max_epochs=3).fit(without).predict(test).table
    assert gone in set(test.labels["category"])
    assert gone not in set(table["category"])


def test_a_class_that_only_the_validation_rows_have(halves):
    train, test = halves
    _, held = inner_splits(train, 0)[0][0]
    cause = train.labels.loc[train.faulty, "root_cause"].iloc[0]
    only_held = np.ones(len(train), dtype=bool)
    only_held[held] = False
    rows = ~(only_held & (train.labels["root_cause"] == cause).to_numpy())
    technique = DefaultPlusPlus(max_epochs=3).fit(train.take(rows))
    assert np.isfinite(technique.history_["loss"]).all()
    technique.predict(test)


@pytest.mark.parametrize("levels", [(1,), (1, 2)])
def test_a_bench_without_the_finer_levels(halves, levels):
    train, test = halves
    missing = [c for level, c in ((2, "category"), (3, "root_cause")) if level not in levels]
    labels = train.labels.copy()
    labels.loc[train.faulty, missing] = None
    coarse = Bench("coarse", "encoder", train.X, labels, train.pair, levels=levels)
    table = DefaultPlusPlus(max_epochs=3).fit(coarse).predict(test).table
    assert table["root_cause"].isna().all()
    assert table["category"].isna().all() == (2 not in levels)


def test_a_single_pair_validates_on_its_own_rows(halves):
    train, _ = halves
    one = train.take((train.pair == train.pair.iloc[0]).to_numpy())
    technique = DefaultPlusPlus(max_epochs=2).fit(one)
    assert "one (model, task) pair only" in technique.notes_[0]


def test_inner_splits_keep_pairs_together(halves):
    train, _ = halves
    splits, notes = inner_splits(train, 0)
    assert notes == ()
    for fit, held in splits:
        assert not set(train.pair.iloc[fit]) & set(train.pair.iloc[held])
        assert len(fit) + len(held) == len(train)


def test_columns_without_a_group_are_left_out_with_a_note(halves):
    train, test = halves
    odd = pd.Series(np.random.default_rng(0).normal(size=len(train)), index=train.runs, name="mystery")
    bench = Bench("odd", "encoder", pd.concat([train.X, odd], axis=1), train.labels, train.pair)
    technique = DefaultPlusPlus(max_epochs=2).fit(bench)
    assert "1 columns without a feature group" in technique.notes_[-1]
    assert "mystery" not in technique.diagnoser_.columns
    with pytest.raises(BenchError, match="'mystery'"):
        technique.predict(test)


def test_a_bench_without_some_groups_has_fewer_nodes(toy_bench):
    group = toy_bench.groups()
    kept = toy_bench.with_features(group.index[group.isin(["attention", "score", "training_dynamics"])])
    technique = DefaultPlusPlus(max_epochs=2).fit(kept)
    assert technique.diagnoser_.groups == ("attention", "score", "training_dynamics")
    assert technique.explain(kept)["delta"].shape == (len(kept), 3)


def test_missing_and_infinite_values_are_judged(fitted, halves):
    _, test = halves
    X = test.X.copy()
    X.iloc[0] = np.nan
    X.iloc[1, ::3] = np.inf
    broken = Bench("broken", "encoder", X, test.labels, test.pair)
    assert np.isfinite(fitted.predict(broken).table["score"]).all()


def test_refuses_what_it_cannot_learn_from(halves):
    train, _ = halves
    with pytest.raises(BenchError, match="healthy and faulty"):
        DefaultPlusPlus().fit(train.take(train.faulty.to_numpy()))
    foreign = Bench("foreign", None, train.X, train.labels, train.pair)
    assert "neither" in DefaultPlusPlus().unsupported(foreign)
    nameless = Bench("nameless", "encoder", train.X.add_prefix("zz"), train.labels, train.pair)
    assert "feature group" in DefaultPlusPlus().unsupported(nameless)
    with pytest.raises(ValueError, match="selection='best'"):
        DefaultPlusPlus(selection="best", max_epochs=1).fit(train)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_a_device_that_isn_t_there(halves):
    with pytest.raises(BenchError, match="sees no CUDA device"):
        DefaultPlusPlus(device="cuda").fit(halves[0])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cpu_and_gpu_agree(halves, tmp_path):
    """Trained on one device each, without dropout (its masks differ by device): same verdicts, close scores."""
    train, test = halves
    choices = {"max_epochs": 10, "dropout": 0.0}
    on_cpu = DefaultPlusPlus(device="cpu", **choices).fit(train)
    on_gpu = DefaultPlusPlus(device="cuda", **choices).fit(train)
    a, b = on_cpu.predict(test).table, on_gpu.predict(test).table
    np.testing.assert_allclose(a["score"], b["score"], atol=1e-3)
    assert (a[["faulty", "category", "root_cause"]] == b[["faulty", "category", "root_cause"]]).all(axis=None)
    from baselines.defaultpp.checkpoint import load, save

    moved = load(save(on_gpu.diagnoser_, tmp_path / "gpu"), "cpu").judge(test.X)
    np.testing.assert_allclose(moved.score, b["score"], atol=1e-4)


def test_decoder_has_its_cache_group(toy_maker):
    bench = thinned(toy_maker("decoder", n_pairs=3, per_pair=14), 6)
    technique = DefaultPlusPlus(max_epochs=2).fit(bench)
    assert technique.diagnoser_.groups == groups("decoder")
    assert len(columns("decoder")[::6]) == bench.X.shape[1]

"""DeepFD against a direct recomputation with scikit-learn, and every departure from the published code."""

import json

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.datasets import make_classification
from sklearn.ensemble import RandomForestClassifier
from sklearn.neighbors import KNeighborsClassifier
from sklearn.tree import DecisionTreeClassifier

from baselines.deepfd import LEARNERS, Committee, DeepFD
from baselines.deepfd_features import vectors
from features.bench import Bench, BenchError
from features.taxonomy import CORRECT


def bench_of(n=240, n_columns=80, seed=0, log=False) -> Bench:
    """Three classes of make_classification: correct, ffn and output, the last two with two root causes each."""
    X, y = make_classification(n, n_columns, n_informative=12, n_classes=3, random_state=seed, class_sep=0.8)
    runs = pd.Index([f"run{i:03d}" for i in range(n)], name="run")
    category = np.array([CORRECT, "ffn", "output"], dtype=object)[y]
    causes = {CORRECT: [CORRECT] * 2, "ffn": ["weight_scaling", "regularization"], "output": ["output_type"] * 2}
    cause = [causes[c][int(X[i, 0] > 0)] for i, c in enumerate(category)]
    labels = pd.DataFrame({"faulty": y > 0, "category": category, "root_cause": cause}, index=runs)
    features = pd.DataFrame(X, index=runs, columns=[f"c{i}" for i in range(n_columns)])
    pair = pd.Series([f"m/{i % 6}" for i in range(n)], index=runs)
    return Bench("made", None, features, labels, pair, log=_log(runs, y, seed) if log else None)


def _log(runs, y, seed) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    rows = []
    for run, label in zip(runs, y, strict=True):
        loss = np.linspace(1, 0.3 + 0.3 * label, 4) + rng.normal(0, 0.02, 4)
        for metric, values in {
            "train_loss": loss,
            "val_loss": loss + 0.1,
            "train_accuracy": 1 - loss / 2,
            "val_accuracy": 0.95 - loss / 2,
        }.items():
            rows += [(run, epoch, -1, metric, -1, value) for epoch, value in enumerate(values)]
    return pd.DataFrame(rows, columns=["run", "epoch", "step", "metric", "layer", "value"])


@pytest.fixture(scope="module")
def halves():
    bench = bench_of()
    return bench.take(np.arange(0, 240, 2)), bench.take(np.arange(1, 240, 2))


def direct(train_X, train_y, test_X):
    """The three learners written out, on data scaled by hand: predictions (n × 3) and mean probability."""
    low, high = train_X.min(axis=0), train_X.max(axis=0)
    width = np.where(high > low, high - low, 1)
    train, test = (train_X - low) / width, np.clip((test_X - low) / width, 0, 1)
    learners = [
        KNeighborsClassifier(5),
        DecisionTreeClassifier(max_depth=5, random_state=0),
        RandomForestClassifier(32, max_depth=10, max_features=60, random_state=0),
    ]
    fitted = [learner.fit(train, train_y) for learner in learners]
    return np.column_stack([f.predict(test) for f in fitted]), np.mean([f.predict_proba(test) for f in fitted], axis=0)


def test_level_1_is_the_union_of_the_three_learners(halves):
    train, test = halves
    votes, probability = direct(train.X.to_numpy(float), train.faulty.to_numpy(), test.X.to_numpy(float))
    verdicts = DeepFD().fit(train).predict(test).table
    assert (verdicts["faulty"] == votes.any(axis=1)).all()
    np.testing.assert_allclose(verdicts["score"], probability[:, 1], atol=1e-12)
    stated = pd.DataFrame([json.loads(e)["votes"] for e in verdicts["evidence"]])[list(LEARNERS)]
    assert (stated.to_numpy() == votes.astype(bool)).all()
    majority = DeepFD(vote="majority").fit(train).predict(test).table["faulty"]
    assert (majority == (votes.sum(axis=1) >= 2)).all()
    assert (majority != verdicts["faulty"]).any()


def test_levels_2_and_3_are_the_majority_with_ties_to_the_forest(halves):
    train, test = halves
    faulty = train.take(train.faulty)
    low, high = train.X.to_numpy(float).min(axis=0), train.X.to_numpy(float).max(axis=0)
    scale = lambda X: np.clip((X.to_numpy(float) - low) / (high - low), 0, 1)  # noqa: E731

    def majority(train_rows, labels, test_rows):
        learners = [
            KNeighborsClassifier(5),
            DecisionTreeClassifier(max_depth=5, random_state=0),
            RandomForestClassifier(32, max_depth=10, max_features=60, random_state=0),
        ]
        votes = [list(learner.fit(scale(train_rows), labels).predict(scale(test_rows))) for learner in learners]
        return [a if a in (b, c) else (b if b == c else c) for a, b, c in zip(*votes, strict=True)]

    category = np.array(majority(faulty.X, faulty.labels["category"].to_list(), test.X))
    verdicts = DeepFD().fit(train).predict(test).table
    assert (verdicts["category"] == category).all()
    ffn = faulty.labels["category"] == "ffn"
    cause = majority(faulty.X[ffn], faulty.labels.loc[ffn, "root_cause"].to_list(), test.X[category == "ffn"])
    assert verdicts.loc[category == "ffn", "root_cause"].to_list() == cause
    assert (verdicts.loc[category == "output", "root_cause"] == "output_type").all()


def test_a_tie_of_three_labels_goes_to_the_forest():
    X, y = make_classification(300, 20, n_informative=8, n_classes=6, random_state=1, class_sep=0.3)
    committee = Committee(max_features=10).fit(X[::2], y[::2])
    votes = committee.votes(X[1::2])
    all_differ = np.array([len(set(row)) == 3 for row in votes])
    assert all_differ.any()
    predicted = committee.predict(X[1::2])
    assert (predicted[all_differ] == votes[all_differ, 2]).all()
    assert all(p in row for p, row in zip(predicted, votes, strict=True))


def test_log_form_is_the_same_learners_on_deepfds_features():
    bench = bench_of(log=True)
    train, test = bench.take(np.arange(0, 240, 2)), bench.take(np.arange(1, 240, 2))
    X = vectors(bench.log).fillna(0)
    votes, probability = direct(X.loc[train.runs].to_numpy(), train.faulty.to_numpy(), X.loc[test.runs].to_numpy())
    verdicts = DeepFD(form="log").fit(train).predict(test).table
    assert (verdicts["faulty"] == votes.any(axis=1)).all()
    np.testing.assert_allclose(verdicts["score"], probability[:, 1], atol=1e-12)
    assert (verdicts["faulty"] == test.faulty).mean() > 0.9
    shifted = DeepFD(form="log", shift=True).fit(train)
    assert len(shifted.features_) == 148


def test_log_form_says_what_is_missing():
    bench = bench_of(30)
    assert "carries none" in DeepFD(form="log").unsupported(bench)
    assert DeepFD().unsupported(bench) is None
    with pytest.raises(BenchError, match="no log"):
        DeepFD(form="log").fit(bench)
    logged = bench_of(30, log=True)
    short = Bench("made", None, logged.X, logged.labels, logged.pair, log=logged.log[logged.log["run"] != "run007"])
    with pytest.raises(BenchError, match="run007"):
        DeepFD(form="log").fit(short)


def test_training_scale_makes_a_verdict_independent_of_the_other_runs(halves):
    train, test = halves
    fitted = DeepFD().fit(train)
    together = fitted.predict(test).table
    alone = pd.concat([fitted.predict(test.take([i])).table for i in range(10)])
    pd.testing.assert_frame_equal(together.iloc[:10], alone)
    # The published refit turns a run judged alone into all zeros: one verdict for everybody.
    refit = DeepFD(scaling="as_published").fit(train)
    assert len({refit.predict(test.take([i])).table["score"].iloc[0] for i in range(10)}) == 1


def test_without_clipping_values_beyond_the_training_range_stay(halves):
    train, test = halves
    fitted = DeepFD(clip=False).fit(train)
    assert fitted.scaler_.transform(test.X * 100).max() > 1
    assert DeepFD().fit(train).scaler_.transform(test.X * 100).max() == 1


def test_offsets_ask_for_more_than_that_many_votes_of_a_block(halves):
    train, test = halves
    votes, _ = direct(train.X.to_numpy(float), train.faulty.to_numpy(), test.X.to_numpy(float))
    verdicts = DeepFD(offsets=5, block=9).fit(train).predict(test).table["faulty"].to_numpy()
    for start in range(0, len(votes), 9):
        expected = (votes[start : start + 9].sum(axis=0) > 5).any()
        assert (verdicts[start : start + 9] == expected).all()


def test_undersampling_draws_classes_down_to_the_smallest_but_not_under_fifty():
    bench = bench_of(400)
    rare = bench.labels["category"] == "output"
    kept = np.flatnonzero(~rare.to_numpy() | (np.cumsum(rare) <= 20))
    technique = DeepFD(undersample=True).fit(bench.take(kept))
    rows = technique.model_.detector.learners_[0].n_samples_fit_
    assert rows == 50 + 50 + 20


def test_infinite_and_missing_values_are_zero(halves):
    train, test = halves
    holed = Bench("made", None, train.X.copy(), train.labels, train.pair)
    zeroed = Bench("made", None, train.X.copy(), train.labels, train.pair)
    holed.X.iloc[::3, 1], holed.X.iloc[1::3, 1] = np.nan, -np.inf
    zeroed.X.iloc[::3, 1], zeroed.X.iloc[1::3, 1] = 0, 0
    pd.testing.assert_frame_equal(DeepFD().fit(holed).predict(test).table, DeepFD().fit(zeroed).predict(test).table)


def test_a_category_of_three_runs_is_learnt_from_three_neighbours(halves):
    train, _ = halves
    few = train.labels["category"].eq("output") & (train.labels["category"].eq("output").cumsum() > 3)
    verdicts = DeepFD().fit(train.take(~few.to_numpy())).predict(train).table
    assert verdicts["category"].notna().all()


def test_a_bench_without_categories_gets_level_1_only(halves):
    train, test = halves
    labels = train.labels.assign(category=None, root_cause=None)
    verdicts = DeepFD().fit(Bench("made", None, train.X, labels, train.pair, levels=(1,))).predict(test).table
    assert verdicts["category"].isna().all()
    assert verdicts["faulty"].any()


def test_clone_and_repeat_give_the_same_verdicts(halves):
    train, test = halves
    technique = DeepFD(random_state=3)
    first = technique.fit(train).predict(test).table
    pd.testing.assert_frame_equal(first, clone(technique).fit(train).predict(test).table)


def test_search_space_names_parameters_and_holds_their_defaults():
    optuna = pytest.importorskip("optuna")
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(0))
    drawn = DeepFD().search_space(study.ask())
    DeepFD().set_params(**drawn)
    defaults = {name: DeepFD().get_params()[name] for name in drawn}
    assert DeepFD().search_space(optuna.trial.FixedTrial(defaults)) == defaults


@pytest.mark.parametrize("wrong", [{"form": "trace"}, {"history": "step"}, {"scaling": "test"}, {"vote": "any"}])
def test_a_parameter_outside_its_choices_is_refused(halves, wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        DeepFD(**wrong).fit(halves[0])

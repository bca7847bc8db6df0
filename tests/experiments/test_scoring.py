"""Both protocols against hand-computed cases and scikit-learn."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import f1_score, precision_score, recall_score

from baselines.technique import Verdicts
from experiments.engine.scoring import class_table, confusion, f1_scores, false_alarm_rate, score
from experiments.engine.statistics import interval, pair_scores

CAUSES = [("ffn", "weight_scaling"), ("ffn", "neuron_dropout"), ("qkv", "dimension"), ("score", "normalization")]


def tables(truth, guess, said):
    """Labels, verdicts and pairs from a list of causes (None = correct), guesses, and Level-1 verdicts."""
    index = pd.Index([f"r{i}" for i in range(len(truth))])
    labels = pd.DataFrame(
        [(t is not None, *(t or ("correct", "correct"))) for t in truth],
        index=index,
        columns=["faulty", "category", "root_cause"],
    )
    verdicts = Verdicts.build(
        index, np.zeros(len(truth)), said, [g[0] if g else None for g in guess], [g[1] if g else None for g in guess]
    )
    pair = pd.Series([f"m/t{i % 2}" for i in range(len(truth))], index=index)
    return labels, verdicts, pair


def counts(truth, guess, said, level, protocol):
    labels, verdicts, pair = tables(truth, guess, said)
    return confusion(labels, verdicts.path(), verdicts.table, pair, level, protocol)


def test_level_1_by_hand():
    # 3 faulty (2 found), 2 correct (1 false alarm): precision 2/3, recall 2/3.
    a = CAUSES[0]
    table = counts([a, a, a, None, None], [a] * 5, [True, True, False, True, False], 1, "path")
    assert score(table) == pytest.approx({"f1": 2 / 3, "precision": 2 / 3, "recall": 2 / 3})


def test_path_counts_a_missed_fault_and_a_false_alarm():
    # ffn: 1 of 2 found, 1 false alarm -> F1 1/2. correct: 1 of 2 kept, 1 missed fault called so -> F1 1/2.
    ffn = CAUSES[0]
    table = counts([ffn, ffn, None, None], [ffn] * 4, [True, False, True, False], 2, "path")
    assert score(table)["f1"] == pytest.approx(0.5)
    assert list(class_table(table).index) == ["correct", "ffn"]


def test_paper_level_2_has_an_oracle_level_1():
    ffn = CAUSES[0]
    table = counts([ffn, ffn, None], [ffn] * 3, [False, False, True], 2, "paper")
    assert score(table)["f1"] == 1.0


def test_paper_level_3_forgives_rows_put_into_another_category():
    """A row of qkv called ffn is a miss for qkv and no false positive of ffn, so that precision stays 1."""
    scaling, dropout, dimension, _ = CAUSES
    truth = [scaling, dropout, dimension, dimension]
    guess = [scaling, dropout, scaling, dimension]
    table = counts(truth, guess, [True] * 4, 3, "paper")
    result = score(table)
    # ffn: both causes F1 1. qkv: precision 1, recall 1/2, F1 2/3. Mean over the two categories.
    assert result["precision"] == pytest.approx(1.0)
    assert result["recall"] == pytest.approx((1 + 0.5) / 2)
    assert result["f1"] == pytest.approx((1 + 2 / 3) / 2)
    strict = score(counts(truth, guess, [True] * 4, 3, "path"))
    assert strict["precision"] < 1.0


def test_paper_level_3_averages_within_categories_first():
    scaling, dropout, dimension, _ = CAUSES
    # ffn: scaling right, dropout called scaling -> F1 2/3 and 0; qkv right -> 1. Category means 1/3 and 1.
    table = counts([scaling, dropout, dimension], [scaling, scaling, dimension], [True] * 3, 3, "paper")
    assert score(table)["f1"] == pytest.approx((1 / 3 + 1) / 2)


def test_no_guess_is_a_miss():
    table = counts([CAUSES[0], CAUSES[2]], [None, CAUSES[2]], [True, True], 2, "paper")
    assert class_table(table).loc["ffn", "recall"] == 0
    assert class_table(table).loc["qkv", "precision"] == 1


cause = st.sampled_from([None, *CAUSES])


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(cause, st.sampled_from(CAUSES), st.booleans()), min_size=1, max_size=40), st.sampled_from([2, 3])
)
def test_path_agrees_with_scikit_learn(rows, level):
    truth, guess, said = map(list, zip(*rows, strict=True))
    name = lambda c: "correct" if c is None else "/".join(c[: level - 1])  # noqa: E731
    y_true = [name(t) for t in truth]
    y_pred = [name(g) if s else "correct" for g, s in zip(guess, said, strict=True)]
    labels = sorted(set(y_true))
    result = score(counts(truth, guess, said, level, "path"))
    options = {"labels": labels, "average": "macro", "zero_division": 0}
    assert result["f1"] == pytest.approx(f1_score(y_true, y_pred, **options))
    assert result["precision"] == pytest.approx(precision_score(y_true, y_pred, **options))
    assert result["recall"] == pytest.approx(recall_score(y_true, y_pred, **options))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(CAUSES), st.sampled_from(CAUSES)), min_size=1, max_size=40))
def test_paper_level_3_agrees_with_a_loop_over_categories(rows):
    truth, guess = map(list, zip(*rows, strict=True))
    expected = []
    for category in sorted({t[0] for t in truth}):
        members = [i for i, t in enumerate(truth) if t[0] == category]
        y_true = [truth[i][1] for i in members]
        y_pred = [guess[i][1] if guess[i][0] == category else "-1" for i in members]
        expected.append(f1_score(y_true, y_pred, labels=sorted(set(y_true)), average="macro", zero_division=0))
    assert score(counts(truth, guess, [True] * len(rows), 3, "paper"))["f1"] == pytest.approx(np.mean(expected))


def test_resampled_scores_are_scores_of_the_resample():
    rng = np.random.default_rng(0)
    truth = [CAUSES[i] if i < 4 else None for i in rng.integers(0, 6, size=80)]
    guess = [CAUSES[i] for i in rng.integers(0, 4, size=80)]
    table = counts(truth, guess, rng.random(80) < 0.7, 2, "path")
    twice_first = 2 * table.counts[:1].sum(axis=0, keepdims=True)
    assert f1_scores(twice_first, table)["f1"].iloc[0] == pytest.approx(pair_scores(table).iloc[0])
    low, high = interval(table)
    assert low <= score(table)["f1"] <= high


def test_one_pair_has_no_interval():
    labels, verdicts, pair = tables([CAUSES[0], None], [CAUSES[0]] * 2, [True, False])
    table = confusion(labels, verdicts.path(), verdicts.table, pair.map(lambda _: "m/t"), 1, "path")
    assert np.isnan(interval(table)).all()


def test_false_alarm_rate_counts_correct_runs_only():
    labels, verdicts, _ = tables([CAUSES[0], None, None, None], [CAUSES[0]] * 4, [False, True, False, False])
    assert false_alarm_rate(labels, verdicts.path()) == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [("score", np.nan, "not finite"), ("category", "correct", "guess given a fault"), ("faulty", 1, "must be bool")],
)
def test_verdicts_are_checked(column, value, message):
    table = Verdicts.build(pd.Index(["a"]), [0.5], [True], ["ffn"], ["weight_scaling"]).table.copy()
    table[column] = [value]
    with pytest.raises(ValueError, match=message):
        Verdicts(table)

"""Splits keep pairs together, cover every run once, and refuse leaks."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from experiments.engine.protocol import Fold, identical_rows, inner_folds, outer_folds, refuse_leak
from features.bench import BenchError


@pytest.mark.parametrize("split", ["grouped", "random"])
def test_every_run_is_judged_once(toy_bench, split):
    folds = outer_folds(toy_bench, 5, split)
    judged = np.concatenate([f.test for f in folds])
    assert sorted(judged) == sorted(toy_bench.runs)
    assert all(f.train.union(f.test).size == len(toy_bench) for f in folds)


def test_grouped_folds_share_no_pair(toy_bench):
    for fold in [*outer_folds(toy_bench), *inner_folds(toy_bench, 3)]:
        assert not set(toy_bench.pair[fold.train]) & set(toy_bench.pair[fold.test])


def test_too_few_pairs_is_said(toy_bench):
    with pytest.raises(BenchError, match=r"6 .* pairs, too few for 7 folds; use --folds 6"):
        outer_folds(toy_bench, 7)


def test_a_copied_run_is_refused(toy_bench):
    X = toy_bench.X.copy()
    X.iloc[-1] = X.iloc[0]  # of another pair
    with pytest.raises(BenchError, match=r"leaks: 1 test runs are copies of training runs .*drop the duplicates"):
        outer_folds(replace(toy_bench, X=X), 6)


def test_random_split_keeps_copies_on_one_side(toy_bench):
    X = pd.concat([toy_bench.X.iloc[:60], toy_bench.X.iloc[:60].set_axis(toy_bench.runs[60:])])
    doubled = replace(toy_bench, X=X)
    codes = pd.Series(identical_rows(X), index=X.index)
    for fold in outer_folds(doubled, 5, "random"):
        assert not set(codes[fold.train]) & set(codes[fold.test])


def test_a_run_on_both_sides_is_refused(toy_bench):
    with pytest.raises(BenchError, match="is in training and in test"):
        codes = pd.Series(identical_rows(toy_bench.X), index=toy_bench.runs)
        refuse_leak(Fold(0, toy_bench.runs, toy_bench.runs[:1]), codes)


def test_rows_without_any_value_are_nobodys_copies():
    X = pd.DataFrame({"a": [np.nan, np.nan, 1.0, 1.0], "b": [np.nan, np.nan, np.nan, np.nan]})
    codes = identical_rows(X)
    assert codes[0] != codes[1]
    assert codes[2] == codes[3]

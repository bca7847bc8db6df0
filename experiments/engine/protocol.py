"""The splits: which runs a technique may learn from, and which it is judged on. The same for all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd
from sklearn.model_selection import GroupKFold, StratifiedGroupKFold

from features.bench import Bench, BenchError

Split = Literal["grouped", "random"]


@dataclass(frozen=True, eq=False)
class Fold:
    """One outer fold: run ids to learn from and run ids to judge."""

    number: int
    train: pd.Index
    test: pd.Index


def outer_folds(bench: Bench, n_folds: int = 5, split: Split = "grouped", seed: int = 0) -> list[Fold]:
    """Outer folds of a bench.

    "grouped": GroupKFold by (model, task) pair, so that no pair is on both sides (manuscript, §5).
    "random": stratified by Level-1 label, as most papers before did it; runs with exactly the same measurements
    stay on one side, or the split would leak by construction.

    Raises BenchError if there are fewer pairs than folds, or if a run would be on both sides.
    """
    if split == "grouped":
        n_pairs = bench.pair.nunique()
        if n_pairs < n_folds:
            raise BenchError(
                f"bench {bench.name!r} has {n_pairs} (model, task) pairs, too few for {n_folds} folds; "
                f"use --folds {n_pairs}" + ("" if n_pairs > 1 else " is impossible too: use --split random")
            )
        parts = GroupKFold(n_folds).split(bench.X, groups=bench.pair)
    else:
        splitter = StratifiedGroupKFold(n_folds, shuffle=True, random_state=seed)
        parts = splitter.split(bench.X, bench.faulty, groups=identical_rows(bench.X))
    folds = [Fold(i, bench.runs[train], bench.runs[test]) for i, (train, test) in enumerate(parts)]
    codes = pd.Series(identical_rows(bench.X), index=bench.runs)
    for fold in folds:
        refuse_leak(fold, codes)
    return folds


def inner_folds(bench: Bench, n_folds: int = 5, seed: int = 0) -> list[Fold]:
    """Inner folds of training rows, for tuning: StratifiedGroupKFold by pair on the categories.

    Fewer pairs than folds give as many folds as pairs; a single pair (or one group a run) falls back on stratified
    folds of rows, because nothing else can be held out.
    """
    groups = bench.pair if bench.pair.nunique() > 1 else pd.Series(range(len(bench)), index=bench.runs)
    strata = bench.labels["category"].astype(object).where(bench.labels["category"].notna(), bench.faulty.astype(str))
    splitter = StratifiedGroupKFold(min(n_folds, groups.nunique()), shuffle=True, random_state=seed)
    parts = splitter.split(bench.X, strata.astype(str), groups=groups)
    return [Fold(i, bench.runs[train], bench.runs[test]) for i, (train, test) in enumerate(parts)]


def identical_rows(X: pd.DataFrame) -> np.ndarray:
    """A group number per row, shared by rows with exactly the same measurements.

    A row without any value is nobody's copy: it gets a number of its own.
    """
    hashes = pd.util.hash_pandas_object(X.fillna(np.float32(np.pi)), index=False)
    codes = pd.factorize(hashes)[0].astype(np.int64)
    empty = X.isna().all(axis=1).to_numpy()
    codes[empty] = codes.max(initial=0) + 1 + np.arange(empty.sum())
    return codes


def refuse_leak(fold: Fold, codes: pd.Series) -> None:
    """Raise BenchError if a run of the training part, by id or by its measurements, is in the test part too.

    `codes` is `identical_rows` of the bench, by run.
    """
    shared = fold.train.intersection(fold.test)
    if len(shared):
        raise BenchError(f"fold {fold.number} leaks: run {shared[0]!r} is in training and in test")
    train, test = codes.loc[fold.train], codes.loc[fold.test]
    copies = test[test.isin(set(train))]
    if len(copies):
        original = train.index[train == copies.iloc[0]][0]
        raise BenchError(
            f"fold {fold.number} leaks: {len(copies)} test runs are copies of training runs (run "
            f"{copies.index[0]!r} = run {original!r}); drop the duplicates, or give both the same pair"
        )

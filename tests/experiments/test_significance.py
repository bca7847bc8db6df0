"""Ties, references and cliques of ranks, on verdicts whose order is known."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
import pytest

from baselines.simple import StratifiedDummy
from experiments.engine.leaderboard import Judged
from experiments.engine.significance import (
    _cliques,
    comparisons,
    critical_difference_figure,
    level_matrix,
    tied_with_best,
)


@dataclass
class Named:
    """A technique of a name, for verdicts made by hand."""

    name: str
    levels: tuple[int, ...] = (1,)
    family: str = "test"


def judged(bench, name, wrong):
    """Verdicts that are wrong on this share of every pair's runs, evenly spread."""
    order = bench.faulty.groupby(bench.pair).cumcount()
    flip = (order * wrong).astype(int) != ((order + 1) * wrong).astype(int)
    table = StratifiedDummy().fit(bench).predict(bench).table
    table = table.assign(faulty=(bench.faulty ^ flip).astype(bool))

    @dataclass
    class Fold:
        fold: int = 0

    @dataclass
    class Result:
        verdicts: pd.DataFrame
        cell: Fold

    return Judged(name, Named(name), bench, [Result(table, Fold())])


@pytest.fixture(scope="module")
def entries(toy_maker):
    bench = toy_maker(n_pairs=6, per_pair=20)
    return [judged(bench, name, wrong) for name, wrong in (("DEFault++", 0.1), ("twin", 0.1), ("poor", 0.45))]


def test_matrix_holds_every_pair_and_technique(entries):
    matrix = level_matrix(entries, 1)
    assert matrix.shape == (6, 3)
    assert (matrix["poor"] < matrix["twin"]).all()


def test_equal_ones_tie_and_a_consistently_worse_one_does_not(entries):
    table = comparisons(entries)
    assert set(table["role"]) == {"best", "DEFault++"}
    best = table[table["role"] == "best"].set_index("technique")
    # Six pairs, all worse: p = 2/2^6, doubled by Holm's correction of two tests.
    assert best.loc["poor", "p_holm"] == pytest.approx(4 / 64)
    assert best.loc["twin", "p"] == 1.0
    assert ("twin", 1) in tied_with_best(table)


def test_pairs_of_single_runs_are_not_tested(entries, toy_maker):
    bench = entries[0].bench
    alone = [judged(bench.take(bench.runs[::20]), n, 0.1) for n in ("a", "b")]
    assert level_matrix(alone, 1).empty
    assert comparisons(alone).empty


def test_cliques_are_maximal_stretches():
    ranks = np.array([1.0, 1.5, 2.4, 4.0, 4.2])
    assert _cliques(ranks, 1.0) == [(0, 1), (1, 2), (3, 4)]
    assert _cliques(ranks, 0.1) == []


def test_figure_is_written_in_both_formats(entries, tmp_path):
    for suffix in ("svg", "png"):
        path = critical_difference_figure(level_matrix(entries, 1), "Level 1", tmp_path / f"ranks.{suffix}")
        assert path.stat().st_size > 2000
    first = (tmp_path / "ranks.svg").read_bytes()
    critical_difference_figure(level_matrix(entries, 1), "Level 1", tmp_path / "ranks.svg")
    assert (tmp_path / "ranks.svg").read_bytes() == first

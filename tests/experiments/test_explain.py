"""Kept explanations and their tables, on a toy bench whose faults shift exactly their own group's columns."""

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import pytest

from baselines.boosting import Boosting
from baselines.defaultpp.estimator import DefaultPlusPlus
from baselines.simple import Forest, NearestNeighbours
from experiments.engine import explain_figures as figures
from experiments.engine import explain_tables as tables
from experiments.engine.cells import Cell
from experiments.engine.explain_cells import ExplainCell, explain_cell
from experiments.engine.explanations import (
    GROUP_SHAPLEY,
    GROUP_SHAPLEY_ABSOLUTE,
    PROTOTYPE_DELTA,
    PROTOTYPE_WEIGHT,
    Settings,
    kinds_of,
    shap_kind,
)
from experiments.engine.margins import confidences, game_of, why_unexplained
from experiments.engine.source import BenchSource
from features.bench import BenchError
from features.fpg import CATEGORY_GROUP

SMALL = Settings(background=5, draws=10, exact_background=2, orders=3, resample=0.8)
SHAP = shap_kind("interventional", False)


@dataclass(frozen=True)
class SmallCell(Cell):
    """A cell of a quick technique that the registry doesn't know."""

    def estimator(self):
        if self.technique == "network":
            return DefaultPlusPlus(max_epochs=20, patience=20, batch_size=16, learning_rate=5e-3)
        return Forest(n_estimators=20) if self.technique == "trees" else NearestNeighbours()


@pytest.fixture(scope="module")
def kept(tmp_path_factory, toy_maker):
    folder = tmp_path_factory.mktemp("explain")
    bench = toy_maker(n_pairs=4, per_pair=24, n_causes=6)
    path = bench.with_features(bench.X.columns[::8]).save(folder / "toy.parquet")
    source = BenchSource(str(path))
    cells = [ExplainCell(SmallCell(source, key, fold, 2), SMALL) for fold in (0, 1) for key in ("trees", "network")]
    store = folder / "store"
    store.mkdir()
    errors = [explain_cell(cell, store) for cell in cells]
    assert errors == [None] * 4
    return source, cells, store


@pytest.fixture(scope="module")
def found(kept):
    source, cells, store = kept
    return tables.collect(source.load(), cells, store)


@pytest.fixture(scope="module")
def agreement(found):
    return tables.agreement_table(found)


def test_every_kind_at_every_level_for_every_faulty_run(found):
    trees, network = found.techniques
    forms = {shap_kind(form, absolute) for form in ("interventional", "path-dependent") for absolute in (True, False)}
    assert {kind for _, kind in kinds_of(found.of("groups", trees))} == forms
    expected = {(level, k) for level in (1, 2, 3) for k in (GROUP_SHAPLEY, GROUP_SHAPLEY_ABSOLUTE)}
    expected |= {(3, PROTOTYPE_DELTA), (3, PROTOTYPE_WEIGHT)}
    assert set(kinds_of(found.of("groups", network))) == expected
    faulty = found.bench.runs[found.bench.faulty]
    assert set(found.scores(trees, 1, SHAP).index) == set(faulty)
    assert set(found.scores(network, 3, PROTOTYPE_WEIGHT).index) == set(faulty)


def test_a_good_forest_points_at_the_group_that_was_shifted(agreement, found):
    rows = agreement[(agreement["technique"] == found.techniques[0]) & (agreement["subset"] == "all faulty")]
    at = rows.set_index(["level", "kind"])
    assert at.loc[(2, SHAP), "own1"] > 0.9
    assert at.loc[(2, SHAP), "own1_low"] > at.loc[(2, SHAP), "own1_shuffled"]
    assert at.loc[(2, SHAP), "rank"] < 1.5
    assert at.loc[(2, SHAP), "own1_chance"] == pytest.approx(1 / 12)
    assert (at["own3"] >= at["own1"]).all()
    assert (at["near1"] >= at["own1"]).all()


def test_constant_explanations_are_what_they_say(agreement, found):
    constant = agreement[agreement["technique"] == "(constant)"].set_index("kind")
    own = found.bench.labels["category"][found.bench.faulty].map(CATEGORY_GROUP)
    assert constant.loc["commonest group", "own1"] >= own.value_counts(normalize=True).iloc[0] / 2
    assert constant.loc["most columns", "own1"] == pytest.approx((own == "attention").mean())
    assert constant["own1_p"].tolist() == [1.0, 1.0]


def test_sums_come_out(found):
    checks = found.checks.set_index("technique")
    trees, network = found.techniques
    assert (checks.loc[trees, "sum_error"] < 1e-5).all()
    assert (checks.loc[network, "exact_correlation"] > 0.98).all()
    delta = found.scores(network, 3, PROTOTYPE_DELTA).sum(axis=1)
    tests = found.of("deletion", network)
    margin = tests[(tests["level"] == 3) & (tests["kind"] == PROTOTYPE_DELTA)].set_index("run")["margin"]
    np.testing.assert_allclose(margin, delta.loc[margin.index], rtol=1e-3, atol=1e-4)


def test_deletion_finds_the_forest_faithful(found):
    table = tables.deletion_table(found).set_index(["technique", "level", "kind"]).loc[found.techniques[0]]
    row = table.loc[(2, SHAP)]
    assert row["top"] > row["random"]
    assert row["percentile"] > 0.8
    assert row["area"] < row["area_random"]


def test_tables_of_comparisons(found):
    correlations = tables.correlation_table(found)
    row = correlations[(correlations["kind"] == PROTOTYPE_DELTA) & (correlations["with_kind"] == PROTOTYPE_WEIGHT)]
    assert row["spearman"].item() > 0.5, "w_g is Δ_g without its negative part"
    contests = tables.contest_table(found)
    assert (contests["p_holm"] >= contests["p"]).all()
    assert len(contests) == len(found.sources()) - 1
    stability = tables.stability_table(found)
    assert stability["spearman"].between(-1, 1).all()
    assert stability["top1"].between(0, 1).all()
    shares = tables.share_table(found)
    weights = shares[shares["kind"] == PROTOTYPE_WEIGHT].drop(columns=["category", "technique", "level", "kind"])
    np.testing.assert_allclose(weights.sum(axis=1), 1.0)
    categories = tables.category_table(found)
    assert set(categories["category"]) == set(found.bench.labels["category"][found.bench.faulty])


def test_figures_are_written_twice_and_repeat(found, agreement, tmp_path):
    run = found.bench.runs[found.bench.faulty][0]
    trees, network = found.techniques
    shown = [(trees, 2, SHAP), (network, 3, PROTOTYPE_WEIGHT)]
    columns = found.of("columns", trees).drop(columns="technique")

    def draw(folder):
        return [
            *figures.pointing(agreement, folder / "pointing"),
            *figures.one_run(found, run, folder / "one_run"),
            *figures.heat_map(tables.share_table(found), shown, folder / "heat"),
            *figures.deletion_curves(found.tables["curves"], folder / "curves"),
            *figures.shap_summary(columns, found.bench.X, trees, folder / "summary"),
        ]

    first, second = draw(tmp_path / "a"), draw(tmp_path / "b")
    assert {p.suffix for p in first} == {".png", ".svg"}
    assert all(p.stat().st_size > 5000 for p in first)
    assert [p.read_bytes() for p in first] == [p.read_bytes() for p in second]


def test_kept_cells_are_not_computed_again(kept):
    _, cells, store = kept
    before = {p: p.stat().st_mtime_ns for p in store.rglob("*")}
    assert explain_cell(cells[0], store) is None
    assert {p: p.stat().st_mtime_ns for p in store.rglob("*")} == before
    assert replace(cells[0], settings=replace(SMALL, draws=20)).folder(store) != cells[0].folder(store)


def test_a_technique_without_margins_says_so(kept):
    source, _, store = kept
    error = explain_cell(ExplainCell(SmallCell(source, "neighbours", 0, 2), SMALL), store)
    assert "k-NN is no tree ensemble" in error
    assert not list(store.glob("explain-neighbours*"))
    bench = source.load()
    flat = Boosting("lightgbm", "flat", n_estimators=2).fit(bench)
    assert "only hierarchical" in why_unexplained(flat)
    with pytest.raises(BenchError, match="LightGBM"):
        game_of(flat, bench, bench)


def test_runs_of_one_cause_have_no_margin_at_level_3(found):
    """Categories of a single root cause in training give trees nothing to tell apart."""
    trees = found.techniques[0]
    explained = found.scores(trees, 3, SHAP).index
    guess = found.of("verdicts", trees)["category"]
    several = found.bench.labels[found.bench.faulty].groupby("category")["root_cause"].nunique() > 1
    assert set(explained) == set(guess.index[guess.map(several)])
    assert pd.isna(found.of("verdicts", trees).loc[guess.index[~guess.map(several)], "confidence_3"]).all()


def test_a_nearer_prototype_of_another_category_leaves_no_confidence(toy_bench):
    """The category is decided first; among prototypes dealt out to the wrong classes, few of it are the nearest."""
    model = DefaultPlusPlus(max_epochs=10, patience=10, batch_size=16, learning_rate=5e-3).fit(toy_bench)
    diagnoser = model.diagnoser_
    model.diagnoser_ = replace(diagnoser, prototypes=diagnoser.prototypes[::-1].copy())
    sure = confidences(model, toy_bench)
    assert (model.diagnoser_.judge(toy_bench.X).margins.margin < 0).any()
    assert (sure.isna() | (sure.ge(0) & sure.le(1))).all(axis=None)
    assert (sure[3] == 0).any()

"""What is familiar and what is new, on benches made for it and on the embedded one."""

from dataclasses import replace

import numpy as np
import pytest

from experiments.engine.novelty import MEASURES, Space, fit_novelty
from experiments.engine.source import BenchSource
from features.bench import BenchError


@pytest.fixture(scope="module")
def bench(toy_maker):
    whole = toy_maker(n_pairs=6, per_pair=14)
    return whole.with_features(whole.X.columns[::8])


@pytest.fixture(scope="module")
def novelty(bench):
    return fit_novelty(bench)


def one_of(bench, row, **changes):
    one = bench.take([row])
    return replace(one, X=changes["X"](one.X)) if changes else one


def test_no_more_than_one_in_twenty_held_out_rows_is_new(novelty):
    percentiles = (novelty.held_out[None] < novelty.held_out[:, None]).mean(axis=1).max(axis=1)
    assert (percentiles > novelty.threshold).mean() <= 0.05


def test_a_row_left_out_is_familiar(bench):
    last = sorted(bench.pair.unique())[-1]
    rest, left_out = bench.take((bench.pair != last).to_numpy()), bench.take((bench.pair == last).to_numpy())
    fitted = fit_novelty(rest)
    new = [fitted.judge(left_out.take([i])).out for i in range(len(left_out))]
    # This pair is the outermost of the toy bench, so a few of its rows may be beyond.
    assert np.mean(new) <= 0.25


def test_the_same_row_times_ten_is_new_and_says_why(bench, novelty):
    kind = novelty.judge(one_of(bench, 0, X=lambda X: X * 10))
    assert kind.out
    assert "beyond" in kind.reasons
    assert not novelty.judge(one_of(bench, 0)).out


def test_columns_that_only_the_run_lacks_make_it_new(bench, novelty):
    kind = novelty.judge(one_of(bench, 0, X=lambda X: X.where(np.arange(X.shape[1])[None] % 3 > 0)))
    assert kind.out
    assert "absent" in kind.reasons
    assert kind.table.value["absent"] == pytest.approx(1 / 3, abs=0.01)


def test_the_nearest_row_of_a_row_is_itself_with_its_labels(bench, novelty):
    nearest = novelty.judge(one_of(bench, 1)).nearest
    assert nearest["run"][0] == bench.runs[1]
    assert nearest["distance"][0] == pytest.approx(0, abs=1e-4)
    assert nearest["distance"].is_monotonic_increasing
    assert nearest["category"][0] == bench.labels["category"].iloc[1]
    assert (~nearest["faulty"]).sum() == 2


def test_distances_are_euclidean_along_the_components(bench):
    space = Space.of(bench.X, bench.faulty)
    away = space.distances(bench.X.iloc[:3])
    straight = np.linalg.norm(space.points[:3, None] - space.points[None], axis=2)
    off = np.abs(space.rest[:3, None] - space.rest[None])
    np.testing.assert_allclose(away, np.hypot(straight, off), atol=1e-5)


def test_one_pair_says_nothing_of_others(bench):
    with pytest.raises(BenchError, match="at least two"):
        fit_novelty(bench.take((bench.pair == bench.pair.iloc[0]).to_numpy()))


def test_a_run_without_any_known_column_is_refused(bench, novelty):
    one = bench.take([0])
    with pytest.raises(BenchError, match="none of its columns"):
        novelty.judge(replace(one, X=one.X.add_prefix("foreign_")))


def test_a_held_out_pair_of_the_embedded_bench_is_mostly_familiar_and_ten_times_it_is_not():
    bench = BenchSource(arch="encoder").load()
    pairs = sorted(bench.pair.unique())[::3]
    bench = bench.take(bench.pair.isin(pairs).to_numpy())
    fitted = fit_novelty(bench.take((bench.pair != pairs[1]).to_numpy()))
    left_out = bench.take((bench.pair == pairs[1]).to_numpy())
    kinds = [fitted.judge(left_out.take([i])) for i in range(len(left_out))]
    assert np.mean([k.out for k in kinds]) < 0.5
    assert all(fitted.judge(one_of(left_out, i, X=lambda X: X * 10)).out for i in range(3))
    assert list(kinds[0].table.index) == list(MEASURES)

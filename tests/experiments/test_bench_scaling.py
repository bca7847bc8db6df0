"""Resampled benches are of the size asked for, hold no copies, and keep every row's labels and pair."""

import pandas as pd

from experiments.bench_scaling import resample
from experiments.engine.protocol import identical_rows


def test_resampled_rows_are_distinct_and_keep_their_labels(toy_bench):
    bench = resample(toy_bench, 300)
    assert len(bench) == 300
    assert len(set(identical_rows(bench.X))) == 300
    original = bench.runs.str.partition("#").get_level_values(0)
    pd.testing.assert_series_equal(
        bench.labels["category"].reset_index(drop=True),
        toy_bench.labels.loc[original, "category"].reset_index(drop=True),
    )
    assert (bench.pair.to_numpy() == toy_bench.pair.loc[original].to_numpy()).all()
    moved = (bench.X.to_numpy() - toy_bench.X.loc[original].to_numpy()).std(axis=0)
    assert (moved < 0.002 * toy_bench.X.std().to_numpy()).all()

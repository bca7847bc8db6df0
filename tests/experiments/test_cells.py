"""A kept cell gives back what it was computed from."""

import numpy as np
import pandas as pd
import pytest

from baselines.simple import StratifiedDummy
from experiments.engine.cells import Cell, run_cell
from experiments.engine.source import BenchSource
from experiments.engine.stored import load_histories, load_stored


class Trained(StratifiedDummy):
    """A technique with a training history, as DEFault++ has one: indexed by epoch."""

    def fit(self, bench):
        epochs = pd.RangeIndex(1, 4, name="epoch")
        self.history_ = pd.DataFrame({"loss": [3.0, 2.0, len(bench)], "score": [0.1, 0.2, 0.3]}, index=epochs)
        return super().fit(bench)


@pytest.mark.parametrize("estimator", [Trained(), StratifiedDummy()])
def test_a_training_history_is_kept_where_there_is_one(tmp_path, toy_bench, monkeypatch, estimator):
    monkeypatch.setattr(Cell, "estimator", lambda self: estimator)
    cell = Cell(BenchSource(str(toy_bench.save(tmp_path / "toy.parquet"))), "dummy", 1, n_folds=3)
    computed, again = run_cell(cell, tmp_path / "store"), run_cell(cell, tmp_path / "store")
    pd.testing.assert_frame_equal(computed.verdicts, again.verdicts)
    if isinstance(estimator, Trained):
        for result in (computed, again):
            assert result.history["epoch"].tolist() == [1, 2, 3]
            assert result.history["loss"].iloc[2] == len(cell.outer_fold().train)
    else:
        assert computed.history is None and again.history is None


def test_the_curves_of_figure_11_are_those_of_the_untuned_full_model(tmp_path):
    folder = tmp_path / "comparison" / "encoder"
    folder.mkdir(parents=True)
    for name in ("leaderboard", "classes", "costs", "comparisons"):
        (folder / f"{name}.csv").write_text("technique\nDEFault++\n")
    (folder / "manifest.json").write_text("{}")
    rows = [(name, 0, epoch, 1.0, 0.5) for name in ("DEFault++", "DEFault++, tuned") for epoch in (1, 2)]
    columns = ["technique", "fold", "epoch", "loss", "score"]
    pd.DataFrame(rows, columns=columns).to_csv(folder / "history.csv", index=False)
    found = load_histories(load_stored(tmp_path, "comparison"))
    np.testing.assert_array_equal(found["epoch"], [1, 2])
    assert set(found["arch"]) == {"encoder"}

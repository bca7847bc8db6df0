"""The same cells over a dask cluster of two workers and in this process."""

import pandas as pd
import pytest
from rich.console import Console

from experiments.engine.cells import Cell
from experiments.engine.parallel import run_cells
from experiments.engine.source import BenchSource

distributed = pytest.importorskip("distributed")


@pytest.mark.slow
def test_cluster_gives_the_verdicts_of_one_process(tmp_path, toy_maker):
    path = toy_maker(n_pairs=3, per_pair=12, n_causes=3).save(tmp_path / "toy.parquet")
    cells = [Cell(BenchSource(str(path)), key, fold, n_folds=3) for fold in range(3) for key in ("dummy", "knn")]
    console = Console(quiet=True)
    alone = run_cells(cells, tmp_path / "one", 1, console)
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        together = run_cells(cells, tmp_path / "two", 1, console, cluster.scheduler_address)
    for a, b in zip(alone, together, strict=True):
        assert a.error is None
        assert a.cell == b.cell
        pd.testing.assert_frame_equal(a.verdicts, b.verdicts)


def test_a_broken_technique_costs_the_others_nothing(tmp_path, toy_maker, monkeypatch):
    from baselines.simple import Logistic

    def broken(self, bench):
        raise RuntimeError("no convergence")

    monkeypatch.setattr(Logistic, "fit", broken)
    path = toy_maker(n_pairs=3, per_pair=12, n_causes=3).save(tmp_path / "toy.parquet")
    cells = [Cell(BenchSource(str(path)), key, 0, n_folds=3) for key in ("dummy", "logistic")]
    good, bad = run_cells(cells, tmp_path / "store", 1, Console(quiet=True))
    assert good.error is None
    assert bad.error == "RuntimeError: no convergence"
    assert not list((tmp_path / "store").glob("logistic-*")), "a failure must be tried again next time"

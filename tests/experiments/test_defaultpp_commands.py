"""Training to checkpoints by command, and the loop driver that the benchmark times."""

import pandas as pd
import torch
from typer.testing import CliRunner

from baselines.defaultpp.estimator import DefaultPlusPlus
from baselines.defaultpp.model import Network
from baselines.defaultpp.training import prototypes_of
from experiments import bench_defaultpp, train_defaultpp
from experiments.engine.protocol import outer_folds
from features.readers import read_bench


def test_one_checkpoint_per_fold_that_the_technique_finds(toy_bench, tmp_path):
    path = toy_bench.with_features(toy_bench.X.columns[::40]).save(tmp_path / "toy.parquet")
    arguments = ["--bench", str(path), "--arch", "encoder", "--folds", "2", "--out", str(tmp_path / "out")]
    arguments += ["--device", "cpu"]
    ran = CliRunner().invoke(train_defaultpp.app, arguments)
    assert ran.exit_code == 0, ran.output
    bench = read_bench(str(path))
    for fold in outer_folds(bench, 2):
        train, test = bench.take(fold.train), bench.take(fold.test)
        loaded = DefaultPlusPlus(source="checkpoint", weights=tmp_path / "out" / "full", device="cpu").fit(train)
        trained = DefaultPlusPlus(device="cpu").fit(train)
        pd.testing.assert_frame_equal(loaded.predict(test).table, trained.predict(test).table)
    again = CliRunner().invoke(train_defaultpp.app, arguments)
    assert again.output.count("there already") == 2


def test_loop_driver_computes_the_same_loss_and_gradient():
    bench = bench_defaultpp.random_bench("encoder", 40, 0)
    rows, layout, adjacency, objective = bench_defaultpp.prepare(bench.with_features(bench.X.columns[::20]))
    gradients = []
    for loops in (False, True):
        torch.manual_seed(0)
        network = Network(layout, adjacency)
        face = bench_defaultpp.LoopNetwork(network) if loops else network
        terms = bench_defaultpp.LoopObjective(objective) if loops else objective
        prototypes = prototypes_of(network, rows, len(layout.category_of_class))
        loss = terms(face(rows.x), rows.targets, prototypes)
        loss.backward()
        gradients.append([loss.detach(), *(p.grad for p in network.parameters())])
    for fast, slow in zip(*gradients, strict=True):
        torch.testing.assert_close(fast, slow, rtol=1e-4, atol=1e-5)

"""The callback measures a transformers.Trainer run without any other change."""

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("accelerate", reason="transformers.Trainer needs accelerate")

from transformers import Trainer, TrainingArguments

from features.bench import BenchError
from features.measure import MeasureCallback, UnsupportedModel
from features.schema import LOG_COLUMNS, columns


def rows_of(batch):
    return [{k: v[i] for k, v in batch.items()} for i in range(len(batch["input_ids"]))]


@pytest.fixture
def trainer(build, draw, tmp_path):
    def make(family, callback, **options):
        settings = {
            "output_dir": str(tmp_path / "trainer"),
            "num_train_epochs": 3,
            "per_device_train_batch_size": 4,
            "report_to": [],
            "disable_tqdm": True,
            "use_cpu": True,
            "logging_strategy": "no",
            "save_strategy": "no",
        }
        return Trainer(
            model=build(family, "sdpa"),
            args=TrainingArguments(**settings | options.pop("args", {})),
            train_dataset=rows_of(draw(family, rows=16)),
            eval_dataset=rows_of(draw(family, rows=8, seed=1)),
            callbacks=[callback],
            **options,
        )

    return make


@pytest.mark.parametrize("family", ["distilbert", "gpt2"])
def test_a_run_is_written_at_the_end(trainer, tmp_path, family):
    callback = MeasureCallback(tmp_path / "out" / "run.parquet")
    trainer(family, callback, args={"eval_strategy": "epoch"}).train()
    vector = pd.read_parquet(tmp_path / "out" / "run.parquet")
    assert tuple(vector.columns) == columns(callback.recorder.arch)
    assert vector.index.tolist() == ["run"]
    assert vector.notna().all(axis=None)
    log = pd.read_parquet(tmp_path / "out" / "run.log.parquet")
    assert tuple(log.columns) == LOG_COLUMNS
    assert log["epoch"].max() == 2
    assert log[log["metric"] == "step_loss"]["step"].tolist() == list(range(12))
    assert "12 of 12 steps measured in 3 epochs" in (tmp_path / "out" / "run.report.txt").read_text()
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["run.log.parquet", "run.parquet", "run.report.txt"]


def test_accumulated_batches_are_one_step_and_rates_follow_the_schedule(trainer, tmp_path):
    callback = MeasureCallback(tmp_path / "run.parquet")
    trainer("distilbert", callback, args={"gradient_accumulation_steps": 2, "learning_rate": 1e-3}).train()
    log = callback.recorder.log()
    assert log[log["metric"] == "step_loss"]["step"].tolist() == list(range(6))
    rates = log[log["metric"] == "learning_rate"]["value"].to_numpy()
    np.testing.assert_allclose(rates, [1e-3 * (1 - k / 6) for k in (1, 3, 5)])
    assert "val_accuracy" in callback.recorder.report().not_measured


def test_figures_of_compute_metrics_win(trainer, tmp_path):
    callback = MeasureCallback(tmp_path / "run.parquet")
    made = trainer(
        "distilbert", callback, args={"eval_strategy": "epoch"}, compute_metrics=lambda _: {"accuracy": 0.125}
    )
    made.train()
    log = callback.recorder.log()
    assert log[log["metric"] == "val_accuracy"]["value"].tolist() == [0.125] * 3
    losses = [entry["eval_loss"] for entry in made.state.log_history if "eval_loss" in entry]
    np.testing.assert_allclose(log[log["metric"] == "val_loss"]["value"], losses, rtol=1e-5)


def test_the_model_is_trained_as_without_the_callback(trainer, tmp_path):
    plain = trainer("distilbert", MeasureCallback(tmp_path / "a.parquet"), args={"seed": 5})
    measured = trainer("distilbert", MeasureCallback(tmp_path / "b.parquet"), args={"seed": 5})
    plain.remove_callback(MeasureCallback)
    plain.train()
    measured.train()
    for a, b in zip(plain.model.parameters(), measured.model.parameters(), strict=True):
        assert a.equal(b)
    assert sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in measured.model.modules()) == 0


def test_a_path_that_is_not_parquet_is_refused(trainer, tmp_path):
    with pytest.raises(BenchError, match=r"run\.json: measurements are written as Parquet"):
        trainer("distilbert", MeasureCallback(tmp_path / "run.json")).train()


def test_an_unsupported_model_is_refused_before_training(trainer, tmp_path):
    made = trainer("distilbert", MeasureCallback(tmp_path / "run.parquet"))
    made.model.distilbert.transformer.layer[0].sa_layer_norm = type(made.model.dropout)(0.1)
    with pytest.raises(UnsupportedModel, match="two normalisations"):
        made.train()

"""A run of one's own in every form that it may come in, and what is said of what can't be read."""

import json

import numpy as np
import pandas as pd
import pytest
import torch

from experiments.engine.own_run import read_run, vector_of_log
from features.bench import BenchError
from features.build.families import family, fine_tuning_model
from features.measure import Recorder
from features.schema import columns


@pytest.fixture(scope="module")
def recorded():
    """Vector and log of three epochs of two steps of a tiny encoder."""
    torch.manual_seed(0)
    model = fine_tuning_model(family("distilbert"), 0).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with Recorder(model) as recorder:
        for epoch in range(3):
            for _ in range(2):
                ids = torch.randint(4, 90, (4, 9))
                batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids[:, 0] % 2}
                loss = model(**batch).loss
                loss.backward()
                optimizer.step()
                recorder.step(loss, batch, optimizer)
                optimizer.zero_grad()
            recorder.epoch(val_loss=0.7, val_accuracy=0.5 + 0.1 * epoch, val_ece=0.1)
    return recorder.vector(), recorder.log()


@pytest.fixture
def folder(recorded, tmp_path):
    """A folder as MeasureCallback leaves it."""
    vector, log = recorded
    row = vector.to_frame("mine").T.rename_axis("run")
    row.to_parquet(tmp_path / "mine.parquet")
    log.assign(run="mine").to_parquet(tmp_path / "mine.log.parquet", index=False)
    return tmp_path


def same_vector(bench, vector):
    np.testing.assert_allclose(bench.X.iloc[0].to_numpy(), vector.to_numpy(), rtol=1e-5, atol=1e-30)


def test_the_vector_made_of_a_log_is_the_recorders_own(recorded):
    vector, log = recorded
    np.testing.assert_array_equal(vector_of_log(log, "encoder").to_numpy(), vector.to_numpy())


@pytest.mark.parametrize("name", ["", "mine.parquet", "mine.log.parquet"])
def test_reads_a_folder_its_vector_or_its_log(folder, recorded, name):
    bench = read_run(folder / name)
    assert (bench.arch, list(bench.runs)) == ("encoder", ["mine"])
    same_vector(bench, recorded[0])
    assert len(bench.log) == len(recorded[1])
    assert set(bench.log["run"]) == {"mine"}


def test_reads_a_log_alone(folder, recorded):
    (folder / "mine.parquet").unlink()
    bench = read_run(folder)
    same_vector(bench, recorded[0])
    assert any("made from the log" in note for note in bench.notes)


@pytest.mark.parametrize("form", ["row.csv", "long.csv", "flat.json", "both.json", "log.json"])
def test_reads_text(recorded, tmp_path, form):
    vector, log = recorded
    path = tmp_path / form
    plain = {k: None if np.isnan(v) else float(v) for k, v in vector.items()}
    if form == "row.csv":
        vector.to_frame("mine").T.to_csv(path, index=False)
    elif form == "long.csv":
        vector.rename_axis("column").rename("value").reset_index().to_csv(path, index=False)
    else:
        rows = log.astype(object).where(log.notna(), None).to_dict("records")
        held = {"flat.json": plain, "both.json": {"vector": plain, "log": rows}, "log.json": rows}[form]
        path.write_text(json.dumps(held, default=float))
    bench = read_run(path)
    same_vector(bench, vector)
    assert (bench.log is not None) == (form in ("both.json", "log.json"))
    assert bench.arch == "encoder"


def test_a_decoder_is_known_by_its_own_columns(tmp_path):
    pd.DataFrame([dict.fromkeys(columns("decoder"), 1.0)]).to_csv(tmp_path / "d.csv", index=False)
    assert read_run(tmp_path / "d.csv").arch == "decoder"
    with pytest.raises(BenchError, match="measured on a decoder; leave out --arch encoder"):
        read_run(tmp_path / "d.csv", "encoder")


def test_one_of_several_runs_is_chosen_by_name(folder, recorded):
    row = pd.read_parquet(folder / "mine.parquet")
    pd.concat([row, row.rename({"mine": "other"}) + 1]).to_parquet(folder / "mine.parquet")
    with pytest.raises(BenchError, match="holds 2 runs; choose one by --run, such as --run mine"):
        read_run(folder)
    assert read_run(folder / "mine.parquet", run="other").runs[0] == "other"


BAD = {
    "absent": (None, "no such file or folder"),
    "r.pkl": ("x", "can't be read as a run"),
    "r.json": ("{", "not readable as JSON"),
    "n.json": ('{"a": [1]}', "column 'a' holds no number"),
    "e.json": ("[]", "holds no run"),
    "foreign.csv": ("width,height\n1,2\n", "no column is known, such as 'height'"),
    "text.csv": (
        "train_loss__epoch_mean__phase_early_mean\nhigh\n",
        "'train_loss__epoch_mean__phase_early_mean' is not",
    ),
    "either.csv": ("train_loss__epoch_mean__phase_early_mean\n1\n", "give --arch"),
    "void.csv": (
        "attention_entropy__final_layer_value__epoch_mean__phase_slope,val_accuracy__epoch__phase_slope\n,\n",
        "finite",
    ),
    "gap.csv": ("epoch,step,metric,value\n0,1,step_loss,2\n", "column 'layer' is missing from the log"),
    "epoch.csv": ("epoch,step,metric,layer,value\n-3,1,step_loss,-1,2\n", "column 'epoch' must hold whole numbers"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_read_is_said_with_file_and_remedy(tmp_path, name):
    text, message = BAD[name]
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(BenchError, match=message) as error:
        read_run(tmp_path / name)
    assert str(tmp_path / name) in str(error.value)


def test_a_damaged_parquet_file_and_an_empty_folder_are_refused(tmp_path):
    with pytest.raises(BenchError, match="holds no"):
        read_run(tmp_path)
    (tmp_path / "r.parquet").write_bytes(b"PAR1")
    with pytest.raises(BenchError, match="not a readable Parquet"):
        read_run(tmp_path)

"""Saving, loading, and refusing what doesn't fit."""

import json
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from baselines.defaultpp import checkpoint
from baselines.defaultpp.estimator import DefaultPlusPlus
from features.bench import Bench, BenchError
from features.routing import route


@pytest.fixture(scope="module")
def halves(toy_bench):
    bench = toy_bench.with_features(toy_bench.X.columns[::8])
    X = bench.X.copy()
    X.iloc[::7, 0] = np.nan  # so that imputation is part of what has to survive
    bench = Bench(bench.name, bench.arch, X, bench.labels, bench.pair)
    held = bench.pair.isin(sorted(bench.pair.unique())[:2]).to_numpy()
    return bench.take(~held), bench.take(held)


@pytest.fixture(scope="module")
def fitted(halves):
    return DefaultPlusPlus(max_epochs=4).fit(halves[0])


@pytest.fixture
def saved(fitted, tmp_path):
    return checkpoint.save(fitted.diagnoser_, tmp_path / "fold0.json")


def test_a_loaded_model_judges_exactly_as_before(fitted, halves, saved):
    train, test = halves
    loaded = DefaultPlusPlus(source="checkpoint", weights=saved).fit(train)
    pd.testing.assert_frame_equal(loaded.predict(test).table, fitted.predict(test).table)
    pd.testing.assert_frame_equal(loaded.explain(test), fitted.explain(test))
    assert loaded.diagnoser_.provenance == fitted.diagnoser_.provenance


@pytest.mark.parametrize("choices", [{"graph": "none"}, {"graph": "rewired", "graph_seed": 2}, {"grouping": "random"}])
def test_ablations_survive_too(halves, tmp_path, choices):
    train, test = halves
    technique = DefaultPlusPlus(max_epochs=1, **choices).fit(train)
    path = checkpoint.save(technique.diagnoser_, tmp_path / "model.json")
    loaded = DefaultPlusPlus(source="checkpoint", weights=path).fit(train)
    pd.testing.assert_frame_equal(loaded.predict(test).table, technique.predict(test).table)


def test_it_states_what_it_holds(saved, halves):
    card = json.loads(saved.read_text())
    assert card["provenance"]["fingerprint"] == halves[0].fingerprint()
    assert card["provenance"]["device"] == "cpu"
    assert set(card["provenance"]["versions"]) >= {"torch", "numpy"}
    assert card["arch"] == "encoder"
    assert sum(card["groups"].values()) == len(card["columns"])
    assert sorted(p.suffix for p in saved.parent.iterdir()) == [".json", ".safetensors"]


def test_a_folder_gives_the_checkpoint_of_the_fold(fitted, halves, tmp_path):
    train, test = halves
    checkpoint.save(fitted.diagnoser_, tmp_path / "a.json")
    other = DefaultPlusPlus(max_epochs=1, seed=1).fit(test)
    checkpoint.save(other.diagnoser_, tmp_path / "b.json")
    found = DefaultPlusPlus(source="checkpoint", weights=tmp_path).fit(train)
    assert found.diagnoser_.provenance == fitted.diagnoser_.provenance
    with pytest.raises(BenchError, match="none of its 2 checkpoints was trained on the 79 runs"):
        DefaultPlusPlus(source="checkpoint", weights=tmp_path).fit(train.take(train.runs[1:]))


def test_pairs_it_has_learned_from_are_refused(halves, saved):
    train, test = halves
    other_rows = train.take(train.runs[:60])
    loaded = DefaultPlusPlus(source="checkpoint", weights=saved).fit(other_rows)
    loaded.predict(test)
    with pytest.raises(BenchError, match="has learned from runs of"):
        loaded.predict(train)


def test_what_differs_is_named(halves, saved):
    train, _ = halves

    def refusal(bench):
        with pytest.raises(BenchError) as caught:
            DefaultPlusPlus(source="checkpoint", weights=saved).fit(bench)
        return str(caught.value)

    assert "schema: 1 of its" in refusal(train.with_features(train.X.columns[1:]))
    assert "architecture: trained for encoder, the bench is decoder" in refusal(
        Bench("d", "decoder", train.X, train.labels, train.pair)
    )
    labels = train.labels.copy()
    run = train.runs[train.faulty.to_numpy()][0]
    labels.loc[run, ["category", "root_cause"]] = "residual", "residual_path"
    assert "label space: 1 root causes" in refusal(Bench("l", "encoder", train.X, labels, train.pair))


def test_groups_that_are_routed_otherwise_today_are_named(halves, saved, monkeypatch):
    def rerouted(names):
        group = route(names).group
        group.iloc[0] = "score"
        return SimpleNamespace(group=group)

    monkeypatch.setattr(checkpoint, "route", rerouted)
    with pytest.raises(BenchError, match=r"groups: 'attention' has \d+ columns there, \d+ here"):
        DefaultPlusPlus(source="checkpoint", weights=saved).fit(halves[0])


def test_damage_is_named(halves, saved, tmp_path):
    train, _ = halves
    tensors = saved.with_suffix(".safetensors")
    intact = tensors.read_bytes()
    tensors.write_bytes(intact[:-4] + b"\0\1\2\3")
    with pytest.raises(BenchError, match="not the weights that"):
        checkpoint.load(saved)
    tensors.unlink()
    with pytest.raises(BenchError, match="missing"):
        checkpoint.load(saved)
    saved.write_text("{}")
    with pytest.raises(BenchError, match="format"):
        checkpoint.load(saved)
    saved.write_text("not json")
    with pytest.raises(BenchError, match="JSON"):
        checkpoint.load(saved)
    with pytest.raises(BenchError, match="no such checkpoint"):
        checkpoint.load(tmp_path / "nowhere.json")
    with pytest.raises(BenchError, match="needs weights"):
        DefaultPlusPlus(source="checkpoint").fit(train)


def test_the_card_can_name_transformers_only(saved):
    card = json.loads(saved.read_text())
    card["preparation"]["transformer"] = "write_parquet"
    saved.write_text(json.dumps(card))
    with pytest.raises(BenchError, match="unknown transformer 'write_parquet'"):
        checkpoint.load(saved)

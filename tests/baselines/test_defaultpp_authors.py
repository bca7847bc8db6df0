"""Reading the authors' weights without running what is in the file, and judging with them."""

import importlib.util
import sys
import types

import numpy as np
import pandas as pd
import pytest
import torch

from baselines.defaultpp import authors
from baselines.defaultpp.estimator import DefaultPlusPlus
from features.bench import Bench, BenchError

CLASSES = {"ffn": ["ffn_neuron_drop", "ffn_weight_scaling"], "qkv": ["swapped_qk", "zero_key", "zero_query"]}
RAW = ["loss__a", "norm_l0__b", "norm_l1__b", "wide__c"]
INPUTS = ["loss__a", "wide__c", *(f"norm___b__agg_{s}" for s in ("mean", "std", "min", "max"))]


@pytest.fixture
def weights(tmp_path, monkeypatch):
    """A small file of the package's format, with a processor object of the package's class in it."""
    for name in ("defaultplusplus", "defaultplusplus.processing", "defaultplusplus.processing.feature_processor"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    module = sys.modules["defaultplusplus.processing.feature_processor"]
    module.FeatureProcessor = type("FeatureProcessor", (), {"__module__": module.__name__})
    processor = module.FeatureProcessor()
    processor._log_cols = ["wide__c"]
    processor._layer_families = {"norm___b": [(0, "norm_l0__b"), (1, "norm_l1__b")]}
    torch.manual_seed(0)
    sizes = {
        "encoder.net": (6, 10, 10),
        "detection_head": (5, 3, 2),
        "category_head": (5, 3, 2),
        "rootcause_heads.ffn": (5, 3, 2),
        "rootcause_heads.qkv": (5, 3, 3),
    }
    state = {"encoder.projection.weight": torch.randn(5, 10), "encoder.projection.bias": torch.randn(5)}
    for name, (a, b, c) in sizes.items():
        state |= {f"{name}.0.weight": torch.randn(b, a), f"{name}.0.bias": torch.randn(b)}
        state |= {f"{name}.3.weight": torch.randn(c, b), f"{name}.3.bias": torch.randn(c)}
    stored = {
        "format_version": "1",
        "arch": "encoder",
        "feature_names": INPUTS,
        "category_names": list(CLASSES),
        "rootcause_names": CLASSES,
        "model_kwargs": {"mode": "flat"},
        "model_state_dict": state,
        "scaler_mean": np.arange(6, dtype=np.float64),
        "scaler_scale": np.array([1.0, 2.0, 3.0, 4.0, 5.0, 0.0]),
        "prototypes": {"ffn": torch.randn(2, 5, 2), "qkv": torch.randn(3, 5, 2)},
        "extra": {"raw_feature_names": RAW, "feature_processor": processor},
    }
    torch.save(stored, tmp_path / "encoder.pt")
    monkeypatch.undo()
    np.savez(tmp_path / "encoder_reference.npz", median=np.array([9.0, 8.0, 7.0, 6.0], dtype=np.float32))
    return tmp_path / "encoder.pt"


@pytest.fixture
def runs():
    return pd.DataFrame([[1.0, 2.0, 4.0, -1e3], [np.nan, 0.0, 1.0, np.inf]], columns=RAW, index=["a", "b"])


def bench_of(X):
    labels = pd.DataFrame({"faulty": False, "category": "correct", "root_cause": "correct"}, index=X.index)
    return Bench("theirs", "encoder", X, labels, pd.Series("m/t", index=X.index))


def test_inputs_by_hand(weights, runs):
    x = authors.load("encoder", weights).prepare(runs)
    log = np.log1p(1e3)
    expected = [[1, (-log - 1) / 2, (3 - 2) / 3, (1 - 3) / 4, (2 - 4) / 5, 4 - 5]]
    np.testing.assert_allclose(x[:1], expected, rtol=1e-6)
    np.testing.assert_allclose(x[1, :2], [9.0, (np.log1p(6.0) - 1) / 2], rtol=1e-6, err_msg="filled with the medians")


def test_verdicts_are_in_the_taxonomy_and_deltas_sum_to_the_margin(weights, runs):
    model = authors.load("encoder", weights)
    judged = model.judge(runs)
    table = judged.verdicts().table
    assert set(table["category"]) <= {"ffn", "qkv"}
    assert set(table["root_cause"]) <= {
        "neuron_dropout",
        "weight_scaling",
        "head_interaction",
        "parameter_initialization",
    }
    explained = judged.explanation()
    assert list(explained["delta"]) == [f"piece_{i}" for i in range(5)]
    np.testing.assert_allclose(explained["delta"].sum(axis=1), explained[("verdict", "margin")], atol=1e-5)


def test_the_root_cause_is_the_heads(weights, runs):
    model = authors.load("encoder", weights)
    with torch.no_grad():
        hidden = model._layers("encoder.net", model.prepare(runs))
        z = model._linear("encoder.projection", hidden)
        category = model._layers("category_head", z).argmax(1)
        for i, c in enumerate(category):
            name = list(CLASSES)[c]
            own = CLASSES[name][int(model._layers(f"rootcause_heads.{name}", z[i : i + 1]).argmax())]
            predicted = model.judge(runs).margins.predicted[i]
            assert model.classes[predicted] == (name, own)


def test_coverage_is_stated_and_has_a_floor_that_can_be_lowered(weights, runs):
    few = bench_of(runs[RAW[:1]])
    technique = DefaultPlusPlus(source="authors", weights=weights)
    assert "25.0%" in technique.unsupported(few)
    with pytest.raises(BenchError, match="below the floor of 50%"):
        technique.fit(few)
    lowered = DefaultPlusPlus(source="authors", weights=weights, coverage_floor=0.2).fit(few)
    assert "25.0%" in lowered.notes_[0]
    assert len(lowered.predict(few).table) == 2
    with pytest.raises(BenchError, match="no feature groups"):
        lowered.deletion_margins(few, pd.DataFrame())
    assert technique.unsupported(bench_of(runs)) is None
    decoder = Bench("d", "decoder", runs, bench_of(runs).labels, bench_of(runs).pair)
    assert "holds encoder weights" in technique.unsupported(decoder)


class Bomb:
    """An object whose unpickling would call a function."""

    def __reduce__(self):
        return (print, ("unpickled",))


@pytest.mark.parametrize("hidden", [Bomb(), {"deeper": [Bomb()]}])
def test_a_file_that_would_run_code_is_refused(tmp_path, capsys, hidden):
    torch.save({"format_version": "1", "extra": hidden}, tmp_path / "encoder.pt")
    with pytest.raises(BenchError, match="holds more than tensors and plain data"):
        authors.load("encoder", tmp_path / "encoder.pt")
    assert "unpickled" not in capsys.readouterr().out


def test_a_missing_file_and_another_format_are_named(tmp_path):
    with pytest.raises(BenchError, match="no such file"):
        authors.load("encoder", tmp_path / "encoder.pt")
    torch.save({"format_version": "2"}, tmp_path / "encoder.pt")
    with pytest.raises(BenchError, match="format '2'"):
        authors.load("encoder", tmp_path / "encoder.pt")


@pytest.mark.skipif(importlib.util.find_spec(authors.PACKAGE) is not None, reason="the package is installed")
def test_without_the_package_it_says_how_to_get_it(runs):
    assert "install the extra" in DefaultPlusPlus(source="authors").unsupported(bench_of(runs))


@pytest.mark.skipif(importlib.util.find_spec(authors.PACKAGE) is None, reason="needs the extra 'defaultplusplus'")
@pytest.mark.parametrize("arch", ["encoder", "decoder"])
def test_same_answers_as_the_package(arch):
    """The package's own predictor, built from what was read safely, on random runs around its clean medians."""
    from defaultplusplus.diagnosis import predictor as package
    from defaultplusplus.processing.feature_processor import FeatureProcessor

    model = authors.load(arch)
    path = authors._shipped(arch)
    stored = authors.read(path)
    rng = np.random.default_rng(0)
    spread = np.linspace(0, 2, 12)[:, None] * (1 + np.abs(model.filler))
    X = pd.DataFrame(model.filler + rng.normal(size=(12, len(model.columns))) * spread, columns=list(model.columns))
    network = package._build_model_from_kwargs(stored["model_kwargs"])
    network.load_state_dict(stored["model_state_dict"])
    processor = FeatureProcessor(arch)
    vars(processor).update(vars(stored["extra"]["feature_processor"]))
    names = ("category_names", "category_sizes", "rootcause_names", "group_names", "scaler_mean", "scaler_scale")
    theirs = package.Predictor(
        arch=arch,
        feature_names=list(model.columns),
        model=network,
        prototypes=stored["prototypes"],
        feature_processor=processor,
        processed_feature_names=stored["feature_names"],
        **{name: stored[name] for name in names},
    ).predict_batch(X.to_dict("records"))
    ours = model.judge(X)
    np.testing.assert_allclose(ours.score, [d.detection_prob for d in theirs], atol=1e-6)
    for code, diagnosis in zip(ours.margins.predicted, theirs, strict=True):
        if diagnosis.is_faulty:
            assert model.classes[code] == (diagnosis.category, diagnosis.root_cause)

"""Weight statistics at the end of an epoch against numpy."""

import numpy as np
import pytest
import torch

from features.measure.discover import dissect
from features.measure.parameters import WeightMeter


def test_weights_against_numpy(build, family):
    model = build(family)
    anatomy = dissect(model)
    found = WeightMeter(anatomy).epoch()
    for index, layer in enumerate(anatomy.layers):
        entries = np.concatenate([p.detach().numpy().ravel() for p in layer.kernels()]).astype(float)
        assert found["weight_mean"][index].item() == pytest.approx(entries.mean(), rel=1e-3, abs=1e-7)
        assert found["weight_std"][index].item() == pytest.approx(entries.std(ddof=1), rel=1e-5)
        assert found["weight_norm"][index].item() == pytest.approx(np.linalg.norm(entries), rel=1e-5)
    everything = np.concatenate([p.detach().numpy().ravel() for p in model.parameters()])
    assert found["weight_abs_max"].item() == pytest.approx(np.abs(everything).max())
    assert found["weight_large_count"] == 0
    assert found["weight_nonfinite_count"] == 0
    assert "weight_same_mean_count" not in found


def test_tensors_that_stay_as_they_are_are_counted(build):
    model = build("gpt2")
    anatomy = dissect(model)
    meter = WeightMeter(anatomy)
    meter.epoch()
    kernels = [p for layer in anatomy.layers for p in layer.kernels()]
    with torch.no_grad():
        kernels[0].add_(0.1)
        kernels[1].mul_(2)
    found = meter.epoch()
    assert found["weight_same_mean_count"] == len(kernels) - 2
    assert len(kernels) - 2 <= found["weight_same_std_count"] <= len(kernels) - 1
    assert meter.epoch()["weight_same_mean_count"] == len(kernels)

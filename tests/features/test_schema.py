"""Lengths, names and groups of the vector, from the manuscript's own formula."""

from collections import Counter

import pytest

from features.schema import (
    LOG_METRICS,
    MACHINE_METRICS,
    METRICS,
    columns,
    groups,
    metric_columns,
    metrics,
)


@pytest.mark.parametrize(
    ("arch", "layer", "gradient", "step", "epoch", "length"),
    [("encoder", 15, 21, 10, 2, 1600), ("decoder", 16, 21, 12, 2, 1705)],
)
def test_length_is_the_manuscripts_formula(arch, layer, gradient, step, epoch, length):
    by_resolution = Counter(m.resolution for m in metrics(arch))
    assert by_resolution == {"layer": layer, "gradient": gradient, "step": step, "epoch": epoch}
    a_p, a_e, a_l = 5, 3, 5
    assert a_p * (a_e * (a_l * layer + gradient + step) + epoch) == length
    assert len(columns(arch)) == len(set(columns(arch))) == length


def test_groups():
    assert len(groups("encoder")) == 12
    assert len(groups("decoder")) == 13
    assert set(groups("decoder")) - set(groups("encoder")) == {"cache"}
    for arch in ("encoder", "decoder"):
        assert {m.group for m in metrics(arch)} == set(groups(arch))


def test_metric_names_are_unique_and_free_of_the_separator():
    names = [m.name for m in METRICS]
    assert len(set(names)) == len(names)
    assert not any("__" in n for n in names)


def test_column_names_are_spelled_as_published():
    encoder = columns("encoder")
    assert "attention_entropy__layer_mid_std__epoch_burst__phase_slope" in encoder
    assert "train_loss__epoch_std__phase_early_mean" in encoder
    assert "val_accuracy__epoch__phase_final_value" in encoder
    assert "attention_future_mass__final_layer_value__epoch_mean__phase_mid_mean" in columns("decoder")


def test_columns_per_metric():
    expected = {"layer": 75, "gradient": 15, "step": 15, "epoch": 5}
    assert {m.resolution: len(metric_columns(m)) for m in METRICS} == expected


def test_machine_metrics():
    assert {"step_time", "peak_memory"} == MACHINE_METRICS


def test_log_metrics_are_unique():
    # val_accuracy stands in the log of both architectures, but only in the encoder's vector.
    names = [m.name for m in LOG_METRICS]
    assert len(set(names)) == len(names)
    assert {m.per for m in LOG_METRICS} == {"step", "epoch"}

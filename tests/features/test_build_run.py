"""Real runs of the smallest family; the bases must be there (`build_bench.py --bases-only`)."""

import numpy as np
import pytest
import torch

from features.build.base import base_path
from features.build.families import family
from features.build.run import Configuration, InvalidRun, fine_tune, order
from features.build.variants import setting
from features.inject import Fault
from features.schema import MACHINE_METRICS, columns

pytestmark = pytest.mark.skipif(not base_path(family("distilbert")).exists(), reason="bases not built")


def _measured(run):
    return run.vector[[c for c in run.vector.index if c.split("__")[0] not in MACHINE_METRICS]]


def test_same_configuration_same_vector_and_the_fault_changes_it():
    clean = Configuration("distilbert", "entailment", profile="smoke")
    first, again = fine_tune(clean, 42), fine_tune(clean, 42)
    assert tuple(first.vector.index) == columns("encoder")
    assert first.quality == again.quality
    np.testing.assert_array_equal(_measured(first), _measured(again))
    faulty = fine_tune(Configuration("distilbert", "entailment", fault=Fault("QZV"), profile="smoke"), 42)
    assert not np.array_equal(_measured(first), _measured(faulty), equal_nan=True)


def test_another_setting_or_seed_is_another_run():
    clean = Configuration("distilbert", "entailment", profile="smoke")
    runs = [fine_tune(clean, 42), fine_tune(clean, 123)]
    runs.append(
        fine_tune(Configuration("distilbert", "entailment", setting("distilbert/entailment", 1), profile="smoke"), 42)
    )
    assert len({tuple(_measured(r).fillna(0)) for r in runs}) == 3


def test_a_cache_fault_acts_on_validation_but_not_on_training():
    clean, faulty = (
        fine_tune(Configuration("distilgpt2", "grammar", fault=f, profile="smoke"), 42)
        for f in (None, Fault("CST", "all"))
    )
    losses = [r.log.query("metric == 'step_loss'").value.to_numpy() for r in (clean, faulty)]
    np.testing.assert_array_equal(*losses)
    assert faulty.quality > clean.quality


def test_a_fault_that_cannot_act_is_refused_with_a_reason():
    with pytest.raises(InvalidRun, match="not applicable"):
        fine_tune(Configuration("distilbert", "entailment", fault=Fault("ESS", 2.0), profile="smoke"), 42)


def test_order_uses_every_example_once_before_any_twice():
    rows = torch.cat(order(pool=10, batch_size=4, steps=5, seed=0))
    assert sorted(rows[:10].tolist()) == sorted(rows[10:].tolist()) == list(range(10))

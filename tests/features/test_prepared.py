"""One training part is prepared once, whatever number of techniques learn from it."""

import gc

import numpy as np
import pandas as pd

from baselines.technique import technique
from features import preparation
from features.preparation import Preparation, prepared


def test_is_what_a_preparation_of_ones_own_gives(toy_bench):
    fitted, table = prepared(toy_bench)
    own = Preparation().fit(toy_bench.X, toy_bench.faulty)
    pd.testing.assert_frame_equal(table, own.transform(toy_bench.X))
    np.testing.assert_array_equal(fitted.kept_, own.kept_)


def test_techniques_share_it_and_leave_it_as_it_was(toy_bench, monkeypatch):
    train, other = toy_bench.take(np.arange(80)), toy_bench.take(np.arange(40, 120))
    fits = []
    fit = Preparation.fit
    monkeypatch.setattr(Preparation, "fit", lambda self, X, y=None: fits.append(len(X)) or fit(self, X, y))
    before = prepared(train)[1].copy()
    for key in ("logistic", "knn", "defaultpp"):
        technique(key).fit(train)
    assert len(fits) == 1
    pd.testing.assert_frame_equal(prepared(train)[1], before)
    assert not prepared(other)[1].equals(before), "another part has a preparation of its own"
    assert len(fits) == 2


def test_is_forgotten_with_the_bench(toy_bench):
    part = toy_bench.take(np.arange(50))
    prepared(part)
    held = len(preparation._PREPARED)
    del part
    gc.collect()
    assert len(preparation._PREPARED) == held - 1

"""The dummy scores what arithmetic says it must."""

import numpy as np
import pandas as pd
import pytest

from baselines.simple import StratifiedDummy
from experiments.engine.scoring import confusion, score
from features.bench import Bench


def test_dummy_scores_the_class_share():
    """Independent draws with share p: expected precision, recall, and so F1 at Level 1, are all p."""
    n, p = 40_000, 0.3
    rng = np.random.default_rng(5)
    faulty = rng.random(n) < p
    index = pd.Index([f"r{i}" for i in range(n)])
    causes = np.where(rng.random(n) < 0.5, "weight_scaling", "neuron_dropout")
    bench = Bench(
        name="coin",
        arch=None,
        X=pd.DataFrame({"x": rng.random(n)}, index=index),
        labels=pd.DataFrame(
            {
                "faulty": faulty,
                "category": np.where(faulty, "ffn", "correct"),
                "root_cause": np.where(faulty, causes, "correct"),
            },
            index=index,
        ),
        pair=pd.Series("m/t", index=index),
    )
    verdicts = StratifiedDummy(seed=1).fit(bench).predict(bench)
    parts = (bench.labels, verdicts.path(), verdicts.table, bench.pair)
    found = score(confusion(*parts, 1, "path"))
    assert found == pytest.approx({"f1": p, "precision": p, "recall": p}, abs=0.01)
    # Level 3: "correct" is right with 0.7, each of the two causes with 0.3 × 1/2.
    assert score(confusion(*parts, 3, "path"))["f1"] == pytest.approx((0.7 + 0.15 + 0.15) / 3, abs=0.01)

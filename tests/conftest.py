"""Toy benches whose answers are known by construction. For tests of machinery only; no result uses them."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from features.bench import Bench
from features.fpg import CATEGORY_GROUP
from features.routing import route
from features.schema import columns
from features.taxonomy import CORRECT, Architecture, root_causes


def make_toy_bench(
    arch: Architecture = "encoder", n_pairs: int = 6, per_pair: int = 20, n_causes: int = 6, seed: int = 0
) -> Bench:
    """Half correct, half faulty rows; a fault shifts the columns of its category's group, its cause a third of them."""
    rng = np.random.default_rng(seed)
    names = list(columns(arch))
    group = route(names).group
    causes = [c for i, c in enumerate(root_causes(arch)) if i % (len(root_causes(arch)) // n_causes) == 0][:n_causes]
    rows, labels, pairs = [], [], []
    for pair in range(n_pairs):
        for i in range(per_pair):
            values = rng.normal(size=len(names)) + 0.1 * pair
            category, cause = (CORRECT, CORRECT) if i % 2 == 0 else causes[(i // 2) % n_causes]
            if category != CORRECT:
                hit = (group == CATEGORY_GROUP[category]).to_numpy()
                values[hit] += 3
                values[hit & (np.arange(len(names)) % 3 == causes.index((category, cause)) % 3)] += 3
            rows.append(values)
            labels.append((category != CORRECT, category, cause))
            pairs.append(f"model{pair % 3}/task{pair // 3}")
    index = pd.Index([f"run{i:04d}" for i in range(len(rows))], name="run")
    return Bench(
        name="toy",
        arch=arch,
        X=pd.DataFrame(np.array(rows), index=index, columns=names),
        labels=pd.DataFrame(labels, index=index, columns=["faulty", "category", "root_cause"]),
        pair=pd.Series(pairs, index=index),
    )


@pytest.fixture(scope="session")
def toy_bench() -> Bench:
    """An encoder toy bench: 6 pairs × 20 runs."""
    return make_toy_bench()


@pytest.fixture(scope="session")
def toy_maker():
    """`make_toy_bench`, for tests that need other sizes."""
    return make_toy_bench

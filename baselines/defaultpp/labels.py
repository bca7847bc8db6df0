"""The label space of one training set: categories, and root causes within them, as integers.

A class is a (category, root cause) pair that occurs in the training rows. Labels that don't occur there have no code
and can't be predicted; rows without a label carry -1 and count in no loss of that level.

>>> labels = pd.DataFrame({"faulty": [False, True, True], "category": ["correct", "ffn", "qkv"],
...                        "root_cause": ["correct", "weight_scaling", "dimension"]})
>>> space = LabelSpace.of(labels)
>>> space.classes
(('ffn', 'weight_scaling'), ('qkv', 'dimension'))
>>> space.encode(labels).classes
array([-1,  0,  1])
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd


@dataclass(frozen=True)
class Codes:
    """Labels of n rows as integer arrays: `faulty` 0/1; `category` and `classes` -1 where there is none."""

    faulty: np.ndarray
    category: np.ndarray
    classes: np.ndarray


@dataclass(frozen=True)
class LabelSpace:
    """Sorted categories, and sorted (category, root cause) classes."""

    categories: tuple[str, ...]
    classes: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, labels: pd.DataFrame) -> LabelSpace:
        """The labels that the faulty rows carry; `labels` as in `Bench.labels`."""
        faulty = labels.loc[labels["faulty"].astype(bool)]
        named = faulty.dropna(subset=["category"])
        full = named.dropna(subset=["root_cause"])
        return cls(
            categories=tuple(sorted(named["category"].unique())),
            classes=tuple(sorted(set(zip(full["category"], full["root_cause"], strict=True)))),
        )

    @property
    def category_of_class(self) -> np.ndarray:
        """Category code of every class, shape (K,)."""
        return np.array([self.categories.index(category) for category, _ in self.classes], dtype=np.int64)

    def encode(self, labels: pd.DataFrame) -> Codes:
        """Codes of the rows of `labels`; correct rows and labels outside the space get -1."""
        faulty = labels["faulty"].to_numpy(dtype=bool)
        category_code = {name: code for code, name in enumerate(self.categories)}
        class_code = {name: code for code, name in enumerate(self.classes)}
        pairs = list(zip(labels["category"], labels["root_cause"], strict=True))
        category = np.array([category_code.get(category, -1) for category, _ in pairs], dtype=np.int64)
        classes = np.array([class_code.get(pair, -1) for pair in pairs], dtype=np.int64)
        return Codes(faulty.astype(np.int64), np.where(faulty, category, -1), np.where(faulty, classes, -1))

"""Two named scoring protocols over one set of verdicts, from per-pair confusion counts.

`path` (strict, the headline): one verdict per run as a user receives it. Level 1 is binary F1 of "faulty"; Level 2
is macro F1 over the categories and "correct"; Level 3 over the (category, root cause) classes and "correct". A
missed fault is a miss; a false alarm is a false positive of the class it was given.

`paper` (as the DEFault++ authors' code scores): Level 1 the same; Level 2 on truly faulty rows only, with an oracle
Level 1; Level 3 within the true category, where a row put into another category is a miss for its class but never a
false positive of another, macro over root causes within a category, then over categories.

Macro means run over the classes that occur in the truth. Counts are kept per pair, because a pair is the unit of
resampling: scores of any resample are sums of counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd

from baselines.hierarchy import SEPARATOR
from features.taxonomy import CORRECT

Protocol = Literal["path", "paper"]
PROTOCOLS: tuple[Protocol, ...] = ("path", "paper")
LEVELS = (1, 2, 3)
FAULTY = "faulty"
ELSEWHERE = "(other)"
"""Stands for a prediction that no class of the truth matches, or for no prediction at all."""


@dataclass(frozen=True, eq=False)
class Confusion:
    """Counts of (pair, true class, predicted class), P × C × C+1; the last column is a prediction outside `classes`.

    `scored` marks the classes that the macro mean runs over; `families` names the class groups that are averaged
    first (one group per category at `paper` Level 3, otherwise one group for all).
    """

    counts: np.ndarray
    pairs: tuple[str, ...]
    classes: tuple[str, ...]
    scored: np.ndarray
    families: np.ndarray

    def pooled(self) -> pd.DataFrame:
        """Counts summed over pairs, true class × predicted class."""
        return pd.DataFrame(
            self.counts.sum(axis=0), index=pd.Index(self.classes, name="true"), columns=[*self.classes, ELSEWHERE]
        )


def confusion(labels: pd.DataFrame, path: pd.DataFrame, guess: pd.DataFrame, pair, level: int, protocol: Protocol):
    """Count verdicts against labels.

    Parameters
    ----------
    labels, path, guess : faulty, category, root_cause per run (index: run id); `path` is `Verdicts.path()`, `guess`
        is the verdict table itself with its guesses given a fault.
    pair : Series of the runs' pairs.
    """
    if level == 1:
        truth = labels["faulty"].map({True: FAULTY, False: CORRECT})
        predicted = path["faulty"].map({True: FAULTY, False: CORRECT})
        return _count(truth, predicted, pair, scored=lambda classes: classes == FAULTY)
    if protocol == "path":
        columns = ["category"] if level == 2 else ["category", "root_cause"]
        return _count(_join(labels, columns), _join(path, columns), pair)
    faulty = labels.index[labels["faulty"]]
    labels, guess, pair = labels.loc[faulty], guess.loc[faulty], pair.loc[faulty]
    if level == 2:
        return _count(_join(labels, ["category"]), _join(guess, ["category"]), pair)
    predicted = _join(guess, ["category", "root_cause"])
    predicted = predicted.where(guess["category"] == labels["category"], ELSEWHERE)
    return _count(_join(labels, ["category", "root_cause"]), predicted, pair, by_category=True)


def f1_scores(counts: np.ndarray, table: Confusion) -> pd.DataFrame:
    """Precision, recall and F1 of counts summed over pairs.

    `counts` is B × C × C+1 (B resamples); gives three arrays of length B as columns `f1`, `precision`, `recall`.
    """
    per_class = class_scores(counts)
    weight = np.where(table.scored & (counts.sum(axis=2) > 0), 1.0, np.nan)
    result = {}
    for name, values in per_class.items():
        values = values * weight
        by_family = [_nanmean(values[:, table.families == f]) for f in np.unique(table.families)]
        result[name] = _nanmean(np.stack(by_family, axis=1))
    return pd.DataFrame(result)


def class_scores(counts: np.ndarray) -> dict[str, np.ndarray]:
    """F1, precision and recall per class (B × C); a class never predicted has precision 0, as in scikit-learn."""
    true_positive = np.diagonal(counts, axis1=1, axis2=2)
    actual, predicted = counts.sum(axis=2), counts[:, :, : counts.shape[1]].sum(axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        precision = np.where(predicted > 0, true_positive / predicted, 0.0)
        recall = np.where(actual > 0, true_positive / actual, 0.0)
        f1 = np.where(actual + predicted > 0, 2 * true_positive / (actual + predicted), 0.0)
    return {"f1": f1, "precision": precision, "recall": recall}


def score(table: Confusion) -> dict[str, float]:
    """F1, precision and recall of a confusion, pooled over pairs."""
    return f1_scores(table.counts.sum(axis=0, keepdims=True), table).iloc[0].to_dict()


def class_table(table: Confusion) -> pd.DataFrame:
    """Per class: F1, precision, recall and support."""
    pooled = table.counts.sum(axis=0, keepdims=True)
    columns = {name: values[0] for name, values in class_scores(pooled).items()}
    result = pd.DataFrame(columns, index=pd.Index(table.classes, name="class"))
    result["support"] = pooled[0].sum(axis=1).astype(int)
    return result[table.scored & (result["support"] > 0).to_numpy()]


def false_alarm_rate(labels: pd.DataFrame, path: pd.DataFrame) -> float:
    """Share of correct runs that are called faulty."""
    return float(path.loc[~labels["faulty"], "faulty"].mean())


def _count(truth: pd.Series, predicted: pd.Series, pair: pd.Series, scored=None, by_category=False) -> Confusion:
    classes = np.unique(truth.to_numpy(str))
    pairs, pair_code = np.unique(pair.to_numpy(str), return_inverse=True)
    true_code = np.searchsorted(classes, truth.to_numpy(str))
    predicted_code = pd.Index(classes).get_indexer(predicted.to_numpy(str))
    counts = np.zeros((len(pairs), len(classes), len(classes) + 1))
    # get_indexer gives -1 for a class outside the truth, which is the last column.
    np.add.at(counts, (pair_code, true_code, predicted_code), 1)
    families = [c.partition(SEPARATOR)[0] for c in classes] if by_category else ["all"] * len(classes)
    return Confusion(
        counts,
        tuple(pairs),
        tuple(classes),
        np.ones(len(classes), bool) if scored is None else scored(classes),
        np.array(families),
    )


def _join(table: pd.DataFrame, columns: list[str]) -> pd.Series:
    """One class name a row: "correct", "category" or "category/root cause"; ELSEWHERE where a part is missing."""
    # Row by row in Python: text columns of pandas take ten times as long for it.
    parts = zip(*(table[column].to_numpy(object) for column in columns), strict=True)
    return pd.Series([_class_name(of_row) for of_row in parts], index=table.index, dtype=object)


def _class_name(parts: tuple) -> str:
    if parts[0] == CORRECT:
        return CORRECT
    return SEPARATOR.join(parts) if all(isinstance(part, str) for part in parts) else ELSEWHERE


def _nanmean(values: np.ndarray) -> np.ndarray:
    known = np.isfinite(values)
    with np.errstate(invalid="ignore"):
        return np.where(known.any(axis=1), np.nansum(values, axis=1) / known.sum(axis=1), np.nan)

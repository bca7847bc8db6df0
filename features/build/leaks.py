"""Does a column give faulty runs away for a reason that is not the fault? What is a bench worth to a plain learner?"""

from __future__ import annotations

import numpy as np
import pandas as pd
from sklearn.metrics import f1_score, roc_auc_score
from sklearn.model_selection import GroupKFold, cross_val_predict
from sklearn.tree import DecisionTreeClassifier

from features.bench import Bench
from features.preparation import Preparation, finite
from features.schema import MACHINE_METRICS

SUSPICIOUS_AUC = 0.95


def without_machine(bench: Bench) -> Bench:
    """The bench without step time and memory, which readers leave out by default."""
    return bench.with_features([c for c in bench.X if c.split("__")[0] not in MACHINE_METRICS])


def column_auc(X: pd.DataFrame, faulty: pd.Series) -> pd.Series:
    """Per column, the area under the ROC curve of its values (or their negative, whichever is larger) for `faulty`.

    Missing and infinite values rank below all others; a constant column has 0.5.
    """
    values = finite(X).fillna(X.min(numeric_only=True) - 1).fillna(0.0)
    auc = {c: roc_auc_score(faulty, values[c]) for c in values}
    return pd.Series(auc).pipe(lambda a: a.where(a >= 0.5, 1 - a)).sort_values(ascending=False)


def stump_accuracy(table: pd.DataFrame, faulty: pd.Series, pair: pd.Series) -> pd.Series:
    """Per column, balanced accuracy of a tree of depth 1 under GroupKFold(5) by pair; 0.5 is chance."""
    found = {}
    for column in table:
        values = table[[column]].astype(float).fillna(-1.0)
        stump = DecisionTreeClassifier(max_depth=1, class_weight="balanced", random_state=0)
        guess = cross_val_predict(stump, values, faulty, groups=pair, cv=_folds(pair))
        found[column] = (np.mean(guess[faulty]) + np.mean(~guess[~faulty])) / 2
    return pd.Series(found).sort_values(ascending=False)


def detection_f1(bench: Bench, anomaly: bool = False) -> float:
    """F1 of the faulty class of a plain LightGBM under GroupKFold(5) by pair, all folds pooled."""
    from lightgbm import LGBMClassifier

    faulty, guess = bench.faulty.to_numpy(bool), np.zeros(len(bench), bool)
    for train, test in _folds(bench.pair).split(bench.X, groups=bench.pair):
        preparation = Preparation(impute=False, standardise=False, log_large=False, anomaly=anomaly)
        preparation.fit(bench.X.iloc[train], faulty[train])
        model = LGBMClassifier(n_estimators=150, num_leaves=15, verbose=-1, n_jobs=1, random_state=0)
        model.fit(preparation.transform(bench.X.iloc[train]).to_numpy(), faulty[train])
        guess[test] = model.predict(preparation.transform(bench.X.iloc[test]).to_numpy())
    return float(f1_score(faulty, guess))


def _folds(pair: pd.Series) -> GroupKFold:
    return GroupKFold(min(5, pair.nunique()))

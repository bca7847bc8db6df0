"""Tuning inside the training rows of one outer fold, by Optuna.

One study per technique × bench × outer fold, in any RDB storage, seeded and resumable. The objective is the score
of the inner folds' pooled verdicts: each training run is judged once by a model that did not see its pair. Outer
test rows are not an argument of anything here.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass

import numpy as np
import optuna
import pandas as pd
from sklearn.base import clone

from baselines.technique import Technique
from experiments.engine.protocol import inner_folds
from experiments.engine.scoring import confusion, score
from features.bench import Bench


@dataclass(frozen=True)
class Tuning:
    """How to tune. `storage` is an Optuna URL (None keeps studies in memory); `timeout` is in seconds per study."""

    trials: int
    timeout: float | None = None
    n_folds: int = 3
    seed: int = 0
    storage: str | None = None

    def identity(self) -> dict:
        """What of it decides the outcome: not where it is stored."""
        return {k: v for k, v in asdict(self).items() if k != "storage"}


def objective_value(estimator: Technique, train: Bench, folds, report=None) -> float:
    """Mean over the technique's levels of `path` F1 of the pooled inner verdicts.

    `report(step, value)` gets the running value after each inner fold and may raise TrialPruned.
    """
    levels = [level for level in estimator.levels if level in train.levels]
    tables, value = [], np.nan
    for step, fold in enumerate(folds):
        fitted = clone(estimator).fit(train.take(fold.train))
        tables.append(fitted.predict(train.take(fold.test)))
        value = _path_score(train, tables, levels)
        if report is not None:
            report(step, value)
    return value


def tune(key: str, estimator: Technique, train: Bench, tuning: Tuning, label: str) -> dict:
    """The best parameters found; empty if the technique has nothing to tune."""
    if not tunable(estimator):
        return {}
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    folds = inner_folds(train, tuning.n_folds, tuning.seed)
    study = optuna.create_study(
        study_name=f"{key} | {train.name} | {label} | {train.fingerprint()}",
        direction="maximize",
        pruner=optuna.pruners.MedianPruner(n_startup_trials=5),
        storage=tuning.storage,
        load_if_exists=True,
    )

    def evaluate(trial: optuna.Trial) -> float:
        def report(step: int, value: float) -> None:
            trial.report(value, step)
            if step + 1 < len(folds) and trial.should_prune():
                raise optuna.TrialPruned

        parameters = estimator.search_space(trial)
        trial.set_user_attr("parameters", parameters)
        return objective_value(clone(estimator).set_params(**parameters), train, folds, report)

    deadline = None if tuning.timeout is None else time.monotonic() + tuning.timeout
    while (done := _finished(study)) < tuning.trials and (deadline is None or time.monotonic() < deadline):
        if done == 0:
            study.enqueue_trial(_defaults(estimator))
        # Reseeded by what is finished, so that a killed study, resumed, draws what it would have drawn.
        study.sampler = optuna.samplers.TPESampler(seed=tuning.seed + done)
        study.optimize(evaluate, n_trials=1)
    return dict(study.best_trial.user_attrs["parameters"])


def _finished(study: optuna.Study) -> int:
    return sum(t.state.is_finished() for t in study.get_trials(deepcopy=False))


def tunable(estimator: Technique) -> bool:
    """Whether the technique names anything to tune."""
    return bool(estimator.search_space(_RecordingTrial()))


def _defaults(estimator: Technique) -> dict:
    """The default parameters, as far as the search space names them: the first trial, so that tuning can't lose."""
    trial = _RecordingTrial()
    estimator.search_space(trial)
    parameters = estimator.get_params()
    return {name: parameters[name] for name in trial.names if name in parameters}


class _RecordingTrial(optuna.trial.FixedTrial):
    """A trial that answers with the first admissible value and remembers the names asked for."""

    def __init__(self):
        super().__init__({})
        self.names: list[str] = []

    def _first(self, name, value):
        self.names.append(name)
        return value

    def suggest_float(self, name, low, high, **_):
        return self._first(name, low)

    def suggest_int(self, name, low, high, **_):
        return self._first(name, low)

    def suggest_categorical(self, name, choices):
        return self._first(name, choices[0])


def _path_score(train: Bench, tables, levels) -> float:
    guess = pd.concat([t.table for t in tables])
    path = pd.concat([t.path() for t in tables])
    labels, pair = train.labels.loc[guess.index], train.pair.loc[guess.index]
    return float(np.mean([score(confusion(labels, path, guess, pair, level, "path"))["f1"] for level in levels]))

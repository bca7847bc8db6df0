"""Tuning inside the training rows of one outer fold, by Optuna.

One study per technique × bench × outer fold, in any RDB storage, seeded and resumable. The objective is the score
of the inner folds' pooled verdicts: each training run is judged once by a model that did not see its pair. Outer
test rows are not an argument of anything here.
"""

from __future__ import annotations

import os
import socket
import time
from dataclasses import asdict, dataclass
from pathlib import Path

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


@dataclass(frozen=True, eq=False)
class Tuned:
    """What a study found. `trials`: one row per finished trial (number, value, state, seconds, one column per
    parameter). `importances`: fANOVA share per parameter, empty where too few trials finished."""

    parameters: dict
    trials: pd.DataFrame
    importances: dict[str, float]


def tune(key: str, estimator: Technique, train: Bench, tuning: Tuning, label: str) -> Tuned:
    """Search on `train` alone. The first trial is the defaults, so that tuning can't lose to them on inner folds."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    folds = inner_folds(train, tuning.n_folds, tuning.seed)
    study = optuna.create_study(
        study_name=f"{key} | {train.name} | {label} | {train.fingerprint()} | seed {tuning.seed}",
        direction="maximize",
        pruner=optuna.pruners.MedianPruner(n_startup_trials=5),
        storage=tuning.storage,
        load_if_exists=True,
    )
    _bury_the_dead(study)

    def evaluate(trial: optuna.Trial) -> float:
        def report(step: int, value: float) -> None:
            trial.report(value, step)
            if step + 1 < len(folds) and trial.should_prune():
                raise optuna.TrialPruned

        trial.set_user_attr("process", _process())
        parameters = estimator.search_space(trial)
        trial.set_user_attr("parameters", parameters)
        return objective_value(clone(estimator).set_params(**parameters), train, folds, report)

    deadline = None if tuning.timeout is None else time.monotonic() + tuning.timeout
    while (done := len(_finished(study))) < tuning.trials and (deadline is None or time.monotonic() < deadline):
        running = len(study.get_trials(deepcopy=False, states=[optuna.trial.TrialState.RUNNING]))
        if done + running == 0:
            study.enqueue_trial(defaults_of(estimator))
        # Reseeded by what is finished, so that a killed study, resumed, draws what it would have drawn; moved on by
        # what others are running, so that several processes on one study don't draw the same point.
        study.sampler = optuna.samplers.TPESampler(seed=tuning.seed + done + 10_000 * running)
        study.optimize(evaluate, n_trials=1)
    return Tuned(dict(study.best_trial.user_attrs["parameters"]), _history(study), _importances(study))


def prepare_storage(url: str | None) -> None:
    """Create the tables of an RDB storage once, before several processes open it."""
    if url is not None:
        optuna.storages.RDBStorage(url)


def _finished(study: optuna.Study) -> list[optuna.trial.FrozenTrial]:
    states = [optuna.trial.TrialState.COMPLETE, optuna.trial.TrialState.PRUNED]
    return study.get_trials(deepcopy=False, states=states)


def _process() -> str:
    return f"{socket.gethostname()}:{os.getpid()}"


def _bury_the_dead(study: optuna.Study) -> None:
    """Mark trials as failed whose process, on this host, is gone (or is this one, which has none running yet)."""
    for trial in study.get_trials(states=[optuna.trial.TrialState.RUNNING]):
        host, _, pid = trial.user_attrs.get("process", "").rpartition(":")
        gone = host == socket.gethostname() and (int(pid) == os.getpid() or not Path(f"/proc/{pid}").exists())
        if not host or gone:
            study.tell(trial.number, state=optuna.trial.TrialState.FAIL)


def _history(study: optuna.Study) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "number": number,
            "value": trial.value,
            "state": trial.state.name.lower(),
            **trial.user_attrs.get("parameters", trial.params),
        }
        for number, trial in enumerate(_finished(study))
    )


def _importances(study: optuna.Study) -> dict[str, float]:
    complete = [t for t in _finished(study) if t.value is not None]
    if len(complete) < 4 or len({t.value for t in complete}) < 2:
        return {}
    evaluator = optuna.importance.FanovaImportanceEvaluator(seed=0)
    return {k: float(v) for k, v in optuna.importance.get_param_importances(study, evaluator=evaluator).items()}


def tunable(estimator: Technique) -> bool:
    """Whether the technique names anything to tune."""
    return bool(estimator.search_space(_RecordingTrial()))


def defaults_of(estimator: Technique) -> dict:
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

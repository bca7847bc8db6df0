"""Tuning finds what there is to find, inside the training rows only, and resumes."""

import warnings
from dataclasses import replace
from typing import ClassVar

import numpy as np
import optuna
import pytest

from baselines.simple import StratifiedDummy
from baselines.technique import REGISTRY, Technique, Verdicts, technique
from experiments.engine.protocol import outer_folds
from experiments.engine.tuning import Tuning, defaults_of, tunable, tune


class Threshold(Technique):
    """Faulty where the mean of the row is above `cut`; the toy bench's faults raise their group by 3."""

    name = "threshold"
    reference = "this test"
    levels = (1,)
    family: ClassVar[str] = "test"

    def __init__(self, cut: float = 50.0):
        self.cut = cut

    def predict(self, bench):
        mean = bench.X.mean(axis=1)
        return Verdicts.build(bench.runs, mean, mean > self.cut)

    def search_space(self, trial):
        return {"cut": trial.suggest_float("cut", -1.0, 2.0)}


@pytest.fixture
def train(toy_bench):
    return toy_bench.take(outer_folds(toy_bench, 3)[0].train)


def test_improves_on_useless_defaults_and_records_the_search(train):
    found = tune("threshold", Threshold(), train, Tuning(trials=12, seed=1), "fold 0")
    assert found.trials["value"].iloc[0] == 0.0  # the defaults, tried first
    assert found.trials["value"].max() > 0.6
    assert found.parameters["cut"] == found.trials.loc[found.trials["value"].idxmax(), "cut"]
    assert len(found.trials) == 12
    assert sum(found.importances.values()) == pytest.approx(1.0)


def test_outer_test_rows_play_no_part(toy_bench):
    """The same training rows beside poisoned test rows: same parameters, same history."""
    fold = outer_folds(toy_bench, 3)[0]
    poisoned = toy_bench.X.copy()
    poisoned.loc[fold.test] = 1e6 * np.random.default_rng(0).normal(size=(len(fold.test), 1)).astype(np.float32)
    labels = toy_bench.labels.copy()
    labels.loc[fold.test, ["faulty", "category", "root_cause"]] = [True, "score", "normalization"]
    other = replace(toy_bench, X=poisoned, labels=labels)
    histories = [
        tune("threshold", Threshold(), bench.take(fold.train), Tuning(trials=6), "fold 0").trials
        for bench in (toy_bench, other)
    ]
    assert histories[0].equals(histories[1])


def test_a_killed_study_resumes_where_it_was(train, tmp_path):
    class Killed(BaseException):
        pass

    class Mortal(Threshold):
        calls = 0

        def predict(self, bench):
            Mortal.calls += 1
            if Mortal.calls == 10:
                raise Killed
            return super().predict(bench)

    storage = f"sqlite:///{tmp_path / 'optuna.db'}"
    with pytest.raises(Killed):
        tune("threshold", Mortal(), train, Tuning(8, storage=storage), "fold 0")
    resumed = tune("threshold", Mortal(), train, Tuning(8, storage=storage), "fold 0")
    whole = tune("threshold", Threshold(), train, Tuning(8), "fold 0")
    columns = ["number", "value", "cut"]
    assert resumed.trials[columns].equals(whole.trials[columns])


def test_hopeless_trials_are_pruned(train):
    states = tune("threshold", Threshold(), train, Tuning(trials=25, seed=3), "fold 0").trials["state"]
    assert "pruned" in set(states)


def test_nothing_to_tune_is_known():
    assert not tunable(StratifiedDummy())
    assert tunable(Threshold())


def test_search_space_gives_parameters_of_the_technique():
    trial = optuna.trial.FixedTrial({"cut": 0.5})
    assert Threshold().set_params(**Threshold().search_space(trial)).cut == 0.5


@pytest.mark.parametrize("key", REGISTRY)
def test_every_search_space_holds_its_own_defaults(key):
    """The first trial is the defaults; a default outside the space would fail the whole study."""
    estimator = technique(key)
    defaults = defaults_of(estimator)
    study = optuna.create_study()
    study.enqueue_trial(defaults)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # of a value out of range Optuna only warns
        assert estimator.search_space(study.ask()) == defaults

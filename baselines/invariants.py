"""Training invariants on feature vectors: the idea of TrainCheck (Jiang et al., OSDI 2025), carried from traces.

What held in nearly every healthy run, and goes on holding in healthy runs of (model, task) pairs that took no part in
learning it, is an invariant; a run that breaks too many is called faulty, and the feature groups of the broken ones
say where. TrainCheck's preconditions ("where does this hold?") become that test on unseen pairs: a statement that
depends on the model or the task doesn't pass it.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
import pandas as pd
from sklearn.metrics import f1_score
from sklearn.model_selection import GroupKFold

from baselines.invariant_forms import Bounds, Forms, outside
from baselines.rules import plain
from baselines.technique import Technique, Verdicts
from features.bench import Bench, BenchError
from features.fpg import CATEGORY_GROUP

UNGROUPED = "no group"
"""Where columns count that no rule routes to a group."""

SHOWN = 5
"""Broken invariants that a verdict spells out."""


class Invariants(Technique):
    """Invariants of healthy runs, Levels 1 and 2.

    Parameters
    ----------
    epsilon : share of healthy training runs in which an invariant may fail.
    epsilon_unseen : share of healthy runs of unseen pairs in which it may fail.
    margin : how far ranges are widened, in widths.
    ratio_width : relative half-width up to which a ratio counts as fixed.
    threshold : "false_alarms" looks at healthy runs only, as TrainCheck does; "f1" takes the threshold that is best
        for the training runs, faulty ones included. Every run is judged by invariants learned without its pair.
    false_alarms : share of healthy training runs that may be called faulty, with the first.
    category : "groups" names the first category (order of the taxonomy) whose component the most conspicuous group
        measures; "learned" the category that the faulty training runs with that group had most often.
    folds : inner grouped folds of the test on unseen pairs.

    Attributes
    ----------
    invariants_ : one row per invariant: sentence, kind, group, weight, and the share of healthy training runs in
        which it held: `held` as learned on all of them, `held_unseen` as learned without the run's pair. Sentences
        give the second.
    threshold_ : score above which a run is faulty.

    The score is the broken weight as a share of each group's, averaged over the groups: a fault that shows in one
    small group is not drowned by what a large one does. Raises BenchError from `fit` if there is no healthy run.
    """

    name: ClassVar[str] = "Invariants"
    levels: ClassVar[tuple[int, ...]] = (1, 2)
    needs: ClassVar[str] = "vector"
    reference: ClassVar[str] = "Jiang et al., OSDI 2025, carried from traces to vectors"
    family: ClassVar[str] = "invariants"

    def __init__(
        self,
        epsilon: float = 0.02,
        epsilon_unseen: float = 0.05,
        margin: float = 0.1,
        ratio_width: float = 0.1,
        threshold: Literal["false_alarms", "f1"] = "false_alarms",
        false_alarms: float = 0.05,
        category: Literal["groups", "learned"] = "learned",
        folds: int = 5,
    ):
        self.epsilon = epsilon
        self.epsilon_unseen = epsilon_unseen
        self.margin = margin
        self.ratio_width = ratio_width
        self.false_alarms = false_alarms
        self.category = category
        self.threshold = threshold
        self.folds = folds

    def fit(self, bench: Bench) -> Invariants:
        """Learn invariants and what is usual from healthy runs, categories and an F1 threshold from faulty ones."""
        healthy = ~bench.faulty.to_numpy(dtype=bool)
        if not healthy.any():
            raise BenchError(f"bench {bench.name!r}: invariants are learned from healthy runs, and there is none")
        forms = Forms.of(bench.X.columns)
        group = bench.groups().reindex(bench.X.columns).astype(object).fillna(UNGROUPED).to_numpy()[forms.a]
        self.groups_ = sorted(set(group))
        statistics = forms.statistics(bench.X)
        bounds = self._learn(forms, statistics[healthy])
        held = 1 - outside(statistics[healthy], bounds).mean(axis=0)
        sound = bounds.usable & (held >= 1 - self.epsilon - 1e-9)

        fold = self._folds(bench)
        unseen = self._broken_unseen(forms, statistics, healthy, fold)
        profiles = self._judge_unseen(unseen, healthy, fold, sound, group)
        self.threshold_ = self._threshold(profiles.mean(axis=1), healthy)
        self.usual_ = profiles[healthy].mean(axis=0)
        self.spread_ = np.maximum(profiles[healthy].std(axis=0), 0.01)
        self._learn_categories(bench.labels["category"], (profiles - self.usual_) / self.spread_, ~healthy)

        weight = self._weigh(unseen[healthy], sound)
        kept = weight > 0
        self.columns_ = bench.X.columns
        self.forms_ = forms.take(kept)
        self.bounds_ = Bounds(*(part[kept] for part in (bounds.low, bounds.high, bounds.usable, bounds.strict)))
        self.held_, self.held_unseen_ = held[kept], 1 - unseen[healthy].mean(axis=0)[kept]
        self.weight_, self.group_ = weight[kept], group[kept]
        return self

    @property
    def invariants_(self) -> pd.DataFrame:
        """What was learned, strongest first, columns as in the class's description."""
        rows = range(len(self.weight_))
        kind = np.array(["range", "trend", "ordering", "ratio"])[self.forms_.kind]
        sentences = [self.forms_.sentence(i, self.bounds_, self.held_unseen_[i]) for i in rows]
        constant = np.array([" is " in s for s in sentences], dtype=bool) & (kind == "range")
        table = pd.DataFrame(
            {
                "sentence": sentences,
                "kind": np.where(constant, "constant", kind),
                "group": self.group_,
                "held": self.held_,
                "held_unseen": self.held_unseen_,
                "weight": self.weight_,
            }
        )
        return table.sort_values("weight", ascending=False, kind="stable", ignore_index=True)

    def predict(self, bench: Bench) -> Verdicts:
        """Faulty where the score exceeds the threshold; the evidence spells out the strongest broken ones."""
        statistics = self.forms_.statistics(bench.X.loc[:, self.columns_])
        broken = outside(statistics, self.bounds_)
        profile = _profile(broken, self.weight_, self.group_, self.groups_)
        score, excess = profile.mean(axis=1), (profile - self.usual_) / self.spread_
        return Verdicts.build(
            bench.runs,
            score=score,
            faulty=score > self.threshold_,
            category=self._categories(excess),
            evidence=[self._evidence(broken[i], statistics[i], excess[i]) for i in range(len(bench))],
        )

    def search_space(self, trial) -> dict:
        """How strict invariants are, and how many false alarms the threshold allows."""
        return {
            "epsilon": trial.suggest_float("epsilon", 0.001, 0.1, log=True),
            "epsilon_unseen": trial.suggest_float("epsilon_unseen", 0.01, 0.3, log=True),
            "margin": trial.suggest_float("margin", 0.0, 1.0),
            "false_alarms": trial.suggest_float("false_alarms", 0.005, 0.5, log=True),
            "category": trial.suggest_categorical("category", ["groups", "learned"]),
        }

    def _learn(self, forms: Forms, statistics: np.ndarray) -> Bounds:
        return forms.learn(statistics, self.epsilon, self.margin, self.ratio_width)

    def _folds(self, bench: Bench) -> np.ndarray:
        """Inner fold of each run, whole pairs together; all 0 where there is a single pair."""
        fold = np.zeros(len(bench), dtype=int)
        folds = min(self.folds, bench.pair.nunique())
        if folds > 1:
            for i, (_, test) in enumerate(GroupKFold(folds).split(bench.X, groups=bench.pair)):
                fold[test] = i
        return fold

    def _broken_unseen(self, forms: Forms, statistics: np.ndarray, healthy: np.ndarray, fold: np.ndarray) -> np.ndarray:
        """Which statements each run breaks when they were learned from healthy runs of other pairs, n × m."""
        broken = np.zeros(statistics.shape, dtype=bool)
        for i in np.unique(fold):
            here = fold == i
            bounds = self._learn(forms, statistics[_others(healthy, here)])
            broken[here] = outside(statistics[here], bounds)
        return broken

    def _weigh(self, unseen: np.ndarray, sound: np.ndarray) -> np.ndarray:
        """Weight of each statement by these unseen runs, 0 where it fails the test on them.

        Rarely broken by unseen healthy runs: strong evidence. One run's worth of doubt keeps the weight finite.
        """
        failing = unseen.mean(axis=0)
        passed = sound & (failing <= self.epsilon_unseen + 1e-9)
        return np.where(passed, -np.log10(np.maximum(failing, 1 / (len(unseen) + 1))), 0.0)

    def _judge_unseen(
        self, unseen: np.ndarray, healthy: np.ndarray, fold: np.ndarray, sound: np.ndarray, group: np.ndarray
    ) -> np.ndarray:
        """Broken weight per group of training runs as if their pair were new, n × G.

        Each fold is judged by the statements that passed the test on the other folds: chosen on the fold itself,
        they would be the ones that it doesn't break.
        """
        profiles = np.zeros((len(unseen), len(self.groups_)))
        for i in np.unique(fold):
            here = fold == i
            weight = self._weigh(unseen[_others(healthy, here)], sound)
            profiles[here] = _profile(unseen[here], weight, group, self.groups_)
        return profiles

    def _threshold(self, scores: np.ndarray, healthy: np.ndarray) -> float:
        if self.threshold == "false_alarms" or healthy.all():
            return float(np.quantile(scores[healthy], 1 - self.false_alarms))
        steps = np.unique(scores)
        between = np.concatenate([[steps[0] / 2], (steps[1:] + steps[:-1]) / 2])
        return float(max(between, key=lambda k: f1_score(~healthy, scores > k)))

    def _learn_categories(self, category: pd.Series, excess: np.ndarray, faulty: np.ndarray) -> None:
        """Count how often each category had each group as its most conspicuous one; one more where the two belong
        together by construction, so that a group no faulty training run points at still has an answer."""
        names = [c for c in CATEGORY_GROUP if CATEGORY_GROUP[c] in self.groups_]
        counts = pd.DataFrame(0.0, index=self.groups_, columns=names)
        for name in names:
            counts.loc[CATEGORY_GROUP[name], name] += 1.0
        known = faulty & category.isin(names).to_numpy()
        if self.category == "learned" and known.any():
            top = np.array(self.groups_)[excess[known].argmax(axis=1)]
            seen = pd.crosstab(top, category.to_numpy()[known])
            counts = counts.add(seen, fill_value=0.0).reindex(index=self.groups_, columns=names, fill_value=0.0)
        self.counts_ = counts

    def _categories(self, excess: np.ndarray) -> np.ndarray:
        """The category of each run's most conspicuous group that points at one."""
        answers = np.full(len(excess), None, dtype=object)
        pointing = self.counts_.sum(axis=1).to_numpy() > 0
        if not pointing.any():
            return answers
        top = np.where(pointing, excess, -np.inf).argmax(axis=1)
        return self.counts_.columns.to_numpy(dtype=object)[self.counts_.to_numpy().argmax(axis=1)][top]

    def _evidence(self, broken: np.ndarray, statistics: np.ndarray, excess: np.ndarray) -> dict:
        places = np.flatnonzero(broken)
        if not len(places):
            return {"broken": 0, "of": len(broken)}
        strongest = places[np.argsort(-self.weight_[places], kind="stable")][:SHOWN]
        top = np.argsort(-excess, kind="stable")[:3]
        return {
            "broken": len(places),
            "of": len(broken),
            "groups": {self.groups_[g]: plain(excess[g]) for g in top if excess[g] > 0},
            "invariants": [
                {
                    "statement": self.forms_.sentence(i, self.bounds_, self.held_unseen_[i]),
                    "observed": plain(statistics[i]),
                    "group": self.group_[i],
                }
                for i in strongest
            ],
        }


def _others(healthy: np.ndarray, here: np.ndarray) -> np.ndarray:
    """Healthy runs outside a fold; all healthy runs where there are none."""
    others = healthy & ~here
    return others if others.any() else healthy


def _profile(broken: np.ndarray, weight: np.ndarray, group: np.ndarray, groups: list[str]) -> np.ndarray:
    """Broken weight per group as a share of the group's, n × G."""
    weights = np.array([weight * (group == g) for g in groups]).reshape(len(groups), len(weight))
    return broken @ weights.T / np.maximum(weights.sum(axis=1), 1e-12)

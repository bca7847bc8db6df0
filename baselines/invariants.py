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
from sklearn.model_selection import GroupKFold

from baselines.invariant_forms import Bounds, Forms, outside
from baselines.rules import plain
from baselines.technique import Technique, Verdicts
from features.bench import Bench, BenchError
from features.fpg import CATEGORY_GROUP

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
    false_alarms : share of healthy training runs, each judged by invariants learned without its pair, that may be
        called faulty; fixes the threshold. No faulty run is looked at for Level 1.
    category : "groups" names the first category (order of the taxonomy) whose component the most conspicuous group
        measures; "learned" the category that the faulty training runs with that group had most often.
    folds : inner grouped folds of the test on unseen pairs.

    Attributes
    ----------
    invariants_ : one row per invariant: sentence, kind, group, weight, and the share of healthy training runs in
        which it held: `held` as learned on all of them, `held_unseen` as learned without the run's pair. Sentences
        give the second.
    threshold_ : broken weight, as a share of all, above which a run is faulty.

    The score is that share. Raises BenchError from `fit` if there is no healthy run.
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
        self.folds = folds

    def fit(self, bench: Bench) -> Invariants:
        """Learn invariants, threshold and typical breakage from healthy runs; categories from faulty ones."""
        faulty = bench.faulty.to_numpy(dtype=bool)
        if faulty.all():
            raise BenchError(f"bench {bench.name!r}: invariants are learned from healthy runs, and there is none")
        healthy = bench.take(~faulty)
        forms = Forms.of(bench.X.columns)
        bounds = self._learn(forms, healthy.X)
        held = 1 - forms.broken(healthy.X, bounds).mean(axis=0)
        unseen = self._broken_unseen(forms, healthy)
        held_unseen = 1 - unseen.mean(axis=0)
        kept = bounds.usable & (held >= 1 - self.epsilon - 1e-9) & (held_unseen >= 1 - self.epsilon_unseen - 1e-9)

        self.columns_ = bench.X.columns
        self.forms_ = forms.take(kept)
        self.bounds_ = Bounds(*(part[kept] for part in (bounds.low, bounds.high, bounds.usable, bounds.strict)))
        self.held_, self.held_unseen_ = held[kept], held_unseen[kept]
        # Rarely broken by unseen healthy runs: strong evidence. One run's worth of doubt keeps the weight finite.
        self.weight_ = -np.log10(np.maximum(1 - self.held_unseen_, 1 / (len(healthy) + 1)))
        group = bench.groups().reindex(bench.X.columns).to_numpy()
        self.group_ = group[self.forms_.a]
        unseen = unseen[:, kept]
        self.threshold_ = float(np.quantile(self._share(unseen), 1 - self.false_alarms)) if kept.any() else 0.0

        self.groups_ = sorted({g for g in self.group_ if isinstance(g, str)})
        profile = self._profile(unseen)
        self.usual_, self.spread_ = profile.mean(axis=0), np.maximum(profile.std(axis=0), 0.01)
        self._learn_categories(bench.take(faulty) if faulty.any() else None)
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
        """Faulty where the broken weight exceeds the threshold; the evidence spells out the strongest broken ones."""
        statistics = self.forms_.statistics(bench.X.loc[:, self.columns_])
        broken = outside(statistics, self.bounds_)
        share = self._share(broken)
        excess = (self._profile(broken) - self.usual_) / self.spread_
        return Verdicts.build(
            bench.runs,
            score=share,
            faulty=share > self.threshold_,
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

    def _learn(self, forms: Forms, X: pd.DataFrame) -> Bounds:
        return forms.learn(X, self.epsilon, self.margin, self.ratio_width)

    def _broken_unseen(self, forms: Forms, healthy: Bench) -> np.ndarray:
        """Which statements each healthy run breaks when they were learned without its pair, n × m."""
        folds = min(self.folds, healthy.pair.nunique())
        if folds < 2:
            # A single pair can't say what holds elsewhere; its own runs are all there is.
            return forms.broken(healthy.X, self._learn(forms, healthy.X))
        broken = np.zeros((len(healthy), len(forms.kind)), dtype=bool)
        for train, test in GroupKFold(folds).split(healthy.X, groups=healthy.pair):
            bounds = self._learn(forms, healthy.X.iloc[train])
            broken[test] = forms.broken(healthy.X.iloc[test], bounds)
        return broken

    def _share(self, broken: np.ndarray) -> np.ndarray:
        total = self.weight_.sum()
        return broken @ self.weight_ / total if total else np.zeros(len(broken))

    def _profile(self, broken: np.ndarray) -> np.ndarray:
        """Broken weight per group as a share of the group's, n × G."""
        inside = np.array([self.group_ == g for g in self.groups_], dtype=float).reshape(len(self.groups_), -1)
        weights = inside * self.weight_
        return broken @ weights.T / np.maximum(weights.sum(axis=1), 1e-12)

    def _learn_categories(self, faulty: Bench | None) -> None:
        """Count how often each category had each group as its most conspicuous one; one more where the two belong
        together by construction, so that a group no faulty training run points at still has an answer."""
        names = [c for c in CATEGORY_GROUP if CATEGORY_GROUP[c] in self.groups_]
        counts = pd.DataFrame(0.0, index=self.groups_, columns=names)
        for category in names:
            counts.loc[CATEGORY_GROUP[category], category] += 1.0
        known = None if faulty is None else faulty.labels["category"].isin(names).to_numpy()
        if self.category == "learned" and known is not None and known.any():
            part = faulty.take(known)
            excess = (self._profile(self.forms_.broken(part.X, self.bounds_)) - self.usual_) / self.spread_
            top = np.array(self.groups_)[excess.argmax(axis=1)]
            seen = pd.crosstab(top, part.labels["category"].to_numpy())
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
                    "group": self.group_[i] if isinstance(self.group_[i], str) else None,
                }
                for i in strongest
            ],
        }

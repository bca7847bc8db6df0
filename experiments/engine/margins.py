"""What an explanation explains: a fitted technique's margin at each level, and how it changes when groups go.

Level 1: faulty against correct. Level 2: the predicted category against the mean of the others. Level 3: the predicted
root cause against the mean of the others in its category (trees), or d(nearest alternative) − d(predicted) in the space
of group embeddings (DEFault++, manuscript §4.3). A margin against the mean of the rest is linear in a model's outputs,
so that attributions of the outputs add up to it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
import pandas as pd
import torch

from baselines.default import DEFault
from baselines.default_recipe import RecipeForest
from baselines.defaultpp.diagnoser import Diagnoser
from baselines.defaultpp.estimator import DefaultPlusPlus
from baselines.hierarchy import HierarchicalModel
from baselines.technique import Technique
from features.bench import Bench, BenchError
from features.routing import route
from features.schema import groups

LEVELS = (1, 2, 3)
NO_GROUP = "(no group)"


@dataclass(frozen=True, eq=False)
class TreeModel:
    """One fitted ensemble over k classes.

    estimator : scikit-learn forest, LightGBM or XGBoost classifier.
    columns : positions, in the bench's table, of the columns that the ensemble sees.
    prepare : n × d table of the bench's values → n × len(columns), as the ensemble sees them.
    """

    estimator: object
    columns: np.ndarray
    prepare: Callable[[np.ndarray], np.ndarray]

    def outputs(self, seen: np.ndarray) -> np.ndarray:
        """What the trees add up, n × k: log-odds of boosted trees (k ≥ 2), probabilities of forests.

        Two classes with one log-odds m between them count as −m/2 and m/2, so that their difference is m.
        """
        library = type(self.estimator).__module__.partition(".")[0]
        if library == "lightgbm":
            raw = self.estimator.predict(seen, raw_score=True)
        elif library == "xgboost":
            raw = self.estimator.predict(seen, output_margin=True)
        else:
            raw = self.estimator.predict_proba(seen)
        raw = np.asarray(raw, dtype=np.float64)
        return np.column_stack([-raw / 2, raw / 2]) if raw.ndim == 1 else raw

    def margin(self, seen: np.ndarray, target: np.ndarray) -> np.ndarray:
        """Each row's margin towards the class at position `target`, (n,)."""
        return against_rest(self.outputs(seen), target)


@dataclass(frozen=True, eq=False)
class Explained:
    """One ensemble and the runs that it judges at one level: positions of runs, and of each run's class."""

    level: int
    model: TreeModel
    rows: np.ndarray
    target: np.ndarray


@dataclass(frozen=True, eq=False)
class Game:
    """The margins of n runs as functions of the groups of columns that each of them keeps.

    inputs : n × d, as the model takes them.
    absent : (d,), what a deleted column becomes: the training mean.
    background : B × d, training runs, the other stand-in for what a run doesn't keep.
    owner : (d,), position in `groups` of each column.
    levels : the levels that have a margin.
    margins : positions of runs (m,), their columns (m × d) → margins (m × len(levels)), NaN where a level has none.
    """

    runs: pd.Index
    groups: tuple[str, ...]
    levels: tuple[int, ...]
    inputs: np.ndarray
    absent: np.ndarray
    background: np.ndarray
    owner: np.ndarray
    margins: Callable[[np.ndarray, np.ndarray], np.ndarray]

    def evaluate(self, rows: np.ndarray, kept: np.ndarray, stand_in: np.ndarray, chunk: int = 4096) -> np.ndarray:
        """Margins of the runs at `rows` (m,) that keep the groups in `kept` (m × G, bool); others from `stand_in`.

        `stand_in` is (d,) or m × d. Gives m × len(levels).
        """
        parts = []
        for start in range(0, len(rows), chunk):
            part = slice(start, start + chunk)
            other = stand_in if stand_in.ndim == 1 else stand_in[part]
            parts.append(self.margins(rows[part], np.where(kept[part][:, self.owner], self.inputs[rows[part]], other)))
        return np.concatenate(parts)

    @cached_property
    def whole(self) -> np.ndarray:
        """Margins with every group kept, n × len(levels)."""
        return self.margins(np.arange(len(self.runs)), self.inputs)


def against_rest(outputs: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Output at `target` minus the mean of the others; `outputs` n × k, `target` (n,).

    >>> against_rest(np.array([[5.0, 1.0, 3.0]]), np.array([0]))
    array([3.])
    """
    rows = np.arange(len(outputs))
    own = outputs[rows, target]
    return own - (outputs.sum(axis=1) - own) / (outputs.shape[1] - 1)


def why_unexplained(technique: Technique) -> str | None:
    """Why a fitted technique has no margins here, as a sentence; None if it has."""
    if isinstance(technique, DefaultPlusPlus):
        known = isinstance(technique.diagnoser_, Diagnoser)
        return None if known else f"{technique.name}: weights that were trained elsewhere have no prototypes"
    model = getattr(technique, "model_", None)
    if not isinstance(model, HierarchicalModel):
        return f"{technique.name} has no margin at each level: only hierarchical techniques are explained"
    if not _is_forest_or_boosting(model.detector):
        return f"{technique.name} is no tree ensemble: TreeExplainer does not apply"
    return None


def game_of(technique: Technique, bench: Bench, train: Bench, n_background: int = 25, seed: int = 0) -> Game:
    """The game that a fitted technique plays on the runs of `bench`; `train` gives means and background.

    Raises BenchError if the technique has no margins (see `why_unexplained`).
    """
    if reason := why_unexplained(technique):
        raise BenchError(reason)
    drawn = np.sort(np.random.default_rng(seed).permutation(len(train))[:n_background])
    if isinstance(technique, DefaultPlusPlus):
        return _defaultpp_game(technique.diagnoser_, bench, train.take(drawn))
    return _tree_game(technique, bench, train, drawn)


def explained(technique: Technique, bench: Bench) -> list[Explained]:
    """The ensembles of a hierarchical tree technique, each with the runs and classes that it is explained for.

    Ensembles over a single class have no margin and are left out.
    """
    model, verdicts = technique.model_, technique.predict(bench).table
    everyone = np.arange(len(bench))
    found = [_explained(1, model.detector, everyone, np.full(len(bench), True), bench)]
    if model.categoriser is not None:
        category = verdicts["category"].to_numpy(object)
        if isinstance(technique, DEFault):
            for label, forest in model.categoriser.forests_.items():
                rows = np.flatnonzero(category == label)
                found.append(_explained(2, forest, rows, np.full(len(rows), True), bench))
        else:
            found.append(_explained(2, model.categoriser, everyone, category, bench))
        cause = verdicts["root_cause"].to_numpy(object)
        for label, diagnoser in model.diagnosers.items():
            rows = np.flatnonzero(category == label)
            found.append(_explained(3, diagnoser, rows, cause[rows], bench))
    return [part for part in found if part is not None]


def confidences(technique: Technique, bench: Bench) -> pd.DataFrame:
    """How sure a fitted technique is of its verdict at each level: run × level, NaN where it has no guess.

    Trees: the probability of the predicted class. DEFault++: probabilities at Levels 1 and 2; at Level 3 the relative
    margin, 1 − d(predicted) / d(nearest alternative), because distances are no probabilities; 0 where the
    alternative is nearer.
    """
    if isinstance(technique, DefaultPlusPlus):
        return _defaultpp_confidences(technique.diagnoser_, bench)
    table = pd.DataFrame(np.nan, index=bench.runs, columns=list(LEVELS))
    values = bench_values(bench)
    for part in explained(technique, bench):
        seen = part.model.prepare(values[part.rows])
        share = part.model.estimator.predict_proba(seen)[np.arange(len(part.rows)), part.target]
        if part.level == 1:
            share = np.maximum(share, 1 - share)
        table.loc[bench.runs[part.rows], part.level] = share
    return table


def bench_values(bench: Bench) -> np.ndarray:
    """The bench's values, n × d float32, NaN and infinite ones as they are."""
    return bench.X.to_numpy(np.float32, copy=True)


def column_owners(columns, arch) -> tuple[tuple[str, ...], np.ndarray]:
    """The groups of an architecture (and `NO_GROUP` if a column has none), and each column's position in them."""
    group = route(columns).group
    names = groups(arch)
    if group.isna().any():
        names = (*names, NO_GROUP)
    return names, np.array([names.index(g) if isinstance(g, str) else len(names) - 1 for g in group])


def _explained(level: int, classifier, rows: np.ndarray, labels: np.ndarray, bench: Bench) -> Explained | None:
    classes = list(classifier.classes_)
    if len(rows) == 0 or len(classes) < 2:
        return None
    if isinstance(classifier, RecipeForest):
        model = TreeModel(classifier.forest_, classifier.selected_, classifier.selected)
    else:
        model = TreeModel(classifier.estimator_, np.arange(bench.X.shape[1]), _finite)
    return Explained(level, model, rows, np.array([classes.index(label) for label in labels]))


def _finite(values: np.ndarray) -> np.ndarray:
    return np.where(np.isfinite(values), values, np.float32("nan"))


def _is_forest_or_boosting(classifier) -> bool:
    return isinstance(classifier, RecipeForest) or hasattr(
        getattr(classifier, "estimator_", None), "feature_importances_"
    )


def _tree_game(technique: Technique, bench: Bench, train: Bench, drawn: np.ndarray) -> Game:
    parts = explained(technique, bench)
    known = bench_values(train)
    names, owner = column_owners(bench.X.columns, bench.arch)
    counts = np.isfinite(known).sum(axis=0)
    total = np.where(np.isfinite(known), known, 0).sum(axis=0, dtype=np.float64)
    mean = np.divide(total, counts, out=np.full(len(counts), np.nan), where=counts > 0)
    return Game(
        runs=bench.runs,
        groups=names,
        levels=tuple(level for level in LEVELS if any(p.level == level for p in parts)),
        inputs=bench_values(bench),
        absent=mean.astype(np.float32),
        background=known[drawn],
        owner=owner,
        margins=partial(_tree_margins, _by_level(parts, len(bench))),
    )


def _by_level(parts: list[Explained], n_runs: int) -> list[list[tuple[TreeModel, np.ndarray]]]:
    """Per level: each model with every run's target, −1 where it doesn't judge the run."""
    levels = []
    for level in sorted({p.level for p in parts}):
        judged = []
        for part in (p for p in parts if p.level == level):
            target = np.full(n_runs, -1)
            target[part.rows] = part.target
            judged.append((part.model, target))
        levels.append(judged)
    return levels


def _tree_margins(by_level, rows: np.ndarray, values: np.ndarray) -> np.ndarray:
    out = np.full((len(rows), len(by_level)), np.nan)
    for column, judged in enumerate(by_level):
        for model, target in judged:
            own = np.flatnonzero(target[rows] >= 0)
            if len(own):
                out[own, column] = model.margin(model.prepare(values[own]), target[rows[own]])
    return out


def _defaultpp_game(diagnoser: Diagnoser, bench: Bench, background: Bench) -> Game:
    inputs = diagnoser.inputs(bench.X).cpu().numpy()
    judgement = diagnoser.judge(bench.X)
    targets = (judgement.category, judgement.margins.predicted, judgement.margins.alternative)
    return Game(
        runs=bench.runs,
        groups=diagnoser.groups,
        levels=LEVELS if diagnoser.space.categories else (1,),
        inputs=inputs,
        absent=np.zeros(inputs.shape[1], dtype=inputs.dtype),
        background=diagnoser.inputs(background.X).cpu().numpy(),
        owner=np.repeat(np.arange(len(diagnoser.groups)), diagnoser.widths),
        margins=partial(_defaultpp_margins, diagnoser, targets),
    )


def _defaultpp_margins(diagnoser: Diagnoser, targets, rows: np.ndarray, values: np.ndarray) -> np.ndarray:
    category, predicted, alternative = (target[rows] for target in targets)
    diagnoser.network.eval()
    with torch.no_grad():
        output = diagnoser.network(torch.from_numpy(values).to(next(diagnoser.network.parameters()).device))
    detection = output.detection.double().cpu().numpy()
    levels = [detection[:, 1] - detection[:, 0]]
    if diagnoser.space.categories:
        logits = output.category.double().cpu().numpy()
        lone = logits.shape[1] < 2
        levels.append(np.full(len(rows), np.nan) if lone else against_rest(logits, category))
        H = output.H.double().cpu().numpy()
        near, far = (np.square(H - diagnoser.prototypes[code]).sum(axis=(1, 2)) for code in (predicted, alternative))
        levels.append(np.where((predicted >= 0) & (alternative >= 0), far - near, np.nan))
    return np.column_stack(levels)


def _defaultpp_confidences(diagnoser: Diagnoser, bench: Bench) -> pd.DataFrame:
    judgement = diagnoser.judge(bench.X)
    with torch.no_grad():
        output = diagnoser.network(diagnoser.inputs(bench.X))
    table = pd.DataFrame(np.nan, index=bench.runs, columns=list(LEVELS))
    table[1] = np.maximum(judgement.score, 1 - judgement.score)
    if diagnoser.space.categories:
        shares = torch.softmax(output.category.double(), dim=1).cpu().numpy()
        table[2] = shares[np.arange(len(bench)), judgement.category]
        H = output.H.double().cpu().numpy()
        rivals = judgement.margins.alternative
        far = np.square(H - diagnoser.prototypes[rivals]).sum(axis=(1, 2))
        share = judgement.margins.margin / np.where(far > 0, far, 1.0)
        # Where a category has one class, its rival is of another category, which Level 2 has ruled out, near or not.
        table[3] = np.where((rivals >= 0) & (far > 0), np.maximum(share, 0.0), np.nan)
    return table

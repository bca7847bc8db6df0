"""From a bench to a trained diagnoser: prepare, lay out the groups, choose validation rows, train, take prototypes.

Source: DEFault++ manuscript, §4.3 and §5. Every statistic is of the rows of the given bench, which are training rows.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import torch
from sklearn.model_selection import KFold, StratifiedGroupKFold

from baselines.defaultpp.diagnoser import Diagnoser, Provenance
from baselines.defaultpp.labels import Codes, LabelSpace
from baselines.defaultpp.losses import Objective, Targets, inverse_frequency
from baselines.defaultpp.model import Layout, Network
from baselines.defaultpp.prototypes import class_means
from baselines.defaultpp.training import Plan, Rows, replay, train
from features.bench import Bench
from features.fpg import group_adjacency, random_edges, rewired_edges
from features.preparation import prepared
from features.routing import route
from features.schema import groups
from features.taxonomy import Architecture

if TYPE_CHECKING:
    from baselines.defaultpp.estimator import DefaultPlusPlus

SELECTION_FOLDS = 5
"""Inner folds, as in the manuscript (§5): one training pair in five is held out for early stopping."""

VERSIONED = ("torch", "numpy", "pandas", "scikit-learn")


@dataclass(frozen=True, eq=False)
class Fitted:
    """A diagnoser, one row per training epoch, and what was left out on the way, one sentence each."""

    diagnoser: Diagnoser
    history: pd.DataFrame
    notes: tuple[str, ...]


def fit_diagnoser(bench: Bench, choices: DefaultPlusPlus, device: torch.device) -> Fitted:
    """Train on all runs of `bench`. The global random state is left as it was."""
    preparation, X = prepared(bench)
    columns, widths = lay_out(X.columns, bench.arch, choices.grouping, choices.graph_seed)
    space = LabelSpace.of(bench.labels)
    codes = space.encode(bench.labels)
    layout = Layout(
        widths=tuple(widths.values()),
        n_categories=len(space.categories),
        category_of_class=tuple(space.category_of_class.tolist()),
        hidden=choices.hidden,
        embedding=choices.embedding,
        rounds=choices.rounds,
        dropout=choices.dropout,
        flat=choices.grouping == "flat",
    )
    adjacency = adjacency_of(bench.arch, tuple(widths), choices.graph, choices.graph_seed)
    targets = Targets(*(torch.from_numpy(c).to(device) for c in (codes.faulty, codes.category, codes.classes)))
    x = torch.tensor(X.loc[:, columns].to_numpy(dtype=np.float32), device=device)
    rows = Rows(x, targets)
    splits, notes = inner_splits(bench, choices.seed)
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(choices.seed)
        network, history, best_epoch = _select(choices, layout, adjacency, rows, codes, splits, device)
    with torch.no_grad():
        H = network.embed(x).double()
        prototypes = class_means(H, targets.classes, len(space.classes)).mean.cpu().numpy()
    provenance = Provenance(
        bench=bench.name,
        fingerprint=bench.fingerprint(),
        pairs=tuple(sorted(bench.pair.unique())),
        rows=len(bench),
        seed=choices.seed,
        device=str(device),
        best_epoch=best_epoch,
        parameters={k: v for k, v in choices.get_params().items() if k not in ("source", "weights", "coverage_floor")},
        versions={name: version(name) for name in VERSIONED},
    )
    dropped = X.columns.difference(columns)
    if len(dropped):
        notes = (*notes, f"{len(dropped)} columns without a feature group were left out, {dropped[0]!r} among them")
    return Fitted(
        Diagnoser(bench.arch, preparation, tuple(widths), tuple(columns), space, network, prototypes, provenance),
        history,
        notes,
    )


def lay_out(names: pd.Index, arch: Architecture, grouping: str, graph_seed: int) -> tuple[list[str], dict[str, int]]:
    """Columns group by group, and the width of every group that has one.

    Groups come in the order of the schema and columns by name, so that the order of a table's columns changes
    nothing. A column without a group is left out: it is a number of unknown meaning, and in the published tables
    those that no rule knows include bookkeeping, which a classifier would take for a symptom.
    """
    group = route(names).group.dropna()
    order = {name: place for place, name in enumerate(groups(arch))}
    routed = group[group.isin(list(order))]
    columns = sorted(routed.index, key=lambda column: (order[routed[column]], column))
    counts = routed.value_counts()
    widths = {name: int(counts[name]) for name in order if name in counts}
    if grouping == "random":
        columns = [columns[i] for i in np.random.default_rng(graph_seed).permutation(len(columns))]
    return columns, widths


def adjacency_of(arch: Architecture, present: tuple[str, ...], graph: str, graph_seed: int) -> torch.Tensor | None:
    """Row-normalised adjacency among the groups that a bench has; None for graph="none"."""
    if graph == "none":
        return None
    edges = {
        "fpg": lambda: None,
        "rewired": lambda: rewired_edges(arch, graph_seed),
        "random": lambda: random_edges(arch, graph_seed),
    }[graph]()
    kept = group_adjacency(arch, edges).loc[list(present), list(present)]
    return torch.tensor(kept.div(kept.sum(axis=1), axis=0).to_numpy())


def inner_splits(bench: Bench, seed: int) -> tuple[list[tuple[np.ndarray, np.ndarray]], tuple[str, ...]]:
    """(fit, validate) row numbers: pairs kept together, categories balanced as far as pairs allow; and notes."""
    pairs = bench.pair.nunique()
    if pairs == 1:
        parts = KFold(SELECTION_FOLDS, shuffle=True, random_state=seed).split(bench.X)
        return list(parts), ("one (model, task) pair only: validation rows are of the same pair as training rows",)
    strata = pd.factorize(bench.labels["category"].where(bench.labels["category"].notna(), "unnamed"))[0]
    splitter = StratifiedGroupKFold(min(SELECTION_FOLDS, pairs), shuffle=True, random_state=seed)
    with warnings.catch_warnings():
        # A category rarer than there are folds is missing from some of them, which hurts nothing here.
        warnings.filterwarnings("ignore", "The least populated class", UserWarning)
        return list(splitter.split(bench.X, strata, groups=bench.pair)), ()


def _select(
    choices: DefaultPlusPlus,
    layout: Layout,
    adjacency: torch.Tensor | None,
    rows: Rows,
    codes: Codes,
    splits: list[tuple[np.ndarray, np.ndarray]],
    device: torch.device,
) -> tuple[Network, pd.DataFrame, int]:
    """The network that `selection` picks, its history and its number of epochs."""
    plan = Plan(
        choices.learning_rate,
        choices.weight_decay,
        choices.batch_size,
        choices.min_steps,
        choices.max_epochs,
        choices.patience,
        choices.plateau_patience,
        choices.plateau_factor,
        choices.clip,
    )

    def build() -> Network:
        return Network(layout, adjacency).to(device)

    rng = np.random.default_rng(choices.seed)
    repeat = partial(_with_repeats, codes.faulty, choices.oversample_correct, rng)
    on_device = partial(torch.as_tensor, device=device)
    everything = on_device(repeat(np.arange(len(codes.faulty))))
    splits = [(on_device(repeat(fit)), on_device(held)) for fit, held in splits]
    objective = _objective(choices, layout, rows.targets.take(everything))
    if choices.selection == "grouped":
        trained = train(build, rows, splits[:1], plan, objective)
        return trained.networks[0], trained.history, trained.best_epoch
    if choices.selection == "pooled":
        trained = train(build, rows, splits, plan, objective)
        rates = trained.history["learning_rate"].iloc[: trained.best_epoch]
        network = replay(build, rows.take(everything), rates.tolist(), plan, objective)
        return network, trained.history, trained.best_epoch
    if choices.selection == "published":
        each = [train(build, rows, [split], plan, objective) for split in splits]
        best = max(each, key=lambda trained: trained.history["score"].max())
        return best.networks[0], best.history, best.best_epoch
    raise ValueError(f"selection={choices.selection!r}: use 'grouped', 'pooled' or 'published'")


def _objective(choices: DefaultPlusPlus, layout: Layout, targets: Targets) -> Objective:
    balanced = choices.detection_weights == "balanced"
    return Objective(
        alpha=choices.alpha,
        lam=choices.lam,
        beta=choices.beta if choices.separation else 0.0,
        gamma=choices.gamma if choices.separation else 0.0,
        temperature=choices.temperature,
        prototype_temperature=choices.prototype_temperature * len(layout.widths) * layout.hidden,
        detection_weights=inverse_frequency(targets.faulty, 2) if balanced else None,
        category_weights=inverse_frequency(targets.category, max(layout.n_categories, 1)),
        category_of_class=torch.tensor(layout.category_of_class, dtype=torch.long, device=targets.classes.device),
    )


def _with_repeats(faulty: np.ndarray, share: float, rng: np.random.Generator, rows: np.ndarray) -> np.ndarray:
    """`rows`, and healthy ones again until they are `share` of the faulty ones."""
    healthy = rows[faulty[rows] == 0]
    missing = int(share * (len(rows) - len(healthy))) - len(healthy)
    return np.concatenate([rows, rng.choice(healthy, missing)]) if missing > 0 and len(healthy) else rows

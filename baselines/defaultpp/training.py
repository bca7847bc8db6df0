"""Training one or several networks side by side, with early stopping and a plateau schedule.

Source: DEFault++ manuscript, §4.3 (Adam, weight decay, gradient clipping, early stopping, plateau schedule). Several
networks, each with validation rows of its own, share one schedule: the score that drives it is taken over all
validation rows together. With one split this is ordinary training.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pandas as pd
import torch
from torch import Tensor
from torch.optim.lr_scheduler import ReduceLROnPlateau

from baselines.defaultpp.losses import Objective, Targets
from baselines.defaultpp.model import Layout, Network
from baselines.defaultpp.prototypes import Prototypes, class_means, distances


@dataclass(frozen=True)
class Plan:
    """How to optimise. `patience` and `plateau_patience` count epochs without a better validation score.

    An epoch passes over the rows as often as it takes to make `min_steps` steps, at least once.
    """

    learning_rate: float
    weight_decay: float
    batch_size: int
    min_steps: int
    max_epochs: int
    patience: int
    plateau_patience: int
    plateau_factor: float
    clip: float


@dataclass(frozen=True)
class Rows:
    """Standardised inputs (n, D) and their targets, on one device."""

    x: Tensor
    targets: Targets

    def take(self, rows: Tensor) -> Rows:
        """These rows."""
        return Rows(self.x[rows], self.targets.take(rows))


@dataclass(frozen=True)
class Trained:
    """The networks at their best epoch (counted from 1), and one row per epoch: loss, score, learning_rate."""

    networks: tuple[Network, ...]
    best_epoch: int
    history: pd.DataFrame


Split = tuple[Tensor, Tensor]
"""Row numbers to fit on, row numbers to validate on."""


def train(
    build: Callable[[], Network], rows: Rows, splits: Sequence[Split], plan: Plan, objective: Objective
) -> Trained:
    """Train one network per split until the pooled validation score stops improving."""
    members = [_Member(build(), rows.take(fit), rows.take(held), plan) for fit, held in splits]
    best, best_epoch, kept = -1.0, 0, []
    epochs = []
    for epoch in range(1, plan.max_epochs + 1):
        rate = members[0].rate
        loss = sum(member.epoch(plan, objective) for member in members) / len(members)
        score = _score([member.judge(objective) for member in members], members[0].network.layout)
        for member in members:
            member.schedule.step(score)
        epochs.append({"epoch": epoch, "loss": loss, "score": score, "learning_rate": rate})
        if score > best:
            best, best_epoch = score, epoch
            kept = [{k: v.detach().clone() for k, v in m.network.state_dict().items()} for m in members]
        elif epoch - best_epoch >= plan.patience:
            break
    for member, state in zip(members, kept, strict=True):
        member.network.load_state_dict(state)
    return Trained(tuple(m.network.eval() for m in members), best_epoch, pd.DataFrame(epochs).set_index("epoch"))


def replay(
    build: Callable[[], Network], rows: Rows, learning_rates: Sequence[float], plan: Plan, objective: Objective
) -> Network:
    """Train one network on all `rows`, one epoch per learning rate, without validation."""
    network = build()
    optimizer = _optimizer(network, plan)
    for rate in learning_rates:
        optimizer.param_groups[0]["lr"] = rate
        run_epoch(network, optimizer, rows, plan, objective)
    return network.eval()


def prototypes_of(network: Network, rows: Rows, n_classes: int) -> Prototypes:
    """Class means of H over `rows`, dropout off, without gradient."""
    network.eval()
    with torch.no_grad():
        return class_means(network.embed(rows.x), rows.targets.classes, n_classes)


def run_epoch(
    network: Network, optimizer: torch.optim.Optimizer, rows: Rows, plan: Plan, objective: Objective
) -> float:
    """One epoch over `rows` in random order; returns the mean loss.

    The prototypes that L_pm pulls towards are those at the start of the epoch, over all rows: a batch holds too few
    rows of most root causes for a mean, and its own row in it.
    """
    prototypes = prototypes_of(network, rows, len(objective.category_of_class))
    network.train()
    n = len(rows.x)
    batches = -(-n // plan.batch_size)
    passes = -(-plan.min_steps // batches)
    total = torch.zeros((), device=rows.x.device)
    for _ in range(passes):
        order = torch.randperm(n).to(rows.x.device)  # drawn on the CPU, so that every device sees the same order
        for batch in order.tensor_split(batches):
            part = rows.take(batch)
            optimizer.zero_grad(set_to_none=True)
            loss = objective(network(part.x), part.targets, prototypes)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(network.parameters(), plan.clip)
            optimizer.step()
            total += loss.detach() * len(batch)
    return float(total) / (n * passes)


def macro_f1(true: Tensor, predicted: Tensor, classes: int) -> float:
    """Mean F1 over the classes that occur in `true`; 0 if none does.

    >>> round(macro_f1(torch.tensor([0, 0, 1, 1]), torch.tensor([0, 1, 1, 1]), 3), 4)
    0.7333
    """
    hits = torch.bincount(true[true == predicted], minlength=classes)
    support = torch.bincount(true, minlength=classes)
    f1 = 2 * hits / (support + torch.bincount(predicted, minlength=classes)).clamp(min=1)
    return float(f1[support > 0].mean()) if len(true) else 0.0


class _Member:
    """A network with its optimiser, schedule, fitting rows and validation rows."""

    def __init__(self, network: Network, fit: Rows, held: Rows, plan: Plan):
        self.network, self.fit, self.held = network, fit, held
        self.optimizer = _optimizer(network, plan)
        self.schedule = ReduceLROnPlateau(
            self.optimizer, mode="max", factor=plan.plateau_factor, patience=plan.plateau_patience
        )

    @property
    def rate(self) -> float:
        return self.optimizer.param_groups[0]["lr"]

    def epoch(self, plan: Plan, objective: Objective) -> float:
        return run_epoch(self.network, self.optimizer, self.fit, plan, objective)

    def judge(self, objective: Objective) -> tuple[Targets, Targets]:
        """True and predicted codes of the validation rows; the class is the nearest within the predicted category."""
        prototypes = prototypes_of(self.network, self.fit, len(objective.category_of_class))
        with torch.no_grad():
            output = self.network(self.held.x)
            category = output.category.argmax(1)
            classes = torch.full_like(category, -1)
            if len(objective.category_of_class):
                own = category.unsqueeze(1) == objective.category_of_class
                classes = distances(output.H, prototypes).masked_fill(~own, torch.inf).argmin(1)
        return self.held.targets, Targets(output.detection.argmax(1), category, classes)


def _score(judged: list[tuple[Targets, Targets]], layout: Layout) -> float:
    """Mean over the levels of macro-F1: Level 1 on all rows, Levels 2 and 3 on the faulty ones that carry labels."""
    true, predicted = (Targets(*map(torch.cat, zip(*side, strict=True))) for side in zip(*judged, strict=True))
    sizes = (2, layout.n_categories, len(layout.category_of_class))
    scores = []
    for codes, guesses, classes in zip(true, predicted, sizes, strict=True):
        rows = codes >= 0
        if rows.any():
            scores.append(macro_f1(codes[rows], guesses[rows], classes))
    return sum(scores) / len(scores)


def _optimizer(network: Network, plan: Plan) -> torch.optim.Adam:
    return torch.optim.Adam(network.parameters(), lr=plan.learning_rate, weight_decay=plan.weight_decay, fused=True)

"""The training loop: steps per epoch, early stopping, the shared schedule, and replaying it."""

from dataclasses import replace

import pytest
import torch

from baselines.defaultpp.losses import Objective, Targets
from baselines.defaultpp.model import Layout, Network
from baselines.defaultpp.training import Plan, Rows, _Member, _score, replay, run_epoch, train

LAYOUT = Layout((3, 4), n_categories=2, category_of_class=(0, 0, 1), hidden=4, embedding=8, dropout=0.0)
PLAN = Plan(1e-2, 0.0, 16, 1, 12, 5, 2, 0.5, 5.0)
OBJECTIVE = Objective(1.0, 1.0, 0.5, 0.3, 0.1, 1.0, None, None, torch.tensor(LAYOUT.category_of_class))


@pytest.fixture
def rows():
    """48 rows, half of them faulty, whose classes shift one column each."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(48, 7, generator=generator)
    classes = torch.arange(48) % 6 - 3
    classes[classes < 0] = -1
    for k in range(3):
        x[classes == k, 2 * k] += 4.0
    category = torch.where(classes >= 0, torch.tensor(LAYOUT.category_of_class)[classes], -1)
    return Rows(x, Targets((classes >= 0).long(), category, classes))


def build():
    torch.manual_seed(5)
    return Network(LAYOUT, torch.full((2, 2), 0.5))


def steps_of(plan, rows):
    network = build()
    optimizer = torch.optim.Adam(network.parameters())
    run_epoch(network, optimizer, rows, plan, OBJECTIVE)
    return int(next(iter(optimizer.state.values()))["step"])


def test_an_epoch_makes_at_least_the_steps_asked_for_in_whole_passes(rows):
    assert steps_of(PLAN, rows) == 3
    assert steps_of(replace(PLAN, min_steps=10), rows) == 12
    assert steps_of(replace(PLAN, batch_size=256, min_steps=10), rows) == 10
    assert steps_of(replace(PLAN, batch_size=4, min_steps=10), rows) == 12


def test_the_best_epochs_weights_are_kept(rows):
    split = (torch.arange(32), torch.arange(32, 48))
    trained = train(build, rows, [split], PLAN, OBJECTIVE)
    history = trained.history
    assert trained.best_epoch == history["score"].idxmax()
    assert len(history) <= min(PLAN.max_epochs, trained.best_epoch + PLAN.patience)
    member = _Member(trained.networks[0], rows.take(split[0]), rows.take(split[1]), PLAN)
    assert _score([member.judge(OBJECTIVE)], LAYOUT) == pytest.approx(history["score"].max())


def test_learning_rates_only_fall(rows):
    split = (torch.arange(32), torch.arange(32, 48))
    rates = train(build, rows, [split], replace(PLAN, plateau_patience=0), OBJECTIVE).history["learning_rate"]
    assert rates.is_monotonic_decreasing
    assert rates.iloc[0] == PLAN.learning_rate


def test_splits_trained_side_by_side_share_one_schedule(rows):
    parts = torch.arange(48).reshape(3, 16)
    splits = [(torch.cat([parts[j] for j in range(3) if j != i]), parts[i]) for i in range(3)]
    trained = train(build, rows, splits, PLAN, OBJECTIVE)
    assert len(trained.networks) == 3
    members = [_Member(n, rows.take(a), rows.take(b), PLAN) for n, (a, b) in zip(trained.networks, splits, strict=True)]
    pooled = _score([member.judge(OBJECTIVE) for member in members], LAYOUT)
    assert pooled == pytest.approx(trained.history["score"].max())


def test_replay_without_held_out_rows_is_plain_training(rows):
    rates = [0.01, 0.01, 0.005]
    torch.manual_seed(5)
    replayed = replay(build, rows, rates, PLAN, OBJECTIVE)
    network = build()
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01, fused=True)
    for rate in rates:
        optimizer.param_groups[0]["lr"] = rate
        run_epoch(network, optimizer, rows, PLAN, OBJECTIVE)
    for one, other in zip(replayed.parameters(), network.parameters(), strict=True):
        torch.testing.assert_close(one, other)

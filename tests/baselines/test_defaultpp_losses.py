"""The five terms of the objective against plain loops over rows, and their limits."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from baselines.defaultpp.losses import (
    Objective,
    Targets,
    category_loss,
    contrastive_loss,
    inverse_frequency,
    within_category_loss,
)
from baselines.defaultpp.model import Output
from baselines.defaultpp.prototypes import Prototypes, class_means, distances
from baselines.defaultpp.training import macro_f1

CATEGORY_OF_CLASS = [0, 0, 1, 1, 1, 2]
"""Three categories of two, three and one root causes."""


def log_softmax(values):
    top = max(values)
    return [v - top - math.log(sum(math.exp(w - top) for w in values)) for v in values]


def slow_category_loss(logits, category, weights):
    total = norm = 0.0
    for row, c in zip(logits, category, strict=True):
        if c >= 0:
            total -= weights[c] * log_softmax(row)[c]
            norm += weights[c]
    return total / norm if norm else 0.0


def slow_within_category_loss(logits, classes):
    terms = []
    for row, k in zip(logits, classes, strict=True):
        if k >= 0:
            rivals = [j for j, c in enumerate(CATEGORY_OF_CLASS) if c == CATEGORY_OF_CLASS[k]]
            terms.append(-log_softmax([row[j] for j in rivals])[rivals.index(k)])
    return sum(terms) / len(terms) if terms else 0.0


def slow_contrastive_loss(H, classes, temperature):
    vectors = [h.flatten() / max(np.linalg.norm(h), 1e-12) for h in H]
    terms = []
    for i, own in enumerate(classes):
        if own < 0:
            continue
        others = [
            j for j, k in enumerate(classes) if j != i and k >= 0 and CATEGORY_OF_CLASS[k] == CATEGORY_OF_CLASS[own]
        ]
        positives = [j for j in others if classes[j] == own]
        if not positives:
            continue
        similar = {j: float(vectors[i] @ vectors[j]) / temperature for j in others}
        top = max(similar.values())
        normaliser = top + math.log(sum(math.exp(s - top) for s in similar.values()))
        terms.append(sum(normaliser - similar[j] for j in positives) / len(positives))
    return sum(terms) / len(terms) if terms else 0.0


def slow_distances(H, prototypes):
    return [[sum(((h - p) ** 2).sum() for h, p in zip(row, proto, strict=True)) for proto in prototypes] for row in H]


@st.composite
def batches(draw):
    """Up to 12 rows with classes (-1 = healthy), logits, group embeddings and prototypes, from a drawn seed."""
    classes = draw(st.lists(st.integers(-1, len(CATEGORY_OF_CLASS) - 1), min_size=1, max_size=12))
    rng = np.random.default_rng(draw(st.integers(0, 2**20)))
    n = len(classes)
    return (
        np.array(classes),
        rng.normal(0, 2, (n, 3)),
        rng.normal(0, 2, (n, 6)),
        rng.normal(size=(n, 4, 5)),
        rng.normal(size=(6, 4, 5)),
    )


def targets_of(classes):
    category = np.where(classes >= 0, np.array(CATEGORY_OF_CLASS)[classes], -1)
    return Targets(*(torch.tensor(codes) for codes in ((classes >= 0).astype(int), category, classes)))


@settings(max_examples=60, deadline=None)
@given(batches())
def test_terms_equal_their_loops(batch):
    classes, category_logits, class_logits, H, prototypes = batch
    targets = targets_of(classes)
    weights = torch.tensor([0.5, 2.0, 1.0], dtype=torch.float64)
    of_class = torch.tensor(CATEGORY_OF_CLASS)
    fast = category_loss(torch.tensor(category_logits), targets.category, weights)
    assert float(fast) == pytest.approx(
        slow_category_loss(category_logits, targets.category.tolist(), weights.tolist()), abs=1e-9
    )
    fast = within_category_loss(torch.tensor(class_logits), targets.classes, of_class)
    assert float(fast) == pytest.approx(slow_within_category_loss(class_logits, classes), abs=1e-9)
    fast = contrastive_loss(torch.tensor(H), targets, 0.1)
    assert float(fast) == pytest.approx(slow_contrastive_loss(H, classes, 0.1), abs=1e-8)
    far = distances(torch.tensor(H), Prototypes(torch.tensor(prototypes), torch.ones(6, dtype=torch.bool)))
    np.testing.assert_allclose(far.numpy(), slow_distances(H, prototypes), rtol=1e-9)


@settings(max_examples=25, deadline=None)
@given(batches())
def test_objective_is_the_weighted_sum(batch):
    classes, category_logits, class_logits, H, prototypes = batch
    targets = targets_of(classes)
    rng = np.random.default_rng(1)
    detection = rng.normal(size=(len(classes), 2))
    output = Output(torch.tensor(H), torch.zeros(1), *map(torch.tensor, (detection, category_logits, class_logits)))
    objective = Objective(1.5, 0.7, 0.5, 0.3, 0.1, 2.0, None, None, torch.tensor(CATEGORY_OF_CLASS))
    seen = Prototypes(torch.tensor(prototypes), torch.ones(6, dtype=torch.bool))
    detect = -np.mean([log_softmax(row)[int(k >= 0)] for row, k in zip(detection, classes, strict=True)])
    pulls = [[-d / 2.0 for d in row] for row in slow_distances(H, prototypes)]
    by_hand = (
        detect
        + 1.5 * slow_category_loss(category_logits, targets.category.tolist(), [1, 1, 1])
        + 0.7 * slow_within_category_loss(class_logits, classes)
        + 0.5 * slow_contrastive_loss(H, classes, 0.1)
        + 0.3 * slow_within_category_loss(pulls, classes)
    )
    assert float(objective(output, targets, seen)) == pytest.approx(by_hand, rel=1e-7)


@settings(max_examples=25, deadline=None)
@given(batches(), st.randoms(use_true_random=False))
def test_order_of_rows_changes_no_loss(batch, random):
    classes, _, class_logits, H, _ = batch
    order = list(range(len(classes)))
    random.shuffle(order)
    before, after = targets_of(classes), targets_of(classes[order])
    of_class = torch.tensor(CATEGORY_OF_CLASS)
    torch.testing.assert_close(
        contrastive_loss(torch.tensor(H), before, 0.1), contrastive_loss(torch.tensor(H[order]), after, 0.1)
    )
    torch.testing.assert_close(
        within_category_loss(torch.tensor(class_logits), before.classes, of_class),
        within_category_loss(torch.tensor(class_logits[order]), after.classes, of_class),
    )


def test_a_batch_of_healthy_rows_has_zero_terms_with_a_gradient():
    targets = targets_of(np.array([-1, -1]))
    logits, H = torch.randn(2, 6, requires_grad=True), torch.randn(2, 4, 5, requires_grad=True)
    total = (
        category_loss(logits[:, :3], targets.category, None)
        + within_category_loss(logits, targets.classes, torch.tensor(CATEGORY_OF_CLASS))
        + contrastive_loss(H, targets, 0.1)
    )
    total.backward()
    assert float(total.detach()) == 0.0
    assert not logits.grad.any()
    assert not H.grad.any()


def test_a_class_without_a_prototype_attracts_nothing_and_breaks_no_gradient():
    H = torch.randn(3, 4, 5, requires_grad=True)
    prototypes = class_means(H.detach(), torch.tensor([0, 2, 2]), 6)
    assert prototypes.seen.tolist() == [True, False, True, False, False, False]
    far = distances(H, prototypes)
    assert torch.isinf(far[:, 1]).all()
    within_category_loss(-far, torch.tensor([0, 2, 2]), torch.tensor(CATEGORY_OF_CLASS)).backward()
    assert torch.isfinite(H.grad).all()


def test_inverse_frequency_balances_the_classes():
    codes = torch.tensor([0] * 6 + [1] * 3 + [2] + [-1] * 5)
    weights = inverse_frequency(codes, 4)
    counts = torch.tensor([6.0, 3.0, 1.0])
    torch.testing.assert_close(weights[:3] * counts, torch.full((3,), 10 / 3))
    assert weights[3] == 0


def test_macro_f1_agrees_with_scikit_learn():
    from sklearn.metrics import f1_score

    rng = np.random.default_rng(0)
    true, predicted = rng.integers(0, 7, 200), rng.integers(0, 7, 200)
    assert macro_f1(torch.tensor(true), torch.tensor(predicted), 7) == pytest.approx(
        f1_score(true, predicted, average="macro"), abs=1e-6
    )

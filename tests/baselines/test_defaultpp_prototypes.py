"""Prototypes, the nearest one, its alternative, and the groups' parts in the margin."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from baselines.defaultpp.prototypes import class_means, group_distances, margins_between, nearest

CATEGORY_OF_CLASS = np.array([0, 0, 0, 1, 1, 2])


@pytest.fixture
def drawn():
    rng = np.random.default_rng(0)
    return rng.normal(size=(30, 5, 4)), rng.normal(size=(6, 5, 4)), rng.integers(0, 3, 30)


def test_prototypes_are_the_class_means(drawn):
    H, _, _ = drawn
    classes = np.random.default_rng(1).integers(-1, 6, 30)
    prototypes = class_means(torch.tensor(H), torch.tensor(classes), 6)
    for k in range(6):
        np.testing.assert_allclose(prototypes.mean[k], H[classes == k].mean(axis=0), rtol=1e-12)


def test_distances_do_not_depend_on_the_chunks(drawn):
    H, prototypes, _ = drawn
    by_group = group_distances(H, prototypes, chunk=7)
    np.testing.assert_array_equal(by_group, group_distances(H, prototypes))
    i, k, g = 11, 4, 2
    assert by_group[i, k, g] == pytest.approx(((H[i, g] - prototypes[k, g]) ** 2).sum())


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**20), st.floats(0.01, 100.0))
def test_deltas_sum_to_the_margin(seed, scale):
    rng = np.random.default_rng(seed)
    H, prototypes = rng.normal(0, scale, (8, 5, 4)), rng.normal(0, scale, (6, 5, 4))
    category = rng.integers(0, 3, 8)
    margins = nearest(group_distances(H, prototypes), category, CATEGORY_OF_CLASS)
    whole = ((H[:, None] - prototypes) ** 2).sum(axis=(2, 3))
    rows = np.arange(8)
    np.testing.assert_allclose(
        margins.delta.sum(axis=1), whole[rows, margins.alternative] - whole[rows, margins.predicted], atol=1e-5
    )
    assert (margins.weight >= 0).all()
    np.testing.assert_allclose(margins.weight.sum(axis=1)[(margins.delta > 0).any(axis=1)], 1.0)


def test_nearest_stays_in_the_category_and_the_alternative_is_second(drawn):
    H, prototypes, category = drawn
    margins = nearest(group_distances(H, prototypes), category, CATEGORY_OF_CLASS)
    whole = ((H[:, None] - prototypes) ** 2).sum(axis=(2, 3))
    for i, c in enumerate(category):
        own = sorted(np.flatnonzero(c == CATEGORY_OF_CLASS), key=lambda k: whole[i, k])
        assert margins.predicted[i] == own[0]
        if len(own) > 1:
            assert margins.alternative[i] == own[1]
            assert margins.margin[i] >= 0
        else:
            others = sorted(set(range(6)) - set(own), key=lambda k: whole[i, k])
            assert margins.alternative[i] == others[0]


def test_one_prototype_alone_has_no_alternative():
    margins = nearest(np.ones((3, 1, 2)), np.zeros(3, dtype=int), np.array([0]))
    assert (margins.alternative == -1).all()
    assert (margins.delta == 0).all()
    assert (margins.weight == 0).all()


def test_no_prototype_at_all():
    margins = nearest(np.ones((3, 0, 2)), np.full(3, -1), np.array([], dtype=int))
    assert (margins.predicted == -1).all()
    assert margins.delta.shape == (3, 2)


def test_weights_by_hand():
    by_group = np.array([[[1.0, 5.0, 2.0], [4.0, 4.0, 3.0]]])
    margins = margins_between(by_group, np.array([0]), np.array([1]))
    np.testing.assert_allclose(margins.delta, [[3.0, -1.0, 1.0]])
    np.testing.assert_allclose(margins.weight, [[0.75, 0.0, 0.25]])
    assert margins.margin == pytest.approx([3.0])

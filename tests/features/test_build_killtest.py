import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import permutation_test

from features.build.killtest import kill_test, may_still_be_killed

values = st.integers(0, 384).map(lambda n: n / 384)
five = st.lists(values, min_size=5, max_size=5)


@given(five, five)
def test_agrees_with_scipys_exact_sign_flip_test(clean, faulty):
    ours = kill_test(clean, faulty, higher_is_better=True)
    # scipy flips the pairs' samples, which flips the signs of the differences: all 2^5 of them.
    theirs = permutation_test(
        (np.array(clean), np.array(faulty)),
        lambda a, b: np.round(np.sum(a - b), 9),
        permutation_type="samples",
        alternative="greater",
        n_resamples=np.inf,
    )
    assert ours.p_value == pytest.approx(theirs.pvalue)


@given(five, five)
def test_is_killed_only_if_all_five_are_worse(clean, faulty):
    assert kill_test(clean, faulty, True).killed == all(f < c for c, f in zip(clean, faulty, strict=True))


@given(five, five)
def test_a_mutant_given_up_early_would_have_survived(clean, faulty):
    given_up = any(not may_still_be_killed(clean[:n], faulty[:n], True) for n in range(1, 6))
    assert given_up == (not kill_test(clean, faulty, True).killed)


def test_lower_is_better_for_perplexity():
    assert kill_test([1.0] * 5, [1.1, 1.2, 1.1, 1.3, 1.1], higher_is_better=False).killed
    assert not kill_test([1.0] * 5, [1.1, 1.2, 1.1, 1.3, 1.1], higher_is_better=True).killed


def test_effect_is_the_mean_loss_of_quality_and_its_ratio_to_the_spread():
    test = kill_test([0.9, 0.9, 0.9, 0.9, 0.9], [0.8, 0.7, 0.8, 0.7, 0.8], higher_is_better=True)
    assert test.effect == pytest.approx(0.14)
    assert test.effect_size == pytest.approx(0.14 / np.std([0.1, 0.2, 0.1, 0.2, 0.1], ddof=1))


@pytest.mark.parametrize(("clean", "faulty"), [([], []), ([1.0, float("nan")], [1.0, 1.0]), ([[1.0]], [[2.0]])])
def test_refuses_what_it_cannot_test(clean, faulty):
    with pytest.raises(ValueError):
        kill_test(clean, faulty, True)

"""Every metric function against numpy or scipy, written independently, and against closed forms."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.special import log_softmax

from features.measure import metrics

L, B, H, T, D = 2, 3, 4, 6, 5


@pytest.fixture
def maps():
    rng = torch.Generator().manual_seed(3)
    return (2 * torch.randn(L, B, H, T, T, generator=rng)).softmax(-1)


@pytest.fixture
def real():
    return torch.arange(T) < torch.tensor([6, 4, 1])[:, None]


def by_query(maps, real, value):
    """Mean of value(map (T, S), query) over layers' heads and real queries, in plain loops."""
    found = []
    for layer in maps.numpy():
        rows = [value(layer[b, h], b, q) for b in range(B) for h in range(H) for q in range(T) if real[b, q]]
        found.append(np.mean(rows))
    return found


def test_entropy_agrees_with_scipy(maps, real):
    expected = by_query(maps, real, lambda map_, b, q: stats.entropy(map_[q]))
    np.testing.assert_allclose(metrics.attention_entropy(maps, real), expected, rtol=1e-5)


def test_uniform_attention_has_entropy_log_n(real):
    uniform = torch.full((L, B, H, T, T), 1 / T)
    np.testing.assert_allclose(metrics.attention_entropy(uniform, real), math.log(T), rtol=1e-6)


def test_one_hot_attention_has_entropy_zero(real):
    one_hot = torch.eye(T).expand(L, B, H, T, T)
    assert metrics.attention_entropy(one_hot, real).abs().max() < 1e-6


def test_padding_mass_agrees_with_loops(maps, real):
    expected = by_query(maps, real, lambda map_, b, q: map_[q][~real[b].numpy()].sum())
    np.testing.assert_allclose(metrics.padding_mass(maps, real), expected, rtol=1e-5)


def test_padding_mass_is_zero_under_a_right_mask(real):
    scores = torch.randn(L, B, H, T, T).masked_fill(~real[:, None, None, :], -torch.inf)
    assert (metrics.padding_mass(scores.softmax(-1), real) == 0).all()


def test_future_mass_agrees_with_loops(maps, real):
    expected = by_query(maps, real, lambda map_, b, q: map_[q][q + 1 :].sum())
    np.testing.assert_allclose(metrics.future_mass(maps, real), expected, rtol=1e-5)


def test_future_mass_is_zero_under_a_causal_mask(real):
    causal = torch.ones(T, T, dtype=torch.bool).tril()
    weights = torch.randn(L, B, H, T, T).masked_fill(~causal, -torch.inf).softmax(-1)
    assert (metrics.future_mass(weights, real) == 0).all()


def test_head_similarity_agrees_with_pairwise_cosines(maps, real):
    expected = []
    for layer in maps.numpy():
        cosines = []
        for b in range(B):
            flat = [layer[b, h][real[b].numpy()].ravel() for h in range(H)]
            cosines += [
                np.dot(flat[i], flat[j]) / np.linalg.norm(flat[i]) / np.linalg.norm(flat[j])
                for i in range(H)
                for j in range(H)
                if i != j
            ]
        expected.append(np.mean(cosines))
    np.testing.assert_allclose(metrics.head_similarity(maps, real), expected, rtol=1e-5)


def test_equal_heads_are_fully_similar(maps, real):
    same = maps[:, :, :1].expand(-1, -1, H, -1, -1)
    np.testing.assert_allclose(metrics.head_similarity(same, real), 1, rtol=1e-5)


@pytest.mark.parametrize(("writing", "expected"), [(1, 1 / H), (2, 2 / H), (H, 1.0), (0, 0.0)])
def test_head_utilisation_counts_the_heads_that_write(writing, expected):
    context = torch.zeros(L, 7, H, D)
    context[:, :, :writing] = torch.ones(D)
    np.testing.assert_allclose(metrics.head_utilisation(context), expected, rtol=1e-6)


def test_head_utilisation_agrees_with_scipy():
    context = torch.randn(L, 7, H, D) * torch.tensor([1.0, 2.0, 0.5, 4.0])[:, None]
    norms = np.linalg.norm(context.numpy(), axis=-1).mean(1)
    expected = np.exp(stats.entropy(norms, axis=1)) / H
    np.testing.assert_allclose(metrics.head_utilisation(context), expected, rtol=1e-5)


def test_effective_rank_agrees_with_svd(maps, real):
    expected = []
    for layer in maps.double().numpy():
        ranks = []
        for b in range(B):
            for h in range(H):
                singular = np.linalg.svd(layer[b, h] * real[b].numpy()[:, None], compute_uv=False)
                ranks.append(np.exp(stats.entropy(singular)))
        expected.append(np.mean(ranks))
    np.testing.assert_allclose(metrics.effective_rank(maps, real), expected, rtol=1e-5)


def test_effective_rank_of_identity_and_of_uniform_attention():
    everything = torch.ones(B, T, dtype=torch.bool)
    identity, uniform = torch.eye(T).expand(L, B, H, T, T), torch.full((L, B, H, T, T), 1 / T)
    np.testing.assert_allclose(metrics.effective_rank(identity, everything), T, rtol=1e-5)
    np.testing.assert_allclose(metrics.effective_rank(uniform, everything), 1, rtol=1e-5)


def test_effective_rank_of_broken_attention_is_nan(maps, real):
    broken = maps.clone()
    broken[0, 0, 0, 0, 0] = torch.nan
    assert metrics.effective_rank(broken, real).isnan().all()


@pytest.mark.parametrize("masked", [-torch.inf, torch.finfo(torch.float32).min, -1e9])
def test_score_mean_leaves_masked_keys_out(real, masked):
    scores = torch.randn(L, B, H, T, T)
    with_mask = scores.masked_fill(~real[:, None, None, :], masked)
    # Queries count by the keys they admit, so the reference weighs them so, too.
    weights = [real[b].sum() for b in range(B) for q in range(T) if real[b, q]]
    expected = [
        np.average(
            [layer[b, :, q][:, real[b].numpy()].mean() for b in range(B) for q in range(T) if real[b, q]],
            weights=weights,
        )
        for layer in scores.numpy()
    ]
    np.testing.assert_allclose(metrics.score_mean(with_mask, real), expected, rtol=1e-4)


def test_score_mean_shows_nan_and_infinity(real):
    scores = torch.zeros(2, B, H, T, T)
    scores[0, 0, 0, 0, 0], scores[1, 0, 0, 0, 0] = torch.nan, torch.inf
    found = metrics.score_mean(scores, real)
    assert found[0].isnan()
    assert found[1] == torch.inf


def test_score_mean_knows_the_mask_value_of_half_precision(real):
    scores = torch.ones(1, B, H, T, T, dtype=torch.float16)
    scores = scores.masked_fill(~real[:, None, None, :], torch.finfo(torch.float16).min)
    assert metrics.score_mean(scores, real).item() == 1


def test_score_mean_without_any_admitted_key_is_nan(real):
    assert metrics.score_mean(torch.full((1, B, H, T, T), -torch.inf), real).isnan().all()


def test_token_norm_and_spread_agree_with_numpy():
    x = torch.randn(L, 9, D) * 3 + 1
    np.testing.assert_allclose(metrics.token_norm(x), np.linalg.norm(x.numpy(), axis=-1).mean(1), rtol=1e-5)
    np.testing.assert_allclose(metrics.spread(x), x.numpy().reshape(L, -1).std(1), rtol=1e-5)


def test_orthogonal_vectors_have_cosine_zero_and_equal_ones_one():
    a = torch.zeros(1, 4, 6)
    b = torch.zeros(1, 4, 6)
    a[..., :3], b[..., 3:] = torch.randn(1, 4, 3), torch.randn(1, 4, 3)
    assert metrics.token_cosine(a, b).item() == 0
    assert metrics.token_cosine(a, 3 * a).item() == pytest.approx(1)
    assert metrics.token_cosine(a, -a).item() == pytest.approx(-1)


def test_cosine_with_a_zero_vector_is_zero():
    assert metrics.token_cosine(torch.zeros(1, 4, D), torch.randn(1, 4, D)).item() == 0


def test_cosine_agrees_with_torch():
    a, b = torch.randn(L, 8, D), torch.randn(L, 8, D)
    expected = torch.nn.functional.cosine_similarity(a, b, dim=-1).mean(-1)
    np.testing.assert_allclose(metrics.token_cosine(a, b), expected, rtol=1e-5, atol=1e-7)


def cka(x, y):
    """From the definition with centring matrices: HSIC(K, L) / sqrt(HSIC(K, K) HSIC(L, L))."""
    n = len(x)
    centre = np.eye(n) - np.ones((n, n)) / n

    def hsic(a, b):
        return np.trace(a @ centre @ b @ centre)

    k, m = x @ x.T, y @ y.T
    return hsic(k, m) / math.sqrt(hsic(k, k) * hsic(m, m))


@pytest.mark.parametrize("tokens", [4, 40])
def test_cka_agrees_with_its_definition_on_both_sides_of_the_width(tokens):
    x, y = torch.randn(L, tokens, 9), torch.randn(L, tokens, 9) + 2
    expected = [cka(a, b) for a, b in zip(x.double().numpy(), y.double().numpy(), strict=True)]
    np.testing.assert_allclose(metrics.linear_cka(x, y), expected, rtol=1e-4)


def test_cka_is_one_for_equal_rotated_and_scaled_inputs():
    x = torch.randn(1, 30, 6)
    rotation = torch.linalg.qr(torch.randn(6, 6)).Q
    for y in (x, 5 * x, x @ rotation, x + 3):
        assert metrics.linear_cka(x, y).item() == pytest.approx(1, abs=1e-4)


def test_cka_with_a_constant_is_zero():
    assert metrics.linear_cka(torch.randn(1, 30, 6), torch.ones(1, 30, 6)).item() == 0


def test_relative_change_agrees_with_numpy():
    a, b = torch.randn(L, 7, D), torch.randn(L, 7, D)
    expected = (np.linalg.norm((b - a).numpy(), axis=-1) / np.linalg.norm(a.numpy(), axis=-1)).mean(1)
    np.testing.assert_allclose(metrics.relative_change(a, b), expected, rtol=1e-5)
    assert (metrics.relative_change(a, a) == 0).all()


def test_kl_divergence_agrees_with_scipy():
    a, b = torch.randn(7, 11), torch.randn(7, 11)
    p, q = np.exp(log_softmax(a.numpy(), axis=1)), np.exp(log_softmax(b.numpy(), axis=1))
    assert metrics.kl_divergence(a, b).item() == pytest.approx(stats.entropy(p, q, axis=1).mean(), rel=1e-4)
    assert metrics.kl_divergence(a, a + 3).item() == pytest.approx(0, abs=1e-6)


@given(st.lists(st.tuples(st.floats(0.001, 1), st.booleans()), min_size=1, max_size=40))
@settings(max_examples=50, deadline=None)
def test_calibration_error_agrees_with_numpy_bins(predictions):
    confidence = np.array([c for c, _ in predictions], dtype=np.float32)
    correct = np.array([c for _, c in predictions], dtype=float)
    expected = 0.0
    for low in range(10):
        inside = (confidence * np.float32(10) > low) & (confidence * np.float32(10) <= low + 1)
        if inside.any():
            expected += inside.mean() * abs(correct[inside].mean() - confidence[inside].mean(dtype=float))
    found = metrics.calibration_error(torch.from_numpy(confidence), torch.from_numpy(correct))
    assert found == pytest.approx(expected, abs=1e-6)


def test_calibration_error_of_nothing_is_nan():
    assert math.isnan(metrics.calibration_error(torch.tensor([]), torch.tensor([])))

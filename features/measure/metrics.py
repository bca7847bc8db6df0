"""What is measured inside a layer: pure functions of tensors, one per metric.

Shapes: L layers, B examples, H heads, T queries, S keys, N tokens, D features. `real` (B, T) marks the tokens that
are not padding; averages run over real queries and real tokens only. Every function returns one value per layer.
The definitions follow the DEFault++ manuscript (§4.2, Table 2) where it gives one.
"""

from __future__ import annotations

import torch
from torch import Tensor

TINY = 1e-30
"""Denominators are not let below this: what is divided by it is 0 as well."""


def _mean_over(values: Tensor, real: Tensor) -> Tensor:
    """Mean of (L, B, T) over the real positions of (B, T)."""
    return torch.where(real, values, 0).sum((1, 2)) / real.sum()


def attention_entropy(weights: Tensor, real: Tensor) -> Tensor:
    """Entropy of the attention rows in nats; `weights` (L, B, H, T, S). Uniform rows give log S."""
    # The clamp keeps 0 log 0 at 0; torch.special.entr does the same at twice the time.
    return _mean_over(-(weights * weights.clamp_min(1e-30).log()).sum(-1).mean(2), real)


def padding_mass(weights: Tensor, real: Tensor) -> Tensor:
    """Attention mass on padding keys per real query; `weights` (L, B, H, T, S) with S = T."""
    return _mean_over((weights.mean(2) @ (~real).to(weights.dtype)[..., None])[..., 0], real)


def future_mass(weights: Tensor, real: Tensor) -> Tensor:
    """Attention mass on later keys per real query; `weights` (L, B, H, T, S) with S = T."""
    later = torch.ones(weights.shape[-2:], dtype=weights.dtype, device=weights.device).triu(1)
    return _mean_over((weights.mean(2) * later).sum(-1), real)


def head_similarity(weights: Tensor, real: Tensor) -> Tensor:
    """Mean cosine between the attention maps of two heads; needs two. `weights` (L, B, H, T, S)."""
    heads = weights.shape[2]
    maps = torch.where(real[:, None, :, None], weights, 0).flatten(3)
    unit = maps / torch.linalg.vector_norm(maps, dim=-1, keepdim=True)
    # The squared norm of the sum of unit vectors counts every pair twice and every head once.
    pairs = unit.sum(2).square().sum(-1) - heads
    return pairs.mean(1) / (heads * (heads - 1))


def head_utilisation(context: Tensor) -> Tensor:
    """exp(entropy) of the heads' shares in the output norm, over the number of heads; `context` (L, N, H, D).

    1 if all heads write equally much, 1/H if only one writes, 0 if none does.
    """
    norms = torch.linalg.vector_norm(context, dim=-1).mean(1)
    total = norms.sum(-1, keepdim=True)
    shares = torch.where(total == 0, torch.zeros_like(norms), norms / total)
    used = torch.special.entr(shares).sum(-1).exp() / norms.shape[-1]
    return torch.where(total[..., 0] == 0, torch.zeros_like(used), used)


def effective_rank(weights: Tensor, real: Tensor) -> Tensor:
    """exp of the entropy of the normalised singular values, mean over heads (Roy and Vetterli 2007).

    `weights` (L, B, H, T, S). The singular values are the roots of the eigenvalues of A A^T, in double precision.
    """
    maps = torch.where(real[:, None, :, None], weights, 0).double()
    gram = maps @ maps.mT
    if not torch.isfinite(gram).all():
        return weights.new_full((weights.shape[0],), torch.nan)
    singular = torch.linalg.eigvalsh(gram).clamp(min=0).sqrt()
    shares = singular / singular.sum(-1, keepdim=True)
    return torch.special.entr(shares).sum(-1).exp().mean((1, 2)).to(weights.dtype)


def score_mean(scores: Tensor, real: Tensor) -> Tensor:
    """Mean score before softmax, over real queries and the keys that the model itself admits.

    `scores` (L, B, H, T, S), masks included. A key counts as masked below half of what half precision can hold
    (for half-precision scores) or below -1e8; NaN if no key is admitted.
    """
    floor = -3e4 if scores.dtype == torch.float16 else -1e8
    # Written as a negation, so that a NaN counts as admitted and shows.
    admitted = ~(scores <= floor)
    sums, counts = torch.where(admitted, scores, 0).float().sum(-1).sum(2), admitted.float().sum(-1).sum(2)
    return torch.where(real, sums, 0).sum((1, 2)) / torch.where(real, counts, 0).sum((1, 2))


def token_norm(x: Tensor) -> Tensor:
    """Mean L2 norm per token; `x` (L, N, D)."""
    return torch.linalg.vector_norm(x, dim=-1).mean(-1)


def spread(x: Tensor) -> Tensor:
    """Standard deviation over tokens and features together; `x` (L, N, D)."""
    flat = x.flatten(1)
    return (flat - flat.mean(1, keepdim=True)).square().mean(1).sqrt()


def token_cosine(a: Tensor, b: Tensor) -> Tensor:
    """Mean cosine of two vectors per token, 0 where one of them is zero; `a`, `b` (L, N, D)."""
    norms = torch.linalg.vector_norm(a, dim=-1) * torch.linalg.vector_norm(b, dim=-1)
    return ((a * b).sum(-1) / norms.clamp_min(TINY)).mean(-1)


def linear_cka(x: Tensor, y: Tensor) -> Tensor:
    """Linear centred kernel alignment (Kornblith et al. 2019, §3); `x`, `y` (L, N, D).

    1 for inputs that are equal up to rotation and scale, 0 where one of them is the same for all tokens.
    """
    x = x - x.mean(1, keepdim=True)
    y = y - y.mean(1, keepdim=True)
    norm = torch.linalg.matrix_norm
    if x.shape[1] < x.shape[2]:
        gram_x, gram_y = x @ x.mT, y @ y.mT
        return (gram_x * gram_y).sum((1, 2)) / (norm(gram_x) * norm(gram_y)).clamp_min(TINY)
    return norm(x.mT @ y).square() / (norm(x.mT @ x) * norm(y.mT @ y)).clamp_min(TINY)


def relative_change(before: Tensor, after: Tensor) -> Tensor:
    """Norm of the difference over the norm before, mean over tokens; `before`, `after` (L, N, D)."""
    norm = torch.linalg.vector_norm
    return (norm(after - before, dim=-1) / norm(before, dim=-1).clamp_min(TINY)).mean(-1)


def kl_divergence(logits_p: Tensor, logits_q: Tensor) -> Tensor:
    """Mean KL(p || q) in nats of the distributions that logits (N, C) describe: one number."""
    log_p, log_q = logits_p.log_softmax(-1), logits_q.log_softmax(-1)
    return (log_p.exp() * (log_p - log_q)).sum(-1).mean()


def calibration_error(confidence: Tensor, correct: Tensor, bins: int = 10) -> float:
    """Expected calibration error with equal-width bins (Guo et al. 2017, eq. 3), as a share.

    `confidence` (N,) in [0, 1], `correct` (N,) bool or 0/1. NaN for no predictions.

    >>> round(calibration_error(torch.tensor([0.85, 0.85]), torch.tensor([1.0, 0.0])), 4)
    0.35
    """
    n = confidence.numel()
    if n == 0:
        return float("nan")
    slot = (confidence * bins).ceil().long().sub(1).clamp(0, bins - 1)
    gaps = torch.zeros(bins, dtype=torch.double).index_add(0, slot, (correct.double() - confidence.double()))
    return gaps.abs().sum().item() / n

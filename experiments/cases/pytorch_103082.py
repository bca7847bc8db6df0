"""A causal mask whose diagonal starts in the wrong corner when queries continue a cache."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from experiments.cases.case import Case, with_attention
from features.inject.attention import additive, cached, visible


def causal_mask(queries: int, keys: int, top_left: bool) -> Tensor:
    """Which keys a query may see, bool (queries, keys): the last query is the last key, unless `top_left`.

    >>> causal_mask(2, 4, top_left=True).int().tolist()
    [[1, 0, 0, 0], [1, 1, 0, 0]]
    >>> causal_mask(2, 4, top_left=False).int().tolist()
    [[1, 1, 1, 0], [1, 1, 1, 1]]
    """
    return torch.ones(queries, keys, dtype=torch.bool).tril(0 if top_left else keys - queries)


def prepare(model: nn.Module, faulty: bool) -> nn.Module:
    """Every attention makes its causal mask from the numbers of its queries and keys; padding is masked as before."""

    def change(module, hidden, kwargs):
        seen = visible(module, hidden, kwargs.get("attention_mask"), cached(module, kwargs))
        # The last query sees all keys but padding.
        own = seen[..., -1:, :] & causal_mask(*seen.shape[-2:], top_left=faulty).to(seen.device)
        return {"attention_mask": additive(own, hidden.dtype)}

    return with_attention(model, change)


CASE = Case(
    name="pytorch-103082",
    issue="pytorch/pytorch#103082",
    reported_as="pytorch#103082",
    mechanism="The causal flag of fused attention aligns the mask with the first query and the first key, so that in "
    "decoding with a cache, where the queries are the last of the positions, each sees only the oldest keys.",
    here="Attention builds its mask from the two lengths; in training they are equal, in decoding from the cache (by "
    "chunks in validation, one by one in the probe) they are not.",
    family="gpt2",
    task="grammar",
    category="masking",
    root_cause="mask_generation",
    why="The mask is applied as it should be, but it is generated for the wrong alignment; no future key becomes "
    "visible, which is what dynamic_mask stands for here.",
    shows="cache_kl_divergence",
    prepare=prepare,
)

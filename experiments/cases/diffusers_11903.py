"""Low-rank adapters on projections that a fused forward no longer calls."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from experiments.cases.case import Case
from features.measure.discover import dissect

RANK = 8
SCALE = 2.0


class LowRank(nn.Linear):
    """A frozen linear map W with a trainable product beside it: x W' + SCALE · x A' B' (Hu et al. 2022, §4.1)."""

    def __init__(self, frozen: nn.Linear, rank: int = RANK):
        super().__init__(frozen.in_features, frozen.out_features)
        self.weight, self.bias = frozen.weight.requires_grad_(False), frozen.bias.requires_grad_(False)
        self.down = nn.Parameter(torch.empty(rank, self.in_features))
        self.up = nn.Parameter(torch.zeros(self.out_features, rank))
        nn.init.kaiming_uniform_(self.down, a=math.sqrt(5))

    def forward(self, x: Tensor) -> Tensor:
        """The adapted map."""
        return super().forward(x) + SCALE * functional.linear(functional.linear(x, self.down), self.up)


def fuse(attention: nn.Module) -> None:
    """Make one projection of the three as they are now, and a forward that uses it; the three stay where they are."""
    parts = [attention.query, attention.key, attention.value]
    attention.register_buffer("fused_weight", torch.cat([p.weight.detach() for p in parts]), persistent=False)
    attention.register_buffer("fused_bias", torch.cat([p.bias.detach() for p in parts]), persistent=False)
    split = attention.forward

    def forward(hidden_states, *args, **kwargs):
        joint = functional.linear(hidden_states, attention.fused_weight, attention.fused_bias)
        ready = dict(zip(("query", "key", "value"), joint.chunk(3, dim=-1), strict=True))
        own = {name: attention._modules[name] for name in ready}
        # The rest of attention is the library's; for one call its projections hand out what is ready.
        attention._modules.update({name: _Ready(x) for name, x in ready.items()})
        try:
            return split(hidden_states, *args, **kwargs)
        finally:
            attention._modules.update(own)

    attention.forward = forward


class _Ready(nn.Module):
    def __init__(self, output: Tensor):
        super().__init__()
        self.output = output

    def forward(self, x: Tensor) -> Tensor:
        return self.output


def prepare(model: nn.Module, faulty: bool) -> nn.Module:
    """Freeze the body and put adapters beside query and value; before that, faulty: fuse the three projections."""
    model.base_model.requires_grad_(False)
    for layer in dissect(model).layers:
        attention = layer.attention
        if faulty:
            fuse(attention)
        attention.query, attention.value = LowRank(attention.query), LowRank(attention.value)
    return model


CASE = Case(
    name="diffusers-11903",
    issue="huggingface/diffusers#11903",
    reported_as="diffusers#11903",
    mechanism="Fusing the three projections keeps the separate ones, so that adapters can still be put on those, where "
    "the fused forward never calls them and they learn nothing.",
    here="Adapters of rank 8 beside query and value, all of the pretrained body frozen, the head trained as in the "
    "bench; faulty: the projections were fused before the adapters came. The bench has no runs with a frozen body.",
    family="bert",
    task="entailment",
    category="qkv",
    root_cause="dynamic_parameter_registration",
    why="The parameters that should learn are not those that the forward uses: registered, and without gradient.",
    shows="grad_norm_qkv",
    prepare=prepare,
)

"""Change the weight of one role (token embedding or output head) and of no other, also where both share a parameter.

In GPT-2 and GPT-Neo the token embedding and the output head are one parameter. A fault of one must not reach the
other, and untying them would change what is trained. So on a tied model the role that is meant computes with the
shared parameter plus a constant: it starts from the wanted weight, training goes on moving the shared parameter, and
the other role never notices.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from features.inject.target import Target

OFFSET = "fault_offset"


def effective_weight(module: nn.Module) -> torch.Tensor:
    """The weight that an embedding or linear map computes with, shape as its parameter."""
    offset = getattr(module, OFFSET, None)
    return module.weight if offset is None else module.weight + offset


def rewrite(target: Target, module: nn.Module, weight: torch.Tensor) -> None:
    """Let a token embedding or an output head start from this weight."""
    if not target.anatomy.tied:
        module.weight.copy_(weight)
        return
    target.changes.set(module, OFFSET, (weight - module.weight).detach())
    if isinstance(module, nn.Embedding):

        def forward(ids):
            return F.embedding(ids, effective_weight(module), module.padding_idx)
    else:

        def forward(hidden):
            return F.linear(hidden, effective_weight(module), module.bias)

    target.changes.set(module, "forward", forward)

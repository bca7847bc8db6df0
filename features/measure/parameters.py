"""Gradients, updates and weights: what an optimiser step did, and what the weights look like after it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from features.measure.discover import Anatomy

NEAR_ZERO = 1e-8
"""Gradient entries below this count as near zero."""
ACTIVE = 1e-6
"""An update with a norm above this counts as one (DEFault++ manuscript, §4.2)."""
VANISHING, EXPLODING = 1e-4, 100.0
"""Limits of the total gradient norm."""
LARGE_WEIGHT = 10.0
EPSILON = 1e-12
_CHUNK = 1 << 22


class StepMeter:
    """Gradient and update metrics of optimiser steps.

    `before()` copies the parameters into buffers of its own; `after()` reads gradients and the change since.
    """

    def __init__(self, anatomy: Anatomy):
        self.parameters = [p for p in anatomy.model.parameters() if p.is_floating_point()]
        place = {p: i for i, p in enumerate(self.parameters)}
        self.members = {name: [place[p] for p in own] for name, own in anatomy.components().items()}
        self.copies: list[Tensor] | None = None
        self.taken = False

    def before(self) -> None:
        """Remember the parameters as they are."""
        with torch.no_grad():
            if self.copies is None:
                self.copies = [p.detach().clone() for p in self.parameters]
            else:
                torch._foreach_copy_(self.copies, self.parameters)
        self.taken = True

    def after(self) -> dict[str, Tensor]:
        """The gradient metrics of `features.schema` except the volatility; absent where there is no gradient."""
        found = self._gradients()
        if self.taken:
            found |= self._updates()
        self.taken = False
        return found

    def _updates(self) -> dict[str, Tensor]:
        sizes = torch.stack(torch._foreach_norm(self.copies)).square()
        # The copies are not needed after this, so the difference takes their place.
        torch._foreach_sub_(self.copies, self.parameters)
        changes = torch.stack(torch._foreach_norm(self.copies)).square()
        found = {}
        for name, members in self.members.items():
            if members:
                change = changes[members].sum().sqrt()
                found[f"update_ratio_{name}"] = change / (sizes[members].sum().sqrt() + EPSILON)
                found[f"update_active_{name}"] = (change > ACTIVE).float()
        return found

    def _gradients(self) -> dict[str, Tensor]:
        present = [i for i, p in enumerate(self.parameters) if p.grad is not None]
        if not present:
            return {}
        gradients = [self.parameters[i].grad for i in present]
        squares = torch.stack(torch._foreach_norm(gradients)).square()
        place = {i: j for j, i in enumerate(present)}
        found = {}
        for name, members in self.members.items():
            own = [place[i] for i in members if i in place]
            if own:
                found[f"grad_norm_{name}"] = squares[own].sum().sqrt()
        total = squares.sum().sqrt()
        least, most, zeros, count = _extremes(gradients)
        return found | {
            "grad_norm_total": total,
            "grad_abs_min": least,
            "grad_abs_max": most,
            "grad_zero_share": zeros / count,
            "gradient_vanishing": (total < VANISHING).float(),
            "gradient_exploding": ((total > EXPLODING) | ~torch.isfinite(total)).float(),
        }


def _extremes(gradients: list[Tensor]) -> tuple[Tensor, Tensor, Tensor, int]:
    """Smallest and largest absolute entry, entries below NEAR_ZERO, entries in all; chunked to bound the memory."""
    least, most, zeros, count = [], [], [], 0
    for chunk in _chunks(gradients):
        entries = torch.cat([g.detach().reshape(-1) for g in chunk]).abs_()
        least.append(entries.amin())
        most.append(entries.amax())
        zeros.append((entries < NEAR_ZERO).sum())
        count += entries.numel()
    return torch.stack(least).amin(), torch.stack(most).amax(), torch.stack(zeros).sum(), count


def _chunks(tensors: list[Tensor]):
    chunk, size = [], 0
    for tensor in tensors:
        if chunk and size + tensor.numel() > _CHUNK:
            yield chunk
            chunk, size = [], 0
        chunk.append(tensor)
        size += tensor.numel()
    if chunk:
        yield chunk


def flat(tensors: list[Tensor]) -> Tensor:
    """All entries in one vector."""
    return torch.cat([t.detach().reshape(-1) for t in tensors])


class WeightMeter:
    """Statistics of the weights at the end of every epoch, and what stayed exactly as it was since the last."""

    def __init__(self, anatomy: Anatomy):
        self.layers = [list(layer.kernels()) for layer in anatomy.layers]
        self.kernels = [p for own in self.layers for p in own]
        self.parameters = [p for p in anatomy.model.parameters() if p.is_floating_point()]
        self.previous: tuple[Tensor, Tensor] | None = None

    @torch.no_grad()
    def epoch(self) -> dict[str, Tensor]:
        """The `weight_*` series of the log; layered ones are (number of distinct layers,)."""
        layers = [flat(own).float() for own in self.layers]
        everything = [p.detach() for p in self.parameters]
        means = torch.stack([p.mean() for p in self.kernels])
        stds = torch.stack([p.std() for p in self.kernels])
        found = {
            "weight_mean": torch.stack([x.mean() for x in layers]),
            "weight_std": torch.stack([x.std() for x in layers]),
            "weight_norm": torch.stack([torch.linalg.vector_norm(x) for x in layers]),
            "weight_abs_max": torch.stack(torch._foreach_norm(everything, torch.inf)).amax(),
            "weight_large_count": sum((p.abs() > LARGE_WEIGHT).sum() for p in everything),
            "weight_nonfinite_count": sum((~torch.isfinite(p)).sum() for p in everything),
        }
        if self.previous is not None:
            found["weight_same_mean_count"] = (means == self.previous[0]).sum()
            found["weight_same_std_count"] = (stds == self.previous[1]).sum()
        self.previous = (means, stds)
        return found


def in_forward_order(model: nn.Module, forward) -> list[nn.Parameter]:
    """The weight matrices outside embeddings, in the order in which one call of `forward()` uses their modules."""
    order: list[nn.Parameter] = []

    def note(module, args):
        order.extend(p for p in module.parameters(recurse=isinstance(module, nn.MultiheadAttention)) if p.ndim > 1)

    handles = [
        m.register_forward_pre_hook(note)
        for m in model.modules()
        if not isinstance(m, nn.Embedding) and any(p.ndim > 1 for p in m.parameters(recurse=False))
    ]
    try:
        forward()
    finally:
        for handle in handles:
            handle.remove()
    return list(dict.fromkeys(order))

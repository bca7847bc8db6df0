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

    `before()` copies the parameters into buffers of its own; `after()` reads gradients and the change since. Both go
    through the entries in chunks of one component each, which bounds what they hold beside the copies.
    """

    def __init__(self, anatomy: Anatomy):
        components = anatomy.components()
        owner = {p: name for name, own in components.items() for p in own}
        ordered: dict[str | None, list[nn.Parameter]] = {name: [] for name in (*components, None)}
        for p in anatomy.model.parameters():
            if p.is_floating_point():
                ordered[owner.get(p)].append(p)
        self.chunks = [(name, chunk) for name, own in ordered.items() for chunk in _chunks(own)]
        self.names = [name for name in components if ordered[name]]
        self.copies: list[Tensor] = []

    @property
    def taken(self) -> bool:
        """Whether the parameters before the step are at hand."""
        return bool(self.copies)

    @torch.no_grad()
    def before(self) -> None:
        """Remember the parameters as they are."""
        self.copies = [flat(chunk) for _, chunk in self.chunks]

    @torch.no_grad()
    def after(self) -> dict[str, Tensor]:
        """The gradient metrics of `features.schema` except the volatility; absent where there is no gradient."""
        return self._gradients() | self._updates()

    def _updates(self) -> dict[str, Tensor]:
        copies, self.copies = self.copies, []
        squares: dict[str | None, list[Tensor]] = {}
        for (name, chunk), copy in zip(self.chunks, copies, strict=False):
            size = torch.linalg.vector_norm(copy)
            change = torch.linalg.vector_norm(copy.sub_(flat(chunk)))
            squares.setdefault(name, []).append(torch.stack([size, change]))
        found = {}
        for name in self.names if copies else ():
            size, change = _root_sum_square(squares[name])
            found[f"update_ratio_{name}"] = change / (size + EPSILON)
            found[f"update_active_{name}"] = (change > ACTIVE).float()
        return found

    def _gradients(self) -> dict[str, Tensor]:
        norms: dict[str | None, list[Tensor]] = {}
        extremes, zeros, count = [], [], 0
        for name, chunk in self.chunks:
            present = [p.grad for p in chunk if p.grad is not None]
            if present:
                entries = flat(present)
                norms.setdefault(name, []).append(torch.linalg.vector_norm(entries))
                entries.abs_()
                extremes.append(torch.stack(entries.aminmax()))
                zeros.append((entries < NEAR_ZERO).float().sum())
                count += entries.numel()
        if not norms:
            return {}
        extremes = torch.stack(extremes)
        total = _root_sum_square([norm for own in norms.values() for norm in own])
        return {f"grad_norm_{name}": _root_sum_square(norms[name]) for name in self.names if name in norms} | {
            "grad_norm_total": total,
            "grad_abs_min": extremes[:, 0].amin(),
            "grad_abs_max": extremes[:, 1].amax(),
            "grad_zero_share": torch.stack(zeros).sum() / count,
            "gradient_vanishing": (total < VANISHING).float(),
            "gradient_exploding": ((total > EXPLODING) | ~torch.isfinite(total)).float(),
        }


def _root_sum_square(norms: list[Tensor]) -> Tensor:
    return norms[0] if len(norms) == 1 else torch.linalg.vector_norm(torch.stack(norms), dim=0)


def _chunks(tensors: list[nn.Parameter]):
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
    """All entries in one vector; call it without gradients."""
    return torch.cat([t.reshape(-1) for t in tensors])


def deviation(entries: Tensor) -> Tensor:
    """Standard deviation (ddof = 1) of a vector; torch.std gives the same and takes five times as long."""
    return torch.linalg.vector_norm(entries - entries.mean()) / (entries.numel() - 1) ** 0.5


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
        stds = torch.stack([deviation(p.flatten()) for p in self.kernels])
        found = {
            "weight_mean": torch.stack([x.mean() for x in layers]),
            "weight_std": torch.stack([deviation(x) for x in layers]),
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

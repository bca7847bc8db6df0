"""Faults of the output head: the classifier's last linear map, or the language-model head."""

from __future__ import annotations

import torch
from torch import nn

from features.inject.locate import InjectionError, NoEffectError
from features.inject.target import Target
from features.inject.weights import effective_weight, rewrite


def _head(target: Target) -> nn.Linear:
    if target.anatomy.head is None:
        raise InjectionError(f"{target.code}: {type(target.model).__name__} has no output head; use a task model")
    return target.anatomy.head


def scale_logits(target: Target) -> None:
    """OSL: the logits are multiplied."""
    target.changes.after(_head(target), lambda module, args, logits: logits * target.value)


def zeroed_classes(counts: list[int], which: str) -> list[int]:
    """The classes whose output rows are zeroed.

    "rare": the rarest tenth, at least one; "balanced": every second class down the order of frequency, so frequent
    and rare alike; "all". Among equally frequent classes the later is the rarer.

    >>> zeroed_classes([7, 1, 5, 9], "rare"), zeroed_classes([7, 1, 5, 9], "balanced")
    ([1], [3, 2])
    """
    frequent_first = sorted(range(len(counts)), key=lambda c: (-counts[c], c))
    if which == "rare":
        return frequent_first[-max(1, len(counts) // 10) :]
    return frequent_first[::2] if which == "balanced" else frequent_first


def zero_rows(target: Target) -> None:
    """OZR: rows (and biases) of the head start at zero. Without class counts, later classes count as rarer."""
    head = _head(target)
    classes = head.weight.shape[0]
    counts = list(target.class_counts) if target.class_counts is not None else [0] * classes
    if len(counts) != classes:
        raise InjectionError(f"OZR: {len(counts)} class counts for a head of {classes} classes; give one per class")
    rows = zeroed_classes(counts, target.value)
    weight = effective_weight(head).clone()
    weight[rows] = 0.0
    rewrite(target, head, weight)
    if head.bias is not None:
        head.bias[rows] = 0.0


def remap(target: Target) -> None:
    """OOD: class c reads output row c + change, so |change| rows lose their class and the classes at the end share one.

    The shape of the logits stays, so every loss still works; the head has |change| outputs fewer that can be told
    apart.
    """
    classes = _head(target).weight.shape[0]
    if classes < 2:
        raise NoEffectError("OOD: a head with one output has no mapping to change")
    rows = (torch.arange(classes) + int(target.value)).clamp(0, classes - 1)
    target.changes.after(_head(target), lambda module, args, logits: logits[..., rows.to(logits.device)])


def reinitialise(target: Target) -> None:
    """ORI: the head starts anew: weight "xavier" or "kaiming" uniform, or "zeros"; bias zero."""
    head = _head(target)
    weight = torch.empty(head.weight.shape, dtype=head.weight.dtype)
    if target.value == "zeros":
        weight.zero_()
    elif target.value == "xavier":
        nn.init.xavier_uniform_(weight, generator=target.dice())
    else:
        nn.init.kaiming_uniform_(weight, nonlinearity="relu", generator=target.dice())
    rewrite(target, head, weight.to(head.weight.device))
    if head.bias is not None:
        head.bias.zero_()


APPLY = {"OSL": scale_logits, "OZR": zero_rows, "OOD": remap, "ORI": reinitialise}

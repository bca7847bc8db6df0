"""What each operator may change: the names that the structural verifier expects to differ, as data.

A target is a module and the part of it: ".weight" is a parameter, "._forward_pre_hooks" its hooks, ".p" an attribute,
":attention path" the faulty path registered for it; "." and ":" alone stand for all of a module that is replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from torch import nn

from features.inject.locate import Anatomy, Layer
from features.inject.weights import OFFSET

OPTIMIZER = "optimizer"
CLIPPING = "torch.nn.utils.clip_grad_norm_"
CONFIGURED_ATTENTION = "config._attn_implementation_internal"

Parts = list[tuple[nn.Module, str]]


def _weights(layer: Layer, roles: str, suffixes: tuple[str, ...] = (".weight", ".bias")) -> Parts:
    return [(getattr(layer, role).module, suffix) for role in roles.split() for suffix in suffixes]


def _tied_heads(layer: Layer) -> Parts:
    hooks = (".weight:gradient hooks", ".bias:gradient hooks")
    return _weights(layer, "query key value") + _weights(layer, "query key value", hooks)


def _skips(layer: Layer) -> Parts:
    return [(layer.block, ".fault_skip"), (layer.block, ".forward")] + [
        (module, "._forward_pre_hooks") for module in layer.block.modules()
    ]


_MASKS = ("MZM", "MIM", "MRM", "MCB", "VEC")
_CACHES = ("CST", "CDU", "COB", "CTR", "CLK")
_PATHS = ("SPD", "SUC", "KSB", "KMD", "KFT", "KRP", "KMC", "VSH")

OF_LAYER: dict[str, Callable[[Layer], Parts]] = {
    # GPT-Neo's own window is a buffer named bias; the other attention modules have none of that name.
    **dict.fromkeys(_MASKS, lambda x: [(x.attention, "._forward_pre_hooks"), (x.attention, ".bias")]),
    **dict.fromkeys(_CACHES, lambda x: [(x.attention, "._forward_pre_hooks")]),
    **dict.fromkeys(_PATHS, lambda x: [(x.attention, ":attention path")]),
    "QZQ": lambda x: _weights(x, "query"),
    "QZK": lambda x: _weights(x, "key"),
    "QZV": lambda x: _weights(x, "value"),
    "QSW": lambda x: _weights(x, "query key"),
    "QTH": _tied_heads,
    "QHD": lambda x: [(x.attention, f".{n}") for n in (x.heads_attribute, x.head_size_attribute, "scaling")],
    "SDS": lambda x: [(x.attention, ".scaling")],
    "FSW": lambda x: [(x.up, ".weight"), (x.down, ".weight")],
    "FWI": lambda x: [(x.up, ".weight"), (x.down, ".weight")],
    "FDN": lambda x: [(x.down, "._forward_pre_hooks")],
    "FCA": lambda x: [(x.activation[0], f".{x.activation[1]}{end}") for end in ".:"],
    "NSG": lambda x: [(norm, ".weight") for norm in x.norms],
    "NZG": lambda x: [(norm, ".weight") for norm in x.norms],
    "NSB": lambda x: [(norm, ".bias") for norm in x.norms],
    "NCE": lambda x: [(norm, ".eps") for norm in x.norms],
    "RDR": lambda x: [(dropout, ".p") for dropout in x.residual_dropouts],
    **dict.fromkeys(("RRS", "RSR", "RIN"), _skips),
}
"""Operator → its targets in each layer it is put into."""


def _role(anatomy: Anatomy, module: nn.Module) -> Parts:
    return [(module, f".{OFFSET}"), (module, ".forward")] if anatomy.tied else [(module, ".weight")]


OF_MODEL: dict[str, Callable[[Anatomy], Parts]] = {
    "POE": lambda a: [(a.positions, "._forward_hooks")],
    **dict.fromkeys(("PSI", "PTL"), lambda a: [(a.positions, "._forward_pre_hooks")]),
    **dict.fromkeys(("ETZ", "ESW", "EZD"), lambda a: _role(a, a.tokens)),
    "ESS": lambda a: [(a.segments, ".weight")],
    **dict.fromkeys(("OSL", "OOD"), lambda a: [(a.head, "._forward_hooks")]),
    **dict.fromkeys(("OZR", "ORI"), lambda a: [*_role(a, a.head), (a.head, ".bias")]),
    # All attention of the model goes through one function, which takes the faulty path where there is one.
    **dict.fromkeys(_PATHS, lambda a: [(layer.attention, "._attn") for layer in a.layers]),
}
"""Operator → its targets in the model as a whole."""

ELSEWHERE: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(_PATHS, (CONFIGURED_ATTENTION,)),
    **dict.fromkeys(("QFG", "FRG", "NWD"), (OPTIMIZER,)),
    "RGC": (OPTIMIZER, CLIPPING),
}
"""Operator → its targets outside the modules, by name."""


def targets(code: str, model: nn.Module, anatomy: Anatomy, layers: list[Layer]) -> Iterator[str]:
    """The names that an operator may change when it is put into these layers."""
    names = {module: path for path, module in model.named_modules()}
    parts = [part for layer in layers for part in OF_LAYER.get(code, lambda _: [])(layer)]
    parts += OF_MODEL.get(code, lambda _: [])(anatomy)
    yield from (f"{names[module]}{suffix}" for module, suffix in parts)
    yield from ELSEWHERE.get(code, ())

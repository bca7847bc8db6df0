"""Find the parts of a Hugging Face encoder or decoder that faults act on, by their structure and type.

Blocks, attention, FFN and norms are those that measuring finds (`features.measure.discover`), so a fault and its
measurement agree on what is what; added here are heads, activations, residual dropouts, embeddings and output head.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from features.measure import discover
from features.taxonomy import Architecture

FAMILIES: dict[str, Architecture] = {
    "bert": "encoder",
    "roberta": "encoder",
    "distilbert": "encoder",
    "gpt2": "decoder",
    "gpt_neo": "decoder",
}
"""The model families that faults are proved on, by their configuration's `model_type`."""

_SAME_FAMILY = {"distilroberta": "roberta", "distilgpt2": "gpt2", "gptneo": "gpt_neo"}
_LINEAR = (nn.Linear, Conv1D)
_HEADS = ("num_attention_heads", "num_heads", "n_heads")
_HEAD_SIZE = ("attention_head_size", "head_dim")


class InjectionError(ValueError):
    """A fault that can't be injected: the message names operator, model part and remedy."""


class NoEffectError(InjectionError):
    """A fault whose setting is what the model or optimizer already has, so that nothing would change."""


def family_of(model_or_family: nn.Module | str) -> str:
    """The family of a model, or of a family name however it is spelled. Raises InjectionError if it isn't known.

    >>> family_of("GPT-Neo"), family_of("distilroberta")
    ('gpt_neo', 'roberta')
    """
    named = isinstance(model_or_family, str)
    name = model_or_family if named else getattr(getattr(model_or_family, "config", None), "model_type", "")
    key = name.lower().replace("-", "_")
    key = _SAME_FAMILY.get(key, key)
    if key not in FAMILIES:
        what = "the name" if named else type(model_or_family).__name__ + " with model_type"
        raise InjectionError(f"no faults for {what} {name!r}; families: {', '.join(FAMILIES)}")
    return key


@dataclass(frozen=True)
class Projection:
    """The output features `start:stop` of a linear map: all of a Linear, or a third of GPT-2's fused Conv1D."""

    module: nn.Module
    start: int
    stop: int

    def weight(self, source: torch.Tensor | None = None) -> torch.Tensor:
        """A view of the weight (or of `source`, shaped like it) as (output features, input features)."""
        full = self.module.weight if source is None else source
        return (full.t() if isinstance(self.module, Conv1D) else full)[self.start : self.stop]

    def bias(self, source: torch.Tensor | None = None) -> torch.Tensor | None:
        """A view of the bias (or of `source`), None where the map has none."""
        full = self.module.bias if source is None else source
        return None if full is None else full[self.start : self.stop]


@dataclass(frozen=True)
class Layer:
    """One transformer block and its parts."""

    index: int
    block: nn.Module
    attention: nn.Module
    query: Projection
    key: Projection
    value: Projection
    up: nn.Module
    down: nn.Module
    activation: tuple[nn.Module, str]
    norms: tuple[nn.LayerNorm, ...]
    residual_dropouts: tuple[nn.Dropout, ...]

    @property
    def qkv_parameters(self) -> list[nn.Parameter]:
        modules = dict.fromkeys(p.module for p in (self.query, self.key, self.value))
        return [parameter for module in modules for parameter in module.parameters()]

    @property
    def width(self) -> int:
        """Of the residual stream."""
        return self.query.weight().shape[1]

    @property
    def hidden_width(self) -> int:
        """Number of hidden neurons of the FFN."""
        return self.up.weight.numel() // self.width

    @property
    def heads_attribute(self) -> str:
        return next(name for name in _HEADS if hasattr(self.attention, name))

    @property
    def head_size_attribute(self) -> str:
        return next(name for name in _HEAD_SIZE if hasattr(self.attention, name))

    @property
    def heads(self) -> int:
        return getattr(self.attention, self.heads_attribute)

    @property
    def head_size(self) -> int:
        return getattr(self.attention, self.head_size_attribute)


@dataclass(frozen=True)
class Anatomy:
    """The parts of a model that faults act on. `head` is None on a bare backbone, `segments` where there are none."""

    family: str
    layers: tuple[Layer, ...]
    tokens: nn.Embedding
    positions: nn.Embedding
    segments: nn.Embedding | None
    head: nn.Module | None

    @property
    def architecture(self) -> Architecture:
        return FAMILIES[self.family]

    @property
    def tied(self) -> bool:
        """Whether the output head and the token embedding are one parameter."""
        return self.head is not None and self.head.weight is self.tokens.weight


def locate(model: nn.Module) -> Anatomy:
    """The anatomy of a model. Raises InjectionError naming the part that was not found."""
    family = family_of(model)
    try:
        found = discover.dissect(model, FAMILIES[family])
    except discover.UnsupportedModel as error:
        raise InjectionError(f"no faults for this model: {error}") from error
    tokens = model.get_input_embeddings()
    parent = next(m for m in model.modules() if tokens in m.children())
    siblings = [m for m in parent.children() if isinstance(m, nn.Embedding) and m is not tokens]
    positions = [e for e in siblings if e.num_embeddings == model.config.max_position_embeddings]
    segments = [e for e in siblings if e not in positions]
    if len(positions) != 1 or len(segments) > 1:
        raise InjectionError(
            f"{type(model).__name__}: expected one embedding of max_position_embeddings="
            f"{model.config.max_position_embeddings} rows beside the token embedding, found {len(positions)}"
        )
    return Anatomy(
        family=family,
        layers=tuple(_layer(i, layer) for i, layer in enumerate(found.layers)),
        tokens=tokens,
        positions=positions[0],
        segments=segments[0] if segments else None,
        head=output_head(model),
    )


def output_head(model: nn.Module) -> nn.Module | None:
    """The last linear map of a classifier, or the language-model head; None on a bare backbone."""
    head = model.get_output_embeddings()
    if head is not None:
        return head
    inside = set(model.base_model.modules())
    outputs = [m for m in model.modules() if isinstance(m, _LINEAR) and m not in inside]
    return outputs[-1] if outputs else None


def _layer(index: int, found: discover.Layer) -> Layer:
    attention = found.attention
    owner = next(m for m in found.module.modules() if found.ffn_in in m.children())
    own_dropout = getattr(attention, "attn_dropout", None) or getattr(attention, "dropout", None)
    return Layer(
        index=index,
        block=found.module,
        attention=attention,
        **_projections(found.qkv),
        up=found.ffn_in,
        down=found.ffn_out,
        activation=(owner, _activation(index, owner)),
        norms=found.norms,
        residual_dropouts=tuple(
            m for m in found.module.modules() if isinstance(m, nn.Dropout) and m is not own_dropout
        ),
    )


def _projections(qkv: tuple[nn.Module, ...]) -> dict[str, Projection]:
    if len(qkv) == 3:
        parts = [Projection(module, 0, module.out_features) for module in qkv]
    else:
        width = qkv[0].nf // 3
        parts = [Projection(qkv[0], i * width, (i + 1) * width) for i in range(3)]
    return dict(zip(("query", "key", "value"), parts, strict=True))


def _activation(index: int, owner: nn.Module) -> str:
    plain = [
        name
        for name, child in owner.named_children()
        if not isinstance(child, (*_LINEAR, nn.Dropout, nn.LayerNorm)) and not any(True for _ in child.parameters())
    ]
    if len(plain) != 1:
        raise InjectionError(f"block {index}: expected one activation in the FFN, found {plain}")
    return plain[0]

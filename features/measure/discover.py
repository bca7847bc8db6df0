"""Which module of a model is what: found by structure and type, so that measuring needs no list of model classes.

A layer is an element of an `nn.ModuleList` that holds exactly one self-attention, two normalisations and a
feed-forward pair. BERT, RoBERTa, DistilBERT, ALBERT (shared layers), GPT-2, GPT-Neo, Llama-style decoders and
`nn.TransformerEncoder` fit that description; what doesn't is refused with a sentence that names the missing part.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from features.taxonomy import Architecture


class UnsupportedModel(ValueError):
    """A model that can't be measured: the message names what was not found."""


@dataclass(frozen=True)
class Layer:
    """The measured parts of one transformer layer.

    `qkv` holds the query, key and value projections in this order, or one fused projection whose output is
    [Q | K | V], or nothing where `attention` is an `nn.MultiheadAttention` (which projects without calling modules).
    `gate` is the second up-projection of a gated FFN.
    """

    module: nn.Module
    attention: nn.Module
    qkv: tuple[nn.Module, ...]
    attention_out: nn.Module
    ffn_in: nn.Module
    ffn_out: nn.Module
    gate: nn.Module | None
    norms: tuple[nn.Module, ...]

    def kernels(self) -> tuple[nn.Parameter, ...]:
        """The weight matrices of the layer, in forward order."""
        fused = (self.attention.in_proj_weight,) if isinstance(self.attention, nn.MultiheadAttention) else ()
        modules = (*self.qkv, self.attention_out, *((self.gate,) if self.gate is not None else ()))
        return fused + tuple(m.weight for m in (*modules, self.ffn_in, self.ffn_out))


@dataclass(frozen=True)
class Anatomy:
    """A model taken apart. `layers` are the distinct layer modules (one, if all layers share their parameters)."""

    model: nn.Module
    arch: Architecture
    layers: tuple[Layer, ...]
    token_embedding: nn.Embedding | None
    positions: nn.Module | None
    """The module that position indices enter: an embedding table, or rotary embeddings."""

    def components(self) -> dict[str, list[nn.Parameter]]:
        """Parameters by gradient component, disjoint: `attention` is what attention owns besides Q, K and V."""
        of_qkv = [p for layer in self.layers for p in _qkv_parameters(layer)]
        parts = {
            "attention": [p for layer in self.layers for p in layer.attention_out.parameters()],
            "qkv": of_qkv,
            "ffn": [
                p
                for layer in self.layers
                for m in (layer.gate, layer.ffn_in, layer.ffn_out)
                if m is not None
                for p in m.parameters()
            ],
            "layernorm": [p for m in self.model.modules() if is_norm(m) for p in m.parameters(recurse=False)],
            "embedding": [m.weight for m in self.model.modules() if isinstance(m, nn.Embedding)],
        }
        return {name: list(dict.fromkeys(parameters)) for name, parameters in parts.items()}


def dissect(model: nn.Module, arch: Architecture | None = None) -> Anatomy:
    """Find the parts of `model`. Raises UnsupportedModel naming what was not found.

    `arch` overrides what the attention modules say of themselves; a decoder attends to the past only.
    """
    cores = {m: name for name, m in model.named_modules() if is_attention(m)}
    if not cores:
        raise UnsupportedModel(
            f"{type(model).__name__}: no self-attention was found (a module with query, key and value projections, "
            "a fused Conv1D projection, or an nn.MultiheadAttention)"
        )
    config = getattr(model, "config", None)
    if getattr(config, "is_encoder_decoder", False) or getattr(config, "add_cross_attention", False):
        raise UnsupportedModel(
            f"{type(model).__name__}: cross-attention has no place in the vector; encoders and decoders without it are "
            "measured"
        )
    holders = [
        element
        for stack in model.modules()
        if isinstance(stack, nn.ModuleList)
        for element in stack
        if sum(m in cores for m in element.modules()) == 1
    ]
    # ALBERT nests lists: only the innermost element is a layer.
    inner = [h for h in holders if not any(o is not h and o in set(h.modules()) for o in holders)]
    layers = tuple(_layer(element, model) for element in dict.fromkeys(inner))
    claimed = {layer.attention for layer in layers}
    for core, name in cores.items():
        if core not in claimed:
            raise UnsupportedModel(
                f"{type(model).__name__}: {name!r} is not the only attention of a layer in an nn.ModuleList; models "
                "with cross-attention (encoder-decoders) are not measured"
            )
    tokens = _token_embedding(model)
    return Anatomy(
        model=model,
        arch=arch or _architecture(layers),
        layers=layers,
        token_embedding=tokens,
        positions=_positions(model, tokens),
    )


def is_norm(module: nn.Module) -> bool:
    """Layer normalisation, or root-mean-square normalisation with a gain."""
    if isinstance(module, nn.LayerNorm | nn.RMSNorm):
        return True
    gain = getattr(module, "weight", None)
    return type(module).__name__.endswith("RMSNorm") and isinstance(gain, nn.Parameter) and gain.ndim == 1


def projection_shape(module: nn.Module) -> tuple[int, int] | None:
    """(inputs, outputs) of a linear map: nn.Linear or the transposed Conv1D of the GPT family; None otherwise."""
    if isinstance(module, nn.Linear):
        return module.in_features, module.out_features
    if type(module).__name__ == "Conv1D" and hasattr(module, "nf"):
        return module.weight.shape[0], module.nf
    return None


def is_attention(module: nn.Module) -> bool:
    """Whether this module itself owns the projections of one attention."""
    return isinstance(module, nn.MultiheadAttention) or bool(_qkv(module))


def _qkv(module: nn.Module) -> tuple[nn.Module, ...]:
    owned = {name: m for name, m in module.named_children() if projection_shape(m)}
    by_letter = {letter: [m for name, m in owned.items() if name.lower().startswith(letter)] for letter in "qkv"}
    if all(len(found) == 1 for found in by_letter.values()):
        q, k, v = (by_letter[letter][0] for letter in "qkv")
        widths = {projection_shape(m)[0] for m in (q, k, v)}
        return (q, k, v) if len(widths) == 1 and projection_shape(k) == projection_shape(v) else ()
    # A feed-forward layer three times as wide looks fused, too; only attention has a square projection beside it.
    fused = [m for m in owned.values() if projection_shape(m)[1] == 3 * projection_shape(m)[0] and hasattr(m, "nf")]
    square = [m for m in owned.values() if projection_shape(m)[0] == projection_shape(m)[1]]
    return tuple(fused) if len(fused) == 1 and square else ()


def _layer(element: nn.Module, model: nn.Module) -> Layer:
    names = {m: n for n, m in model.named_modules()}
    where = f"{type(model).__name__}: layer {names[element]!r}"
    core = next(m for m in element.modules() if is_attention(m))
    if isinstance(core, nn.MultiheadAttention):
        if not core.batch_first:
            raise UnsupportedModel(f"{where} has batch_first=False; build it with batch_first=True to measure it")
        if core.in_proj_weight is None:
            raise UnsupportedModel(f"{where}: no joint projection of query, key and value (kdim or vdim is set)")
    qkv = _qkv(core)
    block = next(child for child in element.children() if core in set(child.modules()))
    inside = set(block.modules())
    outs = [m for m in inside if projection_shape(m) and m not in qkv]
    if len(outs) != 1:
        raise UnsupportedModel(f"{where}: one output projection of attention expected, {len(outs)} found")
    ups = [m for m in element.modules() if projection_shape(m) and m not in inside]
    down = ups.pop() if ups else None
    if len(ups) not in (1, 2) or any(projection_shape(m) != projection_shape(down)[::-1] for m in ups):
        raise UnsupportedModel(
            f"{where}: no feed-forward pair (a projection to the inner width and one back) outside attention"
        )
    width = projection_shape(down)[1]
    norms = tuple(m for m in element.modules() if is_norm(m) and m.weight is not None and m.weight.numel() == width)
    if len(norms) != 2:
        raise UnsupportedModel(f"{where}: two normalisations of width {width} expected, {len(norms)} found")
    return Layer(
        module=element,
        attention=core,
        qkv=qkv,
        attention_out=outs[0],
        ffn_in=ups[0],
        ffn_out=down,
        gate=ups[1] if len(ups) == 2 else None,
        norms=norms,
    )


def _qkv_parameters(layer: Layer) -> list[nn.Parameter]:
    if layer.qkv:
        return [p for m in layer.qkv for p in m.parameters()]
    core = layer.attention
    return [p for p in (core.in_proj_weight, core.in_proj_bias) if p is not None]


def _architecture(layers: tuple[Layer, ...]) -> Architecture:
    core = layers[0].attention
    # The BERT family says so itself; elsewhere only modules that index a cache decode step by step.
    if hasattr(core, "is_decoder"):
        return "decoder" if core.is_decoder else "encoder"
    cached = hasattr(core, "layer_idx") or hasattr(core, "layer_id")
    return "decoder" if cached and getattr(core, "is_causal", False) else "encoder"


def _token_embedding(model: nn.Module) -> nn.Embedding | None:
    if hasattr(model, "get_input_embeddings"):
        found = model.get_input_embeddings()
        return found if isinstance(found, nn.Embedding) else None
    tables = [(n, m) for n, m in model.named_modules() if isinstance(m, nn.Embedding) and not _names_position(n)]
    return max(tables, key=lambda item: item[1].num_embeddings, default=(None, None))[1]


def _positions(model: nn.Module, tokens: nn.Embedding | None) -> nn.Module | None:
    rotary = next((m for m in model.modules() if isinstance(getattr(m, "inv_freq", None), torch.Tensor)), None)
    if rotary is not None:
        return rotary
    tables = [(n, m) for n, m in model.named_modules() if isinstance(m, nn.Embedding) and m is not tokens]
    longest = getattr(getattr(model, "config", None), "max_position_embeddings", None)
    sized = [(n, m) for n, m in tables if m.num_embeddings == longest]
    if len(sized) == 1:
        return sized[0][1]
    return next((m for n, m in sized or tables if _names_position(n)), None)


def _names_position(name: str) -> bool:
    last = name.rsplit(".", 1)[-1].lower()
    return "pos" in last or last == "wpe"

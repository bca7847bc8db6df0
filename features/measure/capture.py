"""Forward hooks that keep what a model computes on its way: one `Trace` per forward pass.

Attention weights are taken where they arise, whatever attention function is in force: at the softmax, or, where
a fused kernel runs, from the arguments that this kernel receives. So a fault in masks, scaling or head layout is
measured as the model computes it. Nothing is copied and nothing is changed; a trace holds references.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional

from features.measure.discover import Anatomy, Layer


@dataclass
class LayerTrace:
    """What one layer saw and gave in one forward pass; None where nothing was seen.

    `part`: the index of its module in the anatomy. `stream_in`, `stream_out` (B, T, D): the layer's input and output.
    `query`, `key`, `value` (B, T, width). `context` (B, T, H * head size): what the output projection of attention
    receives. `activation`: what the second FFN projection receives. `norm_in`, `norm_out`: the normalisations in the
    order of their calls; `pre_norm`: the first of them ran before attention.
    """

    part: int
    stream_in: Tensor | None = None
    stream_out: Tensor | None = None
    query: Tensor | None = None
    key: Tensor | None = None
    value: Tensor | None = None
    context: Tensor | None = None
    pre_activation: Tensor | None = None
    activation: Tensor | None = None
    ffn_out: Tensor | None = None
    norm_in: list[Tensor] = field(default_factory=list)
    norm_out: list[Tensor] = field(default_factory=list)
    pre_norm: bool = False
    softmax: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    """(scores, weights) of every softmax inside attention."""
    fused: list[dict] = field(default_factory=list)
    """Arguments and output of every scaled_dot_product_attention inside attention."""


@dataclass
class Trace:
    """What one forward pass of the whole model computed, layers in the order of their calls."""

    layers: list[LayerTrace] = field(default_factory=list)
    embedded: Tensor | None = None
    in_layer: bool = False


class Capture:
    """Hooks on the parts of a model. They do nothing until `trace` is set, and fill it from then on."""

    def __init__(self, anatomy: Anatomy):
        self.anatomy = anatomy
        self.trace: Trace | None = None

    def attach(self) -> None:
        """Register the hooks."""
        self._handles = []
        for part, layer in enumerate(self.anatomy.layers):
            self._hook_layer(part, layer)
        if self.anatomy.token_embedding is not None:
            self._after(self.anatomy.token_embedding, self._embedded)

    def detach(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()

    @contextmanager
    def pre_activations(self):
        """Keep what the FFN activation receives, too; left out by default because every hook costs."""
        before = len(self._handles)
        for layer in self.anatomy.layers:
            self._after(layer.ffn_in, self._keep_output("pre_activation"))
        try:
            yield
        finally:
            while len(self._handles) > before:
                self._handles.pop().remove()

    @contextmanager
    def tracing(self, trace: Trace):
        """Fill `trace` from the forward passes inside."""
        outer, self.trace = self.trace, trace
        restore = intercept_attention(self)
        try:
            yield trace
        finally:
            restore()
            self.trace = outer

    def _before(self, module: nn.Module, hook) -> None:
        def run(module, args, kwargs):
            if self.trace is not None:
                hook(args[0] if args else next(iter(kwargs.values()), None))

        self._handles.append(module.register_forward_pre_hook(run, with_kwargs=True))

    def _after(self, module: nn.Module, hook) -> None:
        def run(module, args, output):
            if self.trace is not None:
                hook(args[0] if args else None, output)

        self._handles.append(module.register_forward_hook(run))

    def _hook_layer(self, part: int, layer: Layer) -> None:
        self._before(layer.module, self._enter_layer(part))
        self._after(layer.module, self._leave_layer)
        if len(layer.qkv) == 3:
            for name, module in zip(("query", "key", "value"), layer.qkv, strict=True):
                self._after(module, self._keep_output(name))
        elif layer.qkv:
            self._after(layer.qkv[0], self._split_fused)
        else:
            self._before(layer.attention, self._project(layer.attention))
        self._before(layer.attention_out, self._keep_input("context"))
        self._after(layer.ffn_out, self._leave_ffn)
        for norm in layer.norms:
            self._after(norm, self._normed)

    @property
    def _layer(self) -> LayerTrace:
        return self.trace.layers[-1]

    def _enter_layer(self, part: int):
        def enter(x):
            self.trace.layers.append(LayerTrace(part, stream_in=x))
            self.trace.in_layer = True

        return enter

    def _leave_layer(self, x, output):
        layer = self._layer
        layer.stream_out = output[0] if isinstance(output, tuple) else output
        if layer.context is None and layer.fused:
            # nn.MultiheadAttention applies its output projection without calling it.
            layer.context = layer.fused[-1]["output"].transpose(1, 2).flatten(2)
        self.trace.in_layer = False

    def _keep_output(self, name):
        return lambda x, output: setattr(self._layer, name, output)

    def _keep_input(self, name):
        return lambda x: setattr(self._layer, name, x)

    def _split_fused(self, x, output):
        self._layer.query, self._layer.key, self._layer.value = output.chunk(3, dim=-1)

    def _project(self, attention: nn.MultiheadAttention):
        def project(x):
            with torch.no_grad():
                joint = functional.linear(x, attention.in_proj_weight, attention.in_proj_bias)
            self._split_fused(x, joint)

        return project

    def _leave_ffn(self, x, output):
        self._layer.activation, self._layer.ffn_out = x, output

    def _normed(self, x, output):
        layer = self._layer
        if not layer.norm_in:
            layer.pre_norm = layer.query is None and not layer.softmax and not layer.fused
        layer.norm_in.append(x)
        layer.norm_out.append(output)

    def _embedded(self, x, output):
        if self.trace.embedded is None:
            self.trace.embedded = output


def intercept_attention(capture: Capture):
    """Wrap the softmax and the fused attention kernel now in force; returns a function that puts them back.

    The wrappers call what they wrap with the same arguments and note inputs and outputs of calls made inside a
    traced layer: in the layers that are measured, nothing but attention calls them.
    """
    kernel, method, function = functional.scaled_dot_product_attention, Tensor.softmax, torch.softmax
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")

    def inside() -> bool:
        return capture.trace is not None and capture.trace.in_layer

    def fused(*args, **kwargs):
        output = kernel(*args, **kwargs)
        if inside():
            call = dict(zip(names, args, strict=False)) | kwargs
            capture._layer.fused.append(call | {"output": output})
        return output

    def noting(original):
        def softmax(input, *args, **kwargs):
            output = original(input, *args, **kwargs)
            if inside():
                capture._layer.softmax.append((input, output))
            return output

        return softmax

    functional.scaled_dot_product_attention = fused
    Tensor.softmax, torch.softmax = noting(method), noting(function)

    def restore():
        functional.scaled_dot_product_attention = kernel
        Tensor.softmax, torch.softmax = method, function

    return restore


def attention_of(layer: LayerTrace, rows: int) -> tuple[Tensor, Tensor] | None:
    """(scores, weights), both (rows, H, T, S), of the first `rows` examples; None if neither was seen.

    Calls over slices of the queries, or over one head each, are joined; of repeated calls the last one counts. The
    weights are those before dropout.
    """
    batch, length = layer.stream_in.shape[:2]
    if layer.softmax:
        parts = [tuple(_by_head(x, batch)[:rows].detach() for x in call) for call in layer.softmax]
    else:
        parts = [_from_kernel(call, rows) for call in layer.fused]
    if not parts or any(x.ndim != 4 for x in parts[-1]):
        return None
    along = _join(parts, length)
    if along is None:
        return parts[-1] if parts[-1][1].shape[2] == length else None
    return tuple(torch.cat([part[i] for part in parts], dim=along) for i in (0, 1))


def _by_head(x: Tensor, batch: int) -> Tensor:
    return x.reshape(batch, -1, *x.shape[-2:]) if x.ndim == 3 else x


def _join(parts: list[tuple[Tensor, Tensor]], length: int) -> int | None:
    """The dimension along which partial results make one: heads (1), queries (2), or none."""
    shapes = [weights.shape for _, weights in parts]
    if len(parts) == 1 or any(len(shape) != 4 for shape in shapes):
        return None
    if all(shape[1] == 1 and shape[2] == length for shape in shapes):
        return 1
    return 2 if sum(shape[2] for shape in shapes) == length else None


def _from_kernel(call: dict, rows: int) -> tuple[Tensor, Tensor]:
    q, k = call["query"][:rows].detach().float(), call["key"][:rows].detach().float()
    if k.shape[1] != q.shape[1]:
        k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    scale = call.get("scale")
    scores = (q @ k.mT) * (q.shape[-1] ** -0.5 if scale is None else scale)
    mask = call.get("attn_mask")
    if call.get("is_causal"):
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if mask is not None:
        mask = mask[:rows] if mask.ndim == 4 and mask.shape[0] > 1 else mask
        scores = torch.where(mask, scores, -torch.inf) if mask.dtype == torch.bool else scores + mask
    return scores, scores.softmax(-1)

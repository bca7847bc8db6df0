"""Measurements that need forwards of their own, on a fixed probe batch; the run doesn't notice them.

Within an epoch: leakage between examples, sensitivity to positions, cached against fresh decoding. At its end:
gradients in evaluation mode (as AutoTrainer, DeepFD and DeepDiagnosis take them), activations and logits.
"""

from __future__ import annotations

from contextlib import contextmanager

import torch
from torch import Tensor, nn

from features.measure import metrics
from features.measure.capture import Capture, Trace
from features.measure.layers import select_tokens
from features.measure.parameters import deviation, flat, in_forward_order

ROWS = 4
"""Rows of the probe batch used within an epoch."""
CACHE_ROWS = 2
CACHE_STEPS = 2
"""So many last tokens are decoded one by one from the cache of the tokens before them."""
CACHE_TOKENS = 64
SATURATED = 5.0
"""|pre-activation| from which an activation counts as saturated (DeepDiagnosis, ICSE 2022)."""


@contextmanager
def undisturbed(model: nn.Module):
    """Evaluation mode inside; training flags and random number generators come back as they were.

    The fast path of nn.TransformerEncoder, which packs padded batches into nested tensors, is off inside.
    """
    training = [m for m in model.modules() if m.training]
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    cpu = torch.get_rng_state()
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None
    for module in training:
        module.training = False
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        for module in training:
            module.training = True
        torch.set_rng_state(cpu)
        if cuda is not None:
            torch.cuda.set_rng_state_all(cuda)


class Probe:
    """A fixed batch and what is asked of the model with it. `batch` is a dict of tensors; labels are optional."""

    def __init__(self, capture: Capture, batch: dict[str, Tensor]):
        self.capture, self.anatomy = capture, capture.anatomy
        self.model = self.anatomy.model
        self.labels = batch.get("labels")
        rows = len(batch["input_ids"])
        self.inputs = {
            k: v.detach().clone()
            for k, v in batch.items()
            if k != "labels" and torch.is_tensor(v) and v.ndim and len(v) == rows
        }
        self.batch = self.inputs | ({} if self.labels is None else {"labels": self.labels.detach().clone()})
        mask = self.inputs.get("attention_mask")
        ids = self.inputs["input_ids"]
        self.real = torch.ones(ids.shape[:2], dtype=torch.bool, device=ids.device) if mask is None else mask.bool()
        self.few = {k: v[:ROWS] for k, v in self.inputs.items()}
        self.kernels: list[nn.Parameter] | None = None
        self.reasons: dict[str, str] = {}

    def step(self) -> dict[str, Tensor]:
        """Leakage (L,), positional sensitivity and, for decoders, the cache metrics: scalars."""
        with undisturbed(self.model), torch.no_grad():
            base, _ = self._hidden(self.few)
            found = self._leakage(base) | self._positional(base)
            if self.anatomy.arch == "decoder":
                found |= self._cache()
        return found

    def _hidden(self, inputs: dict[str, Tensor], **kwargs) -> tuple[list[Tensor], object]:
        with self.capture.tracing(Trace()) as trace:
            output = self.model(**inputs, **kwargs)
        return [layer.stream_out for layer in trace.layers], output

    def _leakage(self, base: list[Tensor]) -> dict[str, Tensor]:
        """Relative change of the first row's layer outputs when all its neighbours change in tokens and length."""
        if len(self.few["input_ids"]) < 2:
            self.reasons["attention_cross_example_leakage"] = "the probe batch has one row only"
            return {}
        other = {k: torch.cat([v[:1], v[1:].roll(1, dims=-1)]) for k, v in self.few.items()}
        if "attention_mask" in other:
            mask = self.few["attention_mask"][1:]
            half = (mask.cumsum(-1) <= (mask.sum(-1, keepdim=True) + 1) // 2) & mask.bool()
            other["attention_mask"] = torch.cat([self.few["attention_mask"][:1], half.to(mask.dtype)])
        changed, _ = self._hidden(other)
        at = self.real[:1].flatten().nonzero()[:, 0]
        before, after = (torch.stack([select_tokens(x[:1], at) for x in side]) for side in (base, changed))
        return {"attention_cross_example_leakage": metrics.relative_change(before, after)}

    def _positional(self, base: list[Tensor]) -> dict[str, Tensor]:
        """Relative change of the last layer's output when the position indices rise by one (the last one stays)."""
        positions = self.anatomy.positions
        if positions is None:
            self.reasons["positional_sensitivity"] = "no position embedding module was found"
            return {}
        handle = positions.register_forward_pre_hook(_shift_positions, with_kwargs=True)
        try:
            shifted, _ = self._hidden(self.few)
        finally:
            handle.remove()
        at = self.real[:ROWS].flatten().nonzero()[:, 0]
        before, after = (select_tokens(side[-1], at)[None] for side in (base, shifted))
        return {"positional_sensitivity": metrics.relative_change(before, after)[0]}

    def _cache(self) -> dict[str, Tensor]:
        """Last hidden states and next-token distributions at the last tokens: decoded from a cache, and afresh."""
        columns = self.real[:CACHE_ROWS].all(0).nonzero()[:, 0][:CACHE_TOKENS]
        steps = min(CACHE_STEPS, len(columns) - 1)
        if steps < 1:
            reason = "the probe batch has no two token positions without padding"
            self.reasons |= {"cache_hidden_similarity": reason, "cache_kl_divergence": reason}
            return {}
        ids = self.inputs["input_ids"][:CACHE_ROWS][:, columns]
        fresh, output = self._hidden({"input_ids": ids}, use_cache=False)
        hidden, logits, past = [], [], {}
        cut = ids.shape[1] - steps
        for start, stop in [(0, cut), *((t, t + 1) for t in range(cut, ids.shape[1]))]:
            states, out = self._hidden({"input_ids": ids[:, start:stop]}, use_cache=True, **past)
            # Named `past_key_values` by transformers up to 5.
            name = "cache" if "cache" in out else "past_key_values"
            past = {name: out[name]}
            hidden.append(states[-1][:, -1:])
            logits.append(out["logits"])
        a = torch.cat(hidden[1:], dim=1).flatten(0, 1).float()
        b = fresh[-1][:, cut:].flatten(0, 1).float()
        found = {"cache_hidden_similarity": metrics.token_cosine(a[None], b[None])[0]}
        if output["logits"].ndim == 3:
            cached = torch.cat(logits[1:], dim=1).flatten(0, 1).float()
            found["cache_kl_divergence"] = metrics.kl_divergence(
                output["logits"][:, cut:].flatten(0, 1).float(), cached
            )
        else:
            self.reasons["cache_kl_divergence"] = "the model has no next-token distribution"
        return found

    def epoch(self) -> dict[str, Tensor]:
        """The probe series of the log; layered ones are (L,) or, for gradients, (number of distinct layers,)."""
        with undisturbed(self.model):
            if self.kernels is None:
                with torch.no_grad():
                    self.kernels = in_forward_order(self.model, lambda: self.model(**self.inputs))
            with self.capture.pre_activations(), self.capture.tracing(Trace()) as trace, torch.enable_grad():
                output = self.model(**self.batch)
            loss = output["loss"] if isinstance(output, dict) and "loss" in output else None
            found = self._gradients(loss) if loss is not None and loss.requires_grad else {}
            with torch.no_grad():
                return found | self._activations(trace, output)

    def _gradients(self, loss: Tensor) -> dict[str, Tensor]:
        parameters = [p for p in self.model.parameters() if p.requires_grad]
        tables = {m.weight for m in self.model.modules() if isinstance(m, nn.Embedding)} - set(self.kernels)
        by_parameter = dict(zip(parameters, torch.autograd.grad(loss, parameters, allow_unused=True), strict=True))
        present = {p: g for p, g in by_parameter.items() if g is not None}
        everything = flat(list(present.values())).float()
        dense = flat([g for p, g in present.items() if p not in tables])
        found = {
            "probe_grad_exact_zero_share": (dense == 0).float().mean(),
            "grad_mean_abs": everything.abs().mean(),
            "grad_std": deviation(everything),
            "grad_max": everything.amax(),
            "grad_min": everything.amin(),
            "grad_median": everything.median(),
            "gradient_nonfinite_count": (~torch.isfinite(everything)).sum(),
        }
        ordered = [present[p] for p in self.kernels if p in present]
        if ordered:
            found["probe_grad_norm_first"] = torch.linalg.vector_norm(ordered[0])
            found["probe_grad_norm_last"] = torch.linalg.vector_norm(ordered[-1])
        own = [[present[p] for p in layer.kernels() if p in present] for layer in self.anatomy.layers]
        if all(own):
            entries = [flat(gradients) for gradients in own]
            found["probe_grad_mean_abs"] = torch.stack([e.abs().mean() for e in entries])
            found["probe_grad_mean"] = torch.stack([e.mean() for e in entries])
        return found

    def _activations(self, trace: Trace, output) -> dict[str, Tensor]:
        at = self.real.flatten().nonzero()[:, 0]
        outputs = [select_tokens(layer.stream_out, at) for layer in trace.layers]
        found = {
            "hidden_mean": torch.stack([x.mean() for x in outputs]),
            "activation_nonfinite": torch.stack([~torch.isfinite(x).all() for x in outputs]).any().float(),
        }
        if all(layer.activation is not None for layer in trace.layers):
            acts = torch.stack([select_tokens(layer.activation, at) for layer in trace.layers]).flatten(1)
            found["activation_mean"], found["activation_std"] = acts.mean(1), metrics.spread(acts[:, None])
            found["activation_nonpositive_share"] = (acts <= 0).float().mean(1)
        if all(layer.pre_activation is not None for layer in trace.layers):
            pre = torch.stack([select_tokens(layer.pre_activation, at) for layer in trace.layers]).flatten(1)
            found["activation_saturated_share"] = (pre.abs() >= SATURATED).float().mean(1)
        logits = logits_of(output)
        if logits is not None:
            low, high = logits.aminmax()
            found["logit_abs_max"], found["logit_range"] = torch.maximum(-low, high), high - low
        return found


def logits_of(output) -> Tensor | None:
    """The logits in a model's output: `.logits`, a tensor, or the first floating tensor with classes in a tuple."""
    if isinstance(output, dict):
        return output.get("logits")
    if torch.is_tensor(output):
        return output
    if isinstance(output, tuple):
        return next((x for x in output if torch.is_tensor(x) and x.ndim >= 2), None)
    return None


def _shift_positions(module: nn.Module, args: tuple, kwargs: dict):
    if isinstance(module, nn.Embedding):
        return ((args[0] + 1).clamp(max=module.num_embeddings - 1), *args[1:]), kwargs
    if "position_ids" in kwargs:
        return args, kwargs | {"position_ids": kwargs["position_ids"] + 1}
    return (*args[:1], args[1] + 1, *args[2:]), kwargs

"""Recorder: attach to a model, train as always, take the run's log and vector away."""

from __future__ import annotations

import resource
import time
from collections import deque

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from features.measure.capture import Capture, Trace
from features.measure.discover import dissect
from features.measure.history import Epoch, log_of, nonfinite_counts, settle, vector_of
from features.measure.layers import gain_norms, layer_metrics, select_tokens, token_positions
from features.measure.outputs import Validation, output_metrics, perplexity, predictions
from features.measure.parameters import StepMeter, WeightMeter
from features.measure.probe import Probe, logits_of
from features.measure.report import UNSEEN, Report, attention_source
from features.schema import metrics
from features.taxonomy import Architecture

PROBE_EVERY = 32
"""Probe forwards run at the first measured step of an epoch and at every so manieth after it."""
PROBE_ROWS = 8
"""So many rows of the first training batch make the probe batch where none is given."""
VOLATILITY_STEPS = 20


class Recorder:
    """Measures a training run as a context manager around the training loop.

    Parameters
    ----------
    model : the module that is trained; `model(**batch)` must run it.
    every : measure every so manieth step in full; loss and accuracy are kept of all steps.
    probe : batch (dict of tensors with `input_ids`, and `labels` for the probe gradients) for measurements that need
        forwards of their own; the first rows of the first training batch where None.
    arch : "encoder" or "decoder" where the model's own modules should not decide.

    Attributes (inside and after the context): `arch`; `anatomy`, the parts found.
    Raises UnsupportedModel on entering the context if a part isn't found.
    """

    def __init__(
        self,
        model: nn.Module,
        every: int = 1,
        probe: dict[str, Tensor] | None = None,
        arch: Architecture | None = None,
    ):
        self.model = model
        self.every = every
        self.probe = probe
        self._asked_arch = arch

    def __enter__(self) -> Recorder:
        self.anatomy = dissect(self.model, self._asked_arch)
        self.arch: Architecture = self.anatomy.arch
        self._capture = Capture(self.anatomy)
        self._meter, self._weights = StepMeter(self.anatomy), WeightMeter(self.anatomy)
        self._probe = None if self.probe is None else Probe(self._capture, self.probe)
        self._epochs: list[Epoch] = []
        self._pending: dict[str, list[tuple[int, Tensor]]] = {}
        self._norms: deque[Tensor] = deque(maxlen=VOLATILITY_STEPS)
        self._validation = Validation()
        self._step = self._measured = self._measured_in_epoch = self._depth = 0
        self._lr: float | None = None
        self._sources: set[str] = set()
        self._clear()
        self._capture.attach()
        self._probing = False
        self._handles = [
            self.model.register_forward_pre_hook(self._before_forward, with_kwargs=True),
            self.model.register_forward_hook(self._after_forward, with_kwargs=True, always_call=True),
        ]
        return self

    def __exit__(self, *exception) -> None:
        try:
            if self._pending and exception[0] is None:
                self.epoch()
        finally:
            for handle in self._handles:
                handle.remove()
            self._capture.detach()

    def step(self, loss: Tensor | float | None = None, batch: dict | None = None, optimizer=None) -> None:
        """Take in one optimiser step: call it after `optimizer.step()` and before the gradients are cleared.

        `loss` and `batch` default to what the forward pass showed; of `optimizer` the learning rate is read.
        """
        ended = time.perf_counter()
        with torch.no_grad():
            loss = self._seen_loss() if loss is None else loss
            if loss is not None:
                self._note("step_loss", torch.as_tensor(loss).detach().float())
            if optimizer is not None:
                self._lr = float(optimizer.param_groups[0]["lr"])
            # With accumulated gradients `batch` may be more than the last forward saw.
            inputs = [x for x in (batch, self._inputs) if x is not None]
            self._outputs(inputs)
            if self._trace is not None:
                self._note("step_time", torch.tensor(ended - self._started))
                self._note("peak_memory", torch.tensor(_peak_memory(self.model)))
                self._measure(inputs)
        self._step += 1
        self._clear()

    def epoch(
        self,
        val_loss: float | None = None,
        val_accuracy: float | None = None,
        val_perplexity: float | None = None,
        val_ece: float | None = None,
    ) -> None:
        """Close an epoch. Figures not given are taken from evaluation forwards seen since the last call, if any."""
        given = {
            "val_loss": val_loss,
            "val_accuracy": val_accuracy,
            "val_perplexity": val_perplexity,
            "val_ece": val_ece,
        }
        figures = self._validation.figures(self.arch) | {k: float(v) for k, v in given.items() if v is not None}
        if self.arch == "decoder" and "val_loss" in figures and val_perplexity is None:
            figures["val_perplexity"] = perplexity(figures["val_loss"])
        series = {name: settle(values) for name, values in self._pending.items()}
        for name, of_steps in (("train_loss", "step_loss"), ("train_accuracy", "step_accuracy")):
            if of_steps in series:
                figures[name] = series[of_steps][1].mean()
        losses = [series["step_loss"][1]] if "step_loss" in series else []
        losses += [np.atleast_1d(figures["val_loss"])] if "val_loss" in figures else []
        figures["loss_nonfinite"] = float(not all(np.isfinite(x).all() for x in losses))
        if self._lr is not None:
            figures["learning_rate"] = self._lr
        found = self._weights.epoch()
        if self._probe is not None:
            found |= self._quietly(self._probe.epoch)
        figures |= {name: value.float().cpu().numpy() for name, value in found.items()}
        self._epochs.append(Epoch(series, {k: np.asarray(v, dtype=np.float64) for k, v in figures.items()}))
        self._pending, self._measured_in_epoch, self._validation = {}, 0, Validation()
        self._clear()

    def vector(self) -> pd.Series:
        """The run as one row: float32, index `features.schema.columns(arch)`, NaN where nothing was measured."""
        return vector_of(self._epochs, self.arch)

    def log(self, run: str | None = None) -> pd.DataFrame:
        """The long log with the columns of `LOG_COLUMNS` (without `run`, unless an id is given).

        Step rows hold every vector metric that is measured per step, and `step_loss` (of which the vector's
        `train_loss` is made) and `step_accuracy`; epoch rows (step -1) hold the rest.
        """
        table = log_of(self._epochs)
        if run is not None:
            table.insert(0, "run", run)
        return table

    def report(self) -> Report:
        """What was measured how, and what was not and why."""
        seen = {name for e in self._epochs for name in (*e.series, *e.figures)}
        missing = {m.name: self._why_missing(m.name) for m in metrics(self.arch) if m.name not in seen}
        return Report(
            arch=self.arch,
            layers=self._depth,
            epochs=len(self._epochs),
            steps=self._step,
            measured_steps=self._measured,
            attention="; ".join(sorted(self._sources)) or UNSEEN,
            not_measured=missing,
            nonfinite=nonfinite_counts(self._epochs),
            notes=self._notes(),
        )

    def _clear(self) -> None:
        self._trace: Trace | None = None
        self._tracing = None
        self._inputs: dict = {}
        self._losses: list[Tensor] = []
        self._logits: Tensor | None = None
        self._started: float | None = None

    def _note(self, name: str, value: Tensor) -> None:
        self._pending.setdefault(name, []).append((self._step, value))

    def _before_forward(self, module, args, kwargs) -> None:
        if self._probing or not (self.model.training and torch.is_grad_enabled()):
            return
        if self._started is None:
            self._started = time.perf_counter()
        if self._step % self.every == 0:
            if not self._meter.taken:
                self._meter.before()
            self._tracing = self._capture.tracing(Trace())
            self._trace = self._tracing.__enter__()

    def _after_forward(self, module, args, kwargs, output) -> None:
        if self._tracing is not None:
            self._tracing.__exit__(None, None, None)
            self._tracing = None
        if self._probing or output is None:
            return
        logits, loss = logits_of(output), output.get("loss") if isinstance(output, dict) else None
        if self.model.training and torch.is_grad_enabled():
            self._inputs, self._logits = kwargs, logits
            if loss is not None:
                self._losses.append(loss.detach())
            if self._probe is None and "input_ids" in kwargs:
                self._probe = Probe(self._capture, {k: _first(v, PROBE_ROWS) for k, v in kwargs.items()})
        elif kwargs.get("labels") is not None:
            self._validation.add(loss, logits, kwargs["labels"], self.arch)

    def _seen_loss(self) -> Tensor | None:
        """The loss of the forwards since the last step: their mean, or their sum where each is already a share."""
        if not self._losses:
            return None
        together = torch.stack(self._losses)
        return together.sum() if self._inputs.get("num_items_in_batch") is not None else together.mean()

    def _outputs(self, inputs: list[dict]) -> None:
        if self._logits is None:
            return
        labels = _fitting(inputs, "labels", self._logits.shape[:-1])
        predicted = predictions(self._logits, labels, self.arch)
        if predicted.targets is not None:
            self._note("step_accuracy", predicted.correct().float().mean())
        if self._trace is not None:
            self._note_all(output_metrics(predicted))

    def _note_all(self, found: dict[str, Tensor]) -> None:
        for name, value in found.items():
            self._note(name, value)

    def _measure(self, inputs: list[dict]) -> None:
        trace = self._trace
        self._depth = len(trace.layers)
        real, padded = _real_tokens(trace, inputs)
        self._sources |= {attention_source(layer) for layer in trace.layers}
        found = layer_metrics(trace, real, self.arch, padded)
        found["layernorm_gamma_norm"] = gain_norms(self.anatomy, trace)
        if trace.embedded is not None:
            tokens = select_tokens(trace.embedded, token_positions(real))
            found["embedding_norm"] = torch.linalg.vector_norm(tokens, dim=-1).mean()
            found["embedding_token_variance"] = tokens.var(0, correction=0).mean()
        found |= self._meter.after()
        if "grad_norm_total" in found:
            self._norms.append(found["grad_norm_total"])
            if len(self._norms) > 1:
                recent = torch.stack(list(self._norms))
                found["grad_norm_volatility"] = recent.var(correction=0) / recent.mean().square()
        if self._probe is not None and self._measured_in_epoch % PROBE_EVERY == 0:
            found |= self._quietly(self._probe.step)
        self._note_all(found)
        self._measured += 1
        self._measured_in_epoch += 1

    def _quietly(self, measure):
        self._probing = True
        try:
            return measure()
        finally:
            self._probing = False

    def _why_missing(self, name: str) -> str:
        reasons = {} if self._probe is None else self._probe.reasons
        if name in reasons:
            return reasons[name]
        if name.startswith("val_"):
            return "no evaluation forward was seen and no figure was given to epoch()"
        if not self._measured:
            return "no training forward was seen before step()"
        if name == "grad_norm_volatility" and self._norms:
            return "one step was measured, and it takes two"
        if name.startswith("grad"):
            return "no gradient was there when step() was called"
        if name == "attention_padding_mass":
            return "the batches carry no attention_mask"
        if name == "attention_head_similarity" and self._sources != {UNSEEN}:
            return "attention has one head, so there are no two to compare"
        if name in ("positional_sensitivity", "attention_cross_example_leakage") or name.startswith("cache_"):
            return "no probe batch was given, and the forward passes carry no input_ids"
        return "the model computed nothing that it could be read from"

    def _notes(self) -> tuple[str, ...]:
        notes = []
        if 0 < len(self._epochs) < 3:
            notes.append("fewer than three epochs: the early and mid phases and the slope are missing")
        if self._depth == 1:
            notes.append("one layer: the middle band of the layers is missing")
        return tuple(notes)


def _real_tokens(trace: Trace, inputs: list[dict]) -> tuple[Tensor, bool]:
    """(B, T) bool of the tokens that are not padding, and whether the batch said so."""
    stream = trace.layers[0].stream_in
    mask = _fitting(inputs, "attention_mask", stream.shape[:2])
    if mask is not None:
        return mask.bool(), True
    return torch.ones(stream.shape[:2], dtype=torch.bool, device=stream.device), False


def _fitting(inputs: list[dict], name: str, shape: tuple[int, ...]) -> Tensor | None:
    found = [batch.get(name) for batch in inputs]
    return next((x for x in found if torch.is_tensor(x) and x.shape == shape), None)


def _first(value, rows: int):
    return value[:rows] if torch.is_tensor(value) and value.ndim else value


def _peak_memory(model: nn.Module) -> float:
    device = next(model.parameters()).device
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

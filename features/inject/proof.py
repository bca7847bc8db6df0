"""Prove that a fault does something to a model, by the evidence that suits its kind.

forward: the logits of a padded batch change. training: they change in training mode, with the same global seed.
step: an optimizer step changes the parameters differently. cached: prefill agrees, later cached decoding does not.
path: another attention path runs and the stock one does not, while the numbers agree.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from features.inject.attention import executed
from features.inject.fault import Fault, inject
from features.inject.snapshot import restored
from features.inject.tiny import tiny_batch

EVIDENCE = {
    **dict.fromkeys(("SPD", "RDR"), "training"),
    **dict.fromkeys(("QFG", "FRG", "NWD", "RGC"), "step"),
    **dict.fromkeys(("CST", "CDU", "COB", "CTR", "CLK"), "cached"),
    **dict.fromkeys(("KSB", "KFT", "KMC"), "path"),
}
"""The kind of evidence of each operator; all others are proved by a forward."""

VISIBLE = 1e-6
"""Smallest change of a logit or parameter that counts; between attention paths, rounding makes some 1e-13."""

PREFILL, CHUNK, STEPS = 40, 4, 4
"""Cached decoding: tokens of the prefix, then one chunk, then single tokens."""


@dataclass(frozen=True)
class Proof:
    """Whether a fault is effective, the kind of evidence, and the size of the effect (paths: how often they ran)."""

    effective: bool
    evidence: str
    effect: float


def prove(fault: Fault, model: PreTrainedModel) -> Proof:
    """Prove a fault on a model, which is as before afterwards. Raises what injecting it raises."""
    evidence = EVIDENCE.get(fault.code, "forward")
    if evidence == "path":
        return _by_path(fault, model)
    measure = {"forward": _forward, "training": _training, "step": _step, "cached": _cached}[evidence]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, weight_decay=0.05)
    with restored(model, optimizer):
        clean, untouched = measure(model, optimizer)
    with inject(model, fault, optimizer=optimizer):
        faulty, still_untouched = measure(model, optimizer)
    effect = float((clean - faulty).abs().max())
    effective = math.isfinite(effect) and effect > VISIBLE and torch.allclose(untouched, still_untouched)
    return Proof(effective, evidence, effect)


@torch.no_grad()
def _forward(model, optimizer):
    """The logits of a padded batch, where they are those of real tokens."""
    return _real_logits(model), torch.zeros(0)


def _real_logits(model):
    batch = tiny_batch(model)
    logits = model(**batch).logits
    return logits[batch["attention_mask"].bool()] if logits.ndim == 3 else logits


@torch.no_grad()
def _training(model, optimizer):
    """The logits in training mode; those in evaluation must not change."""
    evaluated = _real_logits(model)
    model.train()
    try:
        torch.manual_seed(0)
        return _real_logits(model), evaluated
    finally:
        model.eval()


def _step(model, optimizer):
    """The parameters after a step of gradient descent with weight decay; the loss before it must not change.

    The loss is multiplied so that its gradient is longer than every clipping norm of RGC.
    """
    loss = 100 * model(**tiny_batch(model)).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 50.0)
    optimizer.step()
    return torch.cat([p.detach().flatten() for p in model.parameters()]), loss.detach()


@torch.no_grad()
def _cached(model, optimizer):
    """The logits of cached decoding after the prefill; the prefill's must not change."""
    ids = tiny_batch(model, length=PREFILL + CHUNK + STEPS)["input_ids"].clamp_min(4)
    ends = [PREFILL, PREFILL + CHUNK, *range(PREFILL + CHUNK + 1, PREFILL + CHUNK + STEPS + 1)]
    cache, start, logits = None, 0, []
    for end in ends:
        output = model(input_ids=ids[:, start:end], cache=cache, use_cache=True)
        cache, start = output.cache, end
        logits.append(output.logits)
    return torch.cat(logits[1:], dim=1), logits[0]


@torch.no_grad()
def _by_path(fault, model):
    batch = tiny_batch(model)
    clean = model(**batch).logits
    with inject(model, fault):
        faulty = model(**batch).logits
        ran = executed(model)
    agree = torch.allclose(clean, faulty, atol=VISIBLE)
    return Proof(agree and len(ran) == 1 and min(ran.values()) > 0, "path", float(sum(ran.values())))

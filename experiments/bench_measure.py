"""What measuring costs: milliseconds per training step without and with the Recorder, and the share per metric.

    python -m experiments.bench_measure [--steps 150] [--every 1] [--repeats 5]

Tiny DistilBERT and GPT-2 (4 layers, width 64, batches of 16 x 32 tokens), one thread. Three epochs, closed with the
probe gradients, count in. If the public extractor (`pip install defaultplusplus`) can be imported, its cost on the
same steps is printed beside ours. Times are processor time, which on an idle machine is elapsed time, and the least
of the repeats, which other programs disturb least.
"""

from __future__ import annotations

import argparse
import importlib.util
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import contextmanager

import torch
from transformers import (
    DistilBertConfig,
    DistilBertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
)

from features.measure import Recorder, capture, layers, metrics, parameters, probe, recorder

VOCABULARY, ROWS, LENGTH, EPOCHS = 1000, 16, 32, 3
TIMED = {
    "attention weights from Q and K": (layers, "attention_of"),
    "attention_entropy": (metrics, "attention_entropy"),
    "attention_padding_mass": (metrics, "padding_mass"),
    "attention_head_similarity": (metrics, "head_similarity"),
    "attention_head_utilisation": (metrics, "head_utilisation"),
    "attention_effective_rank": (metrics, "effective_rank"),
    "attention_future_mass": (metrics, "future_mass"),
    "score_mean": (metrics, "score_mean"),
    "ffn_output_norm": (metrics, "token_norm"),
    "layernorm_output_std": (metrics, "spread"),
    "layernorm_gamma_norm": (recorder, "gain_norms"),
    "residual_cosine, qkv_cos_*": (metrics, "token_cosine"),
    "representation_cka": (metrics, "linear_cka"),
    "copies of the parameters": (parameters.StepMeter, "before"),
    "grad_*, update_*": (parameters.StepMeter, "after"),
    "output_*": (recorder, "output_metrics"),
    "leakage, positions, cache (probe forwards)": (probe.Probe, "step"),
    "epoch: probe gradients and activations": (probe.Probe, "epoch"),
    "epoch: weights": (parameters.WeightMeter, "epoch"),
    "selecting tokens": (layers, "select_tokens"),
    "attaching": (capture.Capture, "attach"),
}


def distilbert() -> torch.nn.Module:
    """A DistilBERT classifier of 4 layers."""
    return DistilBertForSequenceClassification(
        DistilBertConfig(
            vocab_size=VOCABULARY, dim=64, hidden_dim=256, n_layers=4, n_heads=4, max_position_embeddings=64
        )
    )


def gpt2() -> torch.nn.Module:
    """A GPT-2 language model of 4 layers."""
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=VOCABULARY,
            n_embd=64,
            n_layer=4,
            n_head=4,
            n_positions=64,
            bos_token_id=0,
            eos_token_id=0,
        )
    )


def batches(count: int, language: bool) -> list[dict[str, torch.Tensor]]:
    """Random batches with a quarter of the rows padded to half the length."""
    drawn = []
    for seed in range(count):
        rng = torch.Generator().manual_seed(seed)
        ids = torch.randint(1, VOCABULARY, (ROWS, LENGTH), generator=rng)
        mask = torch.ones_like(ids)
        mask[: ROWS // 4, LENGTH // 2 :] = 0
        labels = torch.where(mask.bool(), ids, -100) if language else torch.randint(0, 2, (ROWS,), generator=rng)
        drawn.append({"input_ids": ids, "attention_mask": mask, "labels": labels})
    return drawn


def train(model: torch.nn.Module, steps: int, language: bool, run=None, **outputs) -> float:
    """Milliseconds per step of EPOCHS epochs; `run` is an entered Recorder, or has `step` and `epoch` like one.

    `outputs` goes to every forward pass.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = batches(8, language)
    model.train()
    started = time.process_time()
    for step in range(steps):
        batch = data[step % len(data)]
        output = model(**batch, **outputs)
        output.loss.backward()
        optimizer.step()
        if run is not None:
            run.step(output if outputs else output.loss, batch, optimizer)
        optimizer.zero_grad()
        if run is not None and (step + 1) % (steps // EPOCHS) == 0:
            run.epoch(val_loss=1.0, val_accuracy=0.5, val_ece=0.1)
    return 1e3 * (time.process_time() - started) / steps


class Public:
    """The public extractor behind the methods of a Recorder."""

    def __init__(self, model: torch.nn.Module):
        from defaultplusplus import FeatureExtractor

        self.extractor = FeatureExtractor(model)

    def step(self, output, batch, optimizer) -> None:
        """It reads attention weights and hidden states from the model's output."""
        self.extractor.step(loss=output.loss, outputs=output, optimizer=optimizer, **batch)

    def epoch(self, **figures) -> None:
        """Close an epoch."""
        self.extractor.epoch_end()


def public(build: Callable[[], torch.nn.Module], steps: int, language: bool) -> float:
    """Milliseconds per step with the public extractor, which needs eager attention."""
    model = build()
    model.set_attn_implementation("eager")
    return train(model, steps, language, Public(model), output_attentions=True, output_hidden_states=True)


@contextmanager
def timing(spent: dict[str, float]):
    """Add up the seconds spent in the functions of TIMED while inside."""
    originals = []
    for label, (owner, name) in TIMED.items():
        original = getattr(owner, name, None)
        if original is None:
            continue
        originals.append((owner, name, original))
        setattr(owner, name, _timed(original, label, spent))
    try:
        yield
    finally:
        for owner, name, original in originals:
            setattr(owner, name, original)


def _timed(function: Callable, label: str, spent: dict[str, float]) -> Callable:
    def call(*args, **kwargs):
        started = time.process_time()
        try:
            return function(*args, **kwargs)
        finally:
            spent[label] += time.process_time() - started

    return call


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    for name, build, language in (("DistilBERT", distilbert, False), ("GPT-2", gpt2, True)):
        bare, measured, theirs = [], [], []
        train(build(), EPOCHS, language)
        for repeat in range(asked.repeats):
            torch.manual_seed(repeat)
            bare.append(train(build(), asked.steps, language))
            with Recorder(build(), every=asked.every) as run:
                measured.append(train(run.model, asked.steps, language, run))
            if importlib.util.find_spec("defaultplusplus"):
                theirs.append(public(build, asked.steps, language))
        print(f"{name}: {min(bare):.2f} ms/step bare")
        print(f"  with Recorder         {min(measured):7.2f} ms/step: {min(measured) - min(bare):+.2f} ms")
        if theirs:
            print(f"  with public extractor {min(theirs):7.2f} ms/step: {min(theirs) - min(bare):+.2f} ms")
        _print_shares(build, asked.steps, asked.every, language)


def _print_shares(build: Callable[[], torch.nn.Module], steps: int, every: int, language: bool) -> None:
    spent = defaultdict(float)
    with timing(spent), Recorder(build(), every=every) as run:
        train(run.model, steps, language, run)
    whole = sum(spent.values())
    for label, seconds in sorted(spent.items(), key=lambda item: -item[1]):
        print(f"    {label:<45} {1e3 * seconds / steps:7.3f} ms/step {100 * seconds / whole:5.1f} %")


if __name__ == "__main__":
    main()

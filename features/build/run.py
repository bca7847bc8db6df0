"""One fine-tuning run: family, task, setting, fault and seed in; vector, log and quality out.

A run with a fault and its clean twin share everything but the fault: head, data order, dropout stream, probe batch.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace

import pandas as pd
import torch
from torch import nn

from features.build.families import family
from features.build.profile import device, profile
from features.build.tasks import task
from features.build.validation import validate
from features.build.variants import BASE_SETTING, Setting
from features.inject import Fault, InjectionError, inject
from features.measure import Recorder
from features.threads import torch_threads

WEIGHT_DECAY = 0.01
CLIP_NORM = 1.0
PROBE_SIZE = 8


class InvalidRun(RuntimeError):
    """A run that makes its configuration no mutant: it crashed, was not finite, or the fault could not be applied."""


@dataclass(frozen=True)
class Configuration:
    """What is run, but for the seed. `fault` is None for a clean run."""

    family: str
    task: str
    setting: Setting = BASE_SETTING
    fault: Fault | None = None
    profile: str = "embedded"

    @property
    def pair(self) -> str:
        """The splitting unit."""
        return f"{self.family}/{self.task}"

    @property
    def arch(self) -> str:
        return family(self.family).arch

    @property
    def higher_is_better(self) -> bool:
        """Of `Run.quality`: accuracy for encoders, log-perplexity for decoders."""
        return self.arch == "encoder"


@dataclass(frozen=True)
class Run:
    """One finished run: quality on the test split, the vector, the log without run id, and its processor seconds."""

    quality: float
    vector: pd.Series
    log: pd.DataFrame
    seconds: float


def fine_tune(configuration: Configuration, seed: int) -> Run:
    """Fine-tune once, on one thread, and measure.

    The same arguments give the same vector in every process, machine columns apart. Raises InvalidRun with the
    reason if the run crashed or its losses were not finite.
    """
    sizes, of_family, seed = (
        profile(configuration.profile),
        family(configuration.family),
        seed + configuration.setting.shift,
    )
    return train(lambda: sizes.start(of_family, seed), configuration, seed)


@torch_threads(1)
def train(
    start: Callable[[], nn.Module],
    configuration: Configuration,
    seed: int,
    served: Callable[[nn.Module], nn.Module] = lambda model: model,
) -> Run:
    """The one loop that all runs go through, on the model that `start()` gives.

    `seed` is that of data order, dropout and fault. `served` says how the trained model is used in validation: a
    module with the same forward. Raises InvalidRun as `fine_tune` does.
    """
    started = time.process_time()
    setting, sizes, chosen = configuration.setting, profile(configuration.profile), task(configuration.task)
    of_family, where = family(configuration.family), device()
    pool = sizes.load(of_family, chosen, "train", sizes.train_size or chosen.examples).to(where)
    held_out = sizes.load(of_family, chosen, "validation", sizes.validation_size + sizes.test_size[chosen.arch])
    held_out = held_out.to(where)
    validation, test = held_out.part(0, sizes.validation_size), held_out.part(sizes.validation_size, None)
    model = start().to(where).train()
    in_service = served(model)
    steps = sizes.epochs * sizes.steps_per_epoch
    optimizer = adamw(model, sizes.rate(chosen) * setting.rate_factor, sizes.body_rate(chosen))
    rows = order(len(pool), setting.batch_size, steps, seed)
    with ExitStack() as stack:
        if configuration.fault is not None:
            try:
                stack.enter_context(inject(model, replace(configuration.fault, seed=seed), optimizer=optimizer))
            except InjectionError as error:
                raise InvalidRun(f"not applicable: {error}") from error
        recorder = stack.enter_context(Recorder(model, sizes.measure_every, pool.take(slice(PROBE_SIZE)), chosen.arch))
        rates = schedule(optimizer, steps, setting.warmup)
        torch.manual_seed(seed)
        try:
            for step, of_step in enumerate(rows):
                batch = pool.take(of_step)
                loss = model(**batch).loss
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)
                optimizer.step()
                recorder.step(loss, batch, optimizer)
                optimizer.zero_grad()
                rates.step()
                if (step + 1) % sizes.steps_per_epoch == 0:
                    _close_epoch(recorder, validate(in_service, chosen, validation))
            quality = validate(in_service, chosen, test)
        except (RuntimeError, ValueError, IndexError, TypeError, AttributeError) as error:
            raise InvalidRun(f"crashed: {type(error).__name__}: {error}") from error
        vector, log = recorder.vector(), recorder.log()
    if not math.isfinite(quality.loss) or not log.loc[log["metric"] == "step_loss", "value"].map(math.isfinite).all():
        raise InvalidRun("not finite: a loss was NaN or infinite")
    value = quality.accuracy if chosen.arch == "encoder" else quality.loss
    return Run(value, vector, log, time.process_time() - started)


def _close_epoch(recorder: Recorder, found) -> None:
    recorder.epoch(val_loss=found.loss, val_accuracy=found.accuracy, val_perplexity=found.perplexity, val_ece=found.ece)


def order(pool: int, batch_size: int, steps: int, seed: int) -> list[torch.Tensor]:
    """Rows of each step's batch: the pool without replacement, shuffled again whenever it runs out."""
    generator = torch.Generator().manual_seed(seed)
    passes = math.ceil(steps * batch_size / pool)
    rows = torch.cat([torch.randperm(pool, generator=generator) for _ in range(passes)])
    return list(rows[: steps * batch_size].split(batch_size))


def adamw(model: nn.Module, rate: float, body_rate: float = 1.0) -> torch.optim.Optimizer:
    """AdamW with decay on matrices only, as transformers' Trainer sets it up; the head's groups first.

    The pretrained body moves at `body_rate` times the rate of the new head (discriminative fine-tuning, Howard and
    Ruder 2018, §3.2). At one rate for both, 36 steps that teach the head also repair most of what a fault broke.
    """
    head = _new_parameters(model) if body_rate != 1.0 else set()
    groups = []
    for parameters, factor in (
        ([p for p in model.parameters() if p in head], 1.0),
        ([p for p in model.parameters() if p not in head], body_rate),
    ):
        for of_kind, decay in (
            ([p for p in parameters if p.ndim >= 2], WEIGHT_DECAY),
            ([p for p in parameters if p.ndim < 2], 0.0),
        ):
            if of_kind:
                groups.append({"params": of_kind, "weight_decay": decay, "lr": rate * factor})
    return torch.optim.AdamW(groups, lr=rate, fused=True)


def _new_parameters(model: nn.Module) -> set[nn.Parameter]:
    """What fine-tuning starts from its own seed: everything outside the body, and the body's pooler."""
    body = set(model.base_model.parameters())
    pooler = getattr(model.base_model, "pooler", None)
    return {p for p in model.parameters() if p not in body} | (set() if pooler is None else set(pooler.parameters()))


def schedule(optimizer: torch.optim.Optimizer, steps: int, warmup: float):
    """Linear warm-up over that share of the steps, then linear decay to 0."""
    rising = max(1, round(steps * warmup))
    return torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / rising, (steps - step) / max(1, steps - rising))
    )

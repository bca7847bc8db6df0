"""One run of a case: the bench's own fine-tuning loop on a model that the case has prepared."""

from __future__ import annotations

import math
import time

import torch
from torch import nn

from experiments.cases.case import Case
from features.build.families import family
from features.build.profile import profile
from features.build.run import CLIP_NORM, PROBE_SIZE, Run, adamw, order, schedule
from features.build.tasks import task
from features.build.validation import validate
from features.build.variants import BASE_SETTING, SEEDS
from features.measure import Recorder
from features.threads import torch_threads

SHIFT = 1_000_000
"""Added to the bench's seeds, beyond any seed of its own runs, so that no run of a case is a run of the bench."""


def seeds(count: int) -> tuple[int, ...]:
    """The first so many matched seeds."""
    return tuple(seed + SHIFT for seed in SEEDS[:count])


@torch_threads(1)
def fine_tune(case: Case, faulty: bool, seed: int, sizes: str = "embedded") -> Run:
    """Fine-tune once under the bench's base setting and measure as the bench does; `sizes` names its profile.

    Both versions share head, data order, dropout stream and probe batch. Raises RuntimeError if a loss isn't finite.
    """
    started = time.process_time()
    size, of_task, of_family, setting = profile(sizes), task(case.task), family(case.family), BASE_SETTING
    train = size.load(of_family, of_task, "train", size.train_size or of_task.examples)
    held_out = size.load(of_family, of_task, "validation", size.validation_size + size.test_size[case.arch])
    validation, test = held_out.part(0, size.validation_size), held_out.part(size.validation_size, None)
    model = size.start(of_family, seed)
    torch.manual_seed(seed)
    model = case.prepare(model, faulty).train()
    served = case.served(model)
    steps = size.epochs * size.steps_per_epoch
    optimizer = adamw(model, size.rate(of_task) * setting.rate_factor, size.body_rate(of_task))
    rates = schedule(optimizer, steps, setting.warmup)
    with Recorder(model, size.measure_every, train.take(slice(PROBE_SIZE)), case.arch) as recorder:
        torch.manual_seed(seed)
        for step, rows in enumerate(order(len(train), setting.batch_size, steps, seed), start=1):
            batch = train.take(rows)
            loss = model(**batch).loss
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)
            optimizer.step()
            recorder.step(loss, batch, optimizer)
            optimizer.zero_grad()
            rates.step()
            if step % size.steps_per_epoch == 0:
                found = validate(served, of_task, validation)
                recorder.epoch(found.loss, found.accuracy, found.perplexity, found.ece)
        quality = validate(served, of_task, test)
    log = recorder.log()
    if not math.isfinite(quality.loss) or not log.loc[log["metric"] == "step_loss", "value"].map(math.isfinite).all():
        raise RuntimeError(f"case {case.name}, seed {seed}: a loss was NaN or infinite")
    value = quality.accuracy if case.arch == "encoder" else quality.loss
    return Run(value, recorder.vector(), log, time.process_time() - started)

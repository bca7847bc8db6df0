"""The bases: each family pretrained once on its tasks' token streams with a dense objective, cached and shipped.

Fine-tuning from random weights learns nothing at this size, and real checkpoints come pretrained as well. Encoders
learn a masked language model; the uncorrupted half of each batch is used for the sentence-level objective at [CLS]
(BERT's next-sentence prediction, here: which relation of which task). Decoders learn a causal language model.
The weights are rounded to half precision once, at saving, so that a base is the same wherever it is loaded.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional

from features.bench import EMBEDDED, BenchError
from features.build.families import MASK, SEP, Family, fine_tuning_model, pretraining_model
from features.build.tasks import tasks
from features.build.tasks.task import IGNORED, examples
from features.build.tasks.words import CONTENT, CONTINUED, FIRST_TAG, FIRST_WORD, MATCHED, NEGATORS, POSITIVE, UNMATCHED
from features.files import replacing

BASES = EMBEDDED / "bases"
SEED = 20_260
RATE = {"encoder": 1e-3, "decoder": 2e-3}
BATCH = {"encoder": 64, "decoder": 32}
POOL = 8_000
"""Pretraining sequences per task."""


def base_path(chosen: Family) -> Path:
    """Where the base of a family lies."""
    return BASES / f"{chosen.name}.safetensors"


def pretrain(chosen: Family, steps: int | None = None, pool: int = POOL, report=None) -> nn.Module:
    """Pretrain a family from its seed; `report(step, steps, loss)` is called after every step."""
    steps = steps or chosen.pretraining
    model = pretraining_model(chosen, SEED).train()
    if chosen.arch == "encoder":
        _start_with_words(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE[chosen.arch], weight_decay=0.01, fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE[chosen.arch], total_steps=steps, pct_start=0.1)
    generator = torch.Generator().manual_seed(SEED)
    streams = [examples(task, "pretraining", pool, chosen.name == "bert") for task in tasks(chosen.arch)]
    for step in range(steps):
        which = step % len(streams)
        batch = streams[which].take(torch.randint(pool, (BATCH[chosen.arch],), generator=generator))
        if chosen.arch == "encoder":
            batch = _corrupted(batch, which, generator)
        logits = model(**{k: v for k, v in batch.items() if k != "labels"}).logits
        labels = batch["labels"]
        if chosen.arch == "decoder":
            logits, labels = logits[:, :-1], labels[:, 1:]
        loss = functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        if report:
            report(step, steps, float(loss.detach()))
    return model.eval()


@torch.no_grad()
def _start_with_words(model: nn.Module) -> None:
    """Start with synonyms close to each other and with keys equal to queries, so that like attends to like.

    Real checkpoints have this from billions of tokens; a model of this width has no time to find it.
    """
    table = model.get_input_embeddings().weight
    style = torch.randn(table.shape[1]) * table.std()
    table[CONTENT[1] :: 2] = table[CONTENT[0] :: 2] + style
    modules = dict(model.named_modules())
    for name, key in modules.items():
        query = modules.get(name.replace("key", "query").replace("k_lin", "q_lin"))
        if query is not key and isinstance(key, nn.Linear):
            key.load_state_dict(query.state_dict())


def _corrupted(batch: dict, which: int, generator: torch.Generator) -> dict:
    """First half of the batch masked (80 % [MASK], 20 % kept), second half tagged word by word and at [CLS]."""
    ids, half = batch["input_ids"], len(batch["input_ids"]) // 2
    labels = torch.full_like(ids, IGNORED)
    labels[half:] = _relations(ids[half:])
    labels[half:, 0] = FIRST_TAG + 2 * which + batch["labels"][half:]
    words = ids[:half]
    chosen = (torch.rand(words.shape, generator=generator) < 0.2) & (words >= FIRST_WORD)
    labels[:half] = torch.where(chosen, words, IGNORED)
    ids = ids.clone()
    ids[:half] = torch.where(chosen & (torch.rand(words.shape, generator=generator) < 0.8), MASK, words)
    return {**batch, "input_ids": ids, "labels": labels}


def _relations(ids: torch.Tensor) -> torch.Tensor:
    """Each content word's relation to the other sentence, as a tag; for polar words, whether a negator precedes."""
    content = ids >= CONTENT[0]
    second = (ids == SEP).cumsum(1)
    across = (second[:, :, None] != second[:, None, :]) & content[:, :, None] & content[:, None, :]
    same = across & (ids[:, :, None] // 2 == ids[:, None, :] // 2)
    continued = functional.pad(same[:, 1:, 1:], (0, 1, 0, 1)) & same
    matched = torch.where(continued.any(2), CONTINUED, torch.where(same.any(2), MATCHED, UNMATCHED))
    polar = (ids >= POSITIVE[0]) & ~content
    negated = functional.pad((ids[:, :-1] == NEGATORS[0]) | (ids[:, :-1] == NEGATORS[1]), (1, 0))
    tags = torch.where(polar, torch.where(negated, MATCHED, UNMATCHED), matched)
    return torch.where(content | polar, tags, IGNORED)


def save_base(chosen: Family, model: nn.Module) -> Path:
    """Write the transformer body (for decoders with its tied head) in half precision, by temporary name and rename."""
    prefix = f"{model.base_model_prefix}."
    state = {k: v.half().contiguous() for k, v in model.state_dict().items() if k.startswith(prefix)}
    with replacing(base_path(chosen)) as temporary:
        save_file(state, temporary)
    return base_path(chosen)


@cache
def _state(chosen: Family) -> dict[str, torch.Tensor]:
    path = base_path(chosen)
    if not path.exists():
        raise BenchError(f"{path}: no base of family {chosen.name!r}; build it by `build_bench.py --bases-only`")
    return {name: tensor.float() for name, tensor in load_file(path).items()}


def from_base(chosen: Family, seed: int) -> nn.Module:
    """A fine-tuning model of the family: the base's body, and (encoders) a head drawn from `seed`."""
    model = fine_tuning_model(chosen, seed)
    unmatched = model.load_state_dict(_state(chosen), strict=False).unexpected_keys
    if unmatched:
        raise BenchError(
            f"{base_path(chosen)}: holds {unmatched[0]!r}, which {chosen.name!r} has not; rebuild the base"
        )
    return model

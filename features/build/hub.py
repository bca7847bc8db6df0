"""Real checkpoints and data sets by name, through transformers and datasets, for the full bench.

Nothing here is touched by the embedded bench. Where the hub can't be reached, or `datasets` is not installed, the
error says so.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

import torch
from torch import nn

from features.bench import BenchError
from features.build.families import Family
from features.build.tasks.task import IGNORED, Examples, Task

LENGTH = 128
"""Tokens of an example, at most."""


@dataclass(frozen=True)
class Source:
    """A data set of the manuscript: path and configuration on the hub, its splits, and the columns that are read."""

    path: str
    configuration: str | None
    columns: tuple[str, ...]
    validation: str = "validation"


SOURCES = {
    "sentiment": Source("nyu-mll/glue", "sst2", ("sentence",)),
    "inference": Source("nyu-mll/glue", "qnli", ("question", "sentence")),
    "entailment": Source("nyu-mll/glue", "rte", ("sentence1", "sentence2")),
    "paraphrase": Source("nyu-mll/glue", "mrpc", ("sentence1", "sentence2")),
    "duplicate": Source("nyu-mll/glue", "qqp", ("question1", "question2")),
    "recall": Source("EleutherAI/lambada_openai", "en", ("text",), "test"),
    "grammar": Source("ptb-text-only/ptb_text_only", "penn_treebank", ("sentence",)),
    "topics": Source("Salesforce/wikitext", "wikitext-2-raw-v1", ("text",)),
    "docstrings": Source("Skylion007/openwebtext", None, ("text",), "train"),
}
"""Task of the embedded bench → the data set whose shape it has."""


def checkpoint(family: Family, seed: int) -> nn.Module:
    """The family's pretrained checkpoint with a head drawn from `seed`. Raises BenchError if it can't be had."""
    import transformers

    torch.manual_seed(seed)
    encoder = family.arch == "encoder"
    auto = transformers.AutoModelForSequenceClassification if encoder else transformers.AutoModelForCausalLM
    try:
        return auto.from_pretrained(
            family.checkpoint, attn_implementation="eager", **({"num_labels": 2} if encoder else {})
        )
    except OSError as error:
        raise BenchError(
            f"checkpoint {family.checkpoint!r} is neither in the cache nor on a reachable hub ({_first_line(error)}); "
            "use --profile embedded, or fetch it where there is a network"
        ) from None


@cache
def examples(family: Family, task: Task, split: str, count: int) -> Examples:
    """The first `count` examples of a split that hold any text, tokenised for the family.

    Raises BenchError if `datasets` is not installed or the data can't be had.
    """
    source = SOURCES[task.name]
    try:
        import datasets
    except ImportError:
        raise BenchError("--profile full reads its data through the package `datasets`: pip install datasets") from None
    name = "train" if split == "train" and source.validation != "train" else source.validation
    try:
        rows = datasets.load_dataset(source.path, source.configuration, split=name, streaming=True)
    except (OSError, ValueError) as error:
        raise BenchError(
            f"data set {source.path!r} is neither in the local cache nor on a reachable hub ({_first_line(error)}); "
            "use --profile embedded, or fetch it where there is a network"
        ) from None
    return encode(rows, tokenizer(family), family, source, count)


@cache
def tokenizer(family: Family):
    """The checkpoint's tokenizer; decoders pad on the left, with the end token where they have no padding token."""
    import transformers

    try:
        found = transformers.AutoTokenizer.from_pretrained(family.checkpoint)
    except OSError as error:
        raise BenchError(f"no tokenizer of {family.checkpoint!r} at hand ({_first_line(error)})") from None
    if found.pad_token is None:
        found.pad_token = found.eos_token
    return found


def encode(rows: Iterable[dict], tokenize, family: Family, source: Source, count: int) -> Examples:
    """Tokenise `count` rows (dicts with the source's columns and, for encoders, `label`) into padded tensors."""
    texts, labels = [], []
    for row in rows:
        if any(not row[column].strip() for column in source.columns):
            continue
        texts.append([row[column] for column in source.columns])
        labels.append(row.get("label", 0))
        if len(texts) == count:
            break
    if len(texts) < count:
        raise BenchError(f"{source.path}: {len(texts)} examples with text, {count} are needed")
    tokenize.padding_side = "right" if family.arch == "encoder" else "left"
    encoded = tokenize(
        *(list(column) for column in zip(*texts, strict=True)),
        padding=True,
        truncation=True,
        max_length=LENGTH,
        return_tensors="pt",
    )
    inputs = dict(encoded)
    if family.arch == "encoder":
        return Examples(inputs, torch.tensor(labels))
    inputs.pop("token_type_ids", None)
    mask = inputs["attention_mask"]
    inputs["position_ids"] = (mask.cumsum(1) - 1).clamp(min=0)
    return Examples(inputs, inputs["input_ids"].masked_fill(mask == 0, IGNORED))


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0][:120]

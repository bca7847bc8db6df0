"""Tiny models and batches of every family, on which each cell of the operator × family table is proved."""

from __future__ import annotations

import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    DistilBertConfig,
    DistilBertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoConfig,
    GPTNeoForCausalLM,
    PreTrainedModel,
    RobertaConfig,
    RobertaForSequenceClassification,
)

from features.inject.locate import FAMILIES

VOCABULARY, WIDTH, HEADS, LAYERS, POSITIONS, CLASSES = 64, 32, 4, 2, 64, 4
WINDOW = 8
"""Of GPT-Neo's local layers."""

_SHARED = {"vocab_size": VOCABULARY, "max_position_embeddings": POSITIONS, "initializer_range": 0.2}
_TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_BERT = {
    **_SHARED,
    "hidden_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "intermediate_size": 2 * WIDTH,
    "num_labels": CLASSES,
    "pad_token_id": 0,
}


def tiny_model(family: str, attention: str = "eager", dropout: float = 0.0, seed: int = 0) -> PreTrainedModel:
    """A randomly initialised model of a family, 2 layers of width 32, with a classifier or a language-model head.

    Weights are ten times wider than is usual and in double precision, so that a fault shows well above rounding.
    GPT-Neo is always eager.
    """
    torch.manual_seed(seed)
    config = _config(family, dropout)
    config._attn_implementation = "eager" if family == "gpt_neo" else attention
    kind = {
        "bert": BertForSequenceClassification,
        "roberta": RobertaForSequenceClassification,
        "distilbert": DistilBertForSequenceClassification,
        "gpt2": GPT2LMHeadModel,
        "gpt_neo": GPTNeoForCausalLM,
    }[family]
    return kind(config).double().eval()


def _config(family: str, dropout: float):
    dropouts = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    if family == "bert":
        return BertConfig(**_BERT, **dropouts, type_vocab_size=2)
    if family == "roberta":
        return RobertaConfig(**_BERT, **dropouts, type_vocab_size=1)
    if family == "distilbert":
        sizes = {"dim": WIDTH, "n_layers": LAYERS, "n_heads": HEADS, "hidden_dim": 2 * WIDTH, "num_labels": CLASSES}
        return DistilBertConfig(**_SHARED, **sizes, dropout=dropout, attention_dropout=dropout, pad_token_id=0)
    if family == "gpt2":
        dropouts = {"resid_pdrop": dropout, "embd_pdrop": dropout, "attn_pdrop": dropout}
        sizes = {"n_embd": WIDTH, "n_layer": LAYERS, "n_head": HEADS, "n_positions": POSITIONS}
        return GPT2Config(vocab_size=VOCABULARY, initializer_range=0.2, **sizes, **dropouts, **_TOKENS)
    dropouts = {"resid_dropout": dropout, "embed_dropout": dropout, "attention_dropout": dropout}
    sizes = {"hidden_size": WIDTH, "num_layers": LAYERS, "num_heads": HEADS, "window_size": WINDOW}
    layers = {"attention_types": [[["global", "local"], 1]]}
    return GPTNeoConfig(**_SHARED, **sizes, **layers, **dropouts, **_TOKENS)


def tiny_batch(model: PreTrainedModel, batch: int = 3, length: int = 20, seed: int = 0) -> dict[str, torch.Tensor]:
    """A batch of random tokens whose examples are padded on the right by different amounts, with labels."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(4, VOCABULARY, (batch, length), generator=generator)
    lengths = torch.tensor([length - 4 * (i % 4) for i in range(batch)])
    mask = (torch.arange(length) < lengths[:, None]).long()
    ids = ids * mask
    if FAMILIES[model.config.model_type] == "decoder":
        labels = ids.masked_fill(mask == 0, -100)
    else:
        labels = torch.arange(batch) % CLASSES
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}

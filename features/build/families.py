"""Tiny members of the manuscript's seven model families, built from their Hugging Face configurations.

Each family keeps what sets it apart (segment embeddings in BERT, offset positions in RoBERTa, no segments in
DistilBERT, fused QKV in GPT-2, alternating local attention and unscaled scores in GPT-Neo), and the distilled ones
have half the depth. Attention is the eager one, because only it hands out attention maps.

>>> [family.name for family in FAMILIES if family.arch == "decoder"]
['gpt2', 'distilgpt2', 'gpt_neo']
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from features.taxonomy import Architecture

WIDTH = 48
HEADS = 4
INNER = 2 * WIDTH
POSITIONS = 40
DROPOUT = 0.05
INITIAL_DEVIATION = 0.12
"""About 1/sqrt(WIDTH): at the usual 0.02 the scores of so narrow a model start, and stay, near zero."""
ENCODER_VOCABULARY = 96
DECODER_VOCABULARY = 384
PAD, CLS, SEP, MASK = 0, 1, 2, 3


@dataclass(frozen=True)
class Family:
    """A model family; `checkpoint` is its name on the hub, `configuration` builds the tiny one from a depth.

    `pretraining` counts steps; encoders of half the depth need more of them to reach the quality that tasks ask for.
    """

    name: str
    arch: Architecture
    layers: int
    model_type: str
    checkpoint: str
    configuration: Callable[[int], object]
    pretraining: int


_SHARED = {"pad_token_id": PAD, "initializer_range": INITIAL_DEVIATION, "attn_implementation": "eager"}
_BERT_LIKE = {
    "vocab_size": ENCODER_VOCABULARY,
    "hidden_size": WIDTH,
    "num_attention_heads": HEADS,
    "intermediate_size": INNER,
    "max_position_embeddings": POSITIONS,
    "hidden_dropout_prob": DROPOUT,
    "attention_probs_dropout_prob": 0.0,
    **_SHARED,
}
_CAUSAL = {
    "vocab_size": DECODER_VOCABULARY,
    "bos_token_id": CLS,
    "eos_token_id": SEP,
    "loss_type": "ForCausalLM",
    **_SHARED,
}


def _bert(layers: int):
    from transformers import BertConfig

    return BertConfig(num_hidden_layers=layers, **_BERT_LIKE)


def _roberta(layers: int):
    from transformers import RobertaConfig

    return RobertaConfig(num_hidden_layers=layers, type_vocab_size=1, bos_token_id=CLS, eos_token_id=SEP, **_BERT_LIKE)


def _distilbert(layers: int):
    from transformers import DistilBertConfig

    return DistilBertConfig(
        vocab_size=ENCODER_VOCABULARY,
        dim=WIDTH,
        n_layers=layers,
        n_heads=HEADS,
        hidden_dim=INNER,
        max_position_embeddings=POSITIONS,
        dropout=DROPOUT,
        attention_dropout=0.0,
        seq_classif_dropout=DROPOUT,
        **_SHARED,
    )


def _gpt2(layers: int):
    from transformers import GPT2Config

    return GPT2Config(
        n_embd=WIDTH,
        n_layer=layers,
        n_head=HEADS,
        n_inner=INNER,
        n_positions=POSITIONS,
        resid_pdrop=DROPOUT,
        embd_pdrop=DROPOUT,
        attn_pdrop=0.0,
        **_CAUSAL,
    )


def _gpt_neo(layers: int):
    from transformers import GPTNeoConfig

    return GPTNeoConfig(
        hidden_size=WIDTH,
        num_layers=layers,
        attention_types=[[["global", "local"], layers // 2]],
        num_heads=HEADS,
        intermediate_size=INNER,
        window_size=8,
        max_position_embeddings=POSITIONS,
        resid_dropout=DROPOUT,
        embed_dropout=DROPOUT,
        attention_dropout=0.0,
        **_CAUSAL,
    )


FAMILIES: tuple[Family, ...] = (
    Family("bert", "encoder", 4, "bert", "bert-base-uncased", _bert, 4_000),
    Family("distilbert", "encoder", 2, "distilbert", "distilbert-base-uncased", _distilbert, 6_000),
    Family("roberta", "encoder", 4, "roberta", "roberta-base", _roberta, 4_000),
    Family("distilroberta", "encoder", 2, "roberta", "distilroberta-base", _roberta, 6_000),
    Family("gpt2", "decoder", 4, "gpt2", "gpt2", _gpt2, 2_000),
    Family("distilgpt2", "decoder", 2, "gpt2", "distilgpt2", _gpt2, 2_000),
    Family("gpt_neo", "decoder", 4, "gpt_neo", "EleutherAI/gpt-neo-125m", _gpt_neo, 2_000),
)


def family(name: str) -> Family:
    """The family of this name. Raises KeyError naming the known ones."""
    for known in FAMILIES:
        if known.name == name:
            return known
    raise KeyError(f"no model family {name!r}; known: {', '.join(f.name for f in FAMILIES)}")


def pretraining_model(chosen: Family, seed: int) -> nn.Module:
    """A freshly initialised masked-LM (encoder) or causal-LM (decoder) model of the family."""
    import transformers

    torch.manual_seed(seed)
    auto = transformers.AutoModelForMaskedLM if chosen.arch == "encoder" else transformers.AutoModelForCausalLM
    return auto.from_config(chosen.configuration(chosen.layers), attn_implementation="eager")


def fine_tuning_model(chosen: Family, seed: int) -> nn.Module:
    """A freshly initialised two-class classifier (encoder) or causal-LM model (decoder) of the family."""
    import transformers

    torch.manual_seed(seed)
    configuration = chosen.configuration(chosen.layers)
    if chosen.arch == "decoder":
        return transformers.AutoModelForCausalLM.from_config(configuration, attn_implementation="eager")
    configuration.num_labels = 2
    return transformers.AutoModelForSequenceClassification.from_config(configuration, attn_implementation="eager")

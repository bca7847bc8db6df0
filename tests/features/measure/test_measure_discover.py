"""Parts are found by structure in every family, and what is not found is named."""

import re

import pytest
import torch
import transformers as hf
from torch import nn

from features.measure import Recorder, UnsupportedModel
from features.measure.discover import dissect

_BERT = (
    "attention.output.dense",
    "intermediate.dense",
    "output.dense",
    {"attention.output.LayerNorm", "output.LayerNorm"},
)
PARTS = {
    # attention output, FFN in, FFN out, normalisations, within the first layer
    "bert": _BERT,
    "roberta": _BERT,
    "distilbert": ("attention.out_lin", "ffn.lin1", "ffn.lin2", {"sa_layer_norm", "output_layer_norm"}),
    "albert": ("attention.dense", "ffn", "ffn_output", {"attention.LayerNorm", "full_layer_layer_norm"}),
    "gpt2": ("attn.c_proj", "mlp.c_fc", "mlp.c_proj", {"ln_1", "ln_2"}),
    "gpt_neo": ("attn.attention.out_proj", "mlp.c_fc", "mlp.c_proj", {"ln_1", "ln_2"}),
    "llama": ("self_attn.o_proj", "mlp.gate_proj", "mlp.down_proj", {"input_layernorm", "post_attention_layernorm"}),
    "torch": ("self_attn.out_proj", "linear1", "linear2", {"norm1", "norm2"}),
    "torch_pre_norm": ("self_attn.out_proj", "linear1", "linear2", {"norm1", "norm2"}),
}  # fmt: skip
QKV = {
    "bert": ["attention.self.query", "attention.self.key", "attention.self.value"],
    "roberta": ["attention.self.query", "attention.self.key", "attention.self.value"],
    "distilbert": ["attention.q_lin", "attention.k_lin", "attention.v_lin"],
    "albert": ["attention.query", "attention.key", "attention.value"],
    "gpt2": ["attn.c_attn"],
    "gpt_neo": ["attn.attention.q_proj", "attn.attention.k_proj", "attn.attention.v_proj"],
    "llama": ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
    "torch": [],
    "torch_pre_norm": [],
}


def test_the_parts_of_a_layer(build, family):
    anatomy = dissect(build(family))
    layer = anatomy.layers[0]
    names = {m: n for n, m in layer.module.named_modules()}
    out, ffn_in, ffn_out, norms = PARTS[family]
    assert [names[m] for m in (layer.attention_out, layer.ffn_in, layer.ffn_out)] == [out, ffn_in, ffn_out]
    assert {names[m] for m in layer.norms} == norms
    assert [names[m] for m in layer.qkv] == QKV[family]
    assert (layer.gate is not None) == (family == "llama")


def test_layers_embeddings_and_architecture(build, family):
    model = build(family)
    anatomy = dissect(model)
    assert len(anatomy.layers) == (1 if family == "albert" else 3)
    assert anatomy.arch == ("decoder" if family in ("gpt2", "gpt_neo", "llama") else "encoder")
    assert anatomy.token_embedding.num_embeddings == 50
    if family == "llama":
        assert type(anatomy.positions).__name__ == "LlamaRotaryEmbedding"
    else:
        assert anatomy.positions.num_embeddings == 32


def test_components_are_disjoint_and_cover_the_layers(build, family):
    anatomy = dissect(build(family))
    components = anatomy.components()
    together = [p for own in components.values() for p in own]
    assert len(together) == len({id(p) for p in together})
    inside = {id(p) for layer in anatomy.layers for p in layer.module.parameters()}
    assert inside <= {id(p) for p in together}
    assert all(components.values())


def test_kernels_are_the_matrices_of_the_layer(build, family):
    layer = dissect(build(family)).layers[0]
    expected = {id(p) for p in layer.module.parameters() if p.ndim == 2}
    assert {id(p) for p in layer.kernels()} == expected


def test_a_causal_flag_that_a_fault_sets_does_not_make_bert_a_decoder(build):
    model = build("bert")
    for layer in model.bert.encoder.layer:
        layer.attention.self.is_causal = True
    assert dissect(model).arch == "encoder"
    assert dissect(model, arch="decoder").arch == "decoder"


def gpt_neox():
    sizes = {
        "vocab_size": 50,
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 64,
    }
    return hf.GPTNeoXForCausalLM(hf.GPTNeoXConfig(**sizes))


def t5():
    sizes = {"vocab_size": 50, "d_model": 32, "d_ff": 64, "num_layers": 1, "num_heads": 2, "d_kv": 16}
    return hf.T5ForConditionalGeneration(hf.T5Config(**sizes))


def cross_attending_gpt2():
    config = hf.GPT2Config(vocab_size=50, n_embd=32, n_layer=1, n_head=2, add_cross_attention=True)
    return hf.GPT2Model(config)


def encoder(**options):
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, **options), 2, enable_nested_tensor=False)


def without_a_norm():
    model = encoder(batch_first=True)
    model.layers[1].norm2 = nn.Identity()
    return model


def without_an_ffn():
    model = encoder(batch_first=True)
    model.layers[0].linear2 = nn.Identity()
    return model


def outside_a_list():
    return nn.Sequential(nn.MultiheadAttention(32, 4, batch_first=True))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: nn.Linear(3, 3), "Linear: no self-attention was found"),
        (gpt_neox, "no self-attention was found"),
        (t5, "cross-attention has no place"),
        (cross_attending_gpt2, "cross-attention has no place"),
        (outside_a_list, "'0' is not the only attention"),
        (lambda: encoder(), "layer 'layers.0' has batch_first=False; build it with batch_first=True"),
        (without_a_norm, "layer 'layers.1': two normalisations of width 32 expected, 1 found"),
        (without_an_ffn, "layer 'layers.0': no feed-forward pair"),
    ],
)
def test_what_is_missing_is_named_when_attaching(make, words):
    model = make()
    hooks = [len(m._forward_hooks) for m in model.modules()]
    with pytest.raises(UnsupportedModel, match=re.escape(words)), Recorder(model):
        pass
    assert [len(m._forward_hooks) for m in model.modules()] == hooks


def test_an_ffn_three_times_as_wide_is_not_taken_for_a_fused_projection(build):
    model = build("gpt2")
    assert model.transformer.h[0].mlp.c_fc.nf == model.transformer.h[0].attn.c_attn.nf
    assert dissect(model).layers[0].qkv == (model.transformer.h[0].attn.c_attn,)


def test_heads_that_share_keys_are_found(build):
    layer = dissect(build("llama")).layers[0]
    assert layer.qkv[1].weight.shape == torch.Size([8, 16])

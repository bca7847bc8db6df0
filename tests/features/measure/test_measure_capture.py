"""Captured attention is what the model computed, on every path, and nothing is left behind."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from features.inject import Fault, inject
from features.measure import Recorder
from features.measure.capture import Capture, Trace, attention_of
from features.measure.discover import dissect
from features.measure.layers import layer_metrics


def traced(model, batch):
    capture = Capture(dissect(model))
    capture.attach()
    try:
        with capture.tracing(Trace()) as trace, torch.no_grad():
            model(**{k: v for k, v in batch.items() if k != "labels"})
    finally:
        capture.detach()
    return trace


HF = ("bert", "roberta", "distilbert", "albert", "gpt2", "gpt_neo", "llama")


@pytest.mark.parametrize("family", HF)
def test_weights_are_those_that_eager_attention_returns(build, draw, family):
    model, batch = build(family).eval(), draw(family)
    trace = traced(model, batch)
    inputs = {k: v for k, v in batch.items() if k != "labels"}
    with torch.no_grad():
        expected = model(**inputs, output_attentions=True).attentions
    assert len(trace.layers) == len(expected) == 3
    for layer, weights in zip(trace.layers, expected, strict=True):
        torch.testing.assert_close(attention_of(layer, 99)[1], weights)


@pytest.mark.parametrize("family", [f for f in HF if f != "gpt_neo"])
def test_weights_recomputed_from_the_fused_kernel_are_the_eager_ones(build, draw, family):
    batch = draw(family)
    eager, fused = (traced(build(family, attention).eval(), batch) for attention in ("eager", "sdpa"))
    real = batch["attention_mask"].bool()
    for a, b in zip(eager.layers, fused.layers, strict=True):
        assert a.softmax and not a.fused and b.fused and not b.softmax
        a, b = attention_of(a, 99), attention_of(b, 99)
        for x, y in zip(a, b, strict=True):
            # Queries at padding may see nothing at all, which the two paths treat differently.
            x, y = (t.transpose(1, 2)[real].clamp_min(-1e8) for t in (x, y))
            torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("pre_norm", [False, True])
def test_weights_of_multihead_attention(build, draw, pre_norm):
    family = "torch_pre_norm" if pre_norm else "torch"
    model, batch = build(family).train(), draw(family)
    trace = traced(model, batch)
    for layer, module in zip(trace.layers, model.encoder.layers, strict=True):
        x = module.norm1(layer.stream_in) if pre_norm else layer.stream_in
        output, weights = module.self_attn(
            x, x, x, key_padding_mask=batch["attention_mask"] == 0, average_attn_weights=False
        )
        torch.testing.assert_close(attention_of(layer, 99)[1], weights)
        torch.testing.assert_close(module.self_attn.out_proj(layer.context), output)
        assert layer.pre_norm == pre_norm


def test_local_layers_and_missing_scale_of_gpt_neo(build, draw):
    model, batch = build("gpt_neo").eval(), draw("gpt_neo")
    trace = traced(model, batch)
    layer = trace.layers[1]
    scores, weights = attention_of(layer, 1)
    q, k = (x[0].view(12, 4, 4).transpose(0, 1) for x in (layer.query, layer.key))
    near = (torch.arange(12)[:, None] - torch.arange(12)).lt(4) & torch.ones(12, 12, dtype=torch.bool).tril()
    torch.testing.assert_close(scores[0][:, near], (q @ k.mT)[:, near])
    assert (weights[0][:, ~near] == 0).all()


def test_shared_layers_are_traced_call_by_call(build, draw):
    trace = traced(build("albert").eval(), draw("albert"))
    assert [layer.part for layer in trace.layers] == [0, 0, 0]
    for before, after in zip(trace.layers, trace.layers[1:], strict=False):
        assert torch.equal(before.stream_out, after.stream_in)


@pytest.mark.parametrize("family", HF)
def test_the_place_of_the_normalisation_is_seen(build, draw, family):
    pre = family in ("gpt2", "gpt_neo", "llama")
    assert {layer.pre_norm for layer in traced(build(family).eval(), draw(family)).layers} == {pre}


@pytest.mark.parametrize(
    "fault",
    [Fault("MZM"), Fault("MIM"), Fault("SDS"), Fault("SPD", 0.3), Fault("KMC"), Fault("KSB"), Fault("KFT", "dtype")],
    ids=lambda f: f.code,
)
@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_a_faulty_model_is_measured_as_it_computes(build, draw, family, fault):
    """The weights of the trace, applied to the values of the trace, give what the model passed on."""
    model, batch = build(family, "sdpa").eval(), draw(family)
    with inject(model, fault):
        trace = traced(model, batch)
    for layer in trace.layers:
        _, weights = attention_of(layer, 99)
        values = layer.value.view(*layer.value.shape[:2], 4, -1).transpose(1, 2)
        context = (weights.float() @ values).transpose(1, 2).flatten(2)
        torch.testing.assert_close(context, layer.context, rtol=1e-4, atol=1e-5)


def test_heads_computed_one_by_one_are_joined(build, draw):
    model, batch = build("bert", "sdpa").eval(), draw("bert")
    whole = traced(model, batch)
    kernel = functional.scaled_dot_product_attention
    capture = Capture(dissect(model))
    capture.attach()
    with capture.tracing(Trace()) as trace, torch.no_grad():
        noted = functional.scaled_dot_product_attention

        def by_head(query, key, value, **kwargs):
            one = [noted(query[:, h, None], key[:, h, None], value[:, h, None], **kwargs) for h in range(4)]
            return torch.cat(one, dim=1)

        functional.scaled_dot_product_attention = by_head
        model(batch["input_ids"], batch["attention_mask"])
    capture.detach()
    assert functional.scaled_dot_product_attention is kernel
    for a, b in zip(trace.layers, whole.layers, strict=True):
        assert len(a.fused) == 4
        torch.testing.assert_close(attention_of(a, 99), attention_of(b, 99))


def test_everything_is_put_back_after_an_exception(build, draw):
    def broken(*args, **kwargs):
        raise RuntimeError("broken on purpose")

    model, batch = build("bert"), draw("bert")
    model.bert.encoder.layer[1].intermediate.forward = broken
    in_force = (functional.scaled_dot_product_attention, torch.Tensor.softmax, torch.softmax)
    with Recorder(model) as run:
        for _ in range(2):
            with pytest.raises(RuntimeError, match="broken on purpose"):
                model(**batch)
            assert in_force == (functional.scaled_dot_product_attention, torch.Tensor.softmax, torch.softmax)
            assert run._capture.trace is None
    assert sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()) == 0


def test_detaching_leaves_no_hook(build):
    model = build("gpt2")
    capture = Capture(dissect(model))
    capture.attach()
    assert sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()) > 0
    capture.detach()
    assert sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()) == 0


def test_grouped_keys_are_aligned_with_their_queries(build, draw):
    model, batch = build("llama").eval(), draw("llama")
    trace = traced(model, batch)
    real = batch["attention_mask"].bool()
    with torch.no_grad():
        found = layer_metrics(trace, real, "decoder", True)
    layer = trace.layers[0]
    q = layer.query[real].view(-1, 4, 4)
    k = layer.key[real].view(-1, 2, 4)[:, [0, 0, 1, 1]]
    expected = functional.cosine_similarity(q.flatten(1), k.flatten(1), dim=-1).mean()
    np.testing.assert_allclose(found["qkv_cos_qk"][0], expected, rtol=1e-5)

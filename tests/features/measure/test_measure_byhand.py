"""Every layer metric of a recorded step against a forward pass and formulas written by hand in numpy.

DistilBERT stands for post-norm encoders with separate projections, GPT-2 for pre-norm decoders with a fused one.
"""

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.special import erf, softmax

from features.measure import Recorder


def array(parameter):
    return parameter.detach().double().numpy()


def linear(x, module):
    """nn.Linear, or the transposed Conv1D."""
    weight = array(module.weight)
    return x @ (weight.T if isinstance(module, torch.nn.Linear) else weight) + array(module.bias)


def layer_norm(x, module):
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + module.eps) * array(module.weight) + array(
        module.bias
    )


def attend(q, k, v, heads, mask):
    """Scores (B, H, T, S), weights, and the heads' outputs side by side (B, T, D)."""
    batch, length, width = q.shape

    def split(x):
        return x.reshape(batch, length, heads, -1).transpose(0, 2, 1, 3)

    scores = split(q) @ split(k).transpose(0, 1, 3, 2) / np.sqrt(width // heads)
    weights = softmax(np.where(mask, scores, -np.inf), axis=-1)
    return scores, weights, (weights @ split(v)).transpose(0, 2, 1, 3).reshape(batch, length, width)


def distilbert(model, batch):
    table = model.distilbert.embeddings
    ids, real = batch["input_ids"].numpy(), batch["attention_mask"].numpy().astype(bool)
    embedded = array(table.word_embeddings.weight)[ids]
    x = layer_norm(embedded + array(table.position_embeddings.weight)[: ids.shape[1]], table.LayerNorm)
    layers = []
    for layer in model.distilbert.transformer.layer:
        own = layer.attention
        q, k, v = (linear(x, m) for m in (own.q_lin, own.k_lin, own.v_lin))
        mask = np.broadcast_to(real[:, None, None, :], (len(ids), 1, ids.shape[1], ids.shape[1]))
        scores, weights, context = attend(q, k, v, 4, mask)
        attended = x + linear(context, own.out_lin)
        first = layer_norm(attended, layer.sa_layer_norm)
        hidden = linear(first, layer.ffn.lin1)
        ffn = linear(hidden * (1 + erf(hidden / np.sqrt(2))) / 2, layer.ffn.lin2)
        y = layer_norm(first + ffn, layer.output_layer_norm)
        gains = (layer.sa_layer_norm, layer.output_layer_norm)
        pairs = ((x, attended), (first, first + ffn))
        layers.append((x, y, q, k, v, scores, weights, context, mask, ffn, (first, y), gains, pairs))
        x = y
    return embedded, layers


def gpt2(model, batch):
    base = model.transformer
    ids, real = batch["input_ids"].numpy(), batch["attention_mask"].numpy().astype(bool)
    embedded = array(base.wte.weight)[ids]
    x = embedded + array(base.wpe.weight)[: ids.shape[1]]
    layers = []
    for layer in base.h:
        first = layer_norm(x, layer.ln_1)
        q, k, v = np.split(linear(first, layer.attn.c_attn), 3, axis=-1)
        mask = np.tril(np.ones((ids.shape[1],) * 2, dtype=bool)) & real[:, None, None, :]
        scores, weights, context = attend(q, k, v, 4, mask)
        attended = x + linear(context, layer.attn.c_proj)
        second = layer_norm(attended, layer.ln_2)
        hidden = linear(second, layer.mlp.c_fc)
        hidden = hidden * (1 + np.tanh(np.sqrt(2 / np.pi) * (hidden + 0.044715 * hidden**3))) / 2
        ffn = linear(hidden, layer.mlp.c_proj)
        y = attended + ffn
        pairs = ((x, attended), (attended, y))
        gains = (layer.ln_1, layer.ln_2)
        layers.append((x, y, q, k, v, scores, weights, context, mask, ffn, (first, second), gains, pairs))
        x = y
    return embedded, layers


def cosine(a, b):
    return ((a * b).sum(-1) / np.linalg.norm(a, axis=-1) / np.linalg.norm(b, axis=-1)).mean()


def expected_metrics(layer, real):
    """The layer metrics by their definitions, from the arrays of one layer."""
    x, y, q, k, v, scores, weights, context, mask, ffn, normed, gains, pairs = layer
    rows = np.argwhere(real)
    queries = np.stack([weights[b, :, t] for b, t in rows])  # (N, H, S)
    length, heads = weights.shape[-1], weights.shape[1]
    similar = []
    for b in range(len(real)):
        flat = weights[b][:, real[b]].reshape(heads, -1)
        unit = flat / np.linalg.norm(flat, axis=1, keepdims=True)
        similar.append((unit @ unit.T)[~np.eye(heads, dtype=bool)].mean())
    singular = np.linalg.svd(weights[:2] * real[:2, None, :, None], compute_uv=False)
    admitted = np.broadcast_to(mask, scores.shape) & real[:, None, :, None]
    norms = np.linalg.norm(context[real].reshape(len(rows), heads, -1), axis=-1).mean(0)
    xc, yc = x[real] - x[real].mean(0), y[real] - y[real].mean(0)
    cka = np.linalg.norm(xc.T @ yc) ** 2 / np.linalg.norm(xc.T @ xc) / np.linalg.norm(yc.T @ yc)
    return {
        "attention_entropy": stats.entropy(queries, axis=-1).mean(),
        "attention_padding_mass": np.mean([weights[b, :, t][:, ~real[b]].sum(-1).mean() for b, t in rows]),
        "attention_future_mass": np.mean([weights[b, :, t][:, np.arange(length) > t].sum(-1).mean() for b, t in rows]),
        "attention_head_similarity": np.mean(similar),
        "attention_head_utilisation": np.exp(stats.entropy(norms)) / heads,
        "attention_effective_rank": np.exp(stats.entropy(singular, axis=-1)).mean(),
        "score_mean": scores[admitted].mean(),
        "ffn_output_norm": np.linalg.norm(ffn[real], axis=-1).mean(),
        "layernorm_gamma_norm": np.sqrt(sum((array(m.weight) ** 2).sum() for m in gains)),
        "layernorm_output_std": np.mean([n[real].std() for n in normed]),
        "residual_cosine": np.mean([cosine(a[real], b[real]) for a, b in pairs]),
        "representation_cka": cka,
        "qkv_cos_qk": cosine(q[real], k[real]),
        "qkv_cos_qv": cosine(q[real], v[real]),
        "qkv_cos_kv": cosine(k[real], v[real]),
    }


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize(("family", "forward"), [("distilbert", distilbert), ("gpt2", gpt2)])
def test_layer_metrics_by_hand(build, draw, family, forward, attention):
    model, batch = build(family, attention), draw(family, rows=4)
    real = batch["attention_mask"].numpy().astype(bool)
    with torch.no_grad():
        for name, p in model.named_parameters():  # away from gains of one and biases of zero
            if p.ndim == 1:
                p.add_(0.3 * torch.randn(p.shape, generator=torch.Generator().manual_seed(len(name))))
    embedded, layers = forward(model, batch)
    with Recorder(model) as run:
        loss = model.train()(**batch).loss
        loss.backward()
        run.step(loss, batch)  # no optimiser step: the gains are as they were
        run.epoch()
    log = run.log()
    for index, layer in enumerate(layers):
        values = log[(log["layer"] == index) & (log["step"] == 0)].set_index("metric")["value"]
        expected = expected_metrics(layer, real)
        if family == "distilbert":
            del expected["attention_future_mass"]
        measured = values[list(expected)]
        np.testing.assert_allclose(measured, list(expected.values()), rtol=2e-4, atol=2e-6, err_msg=str(index))
    values = log[(log["layer"] == -1) & (log["step"] == 0)].set_index("metric")["value"]
    assert values["embedding_norm"] == pytest.approx(np.linalg.norm(embedded[real], axis=-1).mean(), rel=1e-5)
    assert values["embedding_token_variance"] == pytest.approx(embedded[real].var(0).mean(), rel=1e-5)


def test_output_metrics_and_accuracy_by_hand(build, draw, family):
    model, batch = build(family), draw(family)
    with Recorder(model) as run:
        output = model.train()(**batch)
        output["loss"].backward()
        run.step(output["loss"], batch)
        run.epoch()
    logits, labels = output["logits"].detach().numpy(), batch["labels"].numpy()
    if logits.ndim == 3:
        logits, labels = logits[:, :-1], labels[:, 1:]
        kept = labels != -100
        logits, labels = logits[kept], labels[kept]
    values = run.log().query("step == 0 and layer == -1").set_index("metric")["value"]
    assert values["step_accuracy"] == pytest.approx((logits.argmax(-1) == labels).mean())
    p, ordered = softmax(logits, axis=-1), np.sort(logits, axis=-1)
    chosen = np.linspace(0, len(p) - 1, 64).astype(int) if len(p) > 64 else slice(None)
    assert len(p) <= 64 or family in ("gpt2", "gpt_neo", "llama")
    assert values["output_confidence"] == pytest.approx(p[chosen].max(-1).mean(), rel=1e-3)
    assert values["output_entropy"] == pytest.approx(stats.entropy(p[chosen], axis=-1).mean(), rel=1e-3)
    assert values["output_margin"] == pytest.approx((ordered[chosen, -1] - ordered[chosen, -2]).mean(), rel=1e-3)

"""Probe measurements: right in a healthy model, telling in a faulty one, invisible to the run."""

import numpy as np
import pytest
import torch

from features.inject import Fault, inject
from features.measure.capture import Capture, Trace
from features.measure.discover import dissect
from features.measure.probe import Probe, undisturbed


@pytest.fixture
def probe():
    attached = []

    def make(model, batch):
        capture = Capture(dissect(model))
        capture.attach()
        attached.append(capture)
        return Probe(capture, batch)

    yield make
    for capture in attached:
        capture.detach()


def test_a_healthy_model_leaks_nothing_and_its_cache_agrees(build, draw, probe, family):
    found = probe(build(family, "sdpa", dropout=0.1).train(), draw(family)).step()
    assert found["attention_cross_example_leakage"].shape == (3,)
    assert found["attention_cross_example_leakage"].abs().max() < 1e-5
    if family in ("gpt2", "gpt_neo", "llama"):
        assert found["cache_hidden_similarity"].item() == pytest.approx(1, abs=1e-5)
        assert found["cache_kl_divergence"].item() == pytest.approx(0, abs=1e-5)
    else:
        assert "cache_kl_divergence" not in found


@pytest.mark.parametrize("family", ["bert", "gpt2", "gpt_neo"])
@pytest.mark.parametrize("axis", ["batch", "head"])
def test_misaligned_masks_leak(build, draw, probe, family, axis):
    model = build(family).train()
    with inject(model, Fault("MRM", axis)):
        assert probe(model, draw(family)).step()["attention_cross_example_leakage"][-1] > 1e-3


@pytest.mark.parametrize(
    "fault",
    [Fault("CST", "all"), Fault("CDU"), Fault("COB", -1), Fault("COB", 1), Fault("CTR", 8), Fault("CLK")],
    ids=lambda f: f"{f.code}{f.value or ''}",
)
@pytest.mark.parametrize("family", ["gpt2", "gpt_neo"])
def test_faulty_caches_disagree_with_fresh_passes(build, draw, probe, family, fault):
    model = build(family).train()
    with inject(model, fault):
        found = probe(model, draw(family, length=20)).step()
    assert found["cache_kl_divergence"] > 1e-4
    assert found["cache_hidden_similarity"] < 1 - 1e-4


def test_positional_sensitivity_by_explicit_positions(build, draw, probe):
    model, batch = build("gpt2", dropout=0.1).train(), draw("gpt2")
    found = probe(model, batch).step()["positional_sensitivity"]
    inputs = {k: v[:4] for k, v in batch.items() if k != "labels"}
    with torch.no_grad():
        model.eval()
        capture = Capture(dissect(model))
        capture.attach()
        ends = []
        for start in (0, 1):
            with capture.tracing(Trace()) as trace:
                model(**inputs, position_ids=torch.arange(start, start + 12)[None])
            ends.append(trace.layers[-1].stream_out[inputs["attention_mask"].bool()].numpy())
        capture.detach()
    before, after = ends
    expected = (np.linalg.norm(after - before, axis=1) / np.linalg.norm(before, axis=1)).mean()
    assert found.item() == pytest.approx(expected, rel=1e-4)


def test_without_positions_nothing_depends_on_them(build, draw, probe):
    model = build("bert")
    with inject(model, Fault("POE")):
        assert probe(model, draw("bert")).step()["positional_sensitivity"] == 0


def test_rotary_positions_are_relative(build, draw, probe):
    assert probe(build("llama"), draw("llama")).step()["positional_sensitivity"] < 1e-4


def test_one_row_cannot_leak(build, draw, probe):
    lonely = probe(build("bert"), draw("bert", rows=1))
    assert "attention_cross_example_leakage" not in lonely.step()
    assert "one row" in lonely.reasons["attention_cross_example_leakage"]


def test_probe_gradients_against_backward(build, draw, probe, family):
    model, batch = build(family, dropout=0.3).train(), draw(family)
    made = probe(model, batch)
    found = made.epoch()
    assert all(p.grad is None for p in model.parameters())
    model.eval()
    model(**batch)["loss"].backward()
    gradients = {n: p.grad for n, p in model.named_parameters()}
    entries = np.concatenate([g.numpy().ravel() for g in gradients.values() if g is not None]).astype(float)
    assert found["grad_mean_abs"].item() == pytest.approx(np.abs(entries).mean(), rel=1e-4)
    assert found["grad_std"].item() == pytest.approx(entries.std(ddof=1), rel=1e-4)
    assert found["grad_max"].item() == pytest.approx(entries.max(), rel=1e-5)
    assert found["grad_min"].item() == pytest.approx(entries.min(), rel=1e-5)
    assert found["grad_median"].item() == pytest.approx(np.sort(entries)[(len(entries) - 1) // 2], abs=1e-8)
    tables = {id(m.weight) for m in model.modules() if isinstance(m, torch.nn.Embedding)}
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    tables -= {id(head.weight)} if head is not None else set()
    dense = np.concatenate(
        [p.grad.numpy().ravel() for p in model.parameters() if id(p) not in tables and p.grad is not None]
    )
    assert found["probe_grad_exact_zero_share"].item() == pytest.approx((dense == 0).mean(), rel=1e-4)
    for index, layer in enumerate(made.anatomy.layers):
        own = np.concatenate([p.grad.numpy().ravel() for p in layer.kernels()])
        assert found["probe_grad_mean_abs"][index].item() == pytest.approx(np.abs(own).mean(), rel=1e-4)
        assert found["probe_grad_mean"][index].item() == pytest.approx(own.mean(), rel=1e-2, abs=1e-8)


FIRST_AND_LAST = {
    "bert": ("bert.encoder.layer.0.attention.self.query.weight", "classifier.weight"),
    "roberta": ("roberta.encoder.layer.0.attention.self.query.weight", "classifier.out_proj.weight"),
    "distilbert": ("distilbert.transformer.layer.0.attention.q_lin.weight", "classifier.weight"),
    "albert": ("albert.encoder.embedding_hidden_mapping_in.weight", "classifier.weight"),
    "gpt2": ("transformer.h.0.attn.c_attn.weight", "transformer.wte.weight"),
    "gpt_neo": ("transformer.h.0.attn.attention.q_proj.weight", "transformer.wte.weight"),
    "llama": ("model.layers.0.self_attn.q_proj.weight", "lm_head.weight"),
    "torch": ("encoder.layers.0.self_attn.in_proj_weight", "head.weight"),
    "torch_pre_norm": ("encoder.layers.0.self_attn.in_proj_weight", "head.weight"),
}


def test_first_and_last_kernel_by_forward_order(build, draw, probe, family):
    model, batch = build(family).eval(), draw(family)
    found = probe(model, batch).epoch()
    model(**batch)["loss"].backward()
    named = dict(model.named_parameters())
    for which, name in zip(("first", "last"), FIRST_AND_LAST[family], strict=True):
        assert found[f"probe_grad_norm_{which}"].item() == pytest.approx(named[name].grad.norm().item(), rel=1e-4), name


def test_activations_and_logits_by_hand(build, draw, probe):
    model, batch = build("distilbert", dropout=0.2).train(), draw("distilbert")
    found = probe(model, batch).epoch()
    model.eval()
    seen = []
    for layer in model.distilbert.transformer.layer:
        layer.ffn.lin1.register_forward_hook(lambda m, args, out: seen.append(out))
    with torch.no_grad():
        output = model(**batch, output_hidden_states=True)
    real = batch["attention_mask"].bool()
    for index, (pre, hidden) in enumerate(zip(seen, output.hidden_states[1:], strict=True)):
        act = torch.nn.functional.gelu(pre[real]).numpy()
        assert found["activation_mean"][index].item() == pytest.approx(act.mean(), rel=1e-4)
        assert found["activation_std"][index].item() == pytest.approx(act.std(), rel=1e-4)
        assert found["activation_nonpositive_share"][index].item() == pytest.approx((act <= 0).mean(), rel=1e-4)
        saturated = (pre[real].abs() >= 5).float().mean().item()
        assert found["activation_saturated_share"][index].item() == pytest.approx(saturated, abs=1e-6)
        assert found["hidden_mean"][index].item() == pytest.approx(hidden[real].mean().item(), abs=1e-6)
    logits = output.logits.numpy()
    assert found["logit_abs_max"].item() == pytest.approx(np.abs(logits).max(), rel=1e-4)
    assert found["logit_range"].item() == pytest.approx(np.ptp(logits), rel=1e-4)
    assert found["activation_nonfinite"] == 0


def test_undisturbed_restores_modes_and_dice(build):
    model = build("bert").train()
    model.bert.encoder.layer[1].eval()
    modes = [m.training for m in model.modules()]
    dice = torch.get_rng_state()
    fast = torch.backends.mha.get_fastpath_enabled()
    with pytest.raises(ZeroDivisionError), undisturbed(model):
        assert not any(m.training for m in model.modules())
        torch.rand(3)
        _ = 1 / 0
    assert [m.training for m in model.modules()] == modes
    assert torch.equal(torch.get_rng_state(), dice)
    assert torch.backends.mha.get_fastpath_enabled() == fast

"""Faults of masks, scores, kernels and variants against attention written out by hand."""

import math

import pytest
import torch
from torch.nn import functional

from features.inject import Fault, inject
from features.inject.attention import executed, wrap_attention
from features.inject.kernel import _rounded_product, _tf32
from features.inject.locate import locate
from features.inject.reversible import Changes
from features.inject.tiny import tiny_batch, tiny_model
from features.measure import Recorder

ENCODERS = ("bert", "roberta", "distilbert")
DECODERS = ("gpt2", "gpt_neo")
FAMILIES = ENCODERS + DECODERS


@pytest.fixture(scope="module")
def models():
    return {family: tiny_model(family) for family in FAMILIES}


@torch.no_grad()
def logits(model, batch=None):
    return model(**(batch or tiny_batch(model))).logits


@torch.no_grad()
def attentions(model, batch=None):
    """The weights (B, H, Q, K) that each layer reports: what a recorder sees."""
    batch = batch or tiny_batch(model)
    return model(**batch, output_attentions=True).attentions


@torch.no_grad()
def head_tensors(model, layer, batch):
    """Query, key and value (B, H, T, d) of a layer as the model computes them, taken from its projections."""
    kept = {}
    part = locate(model).layers[layer]
    roles = {"query": part.query, "key": part.key, "value": part.value}

    def keep(role, projection):
        return lambda module, args, output: kept.__setitem__(role, output[..., projection.start : projection.stop])

    handles = [p.module.register_forward_hook(keep(role, p)) for role, p in roles.items()]
    model(**batch)
    for handle in handles:
        handle.remove()
    return [kept[role].unflatten(-1, (part.heads, part.head_size)).transpose(1, 2) for role in roles]


def healthy_visibility(family, batch, layer=0):
    mask = batch["attention_mask"].bool()
    length = mask.shape[1]
    seen = mask[:, None, None, :].expand(-1, 1, length, -1).clone()
    if family in DECODERS:
        seen &= torch.ones(length, length, dtype=torch.bool).tril()
    return seen


def by_hand(q, k, seen, scaling=None):
    scores = q @ k.mT * (q.shape[-1] ** -0.5 if scaling is None else scaling)
    return scores.masked_fill(~seen, torch.finfo(scores.dtype).min).softmax(-1)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_hook_point_alone_changes_nothing(family, attention):
    model = tiny_model(family, attention)
    clean = logits(model)
    with Changes() as changes:
        wrap_attention(changes, model, locate(model).layers, lambda inner, call: inner(call), "identity")
        assert torch.allclose(clean, logits(model), atol=1e-6)
        assert executed(model) == {"identity": 2}
    assert not executed(model)


CHANGED_MASKS = [
    (Fault("MZM"), lambda seen: torch.ones_like(seen)),
    (Fault("MIM"), lambda seen: ~seen),
    (Fault("MRM", "batch"), lambda seen: seen[[2, 0, 1]]),
    (Fault("VEC"), lambda seen: seen & torch.ones_like(seen).tril()),
]


@pytest.mark.parametrize(
    ("family", "fault", "changed"),
    [(f, *case) for f in FAMILIES for case in CHANGED_MASKS if f in ENCODERS or case[0].code != "VEC"],
)
def test_masks_as_by_hand(models, family, fault, changed):
    model = models[family]
    batch = tiny_batch(model)
    q, k, _ = head_tensors(model, 0, batch)
    seen = healthy_visibility(family, batch)
    scaling = 1.0 if family == "gpt_neo" else None
    assert torch.allclose(attentions(model)[0].double(), by_hand(q, k, seen, scaling), atol=1e-6)
    with inject(model, fault):
        faulty = attentions(model)[0].double()
    assert torch.allclose(faulty, by_hand(q, k, changed(seen), scaling), atol=1e-6)


@pytest.mark.parametrize("family", FAMILIES)
def test_head_misalignment_is_the_tiled_mask(models, family):
    """As where a (B, ...) mask is repeated over heads by `repeat` and then read as (B, H, ...)."""
    model = models[family]
    batch = tiny_batch(model)
    q, k, _ = head_tensors(model, 0, batch)
    seen = healthy_visibility(family, batch)
    tiled = seen[:, 0].repeat(4, 1, 1).view(3, 4, *seen.shape[-2:])
    with inject(model, Fault("MRM", "head")):
        faulty = attentions(model)[0].double()
    assert torch.allclose(faulty, by_hand(q, k, tiled, 1.0 if family == "gpt_neo" else None), atol=1e-6)


@pytest.mark.parametrize("family", DECODERS)
@pytest.mark.parametrize("visibility", [0.1, 0.3, 0.5])
def test_that_share_of_the_future_is_visible(models, family, visibility):
    model = models[family]
    batch = tiny_batch(model)
    with inject(model, Fault("MCB", visibility)):
        first, again = attentions(model), attentions(model)
    for layer, weights in enumerate(first):
        assert torch.equal(weights, again[layer])
        future = torch.ones(20, 20, dtype=torch.bool).triu(1)
        seen = (weights > 0).any(1) & future
        wanted = torch.tensor([math.ceil(visibility * (19 - i) - 1e-9) for i in range(20)])
        assert torch.equal(seen.sum(-1), wanted.expand(3, -1))
    past = healthy_visibility(family, batch)[0, 0] & torch.ones(20, 20, dtype=torch.bool).tril()
    assert torch.equal((first[0][0, 0] > 0) & past, past)


@pytest.mark.parametrize("family", [f for f in FAMILIES if f != "gpt_neo"])
def test_unscaled_scores(models, family):
    model = models[family]
    batch = tiny_batch(model)
    q, k, _ = head_tensors(model, 0, batch)
    with inject(model, Fault("SDS")):
        assert torch.allclose(attentions(model)[0], by_hand(q, k, healthy_visibility(family, batch), 1.0), atol=1e-6)


@pytest.mark.parametrize("family", FAMILIES)
def test_scores_rounded_to_half_precision_overflow(models, family):
    """A raw product beyond 65504 becomes infinite, so its query attends to that key alone (or to nothing at all)."""
    model = models[family]
    batch = tiny_batch(model)
    part = locate(model).layers[0]
    q, k, _ = head_tensors(model, 0, batch)
    seen = healthy_visibility(family, batch)
    scaling = 1.0 if family == "gpt_neo" else q.shape[-1] ** -0.5
    rounded = (q @ k.mT).half().double() * scaling
    wanted = rounded.masked_fill(~seen, torch.finfo(torch.float64).min).softmax(-1)
    with inject(model, Fault("SUC")):
        assert torch.allclose(attentions(model)[0].double(), wanted, atol=2e-3)
        with torch.no_grad():
            part.query.weight().mul_(1e6)
        assert not torch.isfinite(logits(model)).all()


@pytest.mark.parametrize("family", FAMILIES)
def test_score_dropout_acts_in_training_only(models, family):
    model = models[family]
    with inject(model, Fault("SPD", 0.5)):
        assert torch.allclose(logits(model), logits(model))
        evaluated = logits(model)
        model.train()
        try:
            first, second = logits(model), logits(model)
        finally:
            model.eval()
    assert torch.allclose(evaluated, logits(model), atol=1e-6)
    assert not torch.allclose(first, second)


@pytest.mark.parametrize("p", [0.1, 0.3, 0.5])
def test_the_kernel_drops_its_own_share_even_in_evaluation(models, p):
    model = models["bert"]
    batch = tiny_batch(model, batch=16)
    with inject(model, Fault("KMD", p)):
        weights = torch.cat([w.flatten() for w in attentions(model, batch)])
        kept = torch.cat([w.flatten() for w in attentions(model, batch)])
    clean = torch.cat([w.flatten() for w in attentions(model, batch)])
    positive = clean > 0
    share = (weights[positive] == 0).double().mean()
    assert abs(share - p) < 0.02
    assert not torch.equal(weights, kept)
    first_layer = slice(0, 16 * 4 * 20 * 20)
    survivors = (weights[first_layer] > 0) & positive[first_layer]
    ratio = weights[first_layer][survivors] / clean[first_layer][survivors]
    assert torch.allclose(ratio, torch.full_like(ratio, 1 / (1 - p)), atol=1e-6)


@pytest.mark.parametrize("family", FAMILIES)
def test_only_the_first_head_has_weight(models, family):
    model = models[family]
    clean = attentions(model)[0]
    with inject(model, Fault("VSH")):
        weights = attentions(model)[0]
    assert torch.allclose(weights[:, 0], clean[:, 0], atol=1e-6)
    assert not weights[:, 1:].any()


def test_the_fused_kernel_does_not_run_where_another_path_is_forced(monkeypatch):
    calls = []
    kernel = functional.scaled_dot_product_attention
    monkeypatch.setattr(functional, "scaled_dot_product_attention", lambda *a, **k: calls.append(1) or kernel(*a, **k))
    model = tiny_model("gpt2", "sdpa")
    clean = logits(model)
    assert len(calls) == 2
    for fault, path in [
        (Fault("KSB"), "one_head_at_a_time"),
        (Fault("KFT", "dtype"), "dtype_fallback"),
        (Fault("KFT", "layout"), "layout_fallback"),
        (Fault("KMC"), "chunked_queries"),
    ]:
        calls.clear()
        with inject(model, fault):
            assert torch.allclose(clean, logits(model), atol=1e-9)
            assert executed(model) == {path: 2}
        assert not calls
    with inject(model, Fault("KSB", layers="first")):
        logits(model)
        assert executed(model) == {"one_head_at_a_time": 1}


def test_dtype_fallback_computes_in_double_and_layout_fallback_on_strided_inputs():
    model = tiny_model("bert").float()
    seen = []

    def spy(inner, call):
        seen.append((call.query.dtype, call.key.is_contiguous(), call.query.stride(-1)))
        return inner(call)

    for trigger in ("dtype", "layout"):
        with Changes() as changes:
            wrap_attention(changes, model, locate(model).layers, spy, "spy")
            with inject(model, Fault("KFT", trigger)):
                assert logits(model).dtype == torch.float32
    assert seen[0][0] == torch.float64
    assert seen[2][1] is False and seen[2][2] == 20


def test_chunks_are_never_longer_than_eight_queries():
    model = tiny_model("gpt_neo")
    lengths = []

    def spy(inner, call):
        lengths.append(call.query.shape[2])
        return inner(call)

    with Changes() as changes:
        wrap_attention(changes, model, locate(model).layers, spy, "spy")
        with inject(model, Fault("KMC")):
            logits(model)
    assert lengths == [8, 8, 4] * 2


def test_tf32_keeps_ten_bits_of_mantissa():
    x = torch.tensor([1.0, 1.0 + 2**-10, 1.0 + 2**-11 + 2**-20, 1.0 + 2**-12, -3.0 - 2**-9, 65504.0, 1e-30, 0.0])
    wanted = torch.tensor([1.0, 1.0 + 2**-10, 1.0 + 2**-10, 1.0, -3.0 - 2**-9, 65504.0, 1e-30, 0.0])
    got = _tf32(x)
    assert torch.allclose(got, wanted, rtol=2**-11, atol=0) and torch.equal(got[:6], wanted[:6])
    many = torch.randn(1000)
    mantissa, _ = torch.frexp(_tf32(many))
    assert torch.equal(mantissa * 2**11, (mantissa * 2**11).round())
    leaf = torch.randn(5, requires_grad=True)
    _tf32(leaf).sum().backward()
    assert torch.equal(leaf.grad, torch.ones(5))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_running_sum_is_rounded(dtype):
    """Adding 1 to 2^m over and over never gets anywhere once a step is below half a unit in the last place."""
    bits = {torch.float16: 11, torch.bfloat16: 8}[dtype]
    a = torch.zeros(1, 80)
    a[0, 0], a[0, 8::8] = 2.0**bits, 1.0
    exact = a.sum().item()
    got = _rounded_product(a, torch.ones(80, 1), dtype).item()
    assert got == 2.0**bits and exact == 2.0**bits + 9


@pytest.mark.parametrize(("precision", "worst"), [("tf32", 2**-10), ("fp16", 2**-9), ("bf16", 2**-6)])
def test_reduced_precision_is_near_the_full_one(models, precision, worst):
    model = models["bert"]
    clean = attentions(model)[0]
    with inject(model, Fault("KRP", precision)):
        faulty = attentions(model)[0]
    gap = (clean - faulty).abs().max()
    assert 0 < gap < 4 * worst


def test_head_split_of_a_mapping_written_out(models):
    model = models["distilbert"]
    batch = tiny_batch(model)
    q, k, _ = head_tensors(model, 0, batch)
    width = q.transpose(1, 2).flatten(2), k.transpose(1, 2).flatten(2)
    for split, heads in [("half_heads", 2), ("double_heads", 8), ("single_head", 1)]:
        q2, k2 = (x.unflatten(-1, (heads, 32 // heads)).transpose(1, 2) for x in width)
        with inject(model, Fault("QHD", split)):
            weights = attentions(model)[0]
        assert torch.allclose(weights, by_hand(q2, k2, healthy_visibility("distilbert", batch)), atol=1e-6)


@pytest.mark.parametrize("family", FAMILIES)
def test_positions(models, family):
    model = models[family]
    table = locate(model).positions
    batch = tiny_batch(model)
    seen = []
    handle = table.register_forward_hook(lambda module, args, output: seen.append((args[0], output)))

    def ids(fault=None, inputs=batch):
        seen.clear()
        if fault is None:
            logits(model, inputs)
        else:
            with inject(model, fault):
                handle_inside = table.register_forward_hook(lambda m, a, o: seen.append((a[0], o)))
                logits(model, inputs)
                handle_inside.remove()
        return seen[-1]

    clean, _ = ids()
    clean = clean.expand(3, -1)
    first = 1 if family == "roberta" else 0
    real = clean >= first
    assert not ids(Fault("POE"))[1].any()
    for shift in (1, 2, 4):
        got = ids(Fault("PSI", shift))[0].expand(3, -1)
        assert torch.equal(got[real], (clean + shift)[real]) and torch.equal(got[~real], clean[~real])
    for cutoff, length in [(0.75, 15), (0.5, 10), (0.25, 5)]:
        got = ids(Fault("PTL", cutoff))[0].expand(3, -1)
        assert torch.equal(got, clean.clamp(max=first + length - 1))
    long = tiny_batch(model, length=62)
    assert int(ids(Fault("PSI", 4), long)[0].max()) == 63
    handle.remove()


@pytest.mark.parametrize(
    ("fault", "metric", "rises"),
    [
        (Fault("MZM"), "attention_padding_mass", True),
        (Fault("SDS"), "attention_entropy", False),
        (Fault("VSH"), "attention_head_utilisation", False),
    ],
)
def test_a_recorder_attached_inside_measures_the_faulty_model(fault, metric, rises):
    model = tiny_model("distilbert").float().train()
    batch = tiny_batch(model)

    def measured():
        with Recorder(model, 1, batch, "encoder") as run:
            loss = model(**batch).loss
            loss.backward()
            run.step(loss, batch)
        model.zero_grad()
        return run.vector()[f"{metric}__final_layer_value__epoch_mean__phase_final_value"]

    clean = measured()
    with inject(model, fault):
        faulty = measured()
    assert (faulty > clean + 0.01) == rises and (faulty < clean - 0.01) != rises

"""Cache faults against cached decoding written out by hand."""

import pytest
import torch
from transformers.cache_utils import DynamicCache

from features.inject import Fault, inject
from features.inject.tiny import tiny_batch, tiny_model

DECODERS = ("gpt2", "gpt_neo")
CODES = [("CST", "all"), ("CDU", None), ("COB", -1), ("COB", 1), ("CTR", 8), ("CLK", None)]


@pytest.fixture(scope="module")
def models():
    return {family: tiny_model(family) for family in DECODERS}


def tokens(model, batch=2, length=24):
    return tiny_batch(model, batch=batch, length=length)["input_ids"].clamp_min(4)


@torch.no_grad()
def decode(model, ids, ends, cache=None):
    """Logits of the parts of `ids` that end at these lengths, each decoded from the cache of the former."""
    start, logits = 0, []
    for end in ends:
        output = model(input_ids=ids[:, start:end], cache=cache, use_cache=True)
        cache, start = output.cache, end
        logits.append(output.logits)
    return logits, cache


@pytest.mark.parametrize("family", DECODERS)
@pytest.mark.parametrize(("code", "value"), CODES)
def test_fresh_forwards_training_and_prefill_are_healthy(models, family, code, value):
    model = models[family]
    batch = tiny_batch(model)
    ids = tokens(model)

    def gradients():
        model.zero_grad()
        model(**batch).loss.backward()
        return [p.grad.clone() for p in model.parameters()]

    with torch.no_grad():
        fresh, prefill = model(**batch).logits, decode(model, ids, [24])[0][0]
    clean = gradients()
    with inject(model, Fault(code, value)):
        with torch.no_grad():
            assert torch.equal(fresh, model(**batch).logits)
            assert torch.equal(prefill, decode(model, ids, [24])[0][0])
            assert torch.equal(prefill, decode(model, ids, [24], DynamicCache(config=model.config))[0][0])
        assert all(torch.equal(a, b) for a, b in zip(clean, gradients(), strict=True))
    model.zero_grad()


@pytest.mark.parametrize("family", DECODERS)
@pytest.mark.parametrize(("code", "value"), CODES)
@pytest.mark.parametrize("ends", [[12, 13, 14, 15], [12, 16, 20, 24]])
@pytest.mark.parametrize("passed", [False, True])
def test_cached_steps_and_chunks_are_not(models, family, code, value, ends, passed):
    model = models[family]
    ids = tokens(model)

    def run():
        return decode(model, ids, ends, DynamicCache(config=model.config) if passed else None)[0]

    clean = run()
    with inject(model, Fault(code, value)):
        faulty = run()
    assert torch.equal(clean[0], faulty[0])
    changed = [not torch.allclose(a, b, atol=1e-6) for a, b in zip(clean, faulty, strict=True)][1:]
    # What is withheld from the cache is missed from the step after.
    assert changed == ([False, True, True] if code == "CDU" else [True, True, True])
    assert all(torch.equal(a, b) for a, b in zip(clean, run(), strict=True))


@pytest.mark.parametrize("family", DECODERS)
def test_stale_entries_repeat_the_last_ones(models, family):
    model, ids = models[family], tokens(models[family])
    with inject(model, Fault("CST", "all")):
        _, cache = decode(model, ids, [12, 13, 17])
    for layer in cache.layers:
        assert torch.equal(layer.keys[..., 12, :], layer.keys[..., 11, :])
        assert torch.equal(layer.values[..., 13:17, :], layer.values[..., 9:13, :])


@pytest.mark.parametrize(("which", "stale"), [("first", [0]), ("middle", [1]), ("last", [1]), ("all", [0, 1])])
def test_stale_layers_are_those_of_the_parameter(models, which, stale):
    model, ids = models["gpt2"], tokens(models["gpt2"])
    with inject(model, Fault("CST", which)):
        _, cache = decode(model, ids, [12, 13])
    repeated = [
        i for i, layer in enumerate(cache.layers) if torch.equal(layer.keys[..., 12, :], layer.keys[..., 11, :])
    ]
    assert repeated == stale


@pytest.mark.parametrize("family", DECODERS)
def test_withheld_slots_stay_empty(models, family):
    model, ids = models[family], tokens(models[family])
    with inject(model, Fault("CDU")):
        _, cache = decode(model, ids, [12, 13, 16])
    for layer in cache.layers:
        assert layer.keys.shape[-2] == 16
        assert layer.keys[..., :12, :].abs().sum(-1).all()
        assert not layer.keys[..., 12:, :].any() and not layer.values[..., 12:, :].any()


@pytest.mark.parametrize("shift", [-1, 1])
def test_off_by_one_reads_the_neighbouring_slot(models, shift):
    """In a model of one faulty layer, the weights on a slot are those of the slot beside it in a healthy one."""
    model, ids = models["gpt2"], tokens(models["gpt2"])

    @torch.no_grad()
    def last_weights():
        cache = model(input_ids=ids[:, :12], use_cache=True).cache
        return model(input_ids=ids[:, 12:13], cache=cache, output_attentions=True).attentions[0]

    clean = last_weights()
    with inject(model, Fault("COB", shift, layers="first")):
        faulty = last_weights()
    slots = (torch.arange(13) - shift).clamp(0, 12)
    wanted = clean[..., slots] / clean[..., slots].sum(-1, keepdim=True)
    assert torch.allclose(faulty, wanted, atol=1e-9)


@pytest.mark.parametrize("family", DECODERS)
@pytest.mark.parametrize("length", [8, 16, 32])
def test_truncated_cache_gives_no_weight_to_what_is_beyond(models, family, length):
    model, ids = models[family], tokens(models[family], length=44)
    with inject(model, Fault("CTR", length)), torch.no_grad():
        cache = model(input_ids=ids[:, :40], use_cache=True).cache
        output = model(input_ids=ids[:, 40:42], cache=cache, output_attentions=True)
    weights = output.attentions[0]
    assert not weights[..., : 40 - length].any()
    assert weights[..., 40 - length : 41].bool().all()
    assert torch.allclose(weights.sum(-1).double(), torch.ones(1, dtype=torch.float64), atol=1e-6)


@pytest.mark.parametrize("family", DECODERS)
def test_a_neighbours_cache_is_the_neighbours_prefix(models, family):
    """With every layer's cache rolled, the step sees the other request's prefix and its own token."""
    model, ids = models[family], tokens(models[family])
    mixed = torch.cat([ids.roll(1, dims=0)[:, :12], ids[:, 12:13]], dim=1)
    with torch.no_grad():
        wanted = model(input_ids=mixed).logits[:, -1]
    with inject(model, Fault("CLK")):
        got = decode(model, ids, [12, 13])[0][1][:, -1]
    assert torch.allclose(got, wanted, atol=1e-5)


@pytest.mark.parametrize("family", DECODERS)
def test_a_lone_request_gets_the_former_ones_cache(models, family):
    model = models[family]
    first, second = tokens(model)[:1], tokens(model)[1:]
    clean = decode(model, second, [12, 13])[0][1]
    mixed = torch.cat([first[:, :12], second[:, 12:13]], dim=1)
    with torch.no_grad():
        wanted = model(input_ids=mixed).logits[:, -1]
    with inject(model, Fault("CLK")):
        alone = decode(model, first, [12, 13])[0][1]
        got = decode(model, second, [12, 13])[0][1]
    assert torch.allclose(alone, decode(model, first, [12, 13])[0][1], atol=1e-6)
    assert torch.allclose(got[:, -1], wanted, atol=1e-5)
    assert not torch.allclose(got, clean, atol=1e-3)


@pytest.mark.parametrize("family", DECODERS)
@pytest.mark.parametrize(("code", "value"), CODES)
def test_generate_runs_and_differs(models, family, code, value):
    model, ids = models[family], tokens(models[family], length=16)

    def generate():
        mask = torch.ones_like(ids)
        return model.generate(
            ids, attention_mask=mask, max_new_tokens=16, do_sample=False, eos_token_id=None, pad_token_id=0
        )

    clean = generate()
    with inject(model, Fault(code, value)):
        faulty = generate()
    assert clean.shape == faulty.shape == (2, 32)
    assert not torch.equal(clean, faulty)
    assert torch.equal(clean, generate())


@pytest.mark.parametrize("family", DECODERS)
def test_two_cache_faults_nest(models, family):
    model, ids = models[family], tokens(models[family])
    with inject(model, Fault("CDU")):
        one = decode(model, ids, [12, 13, 14])[0][2]
        with inject(model, Fault("CTR", 8)):
            both, cache = decode(model, ids, [12, 13, 14])
    assert not torch.allclose(one, both[2])
    assert not cache.layers[0].keys[..., 12:, :].any()
    with inject(model, Fault("COB", 1)), inject(model, Fault("COB", -1)):
        decode(model, ids, [12, 13, 14])

"""The public context: what it accepts, what it refuses, what it puts back, and how faults nest."""

import copy

import pytest
import torch

from features.inject import Fault, InjectionError, NoEffectError, inject
from features.inject.tiny import tiny_batch, tiny_model
from features.inject.verify import model_state, verify

FAMILIES = ("bert", "roberta", "distilbert", "gpt2", "gpt_neo")


@pytest.fixture(scope="module")
def models():
    made = {family: tiny_model(family) for family in FAMILIES}
    for model in made.values():
        model(**tiny_batch(model))
    return made


def logits(model):
    with torch.no_grad():
        return model(**tiny_batch(model)).logits


def train(model, optimizer, steps=2):
    for _ in range(steps):
        optimizer.zero_grad()
        model(**tiny_batch(model)).loss.backward()
        optimizer.step()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("XXX",), "no mutation operator 'XXX'"),
        (("FSW",), r"FSW takes factor in \(0.5, 2.0, 5.0\), not None"),
        (("FSW", 3.0), "not 3.0"),
        (("QZQ", 1), "QZQ takes no parameter"),
        (("CST", "second"), "CST takes layers"),
        (("FSW", 2.0, "upper"), "layers must be one of"),
        (("FSW", 2.0, ()), "layers must be one of"),
        (("OSL", 2.0, "first"), "does not act layer by layer"),
        (("CST", "all", "first"), "does not act layer by layer"),
    ],
)
def test_a_wrong_fault_is_refused_when_it_is_made(arguments, words):
    with pytest.raises(InjectionError, match=words):
        Fault(*arguments)


def test_a_fault_is_a_value():
    assert Fault("FSW", 2.0, (0, 1)) == Fault("FSW", 2.0, (0, 1))
    assert type(Fault("CTR", 8.0).value) is int
    assert len({Fault("MZM"), Fault("MZM"), Fault("MZM", seed=1)}) == 2
    assert (Fault("RGC", 1.0).category, Fault("RGC", 1.0).root_cause) == ("residual", "gradient_clipping")


def test_refusals_name_what_to_do(models):
    bert = models["bert"]
    cases = [
        (Fault("MCB", 0.1), {}, "decoder only"),
        (Fault("FCA", "gelu"), {}, "gelu is the activation"),
        (Fault("FSW", 2.0, (2,)), {}, "no block 2 in a model of 2"),
        (Fault("QFG"), {}, r"inject\(model, fault, optimizer=...\)"),
        (Fault("OZR", "rare"), {"class_counts": [1, 2]}, "2 class counts for a head of 4"),
    ]
    for fault, arguments, words in cases:
        before = model_state(bert)
        with pytest.raises(InjectionError, match=words), inject(bert, fault, **arguments):
            pass
        assert before.structure == model_state(bert).structure
    with pytest.raises(InjectionError, match="no output head"), inject(bert.base_model, Fault("OSL", 2.0)):
        pass
    with pytest.raises(InjectionError, match="no faults for Linear"), inject(torch.nn.Linear(2, 2), Fault("OSL", 2.0)):
        pass


def test_a_setting_that_the_run_has_anyway_is_refused(models):
    model = tiny_model("bert", dropout=0.1)
    same_decay = torch.optim.AdamW(model.parameters(), weight_decay=0.1)
    for fault in (Fault("RDR", 0.1), Fault("FRG", 0.1), Fault("NWD", 0.1)):
        with pytest.raises(NoEffectError), inject(model, fault, optimizer=same_decay):
            pass
    with inject(models["bert"], Fault("QHD", "single_head")):
        for fault in (Fault("QHD", "single_head"), Fault("QTH", "all"), Fault("VSH")):
            with pytest.raises(NoEffectError), inject(models["bert"], fault):
                pass


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("code", ["FSW", "ETZ", "KMD", "RSR", "QTH", "NWD"])
def test_everything_returns_after_training_inside_and_an_exception(family, code):
    value = {"FSW": 2.0, "ETZ": 0.3, "KMD": 0.3, "RSR": 2.0, "QTH": "all", "NWD": 1.0}[code]
    model = tiny_model(family)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.05)
    train(model, optimizer)
    before, clean = model_state(model, optimizer), logits(model)
    gradients = [p.grad.clone() for p in model.parameters()]
    state = copy.deepcopy(optimizer.state_dict())
    with pytest.raises(RuntimeError, match="inside"), inject(model, Fault(code, value), optimizer=optimizer):
        train(model, optimizer)
        optimizer.param_groups[0]["lr"] = 1.0
        model.config.problem_type = "regression"
        raise RuntimeError("inside")
    after = model_state(model, optimizer)
    assert before.structure == after.structure
    assert all(torch.equal(before.tensors[n], t) for n, t in after.tensors.items())
    assert torch.equal(clean, logits(model))
    assert all(torch.equal(a, p.grad) for a, p in zip(gradients, model.parameters(), strict=True))
    restored = optimizer.state_dict()
    assert restored["param_groups"] == state["param_groups"]
    for key, entry in state["state"].items():
        assert all(torch.equal(value, restored["state"][key][name]) for name, value in entry.items())
    train(model, optimizer, steps=1)


@pytest.mark.parametrize("code", ["QZQ", "FSW", "NZG", "ORI", "ETZ", "QTH"])
@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_parameters_can_be_trained_inside(family, code):
    value = {"FSW": 2.0, "ORI": "zeros", "ETZ": 0.5, "QTH": "all"}.get(code)
    model = tiny_model(family)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    with inject(model, Fault(code, value), optimizer=optimizer):
        before = [p.detach().clone() for p in model.parameters()]
        first = model(**tiny_batch(model)).loss
        train(model, optimizer, steps=8)
        assert any(not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
        assert model(**tiny_batch(model)).loss < first


def test_the_global_random_state_is_not_touched(models):
    for family, code, value in [("bert", "KMD", 0.3), ("gpt2", "RIN", 0.1), ("gpt_neo", "ORI", "xavier")]:
        model = models[family]
        state = torch.get_rng_state()
        with inject(model, Fault(code, value)):
            logits(model)
        assert torch.equal(state, torch.get_rng_state())


def test_configured_dropout_is_drawn_as_in_the_clean_run():
    """With an attention fault that changes no number, training with dropout is the clean run's to rounding."""
    for family in FAMILIES:
        model = tiny_model(family, dropout=0.2).train()
        torch.manual_seed(3)
        clean = logits(model)
        with inject(model, Fault("KSB")):
            torch.manual_seed(3)
            assert torch.allclose(clean, logits(model), atol=1e-6), family


def test_the_seed_decides_what_is_drawn(models):
    def draw(seed):
        with inject(models["bert"], Fault("ETZ", 0.3, seed=seed)):
            return logits(models["bert"])

    assert torch.equal(draw(0), draw(0))
    assert not torch.allclose(draw(0), draw(1))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    "codes",
    [
        (("FSW", 2.0), ("FSW", 0.5)),
        (("KRP", "bf16"), ("SPD", 0.5)),
        (("KSB", None), ("KMC", None)),
        (("MRM", "batch"), ("MIM", None)),
        (("RSR", 2.0), ("RIN", 0.1)),
        (("ESW", 0.3), ("ETZ", 0.3)),
        (("ORI", "xavier"), ("OZR", "balanced")),
        (("POE", None), ("VSH", None)),
        (("QHD", "half_heads"), ("QTH", "all")),
    ],
)
def test_nested_faults_apply_and_leave_in_order(models, family, codes):
    model = models[family]
    outer, inner = (Fault(*code) for code in codes)
    clean = logits(model)
    with inject(model, outer):
        with_outer, state = logits(model), model_state(model)
        with inject(model, inner):
            assert verify(state, model, inner).ok
            both = logits(model)
        assert model_state(model).structure == state.structure
        if outer.code != "RIN":
            assert torch.equal(with_outer, logits(model))
    assert torch.equal(clean, logits(model))
    with inject(model, inner):
        with_inner = logits(model)
    if codes == (("FSW", 2.0), ("FSW", 0.5)):
        assert torch.equal(both, clean)
    elif inner.code not in ("SPD", "KMC"):
        assert not torch.allclose(both, with_outer) and not torch.allclose(both, with_inner)


def test_layers_confine_a_fault(models):
    bert = models["bert"]
    for layers, changed in [("first", {0}), ("last", {1}), ("middle", {1}), ((0,), {0}), ((1, 0), {0, 1})]:
        before = model_state(bert)
        with inject(bert, Fault("NSB", 1.0, layers=layers)):
            after = model_state(bert)
        names = {n for n, t in after.tensors.items() if not torch.equal(t, before.tensors[n])}
        assert {int(name.split(".layer.")[1].split(".")[0]) for name in names} == changed
        assert len(names) == 2 * len(changed)


@pytest.mark.parametrize("code", ["MIM", "KMD", "RRS", "QHD", "SDS"])
def test_layers_confine_what_a_forward_computes(models, code):
    value = {"KMD": 0.3, "QHD": "half_heads"}.get(code)
    model = models["gpt2"]

    def hidden():
        with torch.no_grad():
            return model(**tiny_batch(model), output_hidden_states=True).hidden_states

    clean = hidden()
    with inject(model, Fault(code, value, layers="last")):
        faulty = hidden()
    assert torch.equal(clean[1], faulty[1])
    assert not torch.allclose(clean[2], faulty[2])


def test_deeper_models_and_other_heads_are_taken_apart():
    from transformers import (
        BertForMaskedLM,
        DistilBertForMaskedLM,
        GPT2ForSequenceClassification,
        GPTNeoForSequenceClassification,
        RobertaForMaskedLM,
    )

    for family, kind in [
        ("bert", BertForMaskedLM),
        ("roberta", RobertaForMaskedLM),
        ("distilbert", DistilBertForMaskedLM),
        ("gpt2", GPT2ForSequenceClassification),
        ("gpt_neo", GPTNeoForSequenceClassification),
    ]:
        config = tiny_model(family).config
        model = kind(config).eval()
        inputs = {k: v for k, v in tiny_batch(model).items() if k != "labels"}
        with torch.no_grad():
            clean = model(**inputs).logits
            for fault in (Fault("ORI", "zeros"), Fault("ETZ", 0.5), Fault("OOD", 1)):
                with inject(model, fault):
                    assert not torch.allclose(clean, model(**inputs).logits, atol=1e-4), (family, fault)
            assert torch.equal(clean, model(**inputs).logits)

"""The structural verifier has to notice what is wrong, and the table has to fail when a cell does."""

import pytest
import torch

import features.inject.__main__ as table
from features.inject import Fault, inject
from features.inject.locate import locate
from features.inject.proof import Proof, prove
from features.inject.tiny import tiny_model
from features.inject.verify import model_state, verify
from features.taxonomy import operator

ALTERED = [
    (Fault("FSW", 2.0), lambda a: a.layers[0].up.weight.add_(1e-5)),
    (Fault("QZQ"), lambda a: a.layers[0].query.weight().add_(1e-5)),
    (Fault("QSW"), lambda a: a.layers[1].key.weight().mul_(1.001)),
    (Fault("QTH", "all"), lambda a: a.layers[1].value.weight()[20].add_(1e-4)),
    (Fault("NSB", 0.5), lambda a: a.layers[0].norms[1].bias.add_(1e-4)),
    (Fault("NSG", 0.5), lambda a: a.layers[0].norms[0].weight.add_(1e-4)),
    (Fault("FWI", "zeros"), lambda a: a.layers[0].down.weight.add_(1e-5)),
    (Fault("FWI", "uniform"), lambda a: a.layers[0].down.weight.mul_(1.5)),
    (Fault("NCE", 1.0), lambda a: setattr(a.layers[0].norms[0], "eps", 1.1)),
    (Fault("SDS"), lambda a: setattr(a.layers[0].attention, "scaling", 1.1)),
]
BERT_ONLY = [
    (Fault("ETZ", 0.3), lambda a: a.tokens.weight[5:40].zero_()),
    (Fault("ESW", 0.3), lambda a: a.tokens.weight[5:8].mul_(2)),
    (Fault("EZD", 0.3), lambda a: a.tokens.weight[:, ::4].zero_()),
    (Fault("ESS", 2.0), lambda a: a.segments.weight.mul_(1.1)),
    (Fault("ORI", "xavier"), lambda a: a.head.weight.mul_(2)),
    (Fault("OZR", "rare"), lambda a: a.head.weight[0].zero_()),
]


@pytest.mark.parametrize(
    ("family", "fault", "spoil"),
    [(f, *case) for f in ("bert", "gpt2") for case in ALTERED] + [("bert", *case) for case in BERT_ONLY],
)
def test_a_wrong_magnitude_is_found(family, fault, spoil):
    model = tiny_model(family)
    before = model_state(model)
    with inject(model, fault):
        assert verify(before, model, fault).ok
        with torch.no_grad():
            spoil(locate(model))
        verification = verify(before, model, fault)
    assert not verification.ok
    assert verification.magnitude_error > 1e-6
    assert "magnitude is off" in verification.reason


@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_a_change_beyond_the_target_is_found_and_named(family):
    model = tiny_model(family)
    before = model_state(model)
    anatomy = locate(model)
    fault = Fault("QZV", layers="first")
    with inject(model, fault):
        anatomy.layers[1].norms[0].eps = 0.5
        verification = verify(before, model, fault)
        assert [name.rsplit(".", 1)[1] for name in verification.unexpected] == ["eps"]
        assert not verification.ok and "beyond the target" in verification.reason
    anatomy.layers[1].norms[0].eps = 1e-12
    before = model_state(model)
    with inject(model, fault), torch.no_grad():
        anatomy.layers[1].up.weight[0, 0] += 1.0
        handle = anatomy.layers[0].down.register_forward_hook(lambda *_: None)
        names = verify(before, model, fault).unexpected
        handle.remove()
    assert len(names) == 2 and {name.rsplit(".", 1)[1] for name in names} == {"weight", "_forward_hooks"}


def test_the_other_thirds_of_a_fused_projection_count():
    model = tiny_model("gpt2")
    before = model_state(model)
    with inject(model, Fault("QZQ")):
        with torch.no_grad():
            locate(model).layers[0].value.weight()[3, 3] += 0.5
        assert verify(before, model, Fault("QZQ")).magnitude_error == pytest.approx(0.5)


def test_nothing_changed_is_not_verified():
    model = tiny_model("bert")
    verification = verify(model_state(model), model, Fault("POE"))
    assert not verification.ok and verification.reason == "nothing changed"


def test_another_fault_than_the_one_claimed_is_found():
    model = tiny_model("gpt_neo")
    before = model_state(model)
    with inject(model, Fault("MIM", layers="first")):
        assert verify(before, model, Fault("MIM", layers="first")).ok
        assert not verify(before, model, Fault("MIM", layers="last")).ok
        assert not verify(before, model, Fault("KSB")).ok
    with inject(model, Fault("KSB", layers="first")):
        assert verify(before, model, Fault("KSB", layers="first")).ok
        assert not verify(before, model, Fault("KSB", layers="last")).ok


def test_optimizer_faults_are_verified_with_the_optimizer():
    model = tiny_model("distilbert")
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.05)
    before = model_state(model, optimizer)
    with inject(model, Fault("FRG", 0.1), optimizer=optimizer):
        assert verify(before, model, Fault("FRG", 0.1), optimizer).changed == ("optimizer",)
        optimizer.param_groups[0]["lr"] = 1.0
        assert verify(before, model, Fault("FRG", 0.1), optimizer).unexpected == ("optimizer.param_groups",)


def test_a_fault_without_effect_is_not_proved():
    """Shifting what nothing reads: a head of ones is the same after its classes were shuffled."""
    model = tiny_model("bert")
    with torch.no_grad():
        model.classifier.weight.fill_(1.0)
        model.classifier.bias.zero_()
    assert not prove(Fault("OOD", 1), model).effective
    assert prove(Fault("OSL", 2.0), model).effective


@pytest.mark.parametrize(
    ("outcome", "status", "code"),
    [
        (Proof(True, "forward", 1.0), "effective", 0),
        (Proof(False, "forward", 0.0), "no effect", 1),
        (RuntimeError("boom"), "error", 1),
    ],
)
def test_the_table_fails_if_a_cell_does(monkeypatch, capsys, outcome, status, code):
    def proof(fault, model):
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    monkeypatch.setattr(table, "prove", proof)
    monkeypatch.setattr(table, "OPERATORS", (operator("MZM"), operator("ESS"), operator("FCA")))
    assert table.main([]) == code
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 100
    effective, no_effect, errors = (12 if status == s else 0 for s in ("effective", "no effect", "error"))
    assert f"15 cells: {effective} effective, 3 not applicable, {no_effect} without effect, {errors} errors" in printed


def test_a_cell_of_the_table_is_proved_live():
    model = tiny_model("gpt2")
    assert table.prove_cell(operator("CTR"), "gpt2", model).status == "effective"
    assert table.prove_cell(operator("ESS"), "gpt2", model).text == "n/a: GPT-2 has no segment embeddings"
    assert "(not gelu: own)" in table.prove_cell(operator("FCA"), "bert", tiny_model("bert")).text

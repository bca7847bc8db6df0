"""Every operator at every value on every family: effective, confined to its target, and gone afterwards."""

import functools
import math

import pytest
import torch

from features.inject import FAMILIES, Fault, applicable, inject
from features.inject.proof import prove
from features.inject.tiny import tiny_batch, tiny_model
from features.inject.verify import model_state, verify
from features.taxonomy import OPERATORS, operator

CELLS = [(op.code, family) for op in OPERATORS for family in FAMILIES if applicable(op.code, family) is None]
REACHES_ATTENTION = ("masking", "qkv", "score", "kernel", "variant", "kv_cache")


@functools.cache
def model_and_state(family, attention):
    model = tiny_model(family, attention)
    model(**tiny_batch(model))
    return model, model_state(model)


def assert_same(before, after):
    assert before.structure == after.structure
    assert all(torch.equal(before.tensors[name], tensor) for name, tensor in after.tensors.items())
    assert torch.equal(before.tokens, after.tokens)


@pytest.mark.parametrize(("code", "family"), CELLS)
def test_cell_is_effective_confined_and_undone(code, family):
    model, before = model_and_state(family, "eager")
    for value in operator(code).settings:
        if applicable(code, family, value):
            continue
        fault = Fault(code, value)
        proof = prove(fault, model)
        assert proof.effective, (value, proof)
        optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.05)
        with_optimizer = model_state(model, optimizer)
        with inject(model, fault, optimizer=optimizer):
            verification = verify(with_optimizer, model, fault, optimizer)
        assert verification.ok, (value, verification.reason)
        assert math.isnan(verification.magnitude_error) or verification.magnitude_error <= 1e-6
        assert_same(before, model_state(model))


@pytest.mark.parametrize(
    ("code", "family"),
    [(c, f) for c, f in CELLS if operator(c).category in REACHES_ATTENTION and f != "gpt_neo"],
)
def test_faults_that_reach_attention_work_with_the_fused_kernel_too(code, family):
    model, before = model_and_state(family, "sdpa")
    fault = Fault(code, operator(code).settings[-1])
    assert prove(fault, model).effective
    assert_same(before, model_state(model))


def test_only_what_the_architectures_force_is_not_applicable():
    absent = {
        (op.code, family): applicable(op.code, family)
        for op in OPERATORS
        for family in FAMILIES
        if applicable(op.code, family)
    }
    forced = {pair: reason for pair, reason in absent.items() if not reason.endswith("only")}
    assert forced.keys() == {("SDS", "gpt_neo"), ("ESS", "distilbert"), ("ESS", "gpt2"), ("ESS", "gpt_neo")}
    assert len(CELLS) == 236
    assert len(absent) == 24


def test_family_table_agrees_with_what_a_model_says():
    for family in FAMILIES:
        model, _ = model_and_state(family, "eager")
        for op in OPERATORS:
            for value in (None, *op.values):
                assert applicable(op.code, family, value) == applicable(op.code, model, value)


def test_gpt_neo_really_has_no_scaling():
    """The reason given for leaving SDS out: scores are plain products of queries and keys."""
    model, _ = model_and_state("gpt_neo", "eager")
    attention = model.transformer.h[0].attn.attention
    q, k, v = torch.randn(3, 1, 4, 5, 8)
    _, weights = attention._attn(q, k, v)
    causal = torch.ones(5, 5, dtype=torch.bool).tril()
    wanted = (q @ k.mT).masked_fill(~causal, -math.inf).softmax(-1)
    assert torch.allclose(weights.float(), wanted, atol=1e-6)

"""Counts and names of DEFault++'s Tables 1 and 3."""

from collections import Counter

import pytest

from features.taxonomy import (
    ARCHITECTURES,
    OPERATORS,
    ROOT_CAUSES,
    categories,
    operator,
    operators,
    root_causes,
)

# The manuscript's operators by category, in its order.
CODES = {
    "masking": "MZM MIM MRM MCB",
    "qkv": "QZQ QZK QZV QSW QTH QFG QHD",
    "score": "SDS SPD SUC",
    "positional": "POE PSI PTL",
    "kernel": "KSB KMD KFT KRP KMC",
    "variant": "VSH VEC",
    "kv_cache": "CST CDU COB CTR CLK",
    "embedding": "ETZ ESW ESS EZD",
    "ffn": "FSW FDN FCA FRG FWI",
    "layernorm": "NSG NZG NSB NCE NWD",
    "residual": "RRS RSR RIN RGC RDR",
    "output": "OSL OZR OOD ORI",
}


@pytest.mark.parametrize(("arch", "n_categories", "n_causes"), [("encoder", 11, 40), ("decoder", 12, 45)])
def test_counts(arch, n_categories, n_causes):
    assert len(categories(arch)) == len(set(categories(arch))) == n_categories
    assert len(root_causes(arch)) == len(set(root_causes(arch))) == n_causes


def test_kv_cache_is_what_decoders_have_more():
    assert set(categories("decoder")) - set(categories("encoder")) == {"kv_cache"}
    assert {c for c, _ in set(root_causes("decoder")) - set(root_causes("encoder"))} == {"kv_cache"}


def test_operators_are_the_52_of_the_manuscript():
    assert len(OPERATORS) == 52
    listed = {category: [op.code for op in OPERATORS if op.category == category] for category in ROOT_CAUSES}
    assert listed == {category: codes.split() for category, codes in CODES.items()}


def test_every_root_cause_has_an_operator_and_every_operator_a_root_cause():
    injected = {(op.category, op.root_cause) for op in OPERATORS}
    assert injected == set(root_causes("decoder"))


def test_scope_is_restricted_only_where_the_mechanism_is_missing():
    scoped = {op.code: op.architectures for op in OPERATORS if op.architectures != ARCHITECTURES}
    assert scoped == {
        "MCB": ("decoder",),
        "VEC": ("encoder",),
        **dict.fromkeys(("CST", "CDU", "COB", "CTR", "CLK"), ("decoder",)),
    }
    assert len(operators("encoder")) == 46
    assert len(operators("decoder")) == 51


def test_parameters_and_values_come_together():
    for op in OPERATORS:
        assert (op.parameter is None) == (op.values == ()), op.code
        assert len(set(op.values)) == len(op.values), op.code
        assert op.settings == (op.values or (None,)), op.code
    # Number of settings: 18 operators have no parameter (B in the manuscript), the others two, three or four values.
    assert Counter(len(op.settings) for op in OPERATORS) == {1: 18, 2: 3, 3: 29, 4: 2}


def test_an_unknown_operator_is_named():
    with pytest.raises(KeyError, match="XYZ"):
        operator("XYZ")

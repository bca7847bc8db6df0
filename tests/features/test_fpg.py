"""The group graph against a matrix written down by hand from the component edges, and its twins' invariants."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from features.fpg import (
    CATEGORY_GROUP,
    COMPONENTS,
    GROUP_OF_COMPONENT,
    MECHANISMS,
    component_edges,
    group_adjacency,
    group_edges,
    neighbours,
    random_edges,
    rewired_edges,
)
from features.schema import groups
from features.taxonomy import categories

# By hand, from M1-M4 and M7 of the manuscript: the groups that each group reads from.
READS_FROM = {
    "attention": {"score", "qkv_alignment"},
    "score": {"qkv_alignment"},
    "ffn_output": {"layernorm"},
    "layernorm": {"residual_stream"},
    "residual_stream": {"attention", "embedding", "ffn_output", "layernorm"},
    "qkv_alignment": {"embedding", "positional", "layernorm"},
    "output": {"layernorm"},
}
DECODER_READS_FROM = {"attention": {"score", "qkv_alignment", "cache"}, "cache": {"qkv_alignment"}}


@pytest.mark.parametrize("arch", ["encoder", "decoder"])
def test_adjacency_is_the_hand_derived_matrix(arch):
    reads = READS_FROM | (DECODER_READS_FROM if arch == "decoder" else {})
    names = groups(arch)
    expected = np.zeros((len(names), len(names)))
    for i, group in enumerate(names):
        sources = reads.get(group, set()) | {group}
        for j, source in enumerate(names):
            expected[i, j] = 1 / len(sources) if source in sources else 0
    pd.testing.assert_frame_equal(group_adjacency(arch), pd.DataFrame(expected, names, names))


def test_context_groups_keep_to_themselves():
    adjacency = group_adjacency("decoder")
    for group in ("representation_drift", "training_dynamics", "validation_perf"):
        assert adjacency.loc[group, group] == 1
        assert adjacency[group].sum() == 1


def test_components():
    assert len(COMPONENTS) == len(set(COMPONENTS)) == 14
    assert set(GROUP_OF_COMPONENT) == set(COMPONENTS)
    ends = {c for edges in MECHANISMS.values() for edge in edges for c in edge}
    assert ends == set(COMPONENTS)
    assert sum(map(len, MECHANISMS.values())) == 23
    assert len(component_edges("decoder")) == 18
    assert len(component_edges("encoder")) == 16


def test_every_category_has_a_measured_group():
    assert set(CATEGORY_GROUP) == set(categories("decoder"))
    assert {CATEGORY_GROUP[c] for c in categories("encoder")} <= set(groups("encoder"))


def test_neighbours_go_either_way():
    assert neighbours("encoder", "score") == ("attention", "qkv_alignment")
    assert neighbours("encoder", "validation_perf") == ()


def degrees(edges):
    outgoing = pd.Series([a for a, _ in edges]).value_counts().to_dict()
    incoming = pd.Series([b for _, b in edges]).value_counts().to_dict()
    return outgoing, incoming


@given(st.integers(0, 2**32 - 1), st.sampled_from(["encoder", "decoder"]))
def test_rewired_keeps_every_degree(seed, arch):
    edges = rewired_edges(arch, seed)
    assert degrees(edges) == degrees(group_edges(arch))
    assert len(set(edges)) == len(edges)
    assert all(a != b for a, b in edges)
    assert edges == rewired_edges(arch, seed)


@given(st.integers(0, 2**32 - 1), st.sampled_from(["encoder", "decoder"]))
def test_random_keeps_density_among_structural_groups(seed, arch):
    edges = random_edges(arch, seed)
    assert len(set(edges)) == len(edges) == len(group_edges(arch))
    assert all(a != b for a, b in edges)
    assert {g for e in edges for g in e} <= {g for e in group_edges(arch) for g in e}


@pytest.mark.parametrize("twin", [rewired_edges, random_edges])
@pytest.mark.parametrize("arch", ["encoder", "decoder"])
def test_twins_differ_from_the_graph_and_by_seed(twin, arch):
    drawn = {twin(arch, seed) for seed in range(20)}
    assert len(drawn) > 10
    assert group_edges(arch) not in drawn


def test_adjacency_of_given_edges_is_row_normalised():
    adjacency = group_adjacency("encoder", edges=(("score", "attention"), ("output", "attention")))
    np.testing.assert_allclose(adjacency.sum(axis=1), 1)
    assert adjacency.loc["attention", "score"] == pytest.approx(1 / 3)
    assert adjacency.loc["score", "attention"] == 0

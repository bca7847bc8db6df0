"""The network against the same network written with PyTorch's own layers, one group and one category at a time."""

import numpy as np
import pytest
import torch

from baselines.defaultpp.fitting import adjacency_of, lay_out
from baselines.defaultpp.model import Layout, Network
from features.fpg import group_adjacency, group_edges
from features.routing import route
from features.schema import columns, groups

WIDTHS = (3, 1, 5)
LAYOUT = Layout(WIDTHS, n_categories=2, category_of_class=(0, 0, 1), hidden=4, embedding=6, rounds=2, dropout=0.0)
ADJACENCY = torch.tensor([[0.5, 0.5, 0.0], [0.0, 1.0, 0.0], [1 / 3, 1 / 3, 1 / 3]])


@pytest.fixture
def network():
    torch.manual_seed(0)
    return Network(LAYOUT, ADJACENCY).eval()


@pytest.fixture
def x():
    return torch.randn(7, sum(WIDTHS), generator=torch.Generator().manual_seed(1))


def test_group_encoder_is_one_small_network_per_group(network, x):
    encoder, start = network.encoder, 0
    for g, width in enumerate(WIDTHS):
        part = x[:, start : start + width]
        hidden = torch.relu(part @ encoder.first_weight[start : start + width] + encoder.first_bias[g])
        by_hand = hidden @ encoder.second_weight[g] + encoder.second_bias[g]
        torch.testing.assert_close(encoder(x)[g], by_hand)
        start += width


def test_message_passing_is_the_formula(network, x):
    H = network.encoder(x).transpose(0, 1)
    for weight in network.messages.weights:
        H = torch.relu(torch.einsum("gk,bkh,hm->bgm", ADJACENCY, H, weight))
    torch.testing.assert_close(network.embed(x), H)


def test_root_cause_heads_are_one_head_per_category(network, x):
    output, heads = network(x), network.root_cause_heads
    half = LAYOUT.embedding // 2
    for k, category in enumerate(LAYOUT.category_of_class):
        own = slice(category * half, (category + 1) * half)
        hidden = torch.relu(output.z @ heads.first.weight[own].T + heads.first.bias[own])
        by_hand = hidden @ heads.second_weight[k] + heads.second_bias[k]
        torch.testing.assert_close(output.classes[:, k], by_hand)


def test_permuting_rows_permutes_the_output(network, x):
    order = torch.randperm(len(x))
    for whole, part in zip(network(x), network(x[order]), strict=True):
        torch.testing.assert_close(whole[order], part)


def test_permuting_groups_permutes_the_embeddings(network, x):
    order = [2, 0, 1]
    other = Network(Layout(**{**vars(LAYOUT), "widths": tuple(WIDTHS[g] for g in order)}), ADJACENCY[order][:, order])
    starts = np.cumsum([0, *WIDTHS])
    rows = np.concatenate([np.arange(starts[g], starts[g + 1]) for g in order])
    with torch.no_grad():
        other.encoder.first_weight.copy_(network.encoder.first_weight[rows])
        for name in ("first_bias", "second_weight", "second_bias"):
            getattr(other.encoder, name).copy_(getattr(network.encoder, name)[order])
        other.messages.weights.copy_(network.messages.weights)
        blocks = network.projection.weight.unflatten(1, (len(WIDTHS), -1))
        other.projection.weight.copy_(blocks[:, order].flatten(1))
        other.projection.bias.copy_(network.projection.bias)
    torch.testing.assert_close(other.eval().embed(x[:, rows]), network.embed(x)[:, order])
    torch.testing.assert_close(
        other.projection(other.embed(x[:, rows]).flatten(1)), network.projection(network.embed(x).flatten(1))
    )


def test_without_a_graph_groups_don_t_hear_of_each_other(x):
    network = Network(LAYOUT, None).eval()
    moved = x.clone()
    moved[:, 0] += 10.0  # a column of the first group
    change = (network.embed(moved) - network.embed(x)).abs().amax(dim=(0, 2))
    assert change[0] > 0
    assert change[1:].max() == 0


def test_one_round_of_messages_goes_one_edge_far(x):
    layout = Layout(**{**vars(LAYOUT), "rounds": 1})
    torch.manual_seed(3)
    network = Network(layout, ADJACENCY).eval()
    moved = x.clone()
    moved[:, :3] += torch.randn(7, 3) * 10
    change = (network.embed(moved) - network.embed(x)).abs().amax(dim=(0, 2))
    assert change[1] == 0, "group 1 reads from itself only"
    assert change[2] > 0, "group 2 reads from group 0"


def test_flat_encoder_has_the_same_face(x):
    network = Network(Layout(**{**vars(LAYOUT), "flat": True}), None).eval()
    assert network.embed(x).shape == (7, 3, 4)


@pytest.mark.parametrize("arch", ["encoder", "decoder"])
def test_layout_covers_every_routed_column_once(arch):
    names, widths = lay_out(columns(arch), arch, "schema", 0)
    assert sorted(names) == sorted(columns(arch))
    assert tuple(widths) == groups(arch)
    group = route(names).group
    start = 0
    for name, width in widths.items():
        assert set(group.iloc[start : start + width]) == {name}
        start += width
    dealt, same = lay_out(columns(arch), arch, "random", 1)
    assert sorted(dealt) == sorted(names)
    assert dealt != names
    assert same == widths


def test_columns_without_a_group_are_left_out():
    names, widths = lay_out(["mystery", "epoch", *columns("encoder")[:5]], "encoder", "schema", 0)
    assert sorted(names) == sorted(columns("encoder")[:5])
    assert widths == {"attention": 5}


def test_adjacency_of_present_groups_only():
    present = ("attention", "ffn_output", "embedding")
    kept = adjacency_of("encoder", present, "fpg", 0)
    torch.testing.assert_close(kept.sum(dim=1), torch.ones(3, dtype=kept.dtype))
    whole = group_adjacency("encoder").loc[list(present), list(present)].to_numpy()
    assert ((kept.numpy() > 0) == (whole > 0)).all()
    assert adjacency_of("encoder", present, "none", 0) is None


@pytest.mark.parametrize("graph", ["rewired", "random"])
def test_twins_have_as_many_edges_and_other_ones(graph):
    present = groups("decoder")
    fpg, twin = (adjacency_of("decoder", present, g, 1) > 0 for g in ("fpg", graph))
    assert int(twin.sum()) == int(fpg.sum()) == len(group_edges("decoder")) + len(present)
    assert (twin != fpg).any()

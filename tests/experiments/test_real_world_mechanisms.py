"""Each real-world fault in closed form on small tensors, and on the model that it is rebuilt on."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

from experiments.cases import (
    ai_edge_torch_6,
    case,
    cases,
    diffusers_11903,
    jax_23349,
    pytorch_103082,
    transformers_17886,
    transformers_37574,
)
from features.build.base import from_base
from features.build.families import family
from features.build.profile import profile
from features.build.tasks import task
from features.inject.locate import locate
from features.measure.discover import dissect

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")
VERSIONS = (False, True)


def prepared(name: str, faulty: bool) -> nn.Module:
    chosen = case(name)
    torch.manual_seed(3)
    return chosen.prepare(from_base(family(chosen.family), 3), faulty).eval()


def batch(name: str, rows: int = 6) -> dict[str, torch.Tensor]:
    chosen = case(name)
    return profile("embedded").load(family(chosen.family), task(chosen.task), "train", rows).take(slice(rows))


@torch.no_grad()
def logits(model: nn.Module, inputs: dict[str, torch.Tensor], **kwargs) -> torch.Tensor:
    return model(**{k: v for k, v in inputs.items() if k != "labels"}, **kwargs).logits


@torch.no_grad()
def decoded(model: nn.Module, inputs: dict[str, torch.Tensor], cuts: list[int]) -> torch.Tensor:
    """Logits by chunks that start at `cuts`, through the cache."""
    length, cache, found = inputs["input_ids"].shape[1], None, []
    for start, stop in zip(cuts, [*cuts[1:], length], strict=True):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            output = model(
                input_ids=inputs["input_ids"][:, start:stop],
                attention_mask=inputs["attention_mask"][:, :stop],
                position_ids=inputs["position_ids"][:, start:stop],
                past_key_values=cache,
                use_cache=True,
            )
        cache = output.past_key_values
        found.append(output.logits)
    return torch.cat(found, dim=1)


def test_lengths_of_keys_alone_are_heeded_unless_both_are_needed():
    lengths = torch.tensor([1, 3])
    mask = jax_23349.padding_mask(3, 3, None, lengths, needs_both=False)
    assert mask[:, 0, 0].tolist() == [[True, False, False], [True, True, True]]
    assert mask.shape == (2, 1, 3, 3) and (mask == mask[:, :, :1]).all()
    assert jax_23349.padding_mask(3, 3, None, lengths, needs_both=True) is None
    both = [jax_23349.padding_mask(3, 3, lengths, lengths, needs_both=flaw) for flaw in VERSIONS]
    assert torch.equal(*both) and both[0][0, 0].sum() == 1


def test_padding_gets_attention_in_the_faulty_version_only():
    inputs = batch("jax-23349")
    padding = inputs["attention_mask"] == 0
    assert padding.any()
    mass = {}
    for faulty in VERSIONS:
        with torch.no_grad():
            output = prepared("jax-23349", faulty)(**inputs, output_attentions=True)
        weights = torch.stack(output.attentions)
        mass[faulty] = float((weights * padding[:, None, None]).sum() / weights.sum())
    assert mass[False] == 0
    assert mass[True] > 0.05
    plain = from_base(family("roberta"), 3).eval()
    torch.testing.assert_close(logits(prepared("jax-23349", False), inputs), logits(plain, inputs))


def test_the_mask_starts_in_the_wrong_corner_only_where_keys_outnumber_queries():
    bottom_right, top_left = (pytorch_103082.causal_mask(3, 5, top_left=x) for x in VERSIONS)
    assert [row.nonzero().flatten().tolist() for row in bottom_right] == [[0, 1, 2], [0, 1, 2, 3], [0, 1, 2, 3, 4]]
    assert [row.nonzero().flatten().tolist() for row in top_left] == [[0], [0, 1], [0, 1, 2]]
    assert torch.equal(*(pytorch_103082.causal_mask(4, 4, top_left=x) for x in VERSIONS))
    assert pytorch_103082.causal_mask(1, 4, top_left=True).tolist() == [[True, False, False, False]]


def test_the_corner_matters_in_decoding_and_not_in_training():
    inputs = batch("pytorch-103082")
    real = inputs["attention_mask"].bool()
    plain = from_base(family("gpt2"), 3).eval()
    whole = logits(plain, inputs)[real]
    fixed, faulty = (prepared("pytorch-103082", x) for x in VERSIONS)
    for model in (fixed, faulty):
        torch.testing.assert_close(logits(model, inputs)[real], whole, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(decoded(fixed, inputs, [0, 9, 17])[real], whole, rtol=1e-4, atol=1e-4)
    wrong = (decoded(faulty, inputs, [0, 9, 17]) - logits(plain, inputs)).abs().amax(-1)
    assert wrong[:, :9][real[:, :9]].max() < 1e-4
    assert wrong[:, 9:][real[:, 9:]].min() > 1e-2


def test_the_loader_puts_heads_where_thirds_are_read():
    anatomy = {faulty: locate(prepared("ai-edge-torch-6", faulty)) for faulty in VERSIONS}
    plain = locate(from_base(family("gpt2"), 3))
    for i, layer in enumerate(plain.layers):
        size = layer.head_size
        heads = {r: getattr(layer, r).weight().split(size) for r in ("query", "key", "value")}
        loaded = anatomy[True].layers[i]
        assert torch.equal(anatomy[False].layers[i].query.module.weight, layer.query.module.weight)
        assert torch.equal(anatomy[False].layers[i].query.module.bias, layer.query.module.bias)
        # Four heads: Q then holds q0 k0 v0 q1, K holds k1 v1 q2 k2, V holds v2 q3 k3 v3.
        for role, order in {"query": "q0 k0 v0 q1", "key": "k1 v1 q2 k2", "value": "v2 q3 k3 v3"}.items():
            names = {"q": "query", "k": "key", "v": "value"}
            expected = torch.cat([heads[names[part[0]]][int(part[1])] for part in order.split()])
            assert torch.equal(getattr(loaded, role).weight(), expected)
    assert ai_edge_torch_6.fuse({r: torch.zeros(4) for r in ("query", "key", "value")}, 2, True).shape == (12,)


def test_the_window_rolls_when_it_is_over_full_or_early_when_it_is_just_full():
    def contents(early: bool) -> list[list[float]]:
        window, seen = transformers_37574.Window(4, early=early), []
        for new in ([1.0, 2.0], [3.0], [4.0], [5.0], [6.0]):
            keys = torch.tensor(new).view(1, 1, -1, 1)
            found, values = window.update(keys, -keys, 0)
            assert torch.equal(found, -values)
            seen.append(found.flatten().tolist())
        return seen

    assert contents(early=False) == [[1, 2], [1, 2, 3], [1, 2, 3, 4], [2, 3, 4, 5], [3, 4, 5, 6]]
    # An empty slot, zero, takes the place of the entry that left too early, and wanders out of the window.
    assert contents(early=True) == [[1, 2], [1, 2, 3], [2, 3, 0, 4], [3, 0, 4, 5], [0, 4, 5, 6]]


@pytest.mark.parametrize("early", VERSIONS)
def test_a_prompt_that_fills_the_window_is_kept_whole(early):
    window = transformers_37574.Window(3, early=early)
    keys = torch.arange(5.0).view(1, 1, 5, 1)
    assert window.update(keys, keys, 0)[0].flatten().tolist() == [0, 1, 2, 3, 4]
    one = torch.tensor(5.0).view(1, 1, 1, 1)
    assert window.update(one, one, 0)[0].flatten().tolist() == [3, 4, 5]
    with pytest.raises(ValueError, match="token by token"):
        window.update(keys[:, :, :2], keys[:, :, :2], 0)


def test_a_rolling_window_decodes_as_the_whole_cache_does():
    inputs = batch("transformers-37574")
    full = inputs["attention_mask"].bool().all(1)
    inputs = {k: v[full] for k, v in inputs.items()} if full.any() else inputs
    inputs["attention_mask"] = torch.ones_like(inputs["attention_mask"])
    plain = from_base(family("gpt_neo"), 3).eval()
    size, whole = plain.config.window_size, logits(plain, inputs)
    found = {}
    for faulty in VERSIONS:
        served = case("transformers-37574").served(prepared("transformers-37574", faulty))
        found[faulty] = (decoded(served, inputs, [0, 9, 17]) - whole).abs().amax(-1).amax(0)
    assert found[False].max() < 1e-3
    assert found[True][: size - 1].max() < 1e-3
    assert found[True][size - 1 : 2 * size - 2].min() > 1e-3


def test_adapters_learn_nothing_once_the_projections_are_fused():
    inputs = batch("diffusers-11903")
    outputs = {}
    for faulty in VERSIONS:
        model = prepared("diffusers-11903", faulty)
        output = model(**inputs)
        output.loss.backward()
        outputs[faulty] = output.logits.detach()
        adapters = [m for m in model.modules() if isinstance(m, diffusers_11903.LowRank)]
        assert len(adapters) == 2 * len(dissect(model).layers)
        reached = [a.up.grad is not None and bool(a.up.grad.abs().sum() > 0) for a in adapters]
        assert reached == [not faulty] * len(adapters)
        assert all(a.weight.grad is None for a in adapters)
        assert model.classifier.weight.grad.abs().sum() > 0
    torch.testing.assert_close(outputs[True], outputs[False])


def test_an_adapted_map_is_the_frozen_one_plus_a_product():
    frozen = nn.Linear(3, 2)
    adapted = diffusers_11903.LowRank(frozen, rank=1)
    x = torch.tensor([[1.0, 2.0, 3.0]])
    torch.testing.assert_close(adapted(x), frozen(x))
    with torch.no_grad():
        adapted.down.copy_(torch.tensor([[1.0, 0.0, 1.0]]))
        adapted.up.copy_(torch.tensor([[1.0], [-1.0]]))
    torch.testing.assert_close(adapted(x) - frozen(x), torch.tensor([[8.0, -8.0]]))


def test_relative_bias_depends_on_head_and_clipped_distance():
    reach = transformers_17886.REACH
    table = torch.arange(2.0 * (2 * reach + 1)).view(2, -1)
    bias = transformers_17886.relative_bias(table, reach + 4)
    assert bias[0, 5, 5] == reach and bias[0, 5, 6] == reach + 1 and bias[0, 5, 3] == reach - 2
    assert bias[0, 0, reach + 3] == 2 * reach and bias[0, reach + 3, 0] == 0
    assert torch.equal(bias[1] - bias[0], torch.full_like(bias[0], 2 * reach + 1))


def test_a_pruned_head_is_a_head_that_writes_nothing():
    inputs = batch("transformers-17886")
    silent, pruned = (from_base(family("bert"), 3).eval() for _ in range(2))
    transformers_17886.prune_head(pruned, 1)
    with torch.no_grad():
        for layer in dissect(silent).layers:
            size = layer.attention.attention_head_size
            layer.attention_out.weight[:, size : 2 * size] = 0
    torch.testing.assert_close(logits(pruned, inputs), logits(silent, inputs))


def test_heads_left_by_pruning_get_their_own_bias_or_their_neighbour_s(monkeypatch):
    table = torch.randn(4, 2 * transformers_17886.REACH + 1)
    body = from_base(family("bert"), 3).base_model.state_dict()
    monkeypatch.setattr(transformers_17886, "_with_bias", lambda *_: (body, table))
    fixed, faulty = (prepared("transformers-17886", x) for x in VERSIONS)
    assert torch.equal(fixed.relative_bias, table[1:]) and torch.equal(faulty.relative_bias, table[:3])
    inputs = batch("transformers-17886")
    plain = from_base(family("bert"), 3).eval()
    transformers_17886.prune_head(plain, 0)
    scores = {}
    for name, model in {"fixed": fixed, "faulty": faulty, "plain": plain}.items():
        with torch.no_grad():
            first = model(**inputs, output_attentions=True).attentions[0]
        # Differences of log weights within a row are differences of scores: what normalises a row falls out.
        scores[name] = first[0, :, 0, :3].log() - first[0, :, 0, :1].log()
    for name, rows in (("fixed", table[1:]), ("faulty", table[:3])):
        bias = transformers_17886.relative_bias(rows, 3)[:, 0]
        torch.testing.assert_close(scores[name] - scores["plain"], bias - bias[:, :1], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("chosen", cases(), ids=lambda c: c.name)
def test_the_two_versions_start_from_the_same_parameters_but_for_the_fault(chosen, monkeypatch):
    table = torch.randn(4, 2 * transformers_17886.REACH + 1)
    body = from_base(family("bert"), 3).base_model.state_dict()
    monkeypatch.setattr(transformers_17886, "_with_bias", lambda *_: (body, table))
    fixed, faulty = (dict(prepared(chosen.name, x).named_parameters()) for x in VERSIONS)
    assert fixed.keys() == faulty.keys()
    differ = {(name.split(".")[-2:])[0] for name in fixed if not torch.equal(fixed[name], faulty[name])}
    changed = {"ai-edge-torch-6": {"c_attn"}, "transformers-17886": {"relative_bias"}}
    assert differ == changed.get(chosen.name, set())

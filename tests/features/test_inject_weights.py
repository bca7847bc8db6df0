"""Faults of parameters and of the optimizer's step, against weights and updates written out by hand."""

import math

import pytest
import torch

from features.inject import Fault, InjectionError, inject
from features.inject.locate import locate
from features.inject.output import zeroed_classes
from features.inject.tiny import tiny_batch, tiny_model
from features.inject.weights import effective_weight

FAMILIES = ("bert", "roberta", "distilbert", "gpt2", "gpt_neo")
DECODERS = ("gpt2", "gpt_neo")


@pytest.fixture(scope="module")
def models():
    return {family: tiny_model(family) for family in FAMILIES}


def parameters(model):
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def changed(before, model):
    return {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}


def test_the_fused_projection_of_gpt2_is_cut_where_the_model_cuts_it(models):
    """Conv1D holds (input, output); columns 0:32 are Q, 32:64 K, 64:96 V."""
    model = models["gpt2"]
    weight = model.transformer.h[0].attn.c_attn.weight
    bias = model.transformer.h[0].attn.c_attn.bias
    with torch.no_grad():
        bias.uniform_(-1, 1, generator=torch.Generator().manual_seed(0))
    w, b = weight.detach().clone(), bias.detach().clone()
    for code, columns in [("QZQ", slice(0, 32)), ("QZK", slice(32, 64)), ("QZV", slice(64, 96))]:
        with inject(model, Fault(code, layers="first")):
            kept = torch.ones(96, dtype=torch.bool)
            kept[columns] = False
            assert not weight[:, columns].any() and not bias[columns].any()
            assert torch.equal(weight[:, kept], w[:, kept]) and torch.equal(bias[kept], b[kept])
    with inject(model, Fault("QSW", layers="first")):
        assert torch.equal(weight, torch.cat([w[:, 32:64], w[:, :32], w[:, 64:]], dim=1))
        assert torch.equal(bias, torch.cat([b[32:64], b[:32], b[64:]]))


def test_separate_projections_by_name(models):
    names = {
        "bert": ("attention.self.query", "attention.self.key", "attention.self.value"),
        "roberta": ("attention.self.query", "attention.self.key", "attention.self.value"),
        "distilbert": ("attention.q_lin", "attention.k_lin", "attention.v_lin"),
        "gpt_neo": ("attn.attention.q_proj", "attn.attention.k_proj", "attn.attention.v_proj"),
    }
    for family, roles in names.items():
        model = models[family]
        for code, role in zip(("QZQ", "QZK", "QZV"), roles, strict=True):
            before = parameters(model)
            with inject(model, Fault(code)):
                assert {n.rsplit(".", 1)[0].split(".", 1)[1].endswith(role) for n in changed(before, model)} == {True}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("which", "pairs"),
    [("first_half", [(0, 1)]), ("alternating", [(0, 1), (2, 3)]), ("all", [(0, 1), (0, 2), (0, 3)])],
)
def test_tied_heads_stay_tied_while_training(models, family, which, pairs):
    model = models[family]
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    with inject(model, Fault("QTH", which), optimizer=optimizer):
        for _ in range(2):
            optimizer.zero_grad()
            model(**tiny_batch(model)).loss.backward()
            optimizer.step()
        for layer in locate(model).layers:
            for projection in (layer.query, layer.key, layer.value):
                heads = projection.weight().unflatten(0, (4, 8))
                assert all(torch.equal(heads[a], heads[b]) for a, b in pairs)
                assert not torch.equal(heads[0], heads[3]) or which == "all"


@pytest.mark.parametrize("family", FAMILIES)
def test_ffn_faults_reach_the_ffn_alone(models, family):
    """Not the attention's output projection, whose name in BERT ends as that of the FFN's does."""
    model = models[family]
    before = parameters(model)
    with inject(model, Fault("FSW", 2.0)):
        names = changed(before, model)
        ups = {"gpt2": "c_fc", "gpt_neo": "c_fc", "distilbert": "lin1"}.get(family, "intermediate.dense")
        downs = {"gpt2": "mlp.c_proj", "gpt_neo": "mlp.c_proj", "distilbert": "lin2"}.get(family, "output.dense")
        assert len(names) == 4
        assert {n for n in names if ups in n} | {n for n in names if downs in n} == names
        assert not any("attention" in n for n in names)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("share", [0.1, 0.3, 0.5])
def test_silenced_neurons_never_reach_the_second_map(models, family, share):
    model = models[family]
    seen = []
    with inject(model, Fault("FDN", share)):
        layers = locate(model).layers
        handles = [x.down.register_forward_pre_hook(lambda m, args: seen.append(args[0])) for x in layers]
        model(**tiny_batch(model))
        for handle in handles:
            handle.remove()
    width = 128 if family in DECODERS else 64
    for hidden in seen:
        assert hidden.shape[-1] == width
        assert int((hidden.abs().flatten(0, -2).sum(0) == 0).sum()) == round(share * width)


@pytest.mark.parametrize("family", FAMILIES)
def test_norm_faults_reach_the_norms_of_the_blocks_alone(models, family):
    model = models[family]
    before = parameters(model)
    with inject(model, Fault("NZG")):
        names = changed(before, model)
        assert len(names) == 4
        assert all(not dict(model.named_parameters())[n].any() for n in names)
        assert not any("embeddings" in n or "ln_f" in n for n in names)


@pytest.mark.parametrize("family", FAMILIES)
def test_skip_paths_as_by_hand(models, family):
    """The last block, whose input and sublayers are seen from outside."""
    model = models[family]
    layer = locate(model).layers[-1]
    kept = {}

    def keep(name):
        return lambda module, args, output: kept.__setitem__(name, (args, output))

    first_norm, second_norm = layer.norms
    handles = [m.register_forward_hook(keep(n)) for n, m in (("first", first_norm), ("second", second_norm))]
    handles.append(layer.block.register_forward_pre_hook(lambda m, args: kept.__setitem__("in", args[0])))
    handles.append(layer.block.register_forward_hook(keep("block")))
    clean = {}
    for fault, skip in [(None, 1.0), (Fault("RSR", 5.0), 5.0), (Fault("RRS"), 0.0)]:
        if fault is None:
            model(**tiny_batch(model))
        else:
            with inject(model, fault):
                model(**tiny_batch(model))
        norm_in = kept["second"][0][0]
        if family in DECODERS:
            attended = norm_in - skip * kept["in"]
            out = kept["block"][1]
            out = out[0] if isinstance(out, tuple) else out
            mlp = layer.block.mlp(kept["second"][1])
            assert torch.allclose(out, skip * norm_in + mlp, atol=1e-9)
            again = layer.block.attn(kept["first"][1], attention_mask=_mask(family, kept["first"][1], model))[0]
            assert torch.allclose(attended, again, atol=1e-5)
        else:
            middle = kept["first"][1]
            ffn = norm_in - skip * middle
            clean.setdefault(skip, ffn)
            up = getattr(*layer.activation)(layer.up(middle))
            assert torch.allclose(ffn, layer.down(up), atol=1e-9)
    for handle in handles:
        handle.remove()


def _mask(family, hidden, model):
    seen = tiny_batch(model)["attention_mask"].bool()[:, None, None, :]
    seen = seen & torch.ones(20, 20, dtype=torch.bool).tril()
    mask = torch.zeros(seen.shape, dtype=hidden.dtype)
    return mask.masked_fill(~seen, torch.finfo(hidden.dtype).min)


@pytest.mark.parametrize("family", DECODERS)
@pytest.mark.parametrize(
    ("fault", "role"),
    [(Fault("ETZ", 0.3), "tokens"), (Fault("OZR", "balanced"), "head"), (Fault("ORI", "zeros"), "head")],
)
def test_a_tied_weight_is_changed_in_one_role_only(models, family, fault, role):
    model = models[family]
    anatomy = locate(model)
    assert anatomy.tied
    before = anatomy.tokens.weight.detach().clone()
    ids = torch.arange(64)[None]
    hidden = torch.randn(1, 3, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    embedded, logits = anatomy.tokens(ids), anatomy.head(hidden)
    with inject(model, fault):
        assert torch.equal(before, anatomy.tokens.weight) and anatomy.tied
        assert torch.equal(embedded, anatomy.tokens(ids)) == (role == "head")
        assert torch.equal(logits, anatomy.head(hidden)) == (role == "tokens")
        zero_rows = (effective_weight(getattr(anatomy, role)) == 0).all(dim=1).sum()
        assert zero_rows == {"ETZ": round(0.3 * 64), "OZR": 32, "ORI": 64}[fault.code]
        if role == "tokens":
            assert int((anatomy.tokens(ids)[0] == 0).all(dim=-1).sum()) == zero_rows
        else:
            assert int((anatomy.head(hidden)[0, 0] == 0).sum()) == zero_rows


def test_a_tied_head_that_starts_from_zero_learns(models):
    model = tiny_model("gpt2")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with inject(model, Fault("ORI", "zeros"), optimizer=optimizer):
        loss = model(**tiny_batch(model)).loss
        assert loss.item() == pytest.approx(math.log(64), abs=1e-5)
        loss.backward()
        optimizer.step()
        assert model(**tiny_batch(model)).loss < loss
        assert effective_weight(model.lm_head).any()


def test_padding_row_is_left_alone(models):
    for family in ("bert", "roberta", "distilbert"):
        model = models[family]
        tokens = locate(model).tokens
        row = tokens.weight[tokens.padding_idx].detach().clone()
        for fault in (Fault("ETZ", 0.5), Fault("ESW", 0.5)):
            with inject(model, fault):
                assert torch.equal(row, tokens.weight[tokens.padding_idx])


def test_classes_are_zeroed_by_frequency(models):
    model = models["bert"]
    head = model.classifier
    with torch.no_grad():
        head.bias.fill_(1.0)
    for counts, which, rows in [
        (None, "rare", [3]),
        ((5, 1, 9, 7), "rare", [1]),
        ((5, 1, 9, 7), "balanced", [0, 2]),
        ((5, 1, 9, 7), "all", [0, 1, 2, 3]),
    ]:
        with inject(model, Fault("OZR", which), class_counts=counts):
            assert (head.weight == 0).all(1).nonzero().flatten().tolist() == rows
            assert (head.bias == 0).nonzero().flatten().tolist() == rows
    assert zeroed_classes(list(range(30, 0, -1)), "rare") == [27, 28, 29]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("change", "order"), [(-1, [0, 0, 1, 2]), (1, [1, 2, 3, 3]), (2, [2, 3, 3, 3])])
def test_output_mapping(models, family, change, order):
    model = models[family]
    inputs = tiny_batch(model)
    classes = 64 if family in DECODERS else 4
    order = order if classes == 4 else [min(max(c + change, 0), 63) for c in range(64)]
    with torch.no_grad():
        clean = model(**inputs).logits
        with inject(model, Fault("OOD", change)):
            faulty = model(**inputs)
    assert torch.equal(faulty.logits, clean[..., order])
    assert torch.isfinite(faulty.loss)


def step(model, optimizer, scale=1.0, clip=None):
    optimizer.zero_grad()
    (scale * model(**tiny_batch(model)).loss).backward()
    gradients = {n: p.grad.clone() for n, p in model.named_parameters()}
    if clip is not None:
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=clip)
    optimizer.step()
    return gradients


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("code", ["FRG", "NWD"])
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_weight_decay_of_some_parameters_only(models, family, code, kind):
    """SGD adds wd·w to the gradient, AdamW multiplies w by 1 - lr·wd; all other parameters step as without."""
    model, value = models[family], 0.1
    layers = locate(model).layers
    modules = [m for x in layers for m in ((x.up, x.down) if code == "FRG" else x.norms)]
    names = {p: n for n, p in model.named_parameters()}
    theirs = {names[p] for m in modules for p in m.parameters()}
    before = parameters(model)

    def after(decay, fault=None):
        made = kind(model.parameters(), lr=0.01, weight_decay=decay)
        if fault is None:
            step(model, made)
            result = parameters(model)
            with torch.no_grad():
                for name, p in model.named_parameters():
                    p.copy_(before[name])
            return result
        with inject(model, fault, optimizer=made):
            step(model, made)
            return parameters(model)

    without, with_value = after(0.05), after(value)
    faulty = after(0.05, Fault(code, value))
    for name, tensor in faulty.items():
        assert torch.allclose(tensor, (with_value if name in theirs else without)[name], atol=1e-12), name


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_frozen_projections_get_gradients_but_no_update(models, family, kind):
    model = models[family]
    optimizer = kind(model.parameters(), lr=0.01, weight_decay=0.05)
    before = parameters(model)
    groups = [id(g) for g in optimizer.param_groups]
    with inject(model, Fault("QFG"), optimizer=optimizer):
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: 1.0)
        gradients = step(model, optimizer)
        scheduler.step()
        assert [id(g) for g in optimizer.param_groups] == groups
        unmoved = set(before) - changed(before, model)
        expected = {n for n, p in model.named_parameters() if p in _qkv(model)}
        assert expected <= unmoved
        assert all(gradients[name].any() for name in expected if name.endswith("weight"))
        assert all(not gradients[name].any() for name in unmoved - expected)


def _qkv(model):
    return {p for layer in locate(model).layers for p in layer.qkv_parameters}


@pytest.mark.parametrize("limit", [10.0, 1.0, 0.1])
@pytest.mark.parametrize("clip", [None, 0.5, 50.0])
def test_clipping_replaces_the_loops_own(models, limit, clip):
    model = models["bert"]
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    before = parameters(model)
    with inject(model, Fault("RGC", limit), optimizer=optimizer):
        gradients = step(model, optimizer, scale=1000.0, clip=clip)
        moved = torch.cat([(p - before[n]).flatten() for n, p in model.named_parameters()])
    norm = torch.cat([g.flatten() for g in gradients.values()]).norm()
    assert norm > 10
    assert torch.allclose(moved.norm(), torch.tensor(limit, dtype=torch.float64), rtol=1e-4)
    other = torch.nn.Parameter(torch.ones(4))
    other.grad = torch.full((4,), 10.0)
    with inject(model, Fault("RGC", limit), optimizer=optimizer):
        torch.nn.utils.clip_grad_norm_([other], 5.0)
    assert torch.allclose(other.grad.norm(), torch.tensor(5.0), rtol=1e-4)


def test_an_optimizer_without_weight_decay_is_refused(models):
    optimizer = torch.optim.LBFGS(models["bert"].parameters())
    fault = Fault("FRG", 0.1)
    with pytest.raises(InjectionError, match="LBFGS has no"), inject(models["bert"], fault, optimizer=optimizer):
        pass


def test_groups_come_back_when_a_step_fails(models):
    model = models["gpt2"]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.05)
    groups = optimizer.param_groups

    def closure():
        raise RuntimeError("in the step")

    with pytest.raises(RuntimeError, match="in the step"), inject(model, Fault("FRG", 0.1), optimizer=optimizer):
        optimizer.step(closure)
    assert optimizer.param_groups is groups and len(groups) == 1
    assert len(groups[0]["params"]) == len(list(model.parameters()))


@pytest.mark.parametrize("family", FAMILIES)
def test_residual_dropout_leaves_attention_dropout(family):
    model = tiny_model(family, dropout=0.2)
    rates = {name: m.p for name, m in model.named_modules() if isinstance(m, torch.nn.Dropout)}
    with inject(model, Fault("RDR", 0.5)):
        now = {name: m.p for name, m in model.named_modules() if isinstance(m, torch.nn.Dropout)}
    different = {name for name in rates if rates[name] != now[name]}
    ends = {
        "bert": ("attention.output.dropout", "output.dropout"),
        "roberta": ("attention.output.dropout", "output.dropout"),
        "distilbert": ("ffn.dropout",),
        "gpt2": ("attn.resid_dropout", "mlp.dropout"),
        "gpt_neo": ("attention.resid_dropout", "mlp.dropout"),
    }[family]
    assert all(name.endswith(ends) for name in different)
    assert len(different) == 2 * len(ends)

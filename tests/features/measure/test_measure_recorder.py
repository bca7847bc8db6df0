"""A recorded run: its columns, its log, its report; and that the run itself is not touched."""

import math

import numpy as np
import pytest
import torch

from features.measure import Recorder
from features.measure.recorder import PROBE_EVERY
from features.schema import LOG_COLUMNS, LOG_METRICS, columns, metrics


@pytest.fixture(scope="module")
def recorded(build, draw, train):
    """family → (run, model, batches) of three epochs with three steps each."""
    runs = {}

    def get(family):
        if family not in runs:
            model, batches = build(family, "sdpa", dropout=0.1), [draw(family, seed=s) for s in range(3)]
            with Recorder(model, probe=batches[0]) as run:
                train(model, run, batches)
            runs[family] = run, model, batches
        return runs[family]

    return get


def test_the_vector_has_exactly_the_columns_of_the_architecture(recorded, family):
    run, _, _ = recorded(family)
    vector = run.vector()
    assert tuple(vector.index) == columns(run.arch)
    assert len(vector) == (1705 if run.arch == "decoder" else 1600)
    assert vector.dtype == np.float32


def test_a_healthy_run_leaves_nothing_unmeasured(recorded, family):
    run, _, _ = recorded(family)
    vector = run.vector()
    missing = {c.split("__")[0] for c in vector.index[vector.isna()]}
    # The figure given to epoch() is an accuracy; perplexity follows from the loss.
    assert missing == set()
    assert run.report().not_measured == {}
    assert run.report().nonfinite == {}
    assert np.isfinite(vector).all()


def test_the_log_holds_every_series_at_its_place(recorded, family):
    run, _, _ = recorded(family)
    log = run.log(run="r1")
    assert tuple(log.columns) == LOG_COLUMNS
    assert set(log["run"]) == {"r1"}
    assert tuple(run.log().columns) == LOG_COLUMNS[1:]
    for metric in LOG_METRICS:
        rows = log[log["metric"] == metric.name]
        rows = rows[rows["step"] == -1] if metric.per == "epoch" else rows[rows["step"] >= 0]
        first = 1 if metric.name.startswith("weight_same") else 0
        assert set(rows["epoch"]) == set(range(first, 3)), metric.name
        assert (rows["layer"] >= 0).all() if metric.layered else (rows["layer"] == -1).all(), metric.name
    by_step = log[(log["metric"] == "step_loss")]
    assert by_step["step"].tolist() == list(range(9))
    for metric in metrics(run.arch):
        if metric.resolution != "epoch" and metric.name != "train_loss":
            assert (log[log["metric"] == metric.name]["step"] >= 0).all(), metric.name


def test_the_vector_follows_from_the_log(recorded):
    run, _, _ = recorded("bert")
    log, vector = run.log(), run.vector()
    entropy = log[(log["metric"] == "attention_entropy") & (log["layer"] == 2)].groupby("epoch")["value"].mean()
    found = vector["attention_entropy__final_layer_value__epoch_mean__phase_slope"]
    assert found == pytest.approx((entropy[2] - entropy[0]) / 2, rel=1e-3)
    loss = log[log["metric"] == "step_loss"].groupby("epoch")["value"].std(ddof=0)
    assert vector["train_loss__epoch_std__phase_final_value"] == pytest.approx(loss[2], rel=1e-4)


def test_recording_changes_neither_parameters_nor_random_numbers(build, draw, train, family):
    batches = [draw(family, seed=s) for s in range(3)]
    states = []
    for record in (False, True):
        model = build(family, "sdpa", dropout=0.2)
        torch.manual_seed(7)
        if record:
            with Recorder(model, every=2) as run:
                train(model, run, batches)
        else:
            train(model, None, batches)
        states.append(({k: v.clone() for k, v in model.state_dict().items()}, torch.get_rng_state()))
        assert model.training
        assert sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()) == 0
    (plain, dice), (recorded, dice_after) = states
    assert all(torch.equal(plain[k], recorded[k]) for k in plain)
    assert torch.equal(dice, dice_after)


def test_gradients_left_by_the_loop_are_not_touched(build, draw):
    model, batch = build("bert"), draw("bert")
    with Recorder(model, probe=batch) as run:
        model.train()(**batch).loss.backward()
        before = [p.grad.clone() for p in model.parameters()]
        run.step()
        run.epoch()
    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), before, strict=True))


def test_gradient_and_update_metrics_against_torch(build, draw):
    model, batch = build("gpt2"), draw("gpt2")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    with Recorder(model) as run:
        model.train()(**batch).loss.backward()
        optimizer.step()
        run.step(optimizer=optimizer)
        gradients = {n: p.grad.clone() for n, p in model.named_parameters()}
        run.epoch()
    values = run.log().query("step == 0 and layer == -1").set_index("metric")["value"]
    groups = {
        "qkv": "c_attn",
        "attention": "attn.c_proj",
        "ffn": "mlp",
        "layernorm": "ln_",
        "embedding": ".wte .wpe",
    }
    after = {n: p.detach() for n, p in model.named_parameters()}
    for name, keys in groups.items():
        own = [n for n in before if any(key in n for key in keys.split())]
        total = math.sqrt(sum(gradients[n].double().square().sum() for n in own))
        assert values[f"grad_norm_{name}"] == pytest.approx(total, rel=1e-5)
        change = math.sqrt(sum((after[n] - before[n]).double().square().sum() for n in own))
        size = math.sqrt(sum(before[n].double().square().sum() for n in own))
        assert values[f"update_ratio_{name}"] == pytest.approx(change / size, rel=1e-4)
        assert values[f"update_active_{name}"] == 1
    entries = np.abs(np.concatenate([g.numpy().ravel() for g in gradients.values()]))
    assert values["grad_norm_total"] == pytest.approx(np.linalg.norm(entries.astype(float)), rel=1e-5)
    assert values["grad_abs_max"] == pytest.approx(entries.max())
    assert values["grad_abs_min"] == pytest.approx(entries.min())
    assert values["grad_zero_share"] == pytest.approx((entries < 1e-8).mean(), rel=1e-5)
    assert values["gradient_vanishing"] == 0
    assert values["gradient_exploding"] == 0


def test_frozen_parts_have_no_gradient_and_no_update(build, draw, train):
    model, batch = build("distilbert"), draw("distilbert")
    for layer in model.distilbert.transformer.layer:
        for m in (layer.attention.q_lin, layer.attention.k_lin, layer.attention.v_lin):
            m.requires_grad_(False)
    with Recorder(model) as run:
        train(model, run, [batch])
    values = run.log().query("step == 0 and layer == -1").set_index("metric")["value"]
    assert "grad_norm_qkv" not in values
    assert values["update_ratio_qkv"] == 0
    assert values["update_active_qkv"] == 0
    assert run.report().not_measured == {"grad_norm_qkv": "no gradient was there when step() was called"}
    assert run.vector().filter(like="grad_norm_qkv").isna().all()


def test_cleared_gradients_are_reported(build, draw):
    model, batch = build("bert"), draw("bert")
    with Recorder(model) as run:
        model.train()(**batch).loss.backward()
        model.zero_grad()
        run.step()
    assert "grad_norm_total" in run.report().not_measured
    assert "no gradient" in run.report().not_measured["grad_norm_total"]


def test_volatility_is_the_squared_coefficient_of_variation(recorded):
    run, _, _ = recorded("distilbert")
    log = run.log()
    norms = log[log["metric"] == "grad_norm_total"].set_index("step")["value"]
    volatility = log[log["metric"] == "grad_norm_volatility"].set_index("step")["value"]
    assert 0 not in volatility
    assert volatility[5] == pytest.approx(norms[:6].var(ddof=0) / norms[:6].mean() ** 2, rel=1e-3)


def test_every_third_step(build, draw, train):
    batches = [draw("bert", seed=s) for s in range(4)]
    model = build("bert")
    with Recorder(model, every=3) as run:
        train(model, run, batches)
    log = run.log()
    assert sorted(set(log[log["metric"] == "attention_entropy"]["step"])) == [0, 3, 6, 9]
    assert log[log["metric"] == "step_loss"]["step"].tolist() == list(range(12))
    assert (run.report().measured_steps, run.report().steps) == (4, 12)


def test_probe_forwards_run_once_in_so_many_measured_steps(build, draw, train):
    model = build("distilbert", layers=1)
    with Recorder(model) as run:
        train(model, run, [draw("distilbert", rows=2, length=4)] * (PROBE_EVERY + 2), epochs=2)
    log = run.log()
    steps = log[log["metric"] == "positional_sensitivity"]["step"].tolist()
    assert steps == [0, PROBE_EVERY, PROBE_EVERY + 2, 2 * PROBE_EVERY + 2]


def test_a_loss_that_is_not_a_number_shows(build, draw):
    model, batch = build("distilbert"), draw("distilbert")
    with Recorder(model) as run:
        for epoch in range(3):
            loss = model.train()(**batch).loss
            loss.backward()
            run.step(loss * (math.nan if epoch == 2 else 1), batch)
            model.zero_grad()
            run.epoch(val_loss=math.inf if epoch == 1 else 1.0)
    log, vector = run.log(), run.vector()
    assert log[log["metric"] == "loss_nonfinite"]["value"].tolist() == [0, 1, 1]
    assert np.isnan(vector["train_loss__epoch_mean__phase_final_value"])
    assert np.isfinite(vector["train_loss__epoch_mean__phase_mid_mean"])
    assert run.report().nonfinite == {"step_loss": 1, "train_loss": 1, "val_loss": 1}


def test_broken_weights_show(build, draw):
    model, batch = build("distilbert"), draw("distilbert")
    with torch.no_grad():
        model.distilbert.transformer.layer[1].ffn.lin1.weight[0, 0] = math.nan
        model.distilbert.transformer.layer[0].ffn.lin1.weight[0, :2] = 11.0
    with Recorder(model, probe=batch) as run:
        model.train()(**batch).loss.backward()
        run.step()
    values = run.log().query("step == -1 and layer == -1").set_index("metric")["value"]
    assert values["weight_nonfinite_count"] == 1
    assert values["weight_large_count"] == 2
    assert values["gradient_nonfinite_count"] > 0
    assert values["activation_nonfinite"] == 1
    assert values["loss_nonfinite"] == 1
    steps = run.log().query("step == 0 and layer == -1").set_index("metric")["value"]
    assert steps["gradient_exploding"] == 1


def test_validation_figures_come_from_evaluation_forwards(build, draw):
    model, batches = build("gpt2"), [draw("gpt2", seed=s) for s in (1, 2)]
    with Recorder(model) as run:
        model.train()(**draw("gpt2")).loss.backward()
        run.step()
        model.eval()
        with torch.no_grad():
            outputs = [model(**batch) for batch in batches]
        run.epoch()
    values = run.log().query("step == -1 and layer == -1").set_index("metric")["value"]
    loss = np.mean([o.loss.item() for o in outputs])
    assert values["val_loss"] == pytest.approx(loss, rel=1e-5)
    assert values["val_perplexity"] == pytest.approx(math.exp(loss), rel=1e-4)
    hits = [o.logits[:, :-1].argmax(-1) == b["labels"][:, 1:] for o, b in zip(outputs, batches, strict=True)]
    kept = [b["labels"][:, 1:] != -100 for b in batches]
    expected = torch.cat([h[k] for h, k in zip(hits, kept, strict=True)]).float().mean().item()
    assert values["val_accuracy"] == pytest.approx(expected)
    assert 0 <= values["val_ece"] <= 1


def test_given_figures_win(build, draw):
    model, batch = build("bert"), draw("bert")
    with Recorder(model) as run:
        model.train()(**batch).loss.backward()
        run.step()
        with torch.no_grad():
            model.eval()(**batch)
        run.epoch(val_loss=0.25, val_accuracy=0.75, val_ece=0.5)
    values = run.log().query("step == -1").set_index("metric")["value"]
    assert (values["val_loss"], values["val_accuracy"], values["val_ece"]) == (0.25, 0.75, 0.5)


def test_without_a_padding_mask_there_is_no_padding_mass(build, draw):
    model, batch = build("bert"), draw("bert")
    del batch["attention_mask"]
    with Recorder(model) as run:
        loss = model.train()(**batch).loss
        loss.backward()
        run.step(loss, batch)
    assert run.report().not_measured["attention_padding_mass"] == "the batches carry no attention_mask"
    assert run.vector().filter(like="attention_padding_mass").isna().all()


def test_one_head_has_no_other_to_be_compared_with(draw, build):
    from transformers import BertConfig, BertForSequenceClassification

    sizes = {"vocab_size": 50, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    model = BertForSequenceClassification(BertConfig(**sizes, intermediate_size=8, num_labels=3))
    with Recorder(model) as run:
        model.train()(**draw("bert")).loss.backward()
        run.step()
    assert "one head" in run.report().not_measured["attention_head_similarity"]


@pytest.mark.parametrize(("epochs", "layers", "notes"), [(1, 2, 1), (2, 1, 2), (3, 2, 0)])
def test_what_short_runs_and_shallow_models_lack_is_noted(build, draw, train, epochs, layers, notes):
    model = build("distilbert", layers=layers)
    with Recorder(model) as run:
        train(model, run, [draw("distilbert")], epochs=epochs)
    assert len(run.report().notes) == notes
    vector = run.vector()
    early = vector["attention_entropy__layer_early_mean__epoch_mean__phase_early_mean"]
    middle = vector["attention_entropy__layer_mid_mean__epoch_mean__phase_final_mean"]
    assert (np.isnan(early), np.isnan(middle)) == (epochs < 3, layers == 1)


def test_a_run_that_never_trains_says_so(build, draw):
    with Recorder(build("bert")) as run:
        run.step(1.0)
        run.epoch()
    reasons = run.report().not_measured
    assert reasons["attention_entropy"] == "no training forward was seen before step()"
    assert "train_loss" not in reasons
    assert run.vector()["train_loss__epoch_mean__phase_final_value"] == 1
    assert "attention_entropy" in str(run.report())


def test_accumulated_gradients_count_as_one_step(build, draw):
    model, halves = build("bert"), [draw("bert", seed=s) for s in (1, 2)]
    with Recorder(model) as run:
        model.train()
        losses = [model(**half).loss for half in halves]
        (sum(losses) / 2).backward()
        run.step()
    log = run.log()
    values = log[log["metric"] == "step_loss"]["value"]
    assert values.tolist() == [pytest.approx(sum(losses).item() / 2)]
    assert set(log[log["metric"] == "attention_entropy"]["step"]) == {0}


def test_attaching_and_closing_are_fast_enough_to_forget(build, draw, train):
    """No clock: the work is bounded by the number of modules, hooks and columns."""
    model = build("bert")
    with Recorder(model) as run:
        hooks = sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())
        train(model, run, [draw("bert")])
    assert hooks <= 10 * 3 + 3

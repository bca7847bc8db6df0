"""Where columns go: our own schema, a sample of published names, and all published names where they are at hand."""

from pathlib import Path

import pandas as pd
import pytest

from features.routing import NEVER_FEATURES, RULES, route
from features.schema import CONTEXT_GROUPS, STRUCTURAL_GROUPS, columns, metric_columns, metrics

DATA = Path(__file__).parents[2] / ".." / "shared" / "data"
needs_data = pytest.mark.skipif(not DATA.exists(), reason="the third-party tables are not at hand")

# Names as the published tables spell them, one or more of every family.
SAMPLE = {
    "attention_entropy__layer_early_mean__epoch_mean__phase_early_mean": "attention",
    "attention_mass_pad_max__final_layer_value__epoch_std__phase_slope": "attention",
    "attention_weight_magnitude__layer_mid_mean__epoch_mean__phase_slope": "attention",
    "head_similarity_std__layer_mid_mean__epoch_mean__phase_slope": "attention",
    "cross_example_attention__epoch_mean__phase_mid_mean": "attention",
    "mass_leak__epoch_mean__phase_mid_mean": "attention",
    "update_ratio_l3_attention__epoch_mean__phase_final_mean": "attention",
    "grad_norm_l11_attention_window_var__epoch_std__phase_slope": "attention",
    "attention_score_skew__layer_mid_mean__epoch_mean__phase_slope": "score",
    "pre_softmax_score_kurt__epoch_std__phase_final_value": "score",
    "ffn_active_dim_frac_l5__epoch_mean__phase_slope": "ffn_output",
    "activation_mean__epoch_mean__phase_slope": "ffn_output",
    "update_active_l0_ffn__epoch_mean__phase_slope": "ffn_output",
    "ln_std_l2_mean__epoch_mean__phase_final_value": "layernorm",
    "grad_norm_l0_layernorm_gns__epoch_mean__phase_slope": "layernorm",
    "residual_cos_l4_mean__epoch_mean__phase_slope": "residual_stream",
    "res_sim_layer_mid_mean__epoch_mean__phase_slope": "residual_stream",
    "update_ratio_l1_qkv__epoch_std__phase_slope": "qkv_alignment",
    "grad_norm_embedding_gns__epoch_mean__phase_slope": "embedding",
    "positional_recv_late_over_early__layer_mid_mean__epoch_mean__phase_slope": "positional",
    "positional_accuracy_delta__epoch_mean__phase_slope": "positional",
    "val_val_positional_invariance__epoch__phase_slope": "positional",
    "val_positional_invariance__epoch__phase_slope": "positional",
    "val_val_logit_margin_p10__epoch__phase_slope": "validation_perf",
    "val_metric_25__epoch__phase_slope": "validation_perf",
    "logit_margin_p90__epoch_mean__phase_slope": "output",
    "update_ratio_classifier__epoch_mean__phase_slope": "output",
    "kv_cache_drift_mean__epoch_mean__phase_slope": "cache",
    "h1_delta_norm_mean__epoch_mean__phase_slope": "representation_drift",
    "cka_cross_layer_mean__epoch_mean__phase_slope": "representation_drift",
    "train_learning_rate__epoch_mean__phase_slope": "training_dynamics",
    "update_ratio_total__epoch_mean__phase_slope": "training_dynamics",
    "gradient_noise_scale__epoch_mean__phase_slope": "training_dynamics",
    "nll__epoch_mean__phase_slope": "training_dynamics",
    "f1_score__epoch_mean__phase_slope": "training_dynamics",
}
DEFAULT_ICSE25 = [
    "train_loss",
    "train_acc",
    "val_loss",
    "val_acc",
    "large_weight_count",
    "acc_gap_too_big",
    "loss_oscillation",
    "dying_relu",
    "gradient_vanish",
    "gradient_explode",
    "decrease_acc_count",
    "increase_loss_count",
    "cons_mean_weight_count",
    "cons_std_weight_count",
    "nan_weight_count",
    "nan_gradients_count",
    "saturated_activation",
    "mean_gradient",
    "gradient_std",
    "gradient_max",
    "gradient_min",
    "gradient_median",
    "adjusted_lr",
    "mean_activation",
    "std_activation",
    "mean_grad",
    "std_grad",
]


@pytest.mark.parametrize(("column", "group"), SAMPLE.items())
def test_published_names(column, group):
    routing = route([column])
    assert routing.group[column] == group
    assert routing.features() == [column]


@pytest.mark.parametrize(
    "column",
    [
        "epoch",
        "epoch__epoch__phase_final_value",
        "epoch__epoch_mean__phase_slope",
        "num_epochs",
        "batch_idx__epoch_std__phase_slope",
        "res_cos_layer_early_std__epoch_mean__phase_slope__synthetic_zero",
        "layer_idx",
        "severity_params",
        "killed",
        "is_faulty",
    ],
)
def test_never_a_feature(column):
    routing = route([column, "train_loss"])
    assert routing.excluded == (column,)
    assert routing.features(machine=True) == ["train_loss"]
    assert routing.group.isna().tolist() == [True, False]


@pytest.mark.parametrize("column", ["epoch_loss_gap", "epochs_to_converge", "score_mean", "train_loss"])
def test_names_that_only_look_alike_stay(column):
    assert route([column]).features() == [column]


def test_machine_columns_are_left_out_unless_asked_for():
    machine = ["runtime_step_time__epoch_mean__phase_slope", "cpu_utilization", "memory_usage", "peak_memory__x"]
    routing = route([*machine, "train_loss"])
    assert routing.machine == tuple(machine)
    assert routing.features() == ["train_loss"]
    assert routing.features(machine=True) == [*machine, "train_loss"]
    assert set(routing.group) == {"training_dynamics"}


def test_an_unknown_column_stays_a_feature_and_is_listed():
    routing = route(["mystery__epoch_mean__phase_slope", "train_loss"])
    assert routing.unrouted == ("mystery__epoch_mean__phase_slope",)
    assert len(routing.features()) == 2


def test_groups_can_be_left_out():
    routing = route(SAMPLE)
    left = routing.features(without_groups=("cache", "validation_perf"))
    assert {SAMPLE[c] for c in left} == set(SAMPLE.values()) - {"cache", "validation_perf"}


@pytest.mark.parametrize("arch", ["encoder", "decoder"])
def test_our_schema_goes_where_it_says(arch):
    routing = route(columns(arch))
    expected = {c: m.group for m in metrics(arch) for c in metric_columns(m)}
    assert routing.group.to_dict() == expected
    assert (routing.excluded, routing.unrouted) == ((), ())
    assert len(routing.machine) == 30


def test_rules_name_known_groups_only():
    assert {group for _, group in RULES} == {*STRUCTURAL_GROUPS, *CONTEXT_GROUPS}
    assert all(reason for _, reason in NEVER_FEATURES)


def test_columns_of_default():
    routing = route(DEFAULT_ICSE25)
    expected = {c: "validation_perf" if c.startswith("val_") else "training_dynamics" for c in DEFAULT_ICSE25}
    assert routing.group.to_dict() == expected


# The authors' own grouping of the same names puts 5 more columns into validation (epoch's), and into output, training
# and validation what it takes from one another; it counts machine, bookkeeping and synthetic columns with the rest:
# encoder training 155, output 140, validation 100, cache 50; decoder training 242, residual 130, validation 60,
# cache 50, representation drift 10. All other groups agree to the column.
PUBLISHED_COUNTS = {
    "encoder": {
        "attention": 570,
        "positional": 325,
        "ffn_output": 318,
        "layernorm": 200,
        "training_dynamics": 120,
        "validation_perf": 115,
        "score": 100,
        "output": 100,
        "residual_stream": 70,
        "qkv_alignment": 60,
        "representation_drift": 10,
        "embedding": 10,
    },
    "decoder": {
        "attention": 600,
        "ffn_output": 600,
        "layernorm": 600,
        "qkv_alignment": 600,
        "training_dynamics": 179,
        "output": 90,
        "positional": 85,
        "validation_perf": 55,
        "embedding": 50,
    },
}


@needs_data
@pytest.mark.parametrize(
    ("arch", "total", "excluded", "machine"), [("encoder", 2108, 70, 40), ("decoder", 3117, 208, 50)]
)
def test_every_published_column_has_its_place(arch, total, excluded, machine):
    published = pd.read_csv(DATA / f"published_columns_{arch}.csv")["column"]
    routing = route(published)
    assert len(published) == total
    assert (len(routing.excluded), len(routing.machine), routing.unrouted) == (excluded, machine, ())
    counts = routing.group[routing.features()].value_counts().to_dict()
    assert counts == PUBLISHED_COUNTS[arch]
    assert sum(counts.values()) + excluded + machine == total

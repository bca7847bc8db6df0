"""DeepFD's features: 22 monitors of a run's log, eight statistics of each, and four final values.

Cao et al., "DeepFD: Automated Fault Diagnosis and Localization for Deep Learning Programs", ICSE 2022, and its public
code (ArabelaTso/DeepFD). The published vector has 148 numbers because the header of its monitor file was written
before four of the monitors existed: the first four columns are lost and each name holds the monitor four places
later. `shift=True` reproduces that; without it the vector is what the names say, 22 × 8 + 4 = 180.

>>> len(MONITORS), len(vector_columns()), len(vector_columns(shift=True))
(22, 180, 148)
>>> shifted_names()["cons_mean_weight"]
'acc'
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd

from features.bench import BenchError

MONITORS = (
    "not_converge",
    "unstable_loss",
    "nan_loss",
    "test_not_well",
    "test_turn_bad",
    "sc_accuracy",
    "died_relu",
    "vanish_gradient",
    "explode_gradient",
    "nan_gradient",
    "large_weight",
    "nan_weight",
    "weight_change_little",
    "decrease_acc",
    "increase_loss",
    "cons_mean_weight",
    "cons_std_weight",
    "nan_acc",
    "loss",
    "acc",
    "val_loss",
    "val_acc",
)
"""In the order of the published monitor file; the last four are those that its header lacks."""

STATISTICS = ("mean", "std", "skew", "median", "var", "sem", "max", "min")
FINAL_VALUES = ("ft_val_loss", "ft_val_accuracy", "ft_loss", "ft_accuracy")
_LOST = 4


@dataclass(frozen=True)
class Thresholds:
    """The constants of the published configuration; its names for them in brackets."""

    vanish_ratio: float = 1e-3  # beta_1
    vanish_norm: float = 1e-4  # beta_2
    explode_ratio: float = 70.0  # beta_3
    zero_share: float = 0.7  # gamma
    swing: float = 0.03  # zeta
    swing_share: float = 0.2  # eta
    step: float = 0.01  # delta
    accuracy: float = 0.6  # Theta
    gap: float = 0.10
    gap_when_accurate: float = 0.07
    accurate: float = 0.9
    large_weight: float = 5.0
    huge_loss: float = 1e5
    warm_up: float = 0.3
    check_every: int = 256


@dataclass(frozen=True)
class Difference:
    """One thing that the published tool reads and our log doesn't carry in that form."""

    what: str
    here: str


DIFFERENCES = (
    Difference(
        "moment of a check: after the first update of every epoch and every 256th after it",
        "history='batch' reads loss and accuracy there; weights and gradients are those of the end of that epoch",
    ),
    Difference(
        "gradients of the first batch_size training rows",
        "gradients of the run's fixed probe batch; 'first' and 'last' are the first and last kernel",
    ),
    Difference(
        "accuracy of a classifier",
        "decoders: next-token accuracy, always under the bound of not_converge; without any, the monitors stay 0",
    ),
    Difference("weight_change_little", "the published code never updates it: constant 0"),
    Difference(
        "early stopping (validation loss, patience 3) added to every program",
        "our runs train for their configured epochs; the monitors read what happened",
    ),
    Difference(
        "training rows limited to faults that cost at most 0.05 accuracy",
        "a bench has its own test of whether a fault had an effect; every row counts",
    ),
)
"""Where our log differs from what DeepFD reads, and what stands in."""

_EPOCH_METRICS = (
    "train_loss",
    "train_accuracy",
    "val_loss",
    "val_accuracy",
    "loss_nonfinite",
    "probe_grad_norm_first",
    "probe_grad_norm_last",
    "probe_grad_exact_zero_share",
    "gradient_nonfinite_count",
    "weight_nonfinite_count",
    "weight_abs_max",
    "weight_same_mean_count",
    "weight_same_std_count",
)
_HISTORY = {"train_loss": "loss", "train_accuracy": "acc", "val_loss": "val_loss", "val_accuracy": "val_acc"}
_REQUIRED = ("train_loss", "val_loss")


def shifted_names() -> dict[str, str]:
    """Column name of the published tables → the monitor that it really holds (18 names)."""
    return dict(zip(MONITORS[:-_LOST], MONITORS[_LOST:], strict=True))


def vector_columns(shift: bool = False) -> tuple[str, ...]:
    """Names of the vector's columns: 180, or the 148 of the published tables."""
    names = MONITORS[:-_LOST] if shift else MONITORS
    return FINAL_VALUES + tuple(f"ft_{name}_{statistic}" for name in names for statistic in STATISTICS)


def vectors(log: pd.DataFrame, history: Literal["epoch", "batch"] = "epoch", shift: bool = False) -> pd.DataFrame:
    """One row per run of the long log (`features.schema.LOG_COLUMNS`), columns as `vector_columns`.

    Undefined statistics (the deviation of one check, the skewness of two) are NaN, infinite ones infinite; the
    published preparation sets both to 0 later.
    """
    table = _epoch_table(log)
    observed = monitors(log, history)
    if shift:
        observed = observed.loc[:, list(MONITORS[_LOST:])].set_axis(list(MONITORS[:-_LOST]), axis=1)
    final = table.groupby(level="run")[["val_loss", "val_accuracy", "train_loss", "train_accuracy"]].nth(-1)
    final = final.droplevel("epoch").set_axis(list(FINAL_VALUES), axis=1)
    return final.join(statistics(observed)).loc[:, list(vector_columns(shift))]


def statistics(monitors_: pd.DataFrame) -> pd.DataFrame:
    """The eight statistics of every monitor over the checks of a run (deviations with ddof = 1), NaN read as 0."""
    table = monitors_.fillna(0.0).groupby(level="run").agg(list(STATISTICS))
    return table.set_axis([f"ft_{name}_{statistic}" for name, statistic in table.columns], axis=1)


def monitors(
    log: pd.DataFrame, history: Literal["epoch", "batch"] = "epoch", thresholds: Thresholds | None = None
) -> pd.DataFrame:
    """The 22 monitors at every check: index (run, check), columns `MONITORS`; counts run over the run, flags stick.

    history : "epoch" checks at the end of each epoch. "batch" reads what the published callback reads: losses and
        accuracies of single steps and of epochs in one list, checked after the first step of an epoch (and every 256th
        after that), where there is no validation value, so that six of the monitors are constant.
    """
    limits = thresholds or Thresholds()
    table = _epoch_table(log)
    records = _step_history(log, table, limits) if history == "batch" else _epoch_history(table)
    run = records.index.get_level_values("run")
    checks = records.join(_history_monitors(records, run, table, limits))
    checks = checks[checks["check"]].join(_tensor_monitors(table, limits), on=["run", "epoch"])
    checks.index = pd.MultiIndex.from_arrays(
        [checks.index.get_level_values("run"), checks.groupby(level="run").cumcount()], names=["run", "check"]
    )
    live = ~checks["nan_now"]
    by_run = checks.index.get_level_values("run")
    counted = ["nan_acc", "test_not_well", "decrease_acc", "increase_loss"]
    sticky = ["not_converge", "unstable_loss", "test_turn_bad", "sc_accuracy"]
    for name in counted:
        checks[name] = (checks[name] & live).groupby(by_run).cumsum()
    for name in sticky:
        checks[name] = (checks[name] & live).astype(int).groupby(by_run).cummax()
    checks["nan_loss"] = checks["nan_now"].groupby(by_run).cumsum()
    tensors = ["died_relu", "vanish_gradient", "explode_gradient", "nan_gradient", "large_weight", "nan_weight"]
    tensors += ["cons_mean_weight", "cons_std_weight"]
    checks[tensors] = checks[tensors].astype(float).groupby(by_run).cumsum()
    checks["weight_change_little"] = 0.0
    return checks.loc[:, list(MONITORS)].astype(float)


def oscillates(accuracies: np.ndarray, thresholds: Thresholds | None = None) -> bool:
    """AutoTrainer's test for oscillation: enough pairs of a local maximum and minimum that differ by the swing.

    Interior values at least as large (small) as both neighbours are maxima (minima), paired in order of time.
    """
    limits = thresholds or Thresholds()
    before, here, after = accuracies[:-2], accuracies[1:-1], accuracies[2:]
    maxima = here[(here >= before) & (here >= after)]
    minima = here[(here <= before) & (here <= after)]
    pairs = min(len(maxima), len(minima))
    swings = np.count_nonzero(maxima[:pairs] - minima[:pairs] >= limits.swing)
    return swings >= limits.swing_share * len(accuracies)


def _epoch_table(log: pd.DataFrame) -> pd.DataFrame:
    """Index (run, epoch), one column for each metric read; a value that is missing or not finite stays so."""
    rows = log[(log["step"] == -1) & (log["layer"] == -1) & log["metric"].isin(_EPOCH_METRICS)]
    absent = [m for m in _REQUIRED if not (rows["metric"] == m).any()]
    if absent:
        raise BenchError(f"log: no per-epoch rows of metric {absent[0]!r} (step -1); DeepFD's log form needs them")
    return _wide(rows, ["run", "epoch"], _EPOCH_METRICS)


def _wide(rows: pd.DataFrame, index: list[str], metrics: tuple[str, ...]) -> pd.DataFrame:
    """One column per metric, NaN where the log has no row; `pivot_table` would drop an epoch whose values are NaN."""
    twice = rows.duplicated([*index, "metric"])
    if twice.any():
        where = rows.loc[twice, [*index, "metric"]].iloc[0].to_dict()
        raise BenchError(f"log: more than one row for {where}; a log holds each value once")
    table = rows.pivot(index=index, columns="metric", values="value").astype(float)  # noqa: PD010
    return table.reindex(columns=list(metrics))


def _epoch_history(table: pd.DataFrame) -> pd.DataFrame:
    """One record an epoch, each of them a check."""
    records = table[[*_HISTORY]].rename(columns=_HISTORY)
    records["broken"] = _broken(table)
    return records.assign(check=True)


def _step_history(log: pd.DataFrame, table: pd.DataFrame, limits: Thresholds) -> pd.DataFrame:
    """Records of steps and of epochs in one list, as the published callback appends them."""
    rows = log[(log["step"] >= 0) & log["metric"].isin(["step_loss", "step_accuracy"])]
    if rows.empty:
        raise BenchError("log: no rows of metric 'step_loss'; use history='epoch', or a log with per-step values")
    steps = _wide(rows, ["run", "epoch", "step"], ("step_loss", "step_accuracy")).set_axis(["loss", "acc"], axis=1)
    steps["check"] = steps.groupby(level=["run", "epoch"]).cumcount() % limits.check_every == 0
    steps["broken"] = ~np.isfinite(steps["loss"])
    epochs = table[["train_loss", "train_accuracy"]].set_axis(["loss", "acc"], axis=1)
    epochs = epochs.assign(check=False, broken=~np.isfinite(table["train_loss"]))
    last = steps.index.get_level_values("step").max() + 1
    epochs.index = pd.MultiIndex.from_arrays(
        [*(epochs.index.get_level_values(k) for k in ("run", "epoch")), np.full(len(epochs), last)],
        names=["run", "epoch", "step"],
    )
    return pd.concat([steps, epochs]).sort_index().assign(val_loss=np.nan, val_acc=np.nan)


def _broken(table: pd.DataFrame) -> pd.Series:
    """Whether a loss of the epoch was NaN or infinite: by the log's own flag, or by the values."""
    return (table["loss_nonfinite"] > 0) | ~np.isfinite(table[["train_loss", "val_loss"]]).all(axis=1)


def _history_monitors(records: pd.DataFrame, run: pd.Index, table: pd.DataFrame, limits: Thresholds) -> pd.DataFrame:
    """What each record says of losses and accuracies up to it: not yet counted or held."""
    by_run = records.groupby(run, sort=False)
    acc, val_loss, val_acc = records["acc"], records["val_loss"], records["val_acc"]
    epochs = table.groupby(level="run").size()
    warm = by_run.cumcount() + 1 >= limits.warm_up * epochs.reindex(run).to_numpy()
    validated = warm & val_acc.notna()
    limit = np.where(acc <= limits.accurate, limits.gap, limits.gap_when_accurate)
    change = by_run[["loss", "acc", "val_loss", "val_acc"]].diff()
    upward = change[["acc", "val_acc"]].clip(lower=0).fillna(0).groupby(run, sort=False).cummax()
    highest = by_run[["acc", "val_acc"]].cummax()
    turned = (change["loss"] < -limits.step) & (change["val_loss"] > limits.step) & (by_run.cumcount() == 1)
    return pd.DataFrame(
        {
            "nan_now": records["broken"].groupby(run, sort=False).cummax() | (val_loss >= limits.huge_loss),
            "nan_acc": np.isinf(records[["acc", "val_acc"]]).any(axis=1).groupby(run, sort=False).cummax(),
            "not_converge": validated & (highest < limits.accuracy).any(axis=1),
            "unstable_loss": warm & _oscillating(acc, run, records["check"], limits),
            "test_not_well": validated & (acc - val_acc >= limit),
            "test_turn_bad": warm & turned,
            "sc_accuracy": validated & (upward < limits.step).all(axis=1),
            "decrease_acc": change["acc"] < 0,
            "increase_loss": change["loss"] > 0,
        }
    )


def _oscillating(acc: pd.Series, run: pd.Index, check: pd.Series, limits: Thresholds) -> pd.Series:
    """`oscillates` of the history up to each check."""
    flags = pd.Series(False, index=acc.index)
    for positions in acc.groupby(run, sort=False).indices.values():
        values = acc.to_numpy()[positions]
        flags.iloc[positions] = [
            bool(at_check) and oscillates(values[: k + 1], limits)
            for k, at_check in enumerate(check.to_numpy()[positions])
        ]
    return flags


def _tensor_monitors(table: pd.DataFrame, limits: Thresholds) -> pd.DataFrame:
    """What each epoch says of gradients and weights: 1 or a count, not yet added up over the run."""
    first, last = table["probe_grad_norm_first"], table["probe_grad_norm_last"]
    ratio = first / last
    return pd.DataFrame(
        {
            "died_relu": table["probe_grad_exact_zero_share"] >= limits.zero_share,
            "vanish_gradient": (ratio < limits.vanish_ratio) & (first < limits.vanish_norm),
            "explode_gradient": ratio > limits.explode_ratio,
            "nan_gradient": table["gradient_nonfinite_count"] > 0,
            "large_weight": table["weight_abs_max"] > limits.large_weight,
            "nan_weight": table["weight_nonfinite_count"] > 0,
            "cons_mean_weight": table["weight_same_mean_count"].fillna(0),
            "cons_std_weight": table["weight_same_std_count"].fillna(0),
        }
    )

"""The table of firings: counts per category that can be checked by hand, and what is written."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest
from typer.testing import CliRunner

from baselines.autotrainer import AutoTrainer
from baselines.series import bench_of_series
from baselines.umlaut import Umlaut
from experiments.rules_table import app, count_firings, to_markdown
from features.bench import Bench


def bench() -> Bench:
    """Six runs of two pairs: two of ffn with a high rate, one of output with a NaN loss, three correct, one of them
    overfitting."""
    fine = {"learning_rate": [1e-3] * 2, "train_loss": [1.0, 0.5], "val_loss": [1.0, 0.6]}
    runs = {
        "ffn1": {**fine, "learning_rate": [1.0] * 2},
        "ffn2": {**fine, "learning_rate": [1.0] * 2},
        "out1": {**fine, "train_loss": [float("nan"), 0.5]},
        "ok1": fine,
        "ok2": fine,
        "ok3": {**fine, "val_loss": [1.0, 1.1]},
    }
    made = bench_of_series(runs, faulty=("ffn1", "ffn2", "out1"))
    labels = made.labels.copy()
    labels.loc[["ffn1", "ffn2", "out1"], "category"] = ["ffn", "ffn", "output"]
    labels.loc[["ffn1", "ffn2", "out1"], "root_cause"] = ["regularization", "regularization", "output_type"]
    pair = pd.Series(["a/t", "b/t"] * 3, index=made.runs)
    X = pd.DataFrame({"seed": range(6)}, index=made.runs)  # no run may be another's copy
    return replace(made, X=X, labels=labels, pair=pair, levels=(1, 2, 3))


def test_counts():
    table = count_firings(bench(), [Umlaut(), AutoTrainer()]).set_index(["technique", "rule", "category"]).sort_index()
    fired = table["fired"]
    assert fired["UMLAUT (log)", "lr_high"].to_dict() == {"ffn": 2, "output": 0, "correct": 0, "faulty": 2}
    assert fired["UMLAUT (log)", "overfitting"].to_dict() == {"ffn": 0, "output": 0, "correct": 1, "faulty": 0}
    assert fired["AutoTrainer (code, log)", "explode_nan", "output"] == 1
    assert table.loc[("UMLAUT (log)", "lr_high", "ffn"), "share"] == 1.0
    assert table.loc[("UMLAUT (log)", "lr_high", "faulty"), "share"] == pytest.approx(2 / 3)
    assert table.loc[("UMLAUT (log)", "no_softmax", "ffn"), "sight"] == "not observable"


def test_markdown_has_a_row_per_observable_rule_and_lists_the_others():
    text = to_markdown(count_firings(bench(), [Umlaut()]), "hand")
    rows = [line for line in text.splitlines() if line.startswith("| UMLAUT")]
    assert len(rows) == 3
    assert "| UMLAUT (log) | lr_high | exact | 66.7 | 0.0 |" in text
    assert "- UMLAUT (log), no_softmax: not observable" in text


def test_command_refuses_a_missing_file_in_one_line(tmp_path):
    result = CliRunner().invoke(app, ["--bench", str(tmp_path / "none.parquet"), "--results", str(tmp_path)])
    assert result.exit_code == 2
    assert "none.parquet" in result.output
    assert "Traceback" not in result.output

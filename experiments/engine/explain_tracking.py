"""Explanations in MLflow: one run in the bench's experiment, below the comparison of the same name if there is one."""

from __future__ import annotations

import time
from pathlib import Path

import pandas as pd
from mlflow.entities import Metric, Param
from mlflow.tracking import MlflowClient
from mlflow.utils.mlflow_tags import MLFLOW_PARENT_RUN_ID

from experiments.engine.leaderboard import title_of
from experiments.engine.tracking import tracking_uri
from features.bench import Bench


def track_explanations(bench: Bench, folder: Path, agreement: pd.DataFrame, record: dict, name: str) -> str:
    """Log tables and figures as artifacts, and hit@1 and hit@3 of every explanation as metrics; gives the run's id."""
    client = MlflowClient(tracking_uri())
    title = title_of(bench)
    experiment = client.get_experiment_by_name(title)
    experiment_id = experiment.experiment_id if experiment else client.create_experiment(title)
    comparison = client.search_runs(
        [experiment_id], f"tags.kind = 'comparison' and tags.comparison = '{name}'", max_results=1
    )
    tags = {
        "kind": "explanation",
        "comparison": name,
        "bench": bench.name,
        "arch": bench.arch,
        "data": record["benches"][0]["fingerprint"],
        "git": record["git"],
        "code": record["code"],
        "mlflow.note.content": "Which group every explanation points at, against the group that was changed.",
    }
    if comparison:
        tags[MLFLOW_PARENT_RUN_ID] = comparison[0].info.run_id
    run = client.create_run(experiment_id, run_name=f"{name}, explanations", tags=tags).info.run_id
    now = int(time.time() * 1000)
    rows = agreement[agreement["subset"] == "all faulty"]
    metrics = [
        Metric(f"{key} {row.technique} L{row.level} {row.kind}".translate(_PLAIN), float(getattr(row, key)), now, 0)
        for row in rows.itertuples()
        for key in ("own1", "own3")
    ]
    client.log_batch(run, metrics=metrics, params=[Param(k, str(v)) for k, v in record["settings"].items()])
    client.log_artifacts(run, str(folder))
    client.set_terminated(run)
    return run


_PLAIN = str.maketrans({"+": "p", "(": "", ")": "", ",": "", "−": "-"})
"""MLflow takes letters, digits, spaces and -_./ in a metric's name."""

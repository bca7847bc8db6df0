"""A finished comparison in MLflow.

One experiment per bench and architecture. In it a parent run per comparison, a child per technique (what one
compares), a grandchild per outer fold. Verdicts and class tables are artifacts of the technique's run; the bench is
its dataset. SQLite by default, any store by MLFLOW_TRACKING_URI.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from pathlib import Path

import pandas as pd
from mlflow.entities import Dataset, DatasetInput, InputTag, Metric, Param
from mlflow.tracking import MlflowClient
from mlflow.utils.mlflow_tags import MLFLOW_PARENT_RUN_ID

from experiments.engine.leaderboard import Judged, class_table, fold_scores, markdown
from experiments.engine.scoring import PROTOCOLS
from features.bench import Bench

DEFAULT_STORE = "sqlite:///mlflow.db"


def tracking_uri() -> str:
    """MLFLOW_TRACKING_URI, or SQLite in the working folder."""
    return os.environ.get("MLFLOW_TRACKING_URI", DEFAULT_STORE)


def track(judged: list[Judged], board: pd.DataFrame, manifest: dict, name: str) -> str:
    """Log one bench's comparison; gives the id of its parent run."""
    client = MlflowClient(tracking_uri())
    bench = judged[0].bench
    experiment = _experiment(client, bench)
    fingerprint = next(b["fingerprint"] for b in manifest["benches"] if b["name"] == bench.name)
    common = {
        "bench": bench.name,
        "arch": bench.arch or "none",
        "data": fingerprint,
        "git": manifest["git"],
        "code": manifest["code"],
        "split": manifest["settings"]["split"],
        "comparison": name,
    }
    parent = _run(client, experiment, name, {**common, "kind": "comparison"}, _comparison_note(bench, board, name))
    _log(client, parent, _best_metrics(board), {"folds": manifest["settings"]["folds"], "runs": len(bench)})
    client.log_inputs(parent, [_dataset(bench, fingerprint)])
    with tempfile.TemporaryDirectory() as folder:
        board.to_csv(Path(folder, "leaderboard.csv"), index=False)
        Path(folder, "leaderboard.md").write_text(markdown(board))
        Path(folder, "manifest.json").write_text(json.dumps(manifest, indent=1, default=str))
        client.log_artifacts(parent, folder)
    for entry in judged:
        _track_technique(client, experiment, parent, entry, board, common, fingerprint)
    client.set_terminated(parent)
    return parent


def _track_technique(client, experiment, parent, entry: Judged, board, common, fingerprint) -> None:
    tags = {
        **common,
        "kind": "technique",
        "technique": entry.key,
        "family": entry.estimator.family,
        "tuned": str(entry.tuned).lower(),
        "protocols": ", ".join(PROTOCOLS),
        "reference": entry.estimator.reference,
        MLFLOW_PARENT_RUN_ID: parent,
    }
    run = _run(client, experiment, entry.name, tags, entry.estimator.__doc__ or "")
    rows = board[board["technique"] == entry.name]
    metrics = {
        f"L{row.level}_{row.protocol}_{column}": getattr(row, column)
        for row in rows.itertuples()
        for column in ("f1", "precision", "recall", "low", "high", "fold_sd")
    }
    first = rows[(rows["level"] == 1) & (rows["protocol"] == "path")].iloc[0]
    metrics |= {c: first[c] for c in ("accuracy", "auroc", "false_alarm_rate")}
    costs = pd.DataFrame([r.cost for r in entry.results])
    metrics |= {f"{c}_total": costs[c].sum() for c in costs if c.startswith("seconds")}
    _log(client, run, metrics, entry.estimator.get_params())
    client.log_inputs(run, [_dataset(entry.bench, fingerprint)])
    with tempfile.TemporaryDirectory() as folder:
        entry.table.to_parquet(Path(folder, "verdicts.parquet"))
        for level in entry.levels:
            entry.confusion(level, "path").pooled().to_csv(Path(folder, f"confusion_path_L{level}.csv"))
            for protocol in PROTOCOLS:
                class_table(entry.confusion(level, protocol)).to_csv(Path(folder, f"classes_{protocol}_L{level}.csv"))
        client.log_artifacts(run, folder)
    per_fold = {(level, p): fold_scores(entry, level, p) for level in entry.levels for p in PROTOCOLS}
    for result in entry.results:
        fold_tags = {**common, "kind": "fold", "technique": entry.key, MLFLOW_PARENT_RUN_ID: run}
        child = _run(client, experiment, f"{entry.name}, fold {result.cell.fold}", fold_tags, "")
        metrics = {
            f"L{level}_{protocol}_{column}": scores.loc[result.cell.fold, column]
            for (level, protocol), scores in per_fold.items()
            for column in ("f1", "precision", "recall")
        }
        if result.tuned is not None:
            importances = result.tuned.importances.items()
            metrics |= {"inner_best": result.tuned.trials["value"].max()}
            metrics |= {f"importance_{name}": share for name, share in importances}
            with tempfile.TemporaryDirectory() as folder:
                result.tuned.trials.to_csv(Path(folder, "trials.csv"), index=False)
                client.log_artifacts(child, folder)
        _log(client, child, {**metrics, **result.cost}, {**entry.estimator.get_params(), **result.parameters})
        client.set_terminated(child)
    client.set_terminated(run)


def _experiment(client: MlflowClient, bench: Bench) -> str:
    name = f"{bench.name} ({bench.arch})" if bench.arch else bench.name
    found = client.get_experiment_by_name(name)
    return found.experiment_id if found else client.create_experiment(name)


def _run(client: MlflowClient, experiment: str, name: str, tags: dict, note: str) -> str:
    tags = {k: v for k, v in tags.items() if v} | ({"mlflow.note.content": note} if note else {})
    return client.create_run(experiment, run_name=name, tags=tags).info.run_id


def _log(client: MlflowClient, run: str, metrics: dict, parameters: dict) -> None:
    now = int(time.time() * 1000)
    known = [Metric(k, float(v), now, 0) for k, v in metrics.items() if pd.notna(v)]
    client.log_batch(run, metrics=known, params=[Param(k, str(v)[:500]) for k, v in parameters.items()])


def _best_metrics(board: pd.DataFrame) -> dict[str, float]:
    best = board.groupby(["level", "protocol"])["f1"].max()
    return {f"best_L{level}_{protocol}_f1": value for (level, protocol), value in best.items()}


def _comparison_note(bench: Bench, board: pd.DataFrame, name: str) -> str:
    notes = "".join(f"- {note}\n" for note in bench.notes)
    return f"# {name}\n\n{len(bench)} runs of {bench.name}.\n\n{notes}\n{markdown(board)}"


def _dataset(bench: Bench, fingerprint: str) -> DatasetInput:
    profile = {"num_rows": len(bench), "num_columns": bench.X.shape[1], "faulty": int(bench.faulty.sum())}
    dataset = Dataset(
        name=f"{bench.name}-{bench.arch or 'table'}",
        digest=fingerprint[:36],
        source_type="local",
        source=json.dumps({"bench": bench.name}),
        schema=json.dumps({"columns": bench.X.shape[1]}),
        profile=json.dumps(profile),
    )
    return DatasetInput(dataset, tags=[InputTag("mlflow.data.context", "outer cross-validation")])

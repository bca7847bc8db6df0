"""A finished comparison in MLflow.

One experiment per bench and architecture. In it a parent run per comparison, a child per technique (what one
compares), a grandchild per outer fold. Verdicts, confusion matrices and class tables are artifacts of the technique's
run; the bench is its dataset. MLflow's charts show metrics by prefix, one section each in alphabetical order: what one
compares comes first (`F1 path/`), then `level 1/`, `paper/`, `path detail/`, `resources/` and `tuning/`. SQLite by
default, any store by MLFLOW_TRACKING_URI.
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

from experiments.engine.leaderboard import Judged, class_table, fold_scores, markdown, order, title_of
from experiments.engine.notes import comparison_note, confusion_page, headline, technique_note
from experiments.engine.scoring import PROTOCOLS
from features.bench import Bench

DEFAULT_STORE = "sqlite:///mlflow.db"
NOTE = "mlflow.note.content"


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
    parent = _run(client, experiment, name, {**common, "kind": "comparison"})
    _log(client, parent, _best_metrics(board), {"folds": manifest["settings"]["folds"], "runs": len(bench)})
    client.log_inputs(parent, [_dataset(bench, fingerprint)])
    with tempfile.TemporaryDirectory() as folder:
        board.to_csv(Path(folder, "leaderboard.csv"), index=False)
        Path(folder, "leaderboard.md").write_text(markdown(board))
        Path(folder, "manifest.json").write_text(json.dumps(manifest, indent=1, default=str))
        client.log_artifacts(parent, folder)
    # MLflow lists the youngest first: the best technique goes last.
    place = {technique: i for i, technique in enumerate(order(board))}
    runs = {}
    for entry in sorted(judged, key=lambda e: place.get(e.name, len(place)), reverse=True):
        runs[entry.name] = _track_technique(client, experiment, parent, entry, board, common, fingerprint)
    client.set_tag(parent, NOTE, comparison_note(bench, board, experiment, name, runs))
    client.set_terminated(parent)
    return parent


def _track_technique(client, experiment, parent, entry: Judged, board, common, fingerprint) -> str:
    rows = board[board["technique"] == entry.name]
    levels = sorted(set(rows["level"]).intersection(entry.levels))
    per_fold = {(level, p): fold_scores(entry, level, p) for level in levels for p in PROTOCOLS}
    tags = {
        **common,
        "kind": "technique",
        "technique": entry.key,
        "family": entry.estimator.family,
        "tuned": str(entry.tuned).lower(),
        "reference": entry.estimator.reference,
        MLFLOW_PARENT_RUN_ID: parent,
        NOTE: technique_note(entry, rows, per_fold),
    }
    run = _run(client, experiment, entry.name, tags)
    metrics = {}
    for row in rows.itertuples():
        metrics |= _named(row.level, row.protocol, row._asdict(), ("low", "high", "fold_sd"))
        if row.level == 1 and row.protocol == "path":
            metrics |= {f"level 1/{c}": getattr(row, c) for c in ("accuracy", "auroc", "false_alarm_rate")}
    costs = pd.DataFrame([r.cost for r in entry.results])
    metrics |= {f"resources/{c}_total": costs[c].sum() for c in costs if c.startswith("seconds")}
    _log(client, run, metrics, entry.estimator.get_params())
    client.log_inputs(run, [_dataset(entry.bench, fingerprint)])
    with tempfile.TemporaryDirectory() as folder:
        _write_artifacts(entry, levels, Path(folder))
        client.log_artifacts(run, folder)
    for result in entry.results:
        _track_fold(client, experiment, run, entry, result, per_fold, common)
    client.set_terminated(run)
    return run


def _track_fold(client, experiment, run, entry: Judged, result, per_fold, common) -> None:
    fold = result.cell.fold
    tags = {**common, "kind": "fold", "technique": entry.key, MLFLOW_PARENT_RUN_ID: run}
    child = _run(client, experiment, f"{entry.name}, fold {fold}", tags)
    metrics = {f"resources/{name}": value for name, value in result.cost.items()}
    for (level, protocol), scores in per_fold.items():
        metrics |= _named(level, protocol, scores.loc[fold].to_dict())
    if result.tuned is not None:
        metrics |= {"tuning/inner_best": result.tuned.trials["value"].max()}
        metrics |= {f"tuning/importance_{name}": share for name, share in result.tuned.importances.items()}
        with tempfile.TemporaryDirectory() as folder:
            result.tuned.trials.to_csv(Path(folder, "trials.csv"), index=False)
            client.log_artifacts(child, folder)
    _log(client, child, metrics, {**entry.estimator.get_params(), **result.parameters})
    client.set_terminated(child)


def _named(level: int, protocol: str, scores: dict, extra: tuple[str, ...] = ()) -> dict[str, float]:
    """F1 in the first section where it is what one compares; all else below it."""
    f1 = headline(level) if protocol == "path" else f"paper/L{level}_f1"
    section = "path detail" if protocol == "path" else "paper"
    return {f1: scores["f1"]} | {f"{section}/L{level}_{c}": scores[c] for c in ("precision", "recall", *extra)}


def _write_artifacts(entry: Judged, levels: list[int], folder: Path) -> None:
    entry.table.to_parquet(folder / "verdicts.parquet")
    truth = entry.bench.labels.loc[entry.table.index, ["category", "root_cause"]].add_prefix("true_")
    shown = entry.table.assign(pair=entry.bench.pair, evidence=entry.table["evidence"].str[:200])
    truth.join(shown).to_csv(folder / "verdicts.csv", float_format="%.4g")
    pooled = {}
    for level in levels:
        for protocol in PROTOCOLS:
            counted = entry.confusion(level, protocol)
            class_table(counted).to_csv(folder / f"classes_{protocol}_L{level}.csv", float_format="%.4f")
            if protocol == "path":
                pooled[level] = counted.pooled()
                pooled[level].to_csv(folder / f"confusion_path_L{level}.csv")
    (folder / "confusion.html").write_text(confusion_page(entry.name, pooled))


def _experiment(client: MlflowClient, bench: Bench) -> str:
    name = title_of(bench)
    found = client.get_experiment_by_name(name)
    # The kind makes MLflow open the experiment in its "Model training" view.
    tags = {"mlflow.experimentKind": "custom_model_development"}
    return found.experiment_id if found else client.create_experiment(name, tags=tags)


def _run(client: MlflowClient, experiment: str, name: str, tags: dict) -> str:
    return client.create_run(experiment, run_name=name, tags={k: v for k, v in tags.items() if v}).info.run_id


def _log(client: MlflowClient, run: str, metrics: dict, parameters: dict) -> None:
    now = int(time.time() * 1000)
    known = [Metric(k, float(v), now, 0) for k, v in metrics.items() if pd.notna(v)]
    client.log_batch(run, metrics=known, params=[Param(k, str(v)[:500]) for k, v in parameters.items()])


def _best_metrics(board: pd.DataFrame) -> dict[str, float]:
    best = board[board["protocol"] == "path"].groupby("level")["f1"].max()
    return {headline(level): value for level, value in best.items()}


def _dataset(bench: Bench, fingerprint: str) -> DatasetInput:
    profile = {"num_rows": len(bench), "num_columns": bench.X.shape[1], "faulty": int(bench.faulty.sum())}
    dataset = Dataset(
        name=title_of(bench, "{}-{}"),
        digest=fingerprint[:36],
        source_type="local",
        source=json.dumps({"bench": bench.name}),
        schema=json.dumps({"columns": bench.X.shape[1]}),
        profile=json.dumps(profile),
    )
    return DatasetInput(dataset, tags=[InputTag("mlflow.data.context", "outer cross-validation")])

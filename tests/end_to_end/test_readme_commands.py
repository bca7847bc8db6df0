"""Every command that the README shows runs as it stands there, on a small bench."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
INLINE, BLOCKS = r"`(python (?:-m )?[\w./]+(?: [^`]*)?)`", r"^(python [^\n#]+?)(?: *#.*)?$"
COMMANDS = dict.fromkeys(re.findall(INLINE, README) + re.findall(BLOCKS, README, re.M))
TOY = "--bench toy.parquet --folds 2 --workers 1 --results results"
SMALLER = {
    "compare.py": f"{TOY} --technique dummy --no-mlflow",
    "build_bench.py": "--profile smoke --family distilbert --task entailment --rounds 0 --workers 1 --store s --out o",
    "features.inject": "distilbert",
    "rules_table.py": "--arch encoder --technique autotrainer --folds 2 --results results",
    "default_study.py": "--level 1 --trees 3 --folds 2 --results results --workers 1",
    "ablate.py": f"{TOY} --variant full --draws 1",
    "explain.py": f"{TOY} --technique lightgbm --draws 8 --background 4 --no-mlflow",
    "tables.py": "--results results",
    "report.py": "--results results",
    "bench_measure.py": "--steps 3 --repeats 1",
    "fine_tuning_with_recorder.py": "",
    "diagnose.py": "--bench toy.parquet --technique forest --workers 1",
    "real_world.py": "--case ai-edge-torch-6 --seeds 1 --technique dummy --workers 1 --results results",
    "single_runs.py": "--arch encoder --technique knn --folds 2 --workers 1 --results results/single_runs",
    "bench_scaling.py": "--technique dummy --rows 40 --results results",
}
"""What makes each program small enough for a test. A program that the README names and this lacks fails the test."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory, toy_maker):
    """A folder that holds what a reader has: a bench, a table of their own with its map, and a first comparison."""
    folder = tmp_path_factory.mktemp("reader")
    toy = toy_maker(n_pairs=4, per_pair=12, n_causes=3)
    toy.save(folder / "toy.parquet")
    own = toy.X.iloc[:, :40].assign(
        run_id=toy.runs, model=toy.pair.str.split("/").str[0], dataset=toy.pair.str.split("/").str[1], **toy.labels
    )
    own.to_csv(folder / "runs.csv", index=False)
    columns = {"run": "run_id", "pair": ["model", "dataset"], "arch": "encoder"}
    labels = {name: name for name in ("faulty", "category", "root_cause")}
    (folder / "my_columns.yaml").write_text(yaml.safe_dump(columns | labels))
    execute("python experiments/compare.py", folder)
    execute("python experiments/compare.py --name tuned", folder)
    return folder


def program(command: str) -> str:
    words = shlex.split(command)
    return words[2] if words[1] == "-m" else Path(words[1]).name


def execute(command: str, folder: Path) -> subprocess.CompletedProcess:
    # Of an option given twice the last counts, and that is the README's.
    start = 3 if " -m " in command else 2
    words = shlex.split(command)
    words = [*words[1:start], *shlex.split(SMALLER[program(command)]), *words[start:]]
    if words[0] != "-m":
        words[0] = str(ROOT / words[0])
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "MLFLOW_TRACKING_URI": f"sqlite:///{folder / 'mlflow.db'}"}
    done = subprocess.run([sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    return done


@pytest.mark.parametrize("command", COMMANDS)
def test_command_runs(command, folder):
    if "FOLDER" in command:
        tables = ROOT.parent / "shared" / "data" / "default_icse25"
        if not tables.exists():
            pytest.skip("needs DEFault's published tables")
        command = command.replace("FOLDER", str(tables))
    assert execute(command, folder).stdout.strip()

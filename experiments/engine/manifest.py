"""What a result was made from: command, versions, data, seed, git revision."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from experiments.engine.revision import ROOT, code_revision
from features.bench import Bench
from features.files import write_text

PACKAGES = ("numpy", "pandas", "scikit-learn", "xgboost", "lightgbm", "torch", "optuna", "shap", "mlflow")


SCRATCH = "comparison"
"""The folder that compare.py writes unless told a name. Git leaves it out, and so does the record of all results."""


def git_revision() -> str:
    """The checked-out commit, with "+changes" if the tree differs from it; "unknown" outside a checkout."""
    try:
        run = lambda *command: subprocess.run(  # noqa: E731
            ["git", *command], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout.strip()
        return run("rev-parse", "HEAD") + ("+changes" if run("status", "--porcelain", "--", "*.py") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def manifest(benches: list[Bench], fingerprints: list[str], **settings) -> dict:
    """Command line, settings, data fingerprints, versions and revision, JSON-able."""
    return {
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "settings": settings,
        "benches": [
            {"name": b.name, "arch": b.arch, "runs": len(b), "columns": b.X.shape[1], "fingerprint": f}
            for b, f in zip(benches, fingerprints, strict=True)
        ],
        "git": git_revision(),
        "code": code_revision(),
        "python": platform.python_version(),
        "packages": {p: version(p) for p in PACKAGES},
        "machine": {"cores": os.cpu_count(), "system": platform.system(), "processor": platform.machine()},
    }


def keep(record: dict, path: Path, root: Path) -> None:
    """Write a manifest as `path`, and all manifests below `root`, by their path there, as `root/manifest.json`.

    Folders that git doesn't keep (`SCRATCH`, and hidden ones) don't count.
    """
    write_text(path, _dumps(record))
    names = sorted(p.relative_to(root) for p in root.rglob("*.json") if p.parent != root)
    visible = [n for n in names if n.parts[0] != SCRATCH and not any(part.startswith(".") for part in n.parts)]
    records = {str(name): json.loads((root / name).read_text()) for name in visible}
    write_text(root / "manifest.json", _dumps({name: r for name, r in records.items() if "benches" in r}))


def record_of(path: Path, fingerprint: str) -> dict | None:
    """The manifest at `path`, if there is one and it names this data among what its result was made from."""
    if not path.exists():
        return None
    record = json.loads(path.read_text())
    return record if fingerprint in {bench["fingerprint"] for bench in record["benches"]} else None


def _dumps(value: dict) -> str:
    return json.dumps(value, indent=1, sort_keys=True, default=str) + "\n"

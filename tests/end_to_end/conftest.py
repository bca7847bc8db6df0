"""A small comparison made by the command itself, a browser to look at what it leaves behind, and what must repeat."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def compared(tmp_path_factory, toy_maker):
    """A folder with results/first/encoder and mlflow.db: three techniques, one of them tuned, on a toy bench."""
    folder = tmp_path_factory.mktemp("compared")
    bench = toy_maker(n_pairs=4, per_pair=12, n_causes=3).save(folder / "toy.parquet")
    subprocess.run(
        [
            *(sys.executable, ROOT / "experiments" / "compare.py", "--results", folder / "results", "--bench", bench),
            *("--name", "first", "--folds", "2", "--workers", "1", "--trials", "2"),
            *("--technique", "dummy", "--technique", "knn"),
        ],
        cwd=folder,
        check=True,
        capture_output=True,
        env={**os.environ, "MLFLOW_TRACKING_URI": f"sqlite:///{folder / 'mlflow.db'}"},
    )
    return folder


@pytest.fixture(scope="session")
def chromium(tmp_path_factory):
    """A function (url, width, *options) → the page's DOM as text once its scripts have run; skips without a browser."""
    names = ("chromium", "chromium-browser", "google-chrome")
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        pytest.skip("needs Chromium")

    def dump(url: str, width: int = 1280, *options: str) -> str:
        profile = tmp_path_factory.mktemp("profile")
        done = subprocess.run(
            [
                *(found, "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-extensions"),
                *(f"--user-data-dir={profile}", f"--window-size={width},2000", "--hide-scrollbars", *options),
                *("--dump-dom", url),
            ],
            capture_output=True,
            text=True,
            timeout=180,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout

    return dump


@pytest.fixture(scope="session")
def repeatable():
    """Bytes of every result below a folder that must repeat: not the costs, not manifests, not the kept cells."""

    def read(folder: Path) -> dict[str, bytes]:
        root = folder / "results"
        kept = (p for p in sorted(root.rglob("*")) if p.is_file() and ".runs" not in p.parts)
        return {str(p.relative_to(root)): p.read_bytes() for p in kept if p.name not in ("costs.csv", "manifest.json")}

    return read

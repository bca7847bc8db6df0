"""Reading back what a comparison has written: the tables of all its architectures, and the manuscript's figures."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pandas as pd
import yaml

from experiments.engine.manifest import record_of
from experiments.engine.revision import ROOT
from features.bench import EMBEDDED, BenchError, read_parquet
from features.taxonomy import ARCHITECTURES

Origin = Literal["embedded", "published", "other"]
PAPER = ROOT / "results" / "paper.yaml"
TRAINED = "DEFault++"
"""The technique whose training Figure 11 of the manuscript shows."""
PUBLISHED_TABLES = ("encoder_dataset", "decoder_dataset")
"""File stems of the manuscript's own tables (Zenodo 10.5281/zenodo.20481557)."""


@dataclass(frozen=True, eq=False)
class Stored:
    """A finished comparison.

    `board`, `classes`, `costs` and `tests` are the CSV files of all architectures, stacked, with a column `arch`;
    `manifests` maps architecture → manifest. A bench without architecture goes by its own name.
    """

    folder: Path
    board: pd.DataFrame
    classes: pd.DataFrame
    costs: pd.DataFrame
    tests: pd.DataFrame
    manifests: dict[str, dict]

    @property
    def name(self) -> str:
        """As given to compare.py."""
        return self.folder.name

    @property
    def architectures(self) -> tuple[str, ...]:
        """Encoder before decoder before anything else."""
        known = [a for a in ARCHITECTURES if a in self.manifests]
        return (*known, *sorted(set(self.manifests).difference(known)))

    def origin(self, arch: str) -> Origin:
        """Whose runs these are: the embedded bench, the manuscript's published tables, or others."""
        record = self.manifests[arch]
        if record["benches"][0]["name"] in PUBLISHED_TABLES or "--map published" in record["command"]:
            return "published"
        return "other" if re.search(r"--bench\b", record["command"]) else "embedded"

    def same_data(self, arch: str, manifest: Path) -> bool:
        """Whether another result's manifest says that it was made from this comparison's runs of `arch`."""
        return record_of(manifest, self.manifests[arch]["benches"][0]["fingerprint"]) is not None

    def figure(self, arch: str, name: str) -> Path | None:
        """A stored figure, if there is one."""
        path = self.folder / arch / "figures" / name
        return path if path.exists() else None


def load_stored(results: Path, name: str) -> Stored:
    """Read `results/<name>/`. Raises BenchError saying which command makes it if it isn't there or isn't whole."""
    folder = results / name
    architectures = sorted(p.parent.name for p in folder.glob("*/leaderboard.csv"))
    if not architectures:
        raise BenchError(f"{folder}: no stored comparison; make it by: python experiments/compare.py --name {name}")
    tables = {
        what: pd.concat([_read(folder / a / f"{what}.csv").assign(arch=a) for a in architectures], ignore_index=True)
        for what in ("leaderboard", "classes", "costs", "comparisons")
    }
    return Stored(
        folder=folder,
        board=tables["leaderboard"],
        classes=tables["classes"],
        costs=tables["costs"],
        tests=tables["comparisons"],
        manifests={a: json.loads((folder / a / "manifest.json").read_text()) for a in architectures},
    )


def load_paper(path: Path = PAPER) -> dict:
    """The manuscript's figures. Raises BenchError if the file is missing."""
    if not path.exists():
        raise BenchError(f"{path}: no such file; it is part of the repository: git checkout -- {path}")
    return yaml.safe_load(path.read_text())


def load_ablations(results: Path, stored: Stored) -> pd.DataFrame | None:
    """The table of ablate.py of the architectures where it was run on the comparison's data; None if nowhere."""
    columns = ("bench", "arch", "variant", "level", "protocol", "f1", "mate", "difference")
    folder = results / "ablation"
    alike = [a for a in ARCHITECTURES if a in stored.manifests and stored.same_data(a, folder / f"{a}.json")]
    parts = [_optional(folder / f"{arch}.csv", columns) for arch in alike]
    parts = [part for part in parts if part is not None]
    return pd.concat(parts, ignore_index=True) if parts else None


def load_histories(stored: Stored) -> pd.DataFrame | None:
    """DEFault++'s training histories (arch, fold, epoch, loss, score), or None if the comparison kept none."""
    columns = ("technique", "fold", "epoch", "loss", "score")
    parts = {a: _optional(stored.folder / a / "history.csv", columns) for a in stored.architectures}
    parts = [t[t["technique"] == TRAINED].assign(arch=arch) for arch, t in parts.items() if t is not None]
    return pd.concat(parts, ignore_index=True) if parts else None


def load_mutation_counts(stored: Stored) -> pd.DataFrame | None:
    """Killed and surviving mutants per pair (arch, pair, killed, survived) of the embedded bench, or None."""
    path = EMBEDDED / "attempts.parquet"
    if not path.exists() or any(stored.origin(arch) != "embedded" for arch in stored.architectures):
        return None
    attempts = read_parquet(path)
    tried = attempts[attempts["outcome"].isin(["killed", "survived"])]
    tried = tried.assign(pair=tried["family"] + "/" + tried["task"])
    counts = pd.crosstab([tried["arch"], tried["pair"]], tried["outcome"])
    return counts.reindex(columns=["killed", "survived"], fill_value=0).reset_index()


def _optional(path: Path, columns: tuple[str, ...]) -> pd.DataFrame | None:
    if not path.exists():
        return None
    table = pd.read_csv(path)
    if missing := [c for c in columns if c not in table]:
        raise BenchError(f"{path}: column {missing[0]!r} is missing; write the file again by the command that made it")
    return table


def _read(path: Path) -> pd.DataFrame:
    if not path.exists():
        raise BenchError(f"{path}: missing from the stored comparison; run compare.py with the same --name again")
    return pd.read_csv(path)

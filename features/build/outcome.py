"""A finished configuration: the runs of one clean setting or one mutant, their verdict, the file that keeps them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd

from features.build.killtest import KillTest, kill_test, may_still_be_killed
from features.build.run import Configuration, InvalidRun, Run, fine_tune
from features.build.variants import SEEDS
from features.files import replacing


@dataclass(frozen=True)
class Outcome:
    """A finished configuration: one entry per seed that was run, the log of the first, or why it is no mutant."""

    configuration: Configuration
    qualities: tuple[float, ...] = ()
    vectors: np.ndarray = field(default_factory=lambda: np.empty((0, 0), np.float32))
    columns: tuple[str, ...] = ()
    seconds: tuple[float, ...] = ()
    log: pd.DataFrame | None = None
    discarded: str | None = None

    @property
    def id(self) -> str:
        return identifier(self.configuration)

    @property
    def complete(self) -> bool:
        return len(self.qualities) == len(SEEDS)


def identifier(configuration: Configuration) -> str:
    """The run id: pair, setting, and for mutants operator, value and layers."""
    parts = [configuration.family, configuration.task, f"s{configuration.setting.number:02d}"]
    if (fault := configuration.fault) is not None:
        layers = fault.layers if isinstance(fault.layers, str) else "_".join(map(str, fault.layers))
        parts += [fault.code, "none" if fault.value is None else str(fault.value), layers]
    return "-".join(parts)


def run_configuration(configuration: Configuration, reference: tuple[float, ...] | None = None) -> Outcome:
    """Run all five seeds; of a mutant, stop at the first seed that is not worse than the clean `reference`.

    p <= 0.05 needs all five worse, so such a mutant has survived whatever the other seeds would give.
    """
    runs: list[Run] = []
    try:
        for seed in SEEDS:
            runs.append(fine_tune(configuration, seed))
            qualities = tuple(run.quality for run in runs)
            if reference and not may_still_be_killed(reference[: len(runs)], qualities, configuration.higher_is_better):
                break
    except InvalidRun as reason:
        return Outcome(configuration, discarded=str(reason))
    return Outcome(
        configuration,
        qualities=qualities,
        vectors=np.stack([run.vector.to_numpy(np.float32) for run in runs]),
        columns=tuple(runs[0].vector.index),
        seconds=tuple(run.seconds for run in runs),
        log=runs[0].log,
    )


def verdict(clean: Outcome, tested: Outcome) -> KillTest:
    """The kill test over the seeds that both have; with fewer than five it can't be but a survivor."""
    count = len(tested.qualities)
    return kill_test(clean.qualities[:count], tested.qualities, tested.configuration.higher_is_better)


@dataclass(frozen=True)
class Store:
    """A folder of finished configurations: `<id>.npz` with the numbers and `<id>.log.parquet` with the log."""

    folder: Path

    def save(self, outcome: Outcome) -> None:
        """Write by temporary name and rename, the numbers last: only a complete configuration is found again."""
        if outcome.log is not None:
            with replacing(self._log(outcome.id)) as temporary:
                outcome.log.to_parquet(temporary, index=False)
        with replacing(self._numbers(outcome.id)) as temporary:
            np.savez(
                temporary,
                qualities=np.asarray(outcome.qualities),
                vectors=outcome.vectors,
                columns=np.asarray(outcome.columns, dtype=str),
                seconds=np.asarray(outcome.seconds),
                discarded=np.asarray(json.dumps(outcome.discarded)),
            )

    def load(self, configuration: Configuration) -> Outcome | None:
        """The finished configuration, or None if there is none."""
        run_id = identifier(configuration)
        if not self._numbers(run_id).exists():
            return None
        with np.load(self._numbers(run_id), allow_pickle=False) as stored:
            log = self._log(run_id)
            return Outcome(
                configuration,
                qualities=tuple(stored["qualities"].tolist()),
                vectors=stored["vectors"],
                columns=tuple(stored["columns"].tolist()),
                seconds=tuple(stored["seconds"].tolist()),
                log=pd.read_parquet(log) if log.exists() else None,
                discarded=json.loads(str(stored["discarded"])),
            )

    def _numbers(self, run_id: str) -> Path:
        return self.folder / f"{run_id}.npz"

    def _log(self, run_id: str) -> Path:
        return self.folder / f"{run_id}.log.parquet"

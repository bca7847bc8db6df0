"""Train DEFault++ elsewhere, on a GPU for instance, and keep it as checkpoints that any machine can judge with.

python experiments/train_defaultpp.py --device cuda                  # one checkpoint per outer fold and architecture
python experiments/train_defaultpp.py --all-rows --arch encoder      # one on every run, to diagnose runs of your own

`DefaultPlusPlus(source="checkpoint", weights=FOLDER)` takes from a folder the checkpoint of the very rows it is fitted
on, so that the folds stay honest wherever the training was done. A checkpoint that is there already is kept.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console

from baselines.defaultpp import checkpoint
from baselines.defaultpp.diagnoser import Diagnoser
from baselines.defaultpp.estimator import DefaultPlusPlus
from experiments.engine.ablation import VARIANTS
from experiments.engine.command import Arch, one_line_errors
from experiments.engine.protocol import outer_folds
from experiments.engine.source import BenchSource
from features.bench import Bench, BenchError
from features.taxonomy import ARCHITECTURES

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
@one_line_errors
def train(
    bench: Annotated[Path | None, typer.Option(help="Table to use; default: the embedded bench.")] = None,
    map: Annotated[str | None, typer.Option(help="Column map: a built-in name or a YAML/JSON file.")] = None,
    arch: Annotated[Arch, typer.Option(help="Which architecture's runs.")] = Arch.both,
    variant: Annotated[str, typer.Option(help=f"Of {', '.join(VARIANTS)}.")] = "full",
    all_rows: Annotated[bool, typer.Option(help="Train on every run instead of on each fold's training runs.")] = False,
    folds: Annotated[int, typer.Option(min=2)] = 5,
    seed: int = 0,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    out: Annotated[Path, typer.Option(help="Folder for checkpoints.")] = Path("results/checkpoints"),
) -> None:
    """Train, save, load again on the CPU, and say how far the two judge apart."""
    console = Console()
    if variant not in VARIANTS:
        raise BenchError(f"no variant {variant!r}; known: {', '.join(VARIANTS)}")
    for architecture in ARCHITECTURES if arch == Arch.both else (arch.value,):
        loaded = BenchSource(None if bench is None else str(bench), map, architecture).load()
        if all_rows:
            parts = {"all": loaded.runs}
        else:
            parts = {f"fold{fold.number}": fold.train for fold in outer_folds(loaded, folds)}
        for part, runs in parts.items():
            path = out / variant / f"{architecture}-{part}.json"
            rows = loaded.take(runs)
            if _is_there(path, rows, seed):
                console.print(f"{path}: there already")
                continue
            started = time.perf_counter()
            technique = DefaultPlusPlus(**VARIANTS[variant], seed=seed, device=device).fit(rows)
            seconds = time.perf_counter() - started
            checkpoint.save(technique.diagnoser_, path)
            apart = _apart(technique.diagnoser_, checkpoint.load(path, "cpu"), loaded)
            provenance = technique.diagnoser_.provenance
            console.print(
                f"{path}: {len(rows)} runs in {seconds:.1f} s on {provenance.device}, {provenance.best_epoch} epochs; "
                f"loaded on the CPU its scores differ by at most {apart:.1e}"
            )


def _is_there(path: Path, rows: Bench, seed: int) -> bool:
    if not path.exists():
        return False
    provenance = checkpoint.load(path).provenance
    return provenance.fingerprint == rows.fingerprint() and provenance.seed == seed


def _apart(trained: Diagnoser, loaded: Diagnoser, bench: Bench) -> float:
    return float(np.abs(trained.judge(bench.X).score - loaded.judge(bench.X).score).max())


if __name__ == "__main__":
    app()

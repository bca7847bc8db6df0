"""Build the embedded bench: pretrain the bases, run the campaign, assemble the tables and the data card.

python experiments/build_bench.py                    # continues where it was stopped
python experiments/build_bench.py --assemble-only    # tables of whatever is finished
python experiments/build_bench.py --minutes 60 --workers 8
python experiments/build_bench.py --profile full --store full-runs --out full-bench --scheduler tcp://host:8786
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import joblib
import typer
import yaml
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from experiments.engine.command import one_line_errors
from experiments.engine.parallel import cluster
from features.bench import EMBEDDED, BenchError, single_path, write_parquet
from features.build.campaign import Campaign
from features.build.card import card
from features.build.outcome import Outcome, Store
from features.build.sampling import pairs
from features.build.table import attempts, bench_of, paired_of, singles_of, survivors_of
from features.files import write_text
from features.taxonomy import ARCHITECTURES

Size = StrEnum("Size", {name: name for name in ("embedded", "full", "smoke")})

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


CACHE = Path(".cache/campaign")


@app.command()
@one_line_errors
def build(
    family: Annotated[list[str] | None, typer.Option(help="Model families; default: all seven.")] = None,
    task: Annotated[list[str] | None, typer.Option(help="Tasks; default: all nine.")] = None,
    profile: Annotated[
        Size, typer.Option(help="embedded; full: real checkpoints and data; smoke: a try.")
    ] = Size.embedded,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes; default: one per core.")] = None,
    scheduler: Annotated[str | None, typer.Option(help="dask scheduler, such as tcp://host:8786.")] = None,
    minutes: Annotated[float | None, typer.Option(help="Start no configuration after so long, then assemble.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Rounds (a mutant per category and pair); default: all.")] = None,
    store: Annotated[Path, typer.Option(help="Folder of finished configurations.")] = CACHE,
    out: Annotated[Path, typer.Option(help="Folder of the tables.")] = EMBEDDED,
    assemble_only: Annotated[bool, typer.Option(help="Run nothing: tables of what the store holds.")] = False,
    bases_only: Annotated[bool, typer.Option(help="Pretrain the missing bases and stop.")] = False,
) -> None:
    """Run what is missing of the campaign and write the tables."""
    console = Console()
    chosen = [p for p in pairs() if (not family or p[0].name in family) and (not task or p[1] in task)]
    if not chosen:
        raise BenchError(f"no pair of families {family} and tasks {task}")
    if profile is not Size.full:
        _bases(chosen, console)
    if profile is not Size.embedded and (store == CACHE or out == EMBEDDED):
        raise BenchError(
            f"--profile {profile} needs a --store and an --out of its own, apart from the embedded bench's"
        )
    if bases_only:
        return
    workers = workers or joblib.cpu_count()
    deadline = None if minutes is None else time.time() + 60 * minutes
    campaign = Campaign(
        Store(store), chosen, workers, profile.value, deadline=time.time() if assemble_only else deadline
    )
    with cluster(scheduler) as client, _shown(console, campaign):
        if client is not None:
            _use(client, scheduler, campaign)
        campaign.run(rounds)
    write_parquet(attempts(campaign), out / "attempts.parquet", index=False)
    for arch in ARCHITECTURES:
        _assemble(campaign, arch, out, console)
    if profile is Size.embedded:
        _card(out)


def _bases(chosen, console: Console) -> None:
    from features.build.base import base_path, pretrain, save_base

    for missing in dict.fromkeys(f for f, _ in chosen if not base_path(f).exists()):
        with Progress(console=console) as progress:
            bar = progress.add_task(f"pretraining {missing.name}")

            def report(step, steps, loss, bar=bar, progress=progress):
                progress.update(bar, completed=step + 1, total=steps)

            save_base(missing, pretrain(missing, report=report))


def _assemble(campaign: Campaign, arch, out: Path, console: Console) -> None:
    if not any(f.arch == arch and campaign.accepted(f"{f.name}/{t}") for f, t in campaign.chosen):
        return
    bench = bench_of(campaign, arch)
    bench.save(out / f"{arch}.parquet")
    write_parquet(paired_of(campaign, bench), out / f"{arch}.paired.parquet")
    write_parquet(singles_of(campaign, bench), single_path(out / f"{arch}.parquet"))
    survivors = survivors_of(campaign, arch)
    if survivors is not None:
        survivors.save(out / f"survivors_{arch}.parquet")
    console.print(
        f"{arch}: {int(bench.faulty.sum())} killed, {int((~bench.faulty).sum())} correct, "
        f"{0 if survivors is None else len(survivors)} survivors, {bench.pair.nunique()} pairs"
    )


def _card(out: Path) -> None:
    """Write the data card beside the tables, with the manuscript's figures where they are at hand."""
    paper = Path(__file__).parents[1] / "results" / "paper.yaml"
    figures = yaml.safe_load(paper.read_text())["bench"] if paper.exists() else None
    write_text(out / "README.md", card(out, figures))


def _use(client, scheduler: str, campaign: Campaign) -> None:
    """Let the campaign run on this cluster, one run at a time per worker."""
    threads = client.nthreads()
    # Runs draw from torch's generator, which threads of one process would share.
    if any(n > 1 for n in threads.values()):
        raise BenchError(f"{scheduler}: a worker has more than one thread; start them with --nthreads 1")
    campaign.workers = max(1, len(threads))


@contextmanager
def _shown(console: Console, campaign: Campaign):
    columns = (BarColumn(30), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())
    with Progress(*columns, TextColumn("{task.description}"), console=console) as progress:
        bar = progress.add_task("")

        def report(done: int, waiting: int, outcome: Outcome) -> None:
            text = f"{campaign.killed_so_far} killed, last {outcome.id}"
            progress.update(bar, completed=done, total=done + waiting, description=text)
            if not console.is_terminal and done % 20 == 0:
                left = progress.tasks[0].time_remaining or 0
                at = f"{time.strftime('%H:%M:%S')} {done} of {done + waiting}, {left:.0f} s left in this step"
                console.print(f"{at}, {text}")

        campaign.report = report
        yield


if __name__ == "__main__":
    app()

"""What every command does alike: choose architectures, find its runs, print within 100 columns, fail in one line."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from functools import wraps
from pathlib import Path

import typer
from rich.console import Console

from baselines.technique import REGISTRY, technique
from experiments.engine.source import BenchSource
from features.bench import BenchError
from features.taxonomy import ARCHITECTURES

Arch = StrEnum("Arch", {a: a for a in (*ARCHITECTURES, "both")})
WIDTH = 100


def terminal() -> Console:
    """The console that commands print to: as wide as the terminal, or 100 columns where there is none."""
    console = Console()
    return console if console.is_terminal else Console(width=WIDTH)


def one_line_errors(command: Callable) -> Callable:
    """A command that answers wrong input (BenchError) with one line on standard error and exit code 2."""

    @wraps(command)
    def answered(*arguments, **options):
        try:
            return command(*arguments, **options)
        except BenchError as error:
            Console(stderr=True, soft_wrap=True).print(f"[red]error:[/red] {error}", highlight=False)
            raise typer.Exit(2) from None

    return answered


def sources(bench: Path | None, map: str | None, arch: Arch, **options) -> list[BenchSource]:
    """The embedded bench of the chosen architectures, or the one table that was given. `options` as BenchSource's."""
    chosen = ARCHITECTURES if arch == Arch.both else (arch.value,)
    if bench is None:
        return [BenchSource(arch=a, **options) for a in chosen]
    return [BenchSource(str(bench), map, None if arch == Arch.both else arch.value, **options)]


def registered(chosen: list[str] | None, needs: str | None = None) -> list[str]:
    """The chosen registry keys, or all of them, or all that need a "vector" or "log".

    Raises BenchError listing what there is.
    """
    for key in chosen or ():
        if key not in REGISTRY:
            raise BenchError(f"no technique {key!r}; known: {', '.join(REGISTRY)}")
    return chosen or [key for key in REGISTRY if needs in (None, technique(key).needs)]

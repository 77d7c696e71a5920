"""What the commands of the command line have in common: options, consoles and folders."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Annotated, Any, get_args

import typer
from rich.console import Console

from manyhands.errors import JobError, Stopped
from manyhands.job import Job, load_job, quick_start
from manyhands.progress import LinesNowAndThen, LiveTable
from manyhands.report.folder import RunFolder
from manyhands.run import EngineName

__all__ = [
    "EngineOption",
    "JobArgument",
    "JsonOption",
    "OutOption",
    "QuietOption",
    "SeedOption",
    "SetOption",
    "check_engine",
    "make_console",
    "new_folder",
    "read_job",
    "stoppable",
    "watching",
]

JobArgument = Annotated[Path | None, typer.Argument(metavar="JOB", help="The job file (TOML).")]
OutOption = Annotated[
    Path | None, typer.Option("--out", metavar="DIR", help="Where the run goes; without it, runs/NAME.")
]
SeedOption = Annotated[int | None, typer.Option("--seed", min=0, help="Takes the place of the job's seed.")]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Changes a key of the job; repeatable.")
]
EngineOption = Annotated[str, typer.Option("--engine", help="What drives the devices: simulate or live.")]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but errors.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]


def read_job(path: Path | None, changes: list[str] | None, seed: int | None) -> Job:
    """The job of a file, or the built-in one, with what the command line changes."""
    return quick_start(changes or (), seed) if path is None else load_job(path, changes or (), seed)


def check_engine(engine: str) -> EngineName:
    """The engine of a name; one that there is not is refused."""
    for known in get_args(EngineName):
        if engine == known:
            return engine  # type: ignore[return-value]  # it is one of them
    raise JobError("--engine", engine, f"there is no such engine; choose {' or '.join(get_args(EngineName))}")


def new_folder(out: Path | None, name: str) -> Path:
    """A folder that holds no run yet: the one asked for, or the next free one under runs/."""
    if out is not None:
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise JobError("--out", str(out), _what_it_holds(out))
        return out
    folder, number = Path("runs") / name, 1
    while folder.exists():
        number += 1
        folder = Path("runs") / f"{name}-{number}"
    return folder


def _what_it_holds(out: Path) -> str:
    run = RunFolder(out)
    if run.result.is_file():
        return f"holds a finished run; 'manyhands show {out}' shows it"
    hint = f"'manyhands resume {out}' goes on with it" if run.is_run else "take another folder"
    return f"is not empty; {hint}"


def make_console(quiet: bool) -> Console:
    """Where a command says what it has to say."""
    return Console(quiet=quiet, highlight=False)


def watching(console: Console, *, alone: bool = False) -> Any:
    """The live table on a terminal, now and then a line elsewhere; nothing where nobody looks.

    With `alone`, each device is trained by itself before the run that was asked for.
    """
    if console.quiet:
        return nullcontext()
    if console.is_terminal:
        return LiveTable(console, alone=alone)
    return LinesNowAndThen(Console(stderr=True, highlight=False), alone=alone)


@contextmanager
def stoppable(remedy: str) -> Iterator[None]:
    """Ctrl-C ends a run politely and says how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        raise Stopped(f"stopped; {remedy} goes on with it") from None

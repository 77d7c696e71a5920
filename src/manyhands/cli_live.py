"""The commands of a live job: join, status, gather."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from manyhands.cli_common import JsonOption, QuietOption, SetOption, make_console
from manyhands.collecting import left_behind
from manyhands.concluding import gather_crew
from manyhands.display import result_table
from manyhands.errors import RunError, Stopped
from manyhands.hand import Facts
from manyhands.job import load_job
from manyhands.joiner import Joiner, Line
from manyhands.joining import join
from manyhands.mustering import join_crew
from manyhands.report.units import seconds_text
from manyhands.run import gather as run_gather
from manyhands.wire.diagnosis import why_unreachable
from manyhands.wire.status import ask_status

__all__ = ["gather", "join_job", "status"]

ConnectOption = Annotated[
    list[str] | None,
    typer.Option("--connect", metavar="HOST:PORT", help="Where another device listens; repeatable."),
]
KeysOption = Annotated[
    Path | None, typer.Option("--keys", metavar="DIR", help="The key folder of this device (manyhands keys).")
]
DataOption = Annotated[
    Path | None, typer.Option("--data", metavar="DIR", help="The data of this device; it never leaves it.")
]


def join_job(
    job: Annotated[Path, typer.Argument(metavar="JOB", help="The job file, the same on all devices.")],
    name: Annotated[str, typer.Option("--name", help="Which device of the job this is.")],
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="Its folder; without it, runs/JOB/devices/NAME."),
    ] = None,
    listen: Annotated[
        list[str] | None, typer.Option("--listen", metavar="HOST:PORT", help="Where others reach it.")
    ] = None,
    connect: ConnectOption = None,
    keys: KeysOption = None,
    data: DataOption = None,
    changes: SetOption = None,
    quiet: QuietOption = False,
    tethered: Annotated[bool, typer.Option("--tethered", hidden=True)] = False,
) -> None:
    """Take part in a live job as one device; started again, it goes on where it was."""
    own = [*(changes or ()), *([f"data.path={data.resolve()}"] if data else ())]
    wanted = load_job(job, own)
    folder = out or Path("runs") / wanted.name / "devices" / name
    console = make_console(quiet)
    line = Line(tuple(listen or ()), tuple(connect or ()), keys)
    take_part = join_crew if wanted.split.by == "space" else join
    watch = _Lines(console, wanted.exchange.rounds)
    finished = take_part(wanted, Joiner(name, folder, line, tethered), watch)
    if not finished:
        # Whatever still computes in another thread is of no use to anybody.
        typer.echo(f"manyhands: {name} has left; the same command goes on with it", err=True)
        os._exit(Stopped.exit_status)
    console.print(f"done; the network is in {folder / 'models'}", soft_wrap=True)


def status(
    connect: ConnectOption = None,
    job: Annotated[Path | None, typer.Option("--job", metavar="JOB", help="Ask where this job says.")] = None,
    keys: KeysOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show who takes part in a live job, how far they are, and who was lost."""
    where = tuple(connect or (load_job(job).live.connect if job else ("127.0.0.1:7447",)))
    told = ask_status(where, keys)
    if as_json:
        typer.echo(json.dumps(told))
        return
    if not told:
        reasons = [reason for place in where if (reason := why_unreachable(place, keys)) is not None]
        raise RunError("; ".join(reasons) or f"nobody takes part in a job at {', '.join(where)}")
    console = make_console(False)
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for head in ("device", "rounds", "accuracy", "since", "starts", "sees", "lost"):
        table.add_column(head, justify="left" if head in ("device", "sees", "lost") else "right")
    for said in told:
        table.add_row(*(escape(text) for text in _row(said)))
    console.print(table)


def _row(said: Facts) -> list[str]:
    accuracy, seconds = said.get("accuracy"), said.get("seconds")
    rounds = "done" if said.get("done") else str(said.get("round")) if said.get("begun") else "waits"
    return [
        str(said["device"]),
        rounds,
        f"{accuracy:.1%}" if isinstance(accuracy, float) else "-",
        seconds_text(seconds) if isinstance(seconds, float) else "-",
        str(said.get("incarnation")),
        ", ".join(map(str, said.get("here", ()))),
        ", ".join(map(str, said.get("lost", ()))) or "-",
    ]


def gather(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="Holds devices/NAME of each device.")],
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make one run, with result and report, of the folders that devices have left."""
    job, _ = left_behind(folder)
    result = (gather_crew if job.split.by == "space" else run_gather)(folder, data)
    if as_json:
        typer.echo(json.dumps(result))
    else:
        console = make_console(False)
        console.print(result_table(result))
        console.print(f"\nrun     {escape(str(folder))}", soft_wrap=True)


class _Lines:
    """A line for each event that a person at the device wants to know of."""

    def __init__(self, console: Console, num_rounds: int) -> None:
        self._console, self._num_rounds = console, num_rounds

    def __call__(self, event: Facts) -> None:
        text = _told(event, self._num_rounds)
        if text:
            self._console.print(
                f"{seconds_text(event['seconds']):>9}  {event['device']}: {text}",
                markup=False,
                soft_wrap=True,
            )


def _told(event: Facts, num_rounds: int) -> str:
    kind = event["event"]
    peer = event.get("peer", "")
    words = {
        "round": f"round {event.get('round')} of {num_rounds} done",
        "merged": f"merged round {event.get('round')} of {num_rounds}",
        "waiting": f"waiting: {event.get('reason')}",
        "gathering": f"waiting for {', '.join(event.get('missing', ()))}",
        "peer_joined": f"{peer} has come",
        "peer_back": f"{peer} is back",
        "peer_lost": f"{peer} is gone",
        "restarted": "started again, goes on where it was",
        "formed": f"computes with {', '.join(event.get('peers', ()))} from step {event.get('step')}",
        "finished": "finished",
        "unreachable": str(event.get("reason")),
        "refused": f"refused what {peer} sent: {event.get('reason')}",
        "ignored": f"ignores {peer} from now on: {event.get('reason')}",
        "mismatch": f"{peer} runs another job: it has {event.get('theirs')}, here it is {event.get('ours')}",
        "missed": f"round {event.get('round')} without {', '.join(event.get('peers', ()))}",
    }
    if kind in ("evaluated", "merged") and event.get("accuracy") is not None:
        return f"accuracy {event['accuracy']:.1%} after round {event.get('round')}"
    return words.get(kind, "")

"""``manyhands profile``: what this machine can do, what others do on it, and what that costs training."""

from __future__ import annotations

import json
import math
import platform
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import tomli_w
import typer
from rich.console import Console
from rich.markup import escape
from rich.status import Status

from manyhands.cli_common import JsonOption, QuietOption, make_console
from manyhands.errors import JobError, RunError, Stopped
from manyhands.fleet import CATALOG
from manyhands.fleet.executor import executors_running
from manyhands.fleet.measure import Machine, measure_machine
from manyhands.fleet.monitor import Monitor, seen
from manyhands.fleet.predictor import Predictor, fit, mean_error, write_predictor
from manyhands.fleet.profiling import loads_to_learn_from, profile_runs
from manyhands.fleet.recording import Span, write_recording
from manyhands.report.units import count_text, counted, memory_text

__all__ = ["profile"]

BesideOption = Annotated[
    Path | None,
    typer.Option(
        "--beside", metavar="FILE", help="Also train beside loads, and write what that costs as a predictor."
    ),
]
RecordOption = Annotated[
    Path | None,
    typer.Option("--record", metavar="FILE", help="In place of that: record what others use, until Ctrl-C."),
]
SecondsOption = Annotated[
    float | None,
    typer.Option(
        "--seconds",
        min=0.1,
        help="How long to measure (5), to train beside each load (4), or to record.",
    ),
]


def profile(
    beside: BesideOption = None,
    record: RecordOption = None,
    seconds: SecondsOption = None,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Measure this machine and print its device entry."""
    if beside is not None and record is not None:
        raise JobError("--record", str(record), "leave out either --record or --beside")
    console = make_console(quiet or as_json)
    for file in filter(None, (beside, record)):
        _check_writable(file)
    if record is not None:
        said = _record(console, record, seconds)
    elif beside is not None:
        said = _learn(console, beside, seconds or 4.0)
    else:
        said = _measure(console, seconds or 5.0)
    if as_json:
        typer.echo(json.dumps(said))


def _check_writable(file: Path) -> None:
    """What cannot be written is better known before minutes of measuring than after."""
    if file.is_dir() or not file.absolute().parent.is_dir():
        raise JobError("FILE", str(file), "must be a file in a folder that is there")


@contextmanager
def _busy(console: Console, what: str, remedy: str) -> Iterator[Status]:
    try:
        with console.status(f"{what} ...") as status:
            yield status
    except KeyboardInterrupt:
        raise Stopped(f"stopped; {remedy}") from None


def _measure(console: Console, seconds: float) -> dict[str, Any]:
    with _busy(console, "training a small network", "nothing was measured") as status:

        def progress(done: int, total: int) -> None:
            status.update(f"training a small network, {done} of {total} times ...")

        machine = measure_machine(seconds, progress)
    entry = device_entry(machine, platform.node())
    console.print(tomli_w.dumps({"fleet": {"device": [entry]}}).strip(), soft_wrap=True, markup=False)
    rate, memory = f"{count_text(machine.flops)}FLOP/s", memory_text(machine.memory_bytes)
    about = f"trains at {rate} on {counted(machine.cores, 'core')}; {memory} of memory are free for it"
    remark = f"# {about}. Link and power are those of the nearest kind, {entry['kind']}."
    console.print(remark, soft_wrap=True, markup=False)
    return entry


def device_entry(machine: Machine, node: str) -> dict[str, Any]:
    """The ``[[fleet.device]]`` table of a machine: what was measured, and the kind that is most like it."""
    alike = [kind for kind in CATALOG.values() if kind.torch_device == "cpu"]
    nearest = min(alike, key=lambda kind: abs(math.log(kind.flops / machine.flops)))
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", node).strip("-_.")[:64] or "this-machine"
    figures = asdict(machine) | {"flops": float(f"{machine.flops:.3g}")}
    return {"name": name, "kind": nearest.name, **figures}


def _learn(console: Console, file: Path, seconds: float) -> dict[str, Any]:
    loads = loads_to_learn_from()
    with _busy(console, "starting executors", f"{file} was not written") as status:

        def progress(beside: str, done: int, total: int) -> None:
            status.update(f"training beside {escape(beside)} ({done + 1} of {total}) ...")

        with executors_running() as executors:
            samples = profile_runs(executors, loads, seconds, progress)
    try:
        t0_s, regression = fit(samples)
    except ValueError as error:
        raise RunError(f"no predictor was made: {error}") from error
    write_predictor(file, t0_s, regression, samples)
    off = mean_error(Predictor(t0_s, regression), samples)
    for beside, sample in zip(loads, samples, strict=True):
        slow = sample.seconds_per_example / t0_s
        console.print(f"{beside.label:<28} {sample.use.cores:>5.0%} of the cores  {slow:>5.2f} x")
    console.print(f"mean error on these {len(samples)} runs: {off:.1%}\npredictor  {escape(str(file))}")
    return {"file": str(file), "t0_s": t0_s, "regression": asdict(regression), "mean_error": off}


def _record(console: Console, file: Path, seconds: float | None) -> dict[str, Any]:
    total: dict[str, float] = {"spans": 0, "seconds": 0.0}
    with console.status("recording ...") as status, file.open("w", encoding="utf-8") as stream:
        try:
            write_recording(stream, _told(status, seen(Monitor(), seconds), total))
        except KeyboardInterrupt:  # the usual end of a recording
            if not total["spans"]:
                raise Stopped(f"stopped before anything was seen; {file} has no rows") from None
    console.print(f"{total['seconds']:.0f} s of what others used are in {escape(str(file))}")
    return {"file": str(file), **total}


def _told(status: Status, spans: Iterator[Span], total: dict[str, float]) -> Iterator[Span]:
    for span in spans:
        total.update(spans=total["spans"] + 1, seconds=span.end_s)
        status.update(_line(asdict(span.use), span.end_s))
        yield span


def _line(use: Mapping[str, float], passed_s: float) -> str:
    network, disk = use["network_bps"] / 1e6, use["disk_bps"] / 1e6
    others = f"cores {use['cores']:.0%}, network {network:.1f}, disk {disk:.1f} Mbit/s"
    return f"recording: {passed_s:.0f} s, {others}"

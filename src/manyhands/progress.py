"""What a run or a comparison looks like in a terminal while it goes on."""

from __future__ import annotations

from statistics import fmean
from types import TracebackType
from typing import Literal

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from manyhands.display import MAX_ROWS
from manyhands.engine.clock import Interval
from manyhands.hand import Facts
from manyhands.job import Job
from manyhands.report.summary import DeviceTally, Tally
from manyhands.report.units import bytes_text, seconds_text
from manyhands.sweeps import Cell

__all__ = ["LinesNowAndThen", "LiveTable", "SweepProgress"]

SECONDS_BETWEEN_LINES = 10.0


class LiveTable:
    """Shows a run while it goes on; usable as the `watch` of `train`."""

    def __init__(self, console: Console, *, alone: bool = False) -> None:
        self._alone = alone
        self._live = Live(console=console, refresh_per_second=8, transient=True)
        self._what: tuple[str, Job, Tally] | None = None
        self._reading = "preparing: data, fleet, networks ..."

    def __enter__(self) -> LiveTable:
        self._live.get_renderable = self._render  # type: ignore[method-assign]  # drawn when shown, not when told
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def __call__(self, split: str, job: Job, tally: Tally, event: Facts | None) -> None:
        """Takes note; the table draws itself at its own pace."""
        self._what = (split, job, tally)

    def reading(self, what: str, done: int, total: int | None) -> None:
        """Takes note of how far the data is read; usable as the `progress` of `train`."""
        self._reading = _read_so_far(what, done, total)

    def _render(self) -> RenderableType:
        if self._what is None:
            return Text(self._reading, style="dim")
        split, job, tally = self._what
        total = job.exchange.rounds
        done = _rounds_done(tally)
        measure = tally.measure
        merged = tally.curve[-1][measure.key] if tally.curve else None
        title = Text(job.name, style="bold", no_wrap=True, overflow="ellipsis")
        title.append(f"  {_which_pass(split, job, alone=self._alone)}", style="not bold cyan")
        head = Table.grid(padding=(0, 2, 0, 0))
        for width in (24, len(f"round {total}/{total}"), 21, 14):
            head.add_column(width=width, no_wrap=True)
        head.add_row(
            ProgressBar(total=total, completed=done, width=24),
            f"round {done}/{total}",
            f"{seconds_text(tally.seconds)} {tally.clock}",
            f"{measure.key} {measure.short(merged)}" if merged is not None else "",
        )
        return Group(title, head, _live_rows(tally, self._live.console.width))


class LinesNowAndThen:
    """Says how far a run is where no table can be drawn: a line at most every 10 seconds.

    Usable as the `watch` of `train`.
    """

    def __init__(self, console: Console, *, alone: bool = False) -> None:
        self._console, self._alone = console, alone
        self._interval = Interval(SECONDS_BETWEEN_LINES)

    def __enter__(self) -> LinesNowAndThen:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def __call__(self, split: str, job: Job, tally: Tally, event: Facts | None) -> None:
        """Takes note, and says so if it is time to."""
        if not self._interval.due():
            return
        parts = [
            f"{job.name}: {_which_pass(split, job, alone=self._alone)}",
            f"round {_rounds_done(tally)} of {job.exchange.rounds}",
            f"{seconds_text(tally.seconds)} {tally.clock}",
        ]
        measure = tally.measure
        ends = (device.end(measure) for device in tally.devices.values())
        known = [end for end in ends if end is not None]
        if tally.curve:
            parts.append(f"{measure.key} {measure.short(tally.curve[-1][measure.key])}")
        elif known:
            parts.append(f"mean {measure.key} of devices {measure.short(fmean(known))}")
        self._say(", ".join(parts))

    def reading(self, what: str, done: int, total: int | None) -> None:
        """Takes note of how far the data is read; usable as the `progress` of `train`."""
        if self._interval.due():
            self._say(_read_so_far(what, done, total))

    def _say(self, text: str) -> None:
        self._console.print(text, markup=False, soft_wrap=True)


def _which_pass(split: str, job: Job, *, alone: bool) -> str:
    """The split; or that this is the run before the one that was asked for.

    A job that asks for the run of each device alone is itself said to do so; that run's own job is not.
    """
    return "first: each device alone" if alone and not job.run.alone else split


def _read_so_far(what: str, done: int, total: int | None) -> str:
    return f"{what}: {done / total:.0%}" if total else f"{what}: {done:,}"


def _rounds_done(tally: Tally) -> int:
    return tally.round or min((device.rounds for device in tally.devices.values()), default=0)


def _live_rows(tally: Tally, width: int) -> Table:
    """Columns have their width from the start, so that nothing moves while the figures grow."""
    heads = {"rounds": 6, "loss": 7, tally.measure.key: 8, "busy": 6, "sent": 7, "received": 8, "": 15}
    names = max(len("device"), *(len(name) for name in tally.devices))
    room = width - sum(heads.values()) - len(heads)
    table = Table(box=None, header_style="dim", padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("device", width=max(min(names, room), 6), no_wrap=True, overflow="ellipsis")
    for head, fixed in heads.items():
        side: Literal["left", "right"] = "left" if head in ("busy", "") else "right"
        table.add_column(head, width=fixed, no_wrap=True, justify=side)
    shown = list(tally.devices.items())[:MAX_ROWS]
    for name, device in shown:
        busy = device.busy_seconds / tally.seconds if tally.seconds else 0.0
        table.add_row(
            name,
            str(device.rounds),
            f"{device.loss:.3f}" if device.loss is not None else "-",
            tally.measure.short(device.end(tally.measure)),
            ProgressBar(total=1.0, completed=min(busy, 1.0), width=6),
            bytes_text(device.bytes_sent),
            bytes_text(device.bytes_received),
            _state(device),
        )
    if len(tally.devices) > len(shown):
        table.add_row(f"... and {len(tally.devices) - len(shown)} more", style="dim")
    return table


def _state(device: DeviceTally) -> Text:
    if device.lost_at_seconds is not None:
        return Text(f"lost {seconds_text(device.lost_at_seconds)}", style="red")
    return Text("done", style="green") if device.finished else Text("")


class SweepProgress:
    """Shows how far a sweep is: a bar on a terminal, elsewhere a line for each run that ended.

    Usable as the `watch` of `sweep`.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        columns = (BarColumn(30), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
        self._bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._bar.add_task("preparing: data, fleet, networks ...", total=None)

    def __enter__(self) -> SweepProgress:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def __call__(self, cell: Cell, done: int, total: int) -> None:
        """Takes note of a run that began or ended."""
        text = f"{done} of {total} runs, {cell.title}"
        self._bar.update(self._task, completed=done, total=total, description=text)
        if cell.error is not None:
            self._console.print(f"{text}: failed: {cell.error}", markup=False, soft_wrap=True)
        elif cell.result is not None and not self._console.is_terminal:
            self._console.print(text, markup=False, soft_wrap=True)

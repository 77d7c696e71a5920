"""What a run looks like in a terminal: a live table while it goes on, and the balance at its end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from types import TracebackType
from typing import Any, Literal

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from manyhands.engine.clock import Interval
from manyhands.hand import Facts
from manyhands.job import Job
from manyhands.report.reading import accuracy_heading, names_text, sizes_differ, split_heading, whose_accuracy
from manyhands.report.spread import Comparison, Panel, Spread, headings, key_label, panels, value_text
from manyhands.report.summary import DeviceTally, Tally
from manyhands.report.units import bytes_text, counted, energy_text, gain_points, seconds_text
from manyhands.sweeps import Cell

__all__ = [
    "LinesNowAndThen",
    "LiveTable",
    "SweepProgress",
    "comparison_table",
    "result_table",
    "sweep_tables",
]

MAX_ROWS = 12
"""A table longer than this is cut; the report has them all."""

SECONDS_BETWEEN_LINES = 10.0

MAX_WIDE = 3
"""With more splits than this, ranges stand below the medians, so that a table fits into 80 columns."""


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
        accuracy = tally.curve[-1]["accuracy"] if tally.curve else None
        title = Text(job.name, style="bold", no_wrap=True, overflow="ellipsis")
        title.append(f"  {_which_pass(split, job, alone=self._alone)}", style="not bold cyan")
        head = Table.grid(padding=(0, 2, 0, 0))
        for width in (24, len(f"round {total}/{total}"), 21, 14):
            head.add_column(width=width, no_wrap=True)
        head.add_row(
            ProgressBar(total=total, completed=done, width=24),
            f"round {done}/{total}",
            f"{seconds_text(tally.seconds)} simulated",
            f"accuracy {accuracy:.1%}" if accuracy is not None else "",
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
            f"{seconds_text(tally.seconds)} simulated",
        ]
        known = [device.accuracy for device in tally.devices.values() if device.accuracy is not None]
        if tally.curve:
            parts.append(f"accuracy {tally.curve[-1]['accuracy']:.1%}")
        elif known:
            parts.append(f"mean accuracy of devices {fmean(known):.1%}")
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
    heads = {"rounds": 6, "loss": 7, "accuracy": 8, "busy": 6, "sent": 7, "received": 8, "": 15}
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
            _percent(device.accuracy),
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


def result_table(result: Mapping[str, Any]) -> RenderableType:
    """What each device got out of taking part, and what it paid."""
    devices = result["devices"]
    alone = any(device.get("accuracy_alone") is not None for device in devices)
    chosen = [device for device in devices if device.get("size_reason") is not None]
    sized = bool(chosen) or len({device.get("size") for device in devices}) > 1
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="dim")
    for name in ("device", "size") if sized else ("device",):
        table.add_column(name, no_wrap=True)
    accuracies = ("alone", "together", "gain") if alone else ("accuracy",)
    for name in (*accuracies, "busy", "waiting", "sent", "received", "energy"):
        table.add_column(name, justify="right", no_wrap=True)
    for device in devices[:MAX_ROWS]:
        table.add_row(
            device["name"],
            *((str(device.get("size") or "-"),) if sized else ()),
            *(_gain(device) if alone else (_percent(device["accuracy"]),)),
            seconds_text(device["busy_seconds"]),
            seconds_text(device["waiting_seconds"]),
            bytes_text(device["bytes_sent"]),
            bytes_text(device["bytes_received"]),
            energy_text(device["energy_joules"]),
        )
    if len(devices) > MAX_ROWS:
        table.add_row(f"... and {len(devices) - MAX_ROWS} more", style="dim")
    return Group(Text(_headline(result), style="bold"), table, *_chosen_sizes(chosen))


def _chosen_sizes(devices: Sequence[Mapping[str, Any]]) -> Iterator[RenderableType]:
    """Why devices were given the size they have, those with the same reason on one line."""
    groups: dict[tuple[str, str], list[str]] = {}
    for device in devices:
        # Reasons name the device; without the name, those of equal devices are equal.
        reason = device["size_reason"].replace(f" {device['name']} has ", " it has ")
        groups.setdefault((device["size"], reason), []).append(device["name"])
    if not groups:
        return
    table = Table(box=None, padding=(0, 1, 0, 0), show_header=False)
    for (size, reason), names in list(groups.items())[:MAX_ROWS]:
        table.add_row(Text(names_text(names)), Text(size), Text(reason, style="dim"))
    yield from ("", Text("sizes that were chosen, and why none larger", style="dim"), table)


def _headline(result: Mapping[str, Any]) -> str:
    parts = [f"{result['job']}: {result.get('form') or result['split']}", counted(result["rounds"], "round")]
    parts.append(f"{seconds_text(result['seconds'])} simulated")
    if result["accuracy"] is not None:
        parts.append(f"test accuracy {result['accuracy']:.1%} ({whose_accuracy(result)})")
    if result.get("num_notable"):
        parts.append(f"{counted(result['num_notable'], 'thing')} went wrong")
    return ", ".join(parts)


def _gain(device: Mapping[str, Any]) -> tuple[Text, Text, Text]:
    """Accuracy alone, together, and the difference in points."""
    alone, together = device.get("accuracy_alone"), device["accuracy"]
    if alone is None or together is None:
        return Text(_percent(alone)), Text(_percent(together)), Text("-")
    points = gain_points(alone, together)
    style = "green" if points > 0 else "red" if points < 0 else ""
    return (
        Text(f"{alone:.1%}"),
        Text(f"{together:.1%}", f"bold {style}".strip()),
        Text(f"{points:+.1f}"),
    )


def comparison_table(results: Mapping[str, Mapping[str, Any]]) -> RenderableType:
    """The same job under several splits: one column a split."""
    table = Table(box=None, padding=(0, 2), header_style="dim")
    table.add_column("device")
    for split, result in results.items():
        table.add_column(split_heading(split, result), justify="right")
    columns = [{d["name"]: d for d in result["devices"]} for result in results.values()]
    names, sized = list(columns[0]), sizes_differ(results.values())
    for name in names[:MAX_ROWS]:
        table.add_row(Text(name), *(_percent(column[name]["accuracy"]) for column in columns))
        if sized:
            table.add_row(
                "  size", *(str(column[name].get("size") or "-") for column in columns), style="dim"
            )
    if len(names) > MAX_ROWS:
        table.add_row(f"... and {len(names) - MAX_ROWS} more", style="dim")
    table.add_section()
    table.add_row(
        accuracy_heading(results.values()), *(_percent(r["accuracy"]) for r in results.values()), style="bold"
    )
    if sized and any(r.get("merged_size") for r in results.values()):
        table.add_row("  size", *(str(r.get("merged_size") or "") for r in results.values()), style="dim")
    table.add_row("time", *(seconds_text(r["seconds"]) for r in results.values()))
    table.add_row("sent", *(bytes_text(sum(d["bytes_sent"] for d in r["devices"])) for r in results.values()))
    table.add_row(
        "energy", *(energy_text(sum(d["energy_joules"] for d in r["devices"])) for r in results.values())
    )
    title = "accuracy of each device's network, and what each split took"
    return Group(Text(title, style="italic"), table)


def sweep_tables(comparison: Comparison) -> RenderableType:
    """For each device a table with a row a value; where only seeds differ, one table with a row a device."""
    key, shown = comparison["key"], panels(comparison)
    if key is None:
        rows = [(panel.label, panel, 0) for panel in shown]
        return _spread_table("accuracy of each device's network", "device", headings(comparison), rows)
    parts: list[RenderableType] = []
    for panel in shown:
        rows = [(value_text(value), panel, place) for place, value in enumerate(comparison["values"])]
        parts += ["", _spread_table(f"accuracy of {panel.label}", key_label(key), headings(comparison), rows)]
    return Group(*parts[1:])


def _spread_table(
    title: str, head: str, splits: Mapping[str, str], rows: list[tuple[str, Panel, int]]
) -> Group:
    """Each row has its name, the panel that it is of, and the place of its value there.

    Sizes, where they differ, stand once below a device's figures, or below each where they change with it.
    """
    many = len(splits) > MAX_WIDE
    table = Table(box=None, padding=(0, 1) if many else (0, 2), header_style="dim")
    table.add_column(Text(head))
    for heading in splits.values():
        table.add_column(heading, justify="right")
    for i, (name, panel, place) in enumerate(rows):
        spreads = (panel.spreads.get((split, place)) for split in splits)
        table.add_row(Text(name), *(_spread_text(spread, below=many) for spread in spreads))
        last = i + 1 == len(rows) or rows[i + 1][1] is not panel
        if panel.sizes and (last or panel.size_by_split() is None):
            table.add_row("  size", *(panel.sizes.get((split, place), "-") for split in splits), style="dim")
    return Group(Text(title, style="italic"), table)


def _spread_text(spread: Spread | None, *, below: bool) -> str:
    """The median and the range, beside it or below."""
    if spread is None or spread.num_seeds == 1:
        return _percent(spread and spread.median)
    ends = f"{100 * spread.low:.1f}-{100 * spread.high:.1f}"
    return f"{spread.median:.1%}\n{ends}" if below else f"{spread.median:.1%} ({ends})"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"

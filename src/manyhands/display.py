"""What a run looks like in a terminal: a live table while it goes on, and the balance at its end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from manyhands.hand import Facts
from manyhands.job import Job
from manyhands.report.spread import Comparison, Panel, Spread, key_label, panels, value_text
from manyhands.report.summary import DeviceTally, Tally
from manyhands.report.units import bytes_text, energy_text, seconds_text
from manyhands.sweeps import Cell

__all__ = ["LiveTable", "SweepProgress", "comparison_table", "result_table", "sweep_tables"]

MAX_ROWS = 12
"""A table longer than this is cut; the report has them all."""

MAX_WIDE = 3
"""With more splits than this, ranges stand below the medians, so that a table fits into 80 columns."""


class LiveTable:
    """Shows a run while it goes on; usable as the `watch` of `train`."""

    def __init__(self, console: Console) -> None:
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
        self._reading = f"{what}: {done / total:.0%}" if total else f"{what}: {done:,}"

    def _render(self) -> RenderableType:
        if self._what is None:
            return Text(self._reading, style="dim")
        split, job, tally = self._what
        total = job.exchange.rounds
        done = tally.round or min((d.rounds for d in tally.devices.values()), default=0)
        head = Table.grid(padding=(0, 2))
        accuracy = tally.curve[-1]["accuracy"] if tally.curve else None
        head.add_row(
            Text(f"{job.name}", style="bold"),
            Text(split, style="cyan"),
            ProgressBar(total=total, completed=done, width=30),
            f"round {done}/{total}",
            f"{seconds_text(tally.seconds)} simulated",
            f"accuracy {accuracy:.1%}" if accuracy is not None else "",
        )
        return Group(head, _live_rows(job, tally))


def _live_rows(job: Job, tally: Tally) -> Table:
    table = Table(box=None, header_style="dim", padding=(0, 2))
    for name, side in [("device", "left"), ("rounds", "right"), ("loss", "right"), ("accuracy", "right")]:
        table.add_column(name, justify=side)  # type: ignore[arg-type]
    table.add_column("busy")
    table.add_column("sent", justify="right")
    table.add_column("received", justify="right")
    table.add_column("")
    shown = list(tally.devices.items())[:MAX_ROWS]
    for name, device in shown:
        busy = device.busy_seconds / tally.seconds if tally.seconds else 0.0
        table.add_row(
            name,
            str(device.rounds),
            f"{device.loss:.3f}" if device.loss is not None else "-",
            _percent(device.accuracy),
            ProgressBar(total=1.0, completed=min(busy, 1.0), width=12),
            bytes_text(device.bytes_sent),
            bytes_text(device.bytes_received),
            _state(device),
        )
    if len(tally.devices) > len(shown):
        table.add_row(f"... and {len(tally.devices) - len(shown)} more", style="dim")
    return table


def _state(device: DeviceTally) -> Text:
    if device.lost_at_seconds is not None:
        return Text(f"lost at {seconds_text(device.lost_at_seconds)}", style="red")
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
        table.add_row(Text(_few(names)), Text(size), Text(reason, style="dim"))
    yield from ("", Text("sizes that were chosen, and why none larger", style="dim"), table)


def _few(names: Sequence[str]) -> str:
    shown = names if len(names) <= 3 else names[:2]
    return ", ".join(shown) + (f" and {len(names) - 2} more" if len(names) > 3 else "")


def _headline(result: Mapping[str, Any]) -> str:
    parts = [f"{result['job']}: {result.get('form') or result['split']}", f"{result['rounds']} rounds"]
    parts.append(f"{seconds_text(result['seconds'])} simulated")
    if result["accuracy"] is not None:
        parts.append(f"test accuracy {result['accuracy']:.1%}")
    if result.get("num_notable"):
        parts.append(f"{result['num_notable']} things went wrong")
    return ", ".join(parts)


def _gain(device: Mapping[str, Any]) -> tuple[Text, Text, Text]:
    """Accuracy alone, together, and the difference in points."""
    alone, together = device.get("accuracy_alone"), device["accuracy"]
    if alone is None or together is None:
        return Text(_percent(alone)), Text(_percent(together)), Text("-")
    style = "green" if together > alone else "red" if together < alone else ""
    return (
        Text(f"{alone:.1%}"),
        Text(f"{together:.1%}", f"bold {style}"),
        Text(f"{100 * (together - alone):+.1f}"),
    )


def comparison_table(results: Mapping[str, Mapping[str, Any]]) -> Table:
    """The same job under several splits: one column a split."""
    table = Table(box=None, padding=(0, 2), title="accuracy of each device's network", title_justify="left")
    table.add_column("device")
    for split in results:
        table.add_column(split, justify="right")
    columns = [{d["name"]: d for d in result["devices"]} for result in results.values()]
    names = list(columns[0])
    for name in names[:MAX_ROWS]:
        table.add_row(name, *(_percent(column[name]["accuracy"]) for column in columns))
    if len(names) > MAX_ROWS:
        table.add_row(f"... and {len(names) - MAX_ROWS} more", style="dim")
    table.add_section()
    table.add_row("merged network", *(_percent(r["accuracy"]) for r in results.values()), style="bold")
    table.add_row("time", *(seconds_text(r["seconds"]) for r in results.values()))
    table.add_row("sent", *(bytes_text(sum(d["bytes_sent"] for d in r["devices"])) for r in results.values()))
    table.add_row(
        "energy", *(energy_text(sum(d["energy_joules"] for d in r["devices"])) for r in results.values())
    )
    return table


def sweep_tables(comparison: Comparison) -> RenderableType:
    """For each device a table with a row a value; where only seeds differ, one table with a row a device."""
    splits, key = comparison["splits"], comparison["key"]
    shown = panels(comparison)
    if key is None:
        rows = [(panel.label, panel, 0) for panel in shown]
        return _spread_table("accuracy of each device's network", "device", splits, rows)
    parts: list[RenderableType] = []
    for panel in shown:
        rows = [(value_text(value), panel, place) for place, value in enumerate(comparison["values"])]
        parts += ["", _spread_table(f"accuracy of {panel.label}", key_label(key), splits, rows)]
    return Group(*parts[1:])


def _spread_table(title: str, head: str, splits: list[str], rows: list[tuple[str, Panel, int]]) -> Group:
    """Each row has its name, the panel that it is of, and the place of its value there."""
    many = len(splits) > MAX_WIDE
    table = Table(box=None, padding=(0, 1) if many else (0, 2), header_style="dim")
    table.add_column(Text(head))
    for split in splits:
        table.add_column(split, justify="right")
    for name, panel, place in rows:
        spreads = (panel.spreads.get((split, place)) for split in splits)
        table.add_row(Text(name), *(_spread_text(spread, below=many) for spread in spreads))
    return Group(Text(title, style="italic"), table)


def _spread_text(spread: Spread | None, *, below: bool) -> str:
    """The median and the range, beside it or below."""
    if spread is None or spread.num_seeds == 1:
        return _percent(spread and spread.median)
    ends = f"{100 * spread.low:.1f}-{100 * spread.high:.1f}"
    return f"{spread.median:.1%}\n{ends}" if below else f"{spread.median:.1%} ({ends})"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"

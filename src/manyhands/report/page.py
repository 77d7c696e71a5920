"""The report of a run as one HTML file: nothing to load, nothing that runs, readable anywhere.

Plots are inline SVG whose colours are the style sheet's, so one drawing serves light and dark. Whatever
comes from a result or a job is escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from statistics import fmean
from typing import Any

from manyhands.report.markup import Cell, card, filled_table, plot, table, tiles, write_html
from manyhands.report.plots import compare_figure, figures
from manyhands.report.reading import (
    Result,
    accuracy_heading,
    devices_of,
    number,
    sizes_differ,
    split_heading,
    split_text,
    whose_accuracy,
)
from manyhands.report.units import (
    MISSING,
    bytes_text,
    count_text,
    counted,
    energy_text,
    gain_points,
    gain_text,
    memory_text,
    percent_text,
    seconds_text,
)

__all__ = ["write_compare_page", "write_page"]

Device = Mapping[str, Any]

MOST_EVENTS = 200
LARGEST = "the largest there is"
"""The reason for a size that needs none."""

CAPTIONS = {
    "accuracy": "The merged network, where there is one, is bold; devices that are alike share a line.",
    "together": "Accuracy of a device that trains on its own data only, and of the same device taking part.",
    "devices": "Waiting is time in which a device has nothing to do until others have answered.",
    "topology": "Lines are direct links; messages between others pass through them.",
}
COST_HEADS = (
    "Busy",
    "Waiting",
    "Sent",
    "Received",
    "Energy",
    "Memory",
    "Parameters",
    "Examples trained",
    "Share",
)
SPLIT_HEADS = (
    "Mean of devices",
    "Weakest device",
    "Time",
    "Data sent",
    "Energy",
    "Rounds",
)


def write_page(result: Result, job_toml: str, path: Path) -> Path:
    """Writes the report of one run.

    Args:
        result: What `result.json` holds.
        job_toml: The resolved job file, shown as it is.
        path: Where the page goes.
    """
    devices = devices_of(result)
    engine = str(result.get("engine", "?"))
    facts = [
        *(str(result[key]) for key in ("model", "data") if result.get(key)),
        f"split: {split_text(result)}",
        "simulated" if engine == "simulate" else engine,
        f"seed {result.get('seed', '?')}",
    ]
    job = f"<details><summary>Job file</summary><pre>{escape(job_toml)}</pre></details>"
    body = [
        tiles(_headlines(result, devices)),
        *(
            plot(name, figure, _describe(name, result, devices), CAPTIONS[name])
            for name, figure in figures(result).items()
        ),
        _devices(devices),
        _events(result),
        card("", job),
    ]
    return write_html(path, str(result.get("job", "run")), facts, body, f"run {result.get('hash', '?')}")


def write_compare_page(results: Mapping[str, Result], path: Path) -> Path:
    """Writes the report of the same job under several splits."""
    first = next(iter(results.values()), {})
    results = {split_heading(label, result): result for label, result in results.items()}
    ends = "; ".join(
        f"{label} ends at {percent_text(_accuracy(result))}" for label, result in results.items()
    )
    alt = f"Accuracy over time under each split, and each device's final accuracy: {ends}."
    heads = ("Split", accuracy_heading(results.values()).capitalize(), *SPLIT_HEADS)
    by_split = ((escape(label), _split_cells(result)) for label, result in results.items())
    body = [
        tiles(
            (
                label,
                percent_text(_accuracy(result)),
                f"{whose_accuracy(result)}; in {seconds_text(number(result, 'seconds'))}",
            )
            for label, result in results.items()
        ),
        plot("compare", compare_figure(results), alt),
        card("Splits", filled_table(heads, by_split)),
        _by_device(results),
    ]
    facts = [f"compared: {', '.join(results)}", f"seed {first.get('seed', '?')}"]
    return write_html(path, str(first.get("job", "run")), facts, body, "comparison")


def _by_device(results: Mapping[str, Result]) -> str:
    """What each device ended with; below it the size of its network, where sizes differ."""
    columns = [{str(d.get("name")): d for d in devices_of(result)} for result in results.values()]
    names = dict.fromkeys(name for column in columns for name in column)
    sized = sizes_differ(results.values())
    rows = (
        (escape(name), [_accuracy_cell(column.get(name, {}), sized=sized) for column in columns])
        for name in names
    )
    title = f"Final accuracy of each device ({len(names)})"
    return card(title, filled_table(["Device", *results], rows, tall=True))


def _accuracy_cell(device: Device, *, sized: bool) -> Cell:
    return Cell(
        percent_text(number(device, "accuracy")), below=str(device.get("size") or "") if sized else ""
    )


def _headlines(result: Result, devices: Sequence[Device]) -> list[tuple[str, str, str]]:
    """Name, figure and remark of each tile."""
    entries = [("Accuracy", percent_text(_accuracy(result)), whose_accuracy(result))]
    pairs = [(number(device, "accuracy_alone"), number(device, "accuracy")) for device in devices]
    gains = [gain_points(alone, after) for alone, after in pairs if alone is not None and after is not None]
    if gains:
        better = sum(gain > 0 for gain in gains)
        note = f"points over training alone; {better} of {len(gains)} better off"
        entries.append(("Mean gain", f"{round(fmean(gains), 1) + 0.0:+.1f}", note))
    wall, rounds, merges = (number(result, key) for key in ("wall_seconds", "rounds", "merges"))
    notes = [
        "" if rounds is None else counted(rounds, "round"),
        "" if merges is None or merges == rounds else counted(merges, "merge"),
        "" if wall is None else f"computed in {seconds_text(wall)}",
    ]
    entries.append(
        ("Time", seconds_text(number(result, "seconds")), "; ".join(note for note in notes if note))
    )
    received = bytes_text(_total(devices, "bytes_received"))
    entries.append(("Data sent", bytes_text(_total(devices, "bytes_sent")), f"received {received}"))
    entries.append(("Energy", energy_text(_total(devices, "energy_joules")), "all devices together"))
    lost = sum(number(device, "lost_at_seconds") is not None for device in devices)
    entries.append(("Devices", str(len(devices)), f"{lost} lost on the way" if lost else "none lost"))
    return entries


def _accuracy(result: Result) -> float | None:
    """Of the merged network; of the devices on average where there is none."""
    own = number(result, "accuracy")
    values = [value for device in devices_of(result) if (value := number(device, "accuracy")) is not None]
    return own if own is not None or not values else fmean(values)


def _total(devices: Iterable[Device], key: str) -> float | None:
    values = [value for device in devices if (value := number(device, key)) is not None]
    return sum(values) if values else None


def _describe(name: str, result: Result, devices: Sequence[Device]) -> str:
    """What a plot shows, for those who cannot see it."""
    if name == "accuracy":
        end = f"{percent_text(_accuracy(result))} after {seconds_text(number(result, 'seconds'))}"
        return f"Line plot of accuracy over time for {len(devices)} devices, ending at {end}."
    if name == "together":
        return "Each device's accuracy alone and together with the others; the table below has the figures."
    if name == "devices":
        return "Bars of each device's time, traffic and energy; the table below has the figures."
    topology = result.get("topology") or {}
    coordinator = topology.get("coordinator")
    centre = f", with {coordinator} as coordinator" if coordinator else ""
    nodes, edges = len(topology.get("nodes") or []), len(topology.get("edges") or [])
    return f"Graph of {nodes} devices and {edges} links{centre}."


def _devices(devices: Sequence[Device]) -> str:
    compared = any(number(device, "accuracy_alone") is not None for device in devices)
    heads = ("Device", "Alone", "Together" if compared else "Accuracy", "Gain", *COST_HEADS)
    rows = ((_device_name(device), _device_cells(device)) for device in devices)
    return card(f"Devices ({len(devices)})", filled_table(heads, rows, tall=True))


def _device_cells(device: Device) -> tuple[str | Cell, ...]:
    alone, together = number(device, "accuracy_alone"), number(device, "accuracy")
    points = 0.0 if alone is None or together is None else gain_points(alone, together)
    return (
        percent_text(alone),
        percent_text(together),
        Cell(gain_text(alone, together), "up" if points > 0 else "down" if points < 0 else ""),
        seconds_text(number(device, "busy_seconds")),
        seconds_text(number(device, "waiting_seconds")),
        bytes_text(number(device, "bytes_sent")),
        bytes_text(number(device, "bytes_received")),
        energy_text(number(device, "energy_joules")),
        memory_text(number(device, "memory_bytes")),
        count_text(number(device, "parameters")),
        count_text(number(device, "examples")),
        percent_text(number(device, "share")),
    )


def _device_name(device: Device) -> str:
    about = [str(device.get("kind", ""))]
    if device.get("size"):
        about.append(f"size {device['size']}")
    name = f"{escape(str(device.get('name', '?')))}<small>{escape(' · '.join(about))}</small>"
    if device.get("size_reason") not in (None, LARGEST):
        name += f'<small class="reason">why not larger: {escape(str(device["size_reason"]))}</small>'
    lost = number(device, "lost_at_seconds")
    return name if lost is None else f'{name}<small class="lost">lost at {seconds_text(lost)}</small>'


def _events(result: Result) -> str:
    if "events" not in result:
        return ""
    events = [event for event in result["events"] or [] if isinstance(event, Mapping)]
    if not events:
        nothing = "None: no crash, no refused update, no missed deadline."
        return card("Notable events", f'<p class="quiet">{nothing}</p>')
    rows = (
        f'<th scope="row">{seconds_text(number(event, "seconds"))}</th>'
        f"<td>{escape(str(event.get('device', '')))}</td>"
        f'<td><span class="tag">{escape(str(event.get("event", "")))}</span></td>'
        f'<td class="long">{escape(str(event.get("detail") or ""))}</td>'
        for event in events[:MOST_EVENTS]
    )
    content = table(("At", "Device", "Event", "Detail"), rows, tall=True, style="texts")
    total = max(int(number(result, "num_notable") or 0), len(events))
    if total > MOST_EVENTS:
        content += f'<p class="quiet">The first {MOST_EVENTS} of {total}; trace.jsonl has them all.</p>'
    return card(f"Notable events ({total})", content)


def _split_cells(result: Result) -> tuple[str, ...]:
    devices = devices_of(result)
    values = [value for device in devices if (value := number(device, "accuracy")) is not None]
    rounds = number(result, "rounds")
    return (
        percent_text(number(result, "accuracy")),
        percent_text(fmean(values) if values else None),
        percent_text(min(values, default=None)),
        seconds_text(number(result, "seconds")),
        bytes_text(_total(devices, "bytes_sent")),
        energy_text(_total(devices, "energy_joules")),
        MISSING if rounds is None else f"{rounds:.0f}",
    )

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

from manyhands.report.markup import card, plot, row, table, tiles, write_html
from manyhands.report.plots import compare_figure, figures
from manyhands.report.reading import Result, devices_of, number, split_text
from manyhands.report.units import (
    MISSING,
    bytes_text,
    count_text,
    energy_text,
    memory_text,
    percent_text,
    seconds_text,
)

__all__ = ["write_compare_page", "write_page"]

Device = Mapping[str, Any]

MOST_EVENTS = 200
CAPTIONS = {
    "accuracy": "The merged network, where there is one, is bold; the other lines are single devices.",
    "together": "Accuracy of a device that trains on its own data only, and of the same device taking part.",
    "devices": "Waiting is time in which a device has nothing to do until others have answered.",
    "topology": "Lines are direct links; messages between others pass through them.",
}
ACCURACY_HEADS = ("Alone", "Together", "Gain")
COST_HEADS = ("Busy", "Waiting", "Sent", "Received", "Energy", "Memory", "Parameters", "Examples", "Share")
SPLIT_HEADS = (
    "Split",
    "Accuracy",
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
    heads = ("Device", *ACCURACY_HEADS, *COST_HEADS)
    job = f"<details><summary>Job file</summary><pre>{escape(job_toml)}</pre></details>"
    body = [
        tiles(_headlines(result, devices)),
        *(
            plot(name, figure, _describe(name, result, devices), CAPTIONS[name])
            for name, figure in figures(result).items()
        ),
        card("Devices", table(heads, (_device_cells(device) for device in devices), tall=True)),
        _events(result),
        card("", job),
    ]
    return write_html(path, str(result.get("job", "run")), facts, body, f"run {result.get('hash', '?')}")


def write_compare_page(results: Mapping[str, Result], path: Path) -> Path:
    """Writes the report of the same job under several splits."""
    first = next(iter(results.values()), {})
    ends = "; ".join(
        f"{label} ends at {percent_text(_accuracy(result))}" for label, result in results.items()
    )
    alt = f"Accuracy over time under each split, and each device's final accuracy: {ends}."
    accuracies = [
        {str(device.get("name")): percent_text(number(device, "accuracy")) for device in devices_of(result)}
        for result in results.values()
    ]
    names = dict.fromkeys(name for found in accuracies for name in found)
    by_device = (row(escape(name), (found.get(name, MISSING) for found in accuracies)) for name in names)
    by_split = (_split_cells(label, result) for label, result in results.items())
    body = [
        tiles(
            (label, percent_text(_accuracy(result)), f"in {seconds_text(number(result, 'seconds'))}")
            for label, result in results.items()
        ),
        plot("compare", compare_figure(results), alt),
        card("Splits", table(SPLIT_HEADS, by_split)),
        card("Final accuracy of each device", table(["Device", *results], by_device, tall=True)),
    ]
    facts = [f"compared: {', '.join(results)}", f"seed {first.get('seed', '?')}"]
    return write_html(path, str(first.get("job", "run")), facts, body, "comparison")


def _headlines(result: Result, devices: Sequence[Device]) -> list[tuple[str, str, str]]:
    """Name, figure and remark of each tile."""
    shared = number(result, "accuracy") is not None
    entries = [
        (
            "Accuracy",
            percent_text(_accuracy(result)),
            "of the merged network" if shared else "mean of devices",
        )
    ]
    pairs = [(number(device, "accuracy_alone"), number(device, "accuracy")) for device in devices]
    gains = [after - before for before, after in pairs if before is not None and after is not None]
    if gains:
        better = sum(gain > 0 for gain in gains)
        note = f"points over training alone; {better} of {len(gains)} better off"
        entries.append(("Mean gain", f"{100 * fmean(gains):+.1f}", note))
    wall, rounds, merges = (number(result, key) for key in ("wall_seconds", "rounds", "merges"))
    notes = [
        "" if rounds is None else f"{rounds:.0f} rounds",
        "" if merges is None or merges == rounds else f"{merges:.0f} merges",
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


def _device_cells(device: Device) -> str:
    alone, together = number(device, "accuracy_alone"), number(device, "accuracy")
    gain = f"<td>{MISSING}</td>"
    if alone is not None and together is not None:
        way = "up" if together >= alone else "down"
        gain = f'<td class="{way}">{100 * (together - alone):+.1f}</td>'
    costs = (
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
    accuracies = (percent_text(alone), percent_text(together))
    return (
        row(_device_name(device), accuracies) + gain + "".join(f"<td>{escape(cost)}</td>" for cost in costs)
    )


def _device_name(device: Device) -> str:
    about = [str(device.get("kind", ""))]
    if device.get("size"):
        about.append(f"size {device['size']}")
    name = f"{escape(str(device.get('name', '?')))}<small>{escape(' · '.join(about))}</small>"
    if device.get("size_reason"):
        name += f'<small class="reason">size chosen: {escape(str(device["size_reason"]))}</small>'
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
    return card("Notable events", content)


def _split_cells(label: str, result: Result) -> str:
    devices = devices_of(result)
    values = [value for device in devices if (value := number(device, "accuracy")) is not None]
    rounds = number(result, "rounds")
    cells = (
        percent_text(number(result, "accuracy")),
        percent_text(fmean(values) if values else None),
        percent_text(min(values, default=None)),
        seconds_text(number(result, "seconds")),
        bytes_text(_total(devices, "bytes_sent")),
        energy_text(_total(devices, "energy_joules")),
        MISSING if rounds is None else f"{rounds:.0f}",
    )
    return row(escape(label), cells)

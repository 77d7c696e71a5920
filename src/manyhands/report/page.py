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
    Measure,
    Result,
    by_class,
    devices_of,
    measure_of,
    network_heading,
    number,
    sizes_differ,
    split_heading,
    split_text,
    whose_network,
)
from manyhands.report.tiling import groups_card
from manyhands.report.units import (
    MISSING,
    bytes_text,
    count_text,
    counted,
    energy_text,
    memory_text,
    percent_text,
    seconds_text,
)

__all__ = ["write_compare_page", "write_page"]

Device = Mapping[str, Any]

MOST_EVENTS = 200
LARGEST = "the largest there is"
"""The reason for a size that needs none."""

COST_HEADS = (
    "Busy",
    "Waiting",
    "Sent",
    "Received",
    "Energy",
    "Memory",
    "Parameters",
    "Examples trained",
    "Operations",
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
    devices, measure = devices_of(result), measure_of(result)
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
            plot(name, figure, _describe(name, result, devices), _caption(name, measure))
            for name, figure in figures(result).items()
        ),
        _devices(result, devices),
        groups_card(result),
        _events(result),
        card("", job),
    ]
    return write_html(path, str(result.get("job", "run")), facts, body, f"run {result.get('hash', '?')}")


def write_compare_page(results: Mapping[str, Result], path: Path) -> Path:
    """Writes the report of the same job under several splits."""
    first = next(iter(results.values()), {})
    measure = measure_of(first)
    results = {split_heading(label, result): result for label, result in results.items()}
    ends = "; ".join(f"{label} ends at {measure.text(_overall(result))}" for label, result in results.items())
    name = measure.key
    alt = f"{name.capitalize()} over time under each split, and each device's final {name}: {ends}."
    heads = ("Split", network_heading(results.values()).capitalize(), *SPLIT_HEADS)
    by_split = ((escape(label), _split_cells(result)) for label, result in results.items())
    body = [
        tiles(
            (
                label,
                measure.text(_overall(result)),
                f"{whose_network(result)}; in {seconds_text(number(result, 'seconds'))}",
            )
            for label, result in results.items()
        ),
        plot("compare", compare_figure(results), alt),
        card("Splits", filled_table(heads, by_split)),
        _by_device(results, measure),
    ]
    facts = [f"compared: {', '.join(results)}", f"seed {first.get('seed', '?')}"]
    return write_html(path, str(first.get("job", "run")), facts, body, "comparison")


def _by_device(results: Mapping[str, Result], measure: Measure) -> str:
    """What each device ended with; below it the size of its network, where sizes differ."""
    columns = [{str(d.get("name")): d for d in devices_of(result)} for result in results.values()]
    names = dict.fromkeys(name for column in columns for name in column)
    sized = sizes_differ(results.values())
    rows = (
        (escape(name), [_final_cell(column.get(name, {}), measure, sized=sized) for column in columns])
        for name in names
    )
    title = f"Final {measure.key} of each device ({len(names)})"
    return card(title, filled_table(["Device", *results], rows, tall=True))


def _final_cell(device: Device, measure: Measure, *, sized: bool) -> Cell:
    return Cell(
        measure.text(number(device, measure.key)), below=str(device.get("size") or "") if sized else ""
    )


def _headlines(result: Result, devices: Sequence[Device]) -> list[tuple[str, str, str]]:
    """Name, figure and remark of each tile."""
    measure = measure_of(result)
    entries = [(measure.key.capitalize(), measure.text(_overall(result)), whose_network(result))]
    if (prepared := result.get("prepared")) is not None:
        before = (
            f"before the first round; {measure.text(number(prepared, 'accuracy_original'))} before the cut"
        )
        entries.append(("Prepared", measure.text(number(prepared, measure.key)), before))
    pairs = [(number(device, measure.key_alone), number(device, measure.key)) for device in devices]
    gains = [measure.gain(alone, after) for alone, after in pairs if alone is not None and after is not None]
    if gains:
        better = sum(gain > 0 for gain in gains)
        note = f"{measure.gains} over training alone; {better} of {len(gains)} better off"
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


def _overall(result: Result) -> float | None:
    """The measure of the merged network; of the devices on average where there is none."""
    own = number(result, measure_of(result).key)
    values = _ends(result)
    return own if own is not None or not values else fmean(values)


def _ends(result: Result) -> list[float]:
    """What each device ended with, but for those that were never measured."""
    key = measure_of(result).key
    return [value for device in devices_of(result) if (value := number(device, key)) is not None]


def _total(devices: Iterable[Device], key: str) -> float | None:
    values = [value for device in devices if (value := number(device, key)) is not None]
    return sum(values) if values else None


def _caption(name: str, measure: Measure) -> str:
    return {
        measure.key: "The merged network, where there is one, is bold; devices that are alike share a line.",
        "together": f"{measure.key.capitalize()} of a device that trains on its own data only, "
        "and of the same device taking part.",
        "devices": "Waiting is time in which a device has nothing to do until others have answered.",
        "topology": "Lines are direct links; messages between others pass through them.",
    }[name]


def _describe(name: str, result: Result, devices: Sequence[Device]) -> str:
    """What a plot shows, for those who cannot see it."""
    measure = measure_of(result)
    if name == measure.key:
        end = f"{measure.text(_overall(result))} after {seconds_text(number(result, 'seconds'))}"
        return f"Line plot of {name} over time for {len(devices)} devices, ending at {end}."
    if name == "together":
        return (
            f"Each device's {measure.key} alone and together with the others; "
            "the table below has the figures."
        )
    if name == "devices":
        return "Bars of each device's time, traffic and energy; the table below has the figures."
    topology = result.get("topology") or {}
    coordinator = topology.get("coordinator")
    centre = f", with {coordinator} as coordinator" if coordinator else ""
    nodes, edges = len(topology.get("nodes") or []), len(topology.get("edges") or [])
    return f"Graph of {nodes} devices and {edges} links{centre}."


def _devices(result: Result, devices: Sequence[Device]) -> str:
    measure, sized_by = measure_of(result), "classes" if by_class(result) else "size"
    compared = any(number(device, measure.key_alone) is not None for device in devices)
    heads = ("Device", "Alone", "Together" if compared else measure.key.capitalize(), "Gain", *COST_HEADS)
    rows = ((_device_name(device, sized_by=sized_by), _device_cells(device, measure)) for device in devices)
    return card(f"Devices ({len(devices)})", filled_table(heads, rows, tall=True))


def _device_cells(device: Device, measure: Measure) -> tuple[str | Cell, ...]:
    alone, together = number(device, measure.key_alone), number(device, measure.key)
    points = 0.0 if alone is None or together is None else measure.gain(alone, together)
    return (
        measure.text(alone),
        measure.text(together),
        Cell(measure.gain_text(alone, together), "up" if points > 0 else "down" if points < 0 else ""),
        _busy(device),
        seconds_text(number(device, "waiting_seconds")),
        bytes_text(number(device, "bytes_sent")),
        bytes_text(number(device, "bytes_received")),
        energy_text(number(device, "energy_joules")),
        memory_text(number(device, "memory_bytes")),
        count_text(number(device, "parameters")),
        count_text(number(device, "examples")),
        _operations(device),
        percent_text(number(device, "share")),
    )


def _busy(device: Device) -> Cell:
    slowed = number(device, "slowed_seconds")
    below = f"{seconds_text(slowed)} slowed" if slowed else ""
    return Cell(seconds_text(number(device, "busy_seconds")), below=below)


def _operations(device: Device) -> Cell:
    merging = number(device, "merge_flops")
    below = f"{count_text(merging)} merging" if merging else ""
    return Cell(count_text(number(device, "flops")), below=below)


def _device_name(device: Device, *, sized_by: str) -> str:
    about = [str(device.get("kind", ""))]
    if device.get("size"):
        about.append(f"{sized_by} {device['size']}")
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
    devices, measure, values = devices_of(result), measure_of(result), _ends(result)
    rounds = number(result, "rounds")
    return (
        measure.text(number(result, measure.key)),
        measure.text(fmean(values) if values else None),
        measure.text(min(values, default=None)),
        seconds_text(number(result, "seconds")),
        bytes_text(_total(devices, "bytes_sent")),
        energy_text(_total(devices, "energy_joules")),
        MISSING if rounds is None else f"{rounds:.0f}",
    )

"""The balance of a run or a comparison, as tables in a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from manyhands.report.reading import (
    Measure,
    by_class,
    measure_of,
    names_text,
    network_heading,
    sizes_differ,
    split_heading,
    whose_network,
)
from manyhands.report.spread import Comparison, Panel, Spread, headings, key_label, panels, value_text
from manyhands.report.tiling import group_lines
from manyhands.report.units import bytes_text, counted, energy_text, seconds_text

__all__ = [
    "MAX_ROWS",
    "comparison_table",
    "result_table",
    "sweep_tables",
]

MAX_ROWS = 12
"""A table longer than this is cut; the report has them all."""

MAX_WIDE = 3
"""With more splits than this, ranges stand below the medians, so that a table fits into 80 columns."""


def result_table(result: Mapping[str, Any]) -> RenderableType:
    """What each device got out of taking part, and what it paid."""
    devices, measure = result["devices"], measure_of(result)
    alone = any(device.get(measure.key_alone) is not None for device in devices)
    chosen = [device for device in devices if device.get("size_reason") is not None]
    sized = bool(chosen) or len({device.get("size") for device in devices}) > 1
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="dim")
    for name in ("device", "classes" if by_class(result) else "size") if sized else ("device",):
        table.add_column(name, no_wrap=True)
    judged = ("alone", "together", "gain") if alone else (measure.key,)
    for name in (*judged, "busy", "waiting", "sent", "received", "energy"):
        table.add_column(name, justify="right", no_wrap=True)
    for device in devices[:MAX_ROWS]:
        table.add_row(
            device["name"],
            *((str(device.get("size") or "-"),) if sized else ()),
            *(_gain(device, measure) if alone else (measure.short(device[measure.key]),)),
            seconds_text(device["busy_seconds"]),
            seconds_text(device["waiting_seconds"]),
            bytes_text(device["bytes_sent"]),
            bytes_text(device["bytes_received"]),
            energy_text(device["energy_joules"]),
        )
    if len(devices) > MAX_ROWS:
        table.add_row(f"... and {len(devices) - MAX_ROWS} more", style="dim")
    groups = [Text(line, style="dim") for line in group_lines(result)]
    return Group(Text(_headline(result), style="bold"), table, *groups, *_chosen_sizes(chosen))


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
    parts.append(f"{seconds_text(result['seconds'])} {'live' if result['engine'] == 'live' else 'simulated'}")
    measure = measure_of(result)
    if (value := result[measure.key]) is not None:
        parts.append(f"test {measure.key} {measure.short(value)} ({whose_network(result)})")
    if result.get("num_notable"):
        parts.append(f"{counted(result['num_notable'], 'thing')} went wrong")
    return ", ".join(parts)


def _gain(device: Mapping[str, Any], measure: Measure) -> tuple[Text, Text, Text]:
    """How good alone, how good together, and the difference."""
    alone, together = device.get(measure.key_alone), device[measure.key]
    if alone is None or together is None:
        return Text(measure.short(alone)), Text(measure.short(together)), Text("-")
    points = measure.gain(alone, together)
    style = "green" if points > 0 else "red" if points < 0 else ""
    return (
        Text(measure.short(alone)),
        Text(measure.short(together), f"bold {style}".strip()),
        Text(f"{points:+.1f}"),
    )


def comparison_table(results: Mapping[str, Mapping[str, Any]]) -> RenderableType:
    """The same job under several splits: one column a split."""
    table = Table(box=None, padding=(0, 2), header_style="dim")
    table.add_column("device")
    for split, result in results.items():
        table.add_column(split_heading(split, result), justify="right")
    measure = measure_of(next(iter(results.values())))
    columns = [{d["name"]: d for d in result["devices"]} for result in results.values()]
    names, sized = list(columns[0]), sizes_differ(results.values())
    for name in names[:MAX_ROWS]:
        table.add_row(Text(name), *(measure.short(column[name][measure.key]) for column in columns))
        if sized:
            table.add_row(
                "  size", *(str(column[name].get("size") or "-") for column in columns), style="dim"
            )
    if len(names) > MAX_ROWS:
        table.add_row(f"... and {len(names) - MAX_ROWS} more", style="dim")
    table.add_section()
    table.add_row(
        network_heading(results.values()),
        *(measure.short(r[measure.key]) for r in results.values()),
        style="bold",
    )
    if sized and any(r.get("merged_size") for r in results.values()):
        table.add_row("  size", *(str(r.get("merged_size") or "") for r in results.values()), style="dim")
    table.add_row("time", *(seconds_text(r["seconds"]) for r in results.values()))
    table.add_row("sent", *(bytes_text(sum(d["bytes_sent"] for d in r["devices"])) for r in results.values()))
    table.add_row(
        "energy", *(energy_text(sum(d["energy_joules"] for d in r["devices"])) for r in results.values())
    )
    title = f"{measure.key} of each device's network, and what each split took"
    return Group(Text(title, style="italic"), table)


def sweep_tables(comparison: Comparison) -> RenderableType:
    """For each device a table with a row a value; where only seeds differ, one table with a row a device."""
    key, shown, measure = comparison["key"], panels(comparison), measure_of(comparison)
    splits = headings(comparison)
    if key is None:
        rows = [(panel.label, panel, 0) for panel in shown]
        return _spread_table(f"{measure.key} of each device's network", "device", splits, rows, measure)
    parts: list[RenderableType] = []
    for panel in shown:
        rows = [(value_text(value), panel, place) for place, value in enumerate(comparison["values"])]
        title = f"{measure.key} of {panel.label}"
        parts += ["", _spread_table(title, key_label(key), splits, rows, measure)]
    return Group(*parts[1:])


def _spread_table(
    title: str, head: str, splits: Mapping[str, str], rows: list[tuple[str, Panel, int]], measure: Measure
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
        table.add_row(Text(name), *(_spread_text(spread, measure, below=many) for spread in spreads))
        last = i + 1 == len(rows) or rows[i + 1][1] is not panel
        if panel.sizes and (last or panel.size_by_split() is None):
            table.add_row("  size", *(panel.sizes.get((split, place), "-") for split in splits), style="dim")
    return Group(Text(title, style="italic"), table)


def _spread_text(spread: Spread | None, measure: Measure, *, below: bool) -> str:
    """The median and the range, beside it or below."""
    if spread is None or spread.num_seeds == 1:
        return measure.short(spread and spread.median)
    middle, ends = measure.short(spread.median), measure.range(spread.low, spread.high, dash="-")
    return f"{middle}\n{ends}" if below else f"{middle} ({ends})"

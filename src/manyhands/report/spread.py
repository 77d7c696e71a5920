"""What a sweep found, device by device: for each split and each varied value the median and the range.

Everything here reads the mapping that `compare.json` holds.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from statistics import fmean, median
from typing import Any, NamedTuple

from manyhands.report.reading import Measure, devices_of, measure_of, number, plain, sizes_differ, split_text

__all__ = [
    "MOST_PANELS",
    "Comparison",
    "Panel",
    "Spread",
    "headings",
    "key_label",
    "note",
    "panel_labels",
    "panels",
    "tick_text",
    "value_text",
]

Comparison = Mapping[str, Any]

MOST_PANELS = 6
"""With more devices than this, each kind is one panel."""

LONGEST_TICK = 16


class Spread(NamedTuple):
    """What one device ended with under one split and one value, over the seeds."""

    median: float
    low: float
    high: float
    num_seeds: int


class Panel(NamedTuple):
    """One device, or the mean of all devices of a kind."""

    label: str
    spreads: Mapping[tuple[str, int], Spread]
    """By the split, and by the place of the value among `values` (0 where nothing is varied)."""
    sizes: Mapping[tuple[str, int], str]
    """Of its network, in the same way; empty where all networks of the comparison have one size."""

    def size_by_split(self) -> dict[str, str] | None:
        """The sizes if they depend on the split alone, not on the value; None otherwise, or without any."""
        found = {split: size for (split, _), size in self.sizes.items()}
        same = all(found[split] == size for (split, _), size in self.sizes.items())
        return found if found and same else None


def panels(comparison: Comparison) -> list[Panel]:
    """A panel for each device; where they are more than `MOST_PANELS`, for each kind."""
    runs = [run for run in comparison.get("runs") or [] if isinstance(run, Mapping)]
    labels = panel_labels(runs)
    values = list(comparison.get("values") or [None])
    found: dict[str, dict[tuple[str, int], list[float]]] = {label: {} for label in labels.values()}
    sizes: dict[str, dict[tuple[str, int], list[str]]] = {label: {} for label in labels.values()}
    sized, measure = sizes_differ(runs), measure_of(comparison)
    for run in runs:
        place = (str(run.get("split")), values.index(run.get("value")))
        for label, ends in _ends(run, labels, measure).items():
            found[label].setdefault(place, []).append(fmean(ends))
        for device in devices_of(run) if sized else ():
            of_panel = sizes[labels[str(device.get("name", "?"))]]
            of_panel.setdefault(place, []).append(str(device.get("size") or "?"))
    return [
        Panel(
            label,
            {place: _spread(values) for place, values in places.items()},
            {place: ", ".join(dict.fromkeys(values)) for place, values in sizes[label].items()},
        )
        for label, places in found.items()
    ]


def panel_labels(runs: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """The panel of each device, by its name: its own, or that of its kind where there are many."""
    kinds = {str(d.get("name", "?")): str(d.get("kind", "?")) for run in runs for d in devices_of(run)}
    single = len(kinds) <= MOST_PANELS
    return {name: name if single else _kind_label(kind, kinds) for name, kind in kinds.items()}


def note(comparison: Comparison) -> str:
    """What a mark or a line stands for, in words."""
    seeds = len(comparison.get("seeds") or [])
    parts = [f"median of {seeds} seeds, range from lowest to highest"] if seeds > 1 else []
    devices = {d.get("name") for run in comparison.get("runs") or [] for d in run.get("devices") or []}
    if len(devices) > MOST_PANELS:
        parts.append(f"{len(devices)} devices: the mean of each kind")
    return "; ".join(parts)


def headings(comparison: Comparison) -> dict[str, str]:
    """What stands above the column of each split."""
    runs = [run for run in comparison.get("runs") or [] if isinstance(run, Mapping)]
    forms = {run.get("split"): run.get("form") for run in runs if run.get("form") != run.get("split")}
    splits = [str(split) for split in comparison.get("splits") or []]
    return {split: split_text({"split": split, "form": forms.get(split)}) for split in splits}


def _kind_label(kind: str, kinds: Mapping[str, str]) -> str:
    return f"{kind} × {list(kinds.values()).count(kind)}"


def _ends(run: Mapping[str, Any], labels: Mapping[str, str], measure: Measure) -> dict[str, list[float]]:
    """Of one run, by panel; a device that was lost before it was measured does not count."""
    found: dict[str, list[float]] = {}
    for device in devices_of(run):
        if (end := number(device, measure.key)) is not None:
            found.setdefault(labels[str(device.get("name", "?"))], []).append(end)
    return found


def _spread(values: list[float]) -> Spread:
    return Spread(median(values), min(values), max(values), len(values))


def value_text(value: Any) -> str:
    """A value of a job in few characters, without quotes."""
    if isinstance(value, bool | list | dict):
        return json.dumps(value, ensure_ascii=False)
    return str(value)


def tick_text(value: Any) -> str:
    """A value where there is little room."""
    text = f"{value:g}" if isinstance(value, float) else value_text(value)
    return plain(text if len(text) <= LONGEST_TICK else text[: LONGEST_TICK - 1] + "…")


def key_label(key: str) -> str:
    """A key of a job as the label of an axis: ``share of the data on weak``."""
    device = re.fullmatch(r"fleet\.device\[([^\[\]]+)\]\.(\w+)", key)
    if device is None:
        return key
    name = f"device {device[1]}" if device[1].isdecimal() else device[1]
    return f"share of the data on {name}" if device[2] == "share" else f"{device[2]} of {name}"

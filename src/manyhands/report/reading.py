"""Reading a result with care: it may come from an older run, lack a key, or hold a null.

Also what plots and tables have in common: curves as arrays, and devices summed up by kind where there are
too many to show one by one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "Curve",
    "Row",
    "device_rows",
    "devices_of",
    "median_curve",
    "number",
    "plain",
    "points_of",
    "split_text",
]

Result = Mapping[str, Any]
Floats = NDArray[np.float64]


class Curve(NamedTuple):
    """Accuracy over time, with the spread where it stands for several devices."""

    seconds: Floats
    accuracy: Floats
    low: Floats | None = None
    high: Floats | None = None


class Row(NamedTuple):
    """One device, or the mean of all devices of a kind."""

    label: str
    kind: str
    values: Mapping[str, float | None]


def number(values: Mapping[str, Any], key: str) -> float | None:
    """The finite number under `key`, or ``None``."""
    value = values.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def plain(text: object) -> str:
    """A text from outside as a plot's label: matplotlib would read dollar signs as mathematics."""
    return str(text).replace("$", r"\$")


def split_text(result: Result) -> str:
    """The split, and the form in which it cut the networks apart."""
    split, form = result.get("split", "?"), result.get("form")
    return f"{split} ({form})" if form else str(split)


def devices_of(result: Result) -> list[Mapping[str, Any]]:
    """The devices of a result, in the job's order."""
    return [device for device in result.get("devices") or [] if isinstance(device, Mapping)]


def points_of(holder: Mapping[str, Any]) -> Curve | None:
    """The accuracy curve of a result or of a device; ``None`` where it has no point."""
    pairs = [(number(p, "seconds"), number(p, "accuracy")) for p in holder.get("curve") or []]
    kept = [(s, a) for s, a in pairs if s is not None and a is not None]
    if not kept:
        return None
    seconds, accuracy = zip(*sorted(kept, key=lambda pair: pair[0]), strict=True)
    return Curve(np.array(seconds), np.array(accuracy))


def median_curve(curves: Sequence[Curve], *, points: int = 200) -> Curve | None:
    """Median, lowest and highest of several curves; before its first point a curve does not count."""
    if not curves:
        return None
    start, end = min(c.seconds[0] for c in curves), max(c.seconds[-1] for c in curves)
    grid = np.linspace(start, end, points) if end > start else np.array([start])
    rows = np.stack([np.interp(grid, c.seconds, c.accuracy, left=np.nan) for c in curves])
    masked = np.ma.masked_invalid(rows)
    return Curve(
        grid,
        np.asarray(np.ma.median(masked, axis=0)),  # type: ignore[no-untyped-call]
        np.asarray(masked.min(axis=0)),
        np.asarray(masked.max(axis=0)),
    )


def device_rows(devices: Sequence[Mapping[str, Any]], keys: Sequence[str], *, most: int) -> list[Row]:
    """A row for each device; where they are more than `most`, for each kind with the mean of its devices."""
    if len(devices) <= most:
        return [
            Row(plain(d.get("name", "?")), plain(d.get("kind", "?")), {key: number(d, key) for key in keys})
            for d in devices
        ]
    kinds: dict[str, list[Mapping[str, Any]]] = {}
    for device in devices:
        kinds.setdefault(plain(device.get("kind", "?")), []).append(device)
    return [
        Row(f"{kind} × {len(members)}", kind, {key: _mean(members, key) for key in keys})
        for kind, members in kinds.items()
    ]


def _mean(devices: Sequence[Mapping[str, Any]], key: str) -> float | None:
    values = [value for device in devices if (value := number(device, key)) is not None]
    return fmean(values) if values else None

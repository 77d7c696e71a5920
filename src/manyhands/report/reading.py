"""Reading a result with care: it may come from an older run, lack a key, or hold a null.

Also what plots and tables have in common: what networks are judged by and how that is written, curves as
arrays, and devices summed up by kind where there are too many to show one by one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from manyhands.report.units import MISSING

__all__ = [
    "ACCURACY",
    "MEASURES",
    "SCORE",
    "Curve",
    "Measure",
    "Row",
    "device_rows",
    "devices_of",
    "measure_of",
    "median_curve",
    "names_text",
    "network_heading",
    "number",
    "plain",
    "points_of",
    "same_curves",
    "sizes_differ",
    "split_heading",
    "split_text",
    "whose_network",
]

Result = Mapping[str, Any]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Measure:
    """What the networks of a run are judged by, and how its values are written.

    Attributes:
        key: In a result, of a device and of a point; also its name in a sentence.
        label: Of an axis.
        gains: What a gain is counted in.
        factor: What a value is multiplied by before it is shown.
        unit: Stands behind a value that is shown.
        bounded: Whether values lie between 0 and 1.
    """

    key: str
    label: str
    gains: str
    factor: float = 1.0
    unit: str = ""
    bounded: bool = False

    @property
    def key_alone(self) -> str:
        """Of a device, had it trained by itself."""
        return f"{self.key}_alone"

    def text(self, value: float | None) -> str:
        """For example ``94.1 %`` or ``12.3``."""
        if value is None or not math.isfinite(value):
            return MISSING
        return f"{self.bare(value)} {self.unit}".rstrip()

    def short(self, value: float | None) -> str:
        """In a terminal: ``94.1%`` or ``12.3``, a dash where there is none."""
        return "-" if value is None else f"{self.bare(value)}{self.unit}"

    def bare(self, value: float) -> str:
        """Without the unit: ``94.1`` or ``12.3``."""
        return f"{self.factor * value:z.1f}"

    def range(self, low: float, high: float, dash: str) -> str:
        """For example ``83.1-83.3``; with a negative end, ``-3.0 to 1.2``."""
        between = " to " if low < 0 else dash
        return f"{self.bare(low)}{between}{self.bare(high)}"

    def tick(self, value: float, _position: float | None = None) -> str:
        """On an axis, with as many decimals as it needs."""
        return f"{self.factor * value:.4g} {self.unit}".rstrip()

    def gain(self, alone: float, together: float) -> float:
        """How much better: the difference of the two figures as they are printed beside it."""
        return round(float(self.bare(together)) - float(self.bare(alone)), 1) or 0.0  # not -0.0

    def gain_text(self, alone: float | None, together: float | None) -> str:
        """For example ``+3.4``."""
        return MISSING if alone is None or together is None else f"{self.gain(alone, together):+.1f}"


ACCURACY = Measure("accuracy", "accuracy", "points", factor=100.0, unit="%", bounded=True)
"""Of supervised learning: the fraction of the test set that is named rightly."""

SCORE = Measure("score", "score (reward of a test episode)", "reward")
"""Of reinforcement learning: the mean reward of a test episode."""

MEASURES = {measure.key: measure for measure in (ACCURACY, SCORE)}


class Curve(NamedTuple):
    """A measure over time or over rounds, with the spread where it stands for several devices or runs."""

    x: Floats
    values: Floats
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


def measure_of(result: Result) -> Measure:
    """What a result or a comparison is judged by; those of old do not say it."""
    return MEASURES.get(str(result.get("measure")), ACCURACY)


def plain(text: object) -> str:
    """A text from outside as a plot's label: matplotlib would read dollar signs as mathematics."""
    return str(text).replace("$", r"\$")


def split_text(result: Result) -> str:
    """The split, and the form in which it cut the networks apart."""
    split, form = result.get("split", "?"), result.get("form")
    return f"{split} ({form})" if form else str(split)


def split_heading(label: str, result: Result) -> str:
    """What stands above a column of a comparison: the split, where it leaves that open with its form."""
    return split_text(result) if label == result.get("split") else label


def sizes_differ(results: Iterable[Result]) -> bool:
    """Whether networks of more than one size occur in a comparison."""
    return len({device.get("size") for result in results for device in devices_of(result)} - {None}) > 1


def by_class(result: Result) -> bool:
    """Whether devices have networks for their own classes: a network's size is then a list of classes."""
    return result.get("prepared") is not None and result.get("split") != "homogeneous"


def whose_network(result: Result) -> str:
    """Of which network the `accuracy` or `score` of a result is: ``merged network, size medium``.

    The size is said where devices have different ones.
    """
    if number(result, measure_of(result).key) is None:
        return "mean of devices"
    if result.get("split") == "space":
        return "trained by all in tiles"
    if by_class(result):
        return "put together from the devices' parts"
    led = (result.get("topology") or {}).get("coordinator") is not None
    network = "merged network" if led else "mean of the devices' networks"
    size = result.get("merged_size")
    sizes = {device.get("size") for device in devices_of(result)}
    return f"{network}, size {size}" if size and sizes != {size} else network


def network_heading(results: Iterable[Result]) -> str:
    """Of which network the `accuracy` or `score` of several results is, in two or three words."""
    found = [r for r in results if number(r, measure_of(r).key) is not None]
    led = not found or any((r.get("topology") or {}).get("coordinator") is not None for r in found)
    return "merged network" if led else "mean of networks"


def devices_of(result: Result) -> list[Mapping[str, Any]]:
    """The devices of a result, in the job's order."""
    return [device for device in result.get("devices") or [] if isinstance(device, Mapping)]


def points_of(holder: Mapping[str, Any], measure: Measure, *, along: str = "seconds") -> Curve | None:
    """The curve of a result or of a device, `along` a key of its points; ``None`` where it has none."""
    pairs = [(number(p, along), number(p, measure.key)) for p in holder.get("curve") or []]
    kept = [(x, v) for x, v in pairs if x is not None and v is not None]
    if not kept:
        return None
    x, values = zip(*sorted(kept, key=lambda pair: pair[0]), strict=True)
    return Curve(np.array(x), np.array(values))


def median_curve(curves: Sequence[Curve], *, points: int = 200) -> Curve | None:
    """Median, lowest and highest of several curves; before its first point a curve does not count."""
    if not curves:
        return None
    start, end = min(c.x[0] for c in curves), max(c.x[-1] for c in curves)
    grid = np.linspace(start, end, points) if end > start else np.array([start])
    rows = np.stack([np.interp(grid, c.x, c.values, left=np.nan) for c in curves])
    masked = np.ma.masked_invalid(rows)
    return Curve(
        grid,
        np.asarray(np.ma.median(masked, axis=0)),  # type: ignore[no-untyped-call]
        np.asarray(masked.min(axis=0)),
        np.asarray(masked.max(axis=0)),
    )


def same_curves(curves: Sequence[tuple[str, Curve]]) -> list[tuple[list[str], Curve]]:
    """Devices by name, those together whose lines would lie on each other, with the curve of the first.

    Devices that are given the same network get it moments apart; what nobody can see makes no difference.
    """
    moment = 0.005 * max((curve.x[-1] for _, curve in curves), default=0.0)
    groups: list[tuple[list[str], Curve]] = []
    for name, curve in curves:
        for names, other in groups:
            if np.array_equal(other.values, curve.values) and np.allclose(
                other.x, curve.x, rtol=0, atol=moment
            ):
                names.append(name)
                break
        else:
            groups.append(([name], curve))
    return groups


def names_text(names: Sequence[str]) -> str:
    """In few words: ``phone-1 ... 3`` or ``pi, laptop and 2 more``."""
    found = [re.fullmatch(r"(.*?)(\d+)", name) for name in names]
    stems = {match[1] for match in found if match}
    if len(names) > 2 and all(found) and len(stems) == 1:
        numbers = [int(match[2]) for match in found if match]
        if numbers == list(range(numbers[0], numbers[0] + len(numbers))):
            return f"{names[0]} ... {numbers[-1]}"
    shown = names if len(names) <= 3 else names[:2]
    return ", ".join(shown) + (f" and {len(names) - 2} more" if len(names) > 3 else "")


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

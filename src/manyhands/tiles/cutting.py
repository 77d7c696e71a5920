"""Where cuts lie, for given groups: by bisection on the time by which every device must be done."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from math import inf

from manyhands.tiles.graph import TileGraph
from manyhands.tiles.plan import TilePlan
from manyhands.tiles.pricing import Grid, Prediction, Setting, TilePart

__all__ = ["Cuts", "balance", "cut_units", "first_cuts", "moved_cuts", "recut"]

Cuts = tuple[tuple[int, ...], tuple[int, ...]]
FINEST = 4  # a cut may lie at a quarter of what one pixel of the smallest map stands for


def balance(
    total: int, times: Sequence[Callable[[int], float]], most: Sequence[int] | None = None
) -> tuple[int, ...] | None:
    """Shares out units so that the last device is done as early as possible; each gets at least one.

    Bisects the finishing time: by then, device i can do as many units as its rising `times[i]` allows.

    Args:
        total: Units to share out.
        times: For each device, the seconds of so many units.
        most: The units that each device has memory for.

    Returns:
        Each device's units, or None where there are too few units or too little memory.
    """
    count = len(times)
    most = [min(total, m) for m in most] if most is not None else [total] * count
    if total < count or min(most) < 1 or sum(most) < total:
        return None

    def done_by(deadline_s: float) -> list[int]:
        return [_done_by(deadline_s, time, limit) for time, limit in zip(times, most, strict=True)]

    low, high = 0.0, max(time(limit) for time, limit in zip(times, most, strict=True))
    for _ in range(50):
        middle = (low + high) / 2
        if sum(done_by(middle)) >= total:
            high = middle
        else:
            low = middle
    units = done_by(high)
    while sum(units) > total:  # give back where it helps most
        slowest = max((i for i in range(count) if units[i] > 1), key=lambda i: times[i](units[i]))
        units[slowest] -= 1
    return tuple(units)


def _done_by(deadline_s: float, time: Callable[[int], float], limit: int) -> int:
    """The units that a device can do by then; at least one, even where that is late."""
    return max(1, bisect_left(range(1, limit + 1), True, key=lambda units: time(units) > deadline_s))


def cut_units(graph: TileGraph, ends: Sequence[int]) -> Sequence[int]:
    """Where cuts may lie, in rows of the input: as far apart as one row of the smallest map, or finer."""
    height = graph.nodes[0].sides[0]
    coarsest = max(height // graph.nodes[end - 1].sides[0] for end in ends)
    return sorted({max(1, coarsest), max(1, coarsest // FINEST)}, reverse=True)


def first_cuts(setting: Setting, rows: int, cols: int, unit: int) -> list[Cuts]:
    """Cuts by the devices' speeds, and even ones."""
    height, width = setting.graph.nodes[0].sides
    speeds = [1 / max(_whole_s(setting, rank), 1e-12) for rank in range(setting.num_devices)]
    lines = [sum(speeds[row * cols : (row + 1) * cols]) for row in range(rows)]
    columns = [sum(speeds[col::cols]) for col in range(cols)]
    found = []
    for down, across in ((lines, columns), ([1.0] * rows, [1.0] * cols)):
        heights, widths = _proportional(height, down, unit), _proportional(width, across, unit)
        if heights and widths and (heights, widths) not in found:
            found.append((heights, widths))
    return found


def _whole_s(setting: Setting, rank: int) -> float:
    """What a device would take for all nodes that can be tiled."""
    total = 0.0
    for node in setting.graph.nodes[1:]:
        times = setting.profiles[rank].layers[node.name]
        rows = node.sides[0]
        total += times.forward.at(rows) + times.input_gradient.at(rows) + times.weight_gradient.at(rows)
    return total


def _proportional(side: int, weights: Sequence[float], unit: int) -> tuple[int, ...] | None:
    units = balance(side // unit, [lambda u, w=weight: u / w for weight in weights])  # type: ignore[misc]
    return _to_pixels(units, side, unit) if units else None


def _to_pixels(units: Sequence[int], side: int, unit: int) -> tuple[int, ...]:
    """Sizes in pixels; what is left over by the unit goes to the last."""
    sizes = [u * unit for u in units]
    sizes[-1] += side - sum(sizes)
    return tuple(sizes)


def recut(setting: Setting, guide: Prediction, unit: int) -> Cuts | None:
    """Cuts for given groups: every line of tiles gets what it can finish by the same time."""
    plan, (height, width) = guide.plan, setting.graph.nodes[0].sides
    rows = _recut_axis(setting, guide, 0, height, unit)
    cols = _recut_axis(setting, guide, 1, width, unit) if len(plan.cols) > 1 else plan.cols
    return (rows, cols) if rows and cols else None


def _recut_axis(
    setting: Setting, guide: Prediction, axis: int, side: int, unit: int
) -> tuple[int, ...] | None:
    plan = guide.plan
    sizes = plan.rows if axis == 0 else plan.cols
    lines = range(len(sizes))
    tiles = [
        [t for t in range(plan.num_tiles) if (t // len(plan.cols), t % len(plan.cols))[axis] == line]
        for line in lines
    ]
    probe = _Probe(setting, guide, axis, side, unit)
    ranks = [[plan.devices[tile] for tile in line] for line in tiles]
    times = [lambda units, r=line: max(probe.seconds(rank, units) for rank in r) for line in ranks]
    most = [min(probe.most(rank, side // unit) for rank in line) for line in ranks]
    units = balance(side // unit, times, most)
    return _to_pixels(units, side, unit) if units else None


class _Probe:
    """What a device would take for a tile of some units in the middle of the map, in the groups of a plan."""

    def __init__(self, setting: Setting, guide: Prediction, axis: int, side: int, unit: int) -> None:
        self.setting, self.guide, self.axis, self.side, self.unit = setting, guide, axis, side, unit
        graph = setting.graph
        self.end = graph.index(guide.plan.tail)
        starts = sorted({1, *(graph.index(start) for start in guide.plan.group_starts)})
        self.groups = list(zip(starts, [*starts[1:], self.end], strict=True))
        grid = Grid(setting, guide.plan.rows, guide.plan.cols, guide.plan.devices)
        self.states = grid.tail(self.end, guide.plan.tail_mode).memory_bytes
        self.parts: dict[int, list[TilePart]] = {}
        self.times: dict[tuple[int, int], float] = {}

    def seconds(self, rank: int, units: int) -> float:
        """Computing time of a tile of so many units."""
        if (rank, units) not in self.times:
            profile = self.setting.profiles[rank]
            parts = self._look(units)
            self.times[rank, units] = (
                sum(part.seconds(self.setting, profile) for part in parts) if parts else inf
            )
        return self.times[rank, units]

    def most(self, rank: int, total: int) -> int:
        """The units for which the device has memory."""
        limit = self.setting.limit(rank)
        if limit == inf:
            return total
        return bisect_left(range(1, total + 1), True, key=lambda units: self._bytes(rank, units) > limit)

    def _bytes(self, rank: int, units: int) -> float:
        parts = self._look(units)
        if not parts:
            return 0.0  # too small for a pixel of every map; `seconds` says so
        if self.guide.checkpoint:
            maps = sum(part.held for part in parts) + max(part.inner for part in parts)
        else:
            maps = sum(part.kept for part in parts)
        return maps + self.states[self.guide.plan.devices.index(rank)]

    def _look(self, units: int) -> list[TilePart]:
        if units not in self.parts:
            plan = self.guide.plan
            size = min(self.side, units * self.unit)
            before = (self.side - size) // 2 // self.unit * self.unit
            cut = tuple(s for s in (before, size, self.side - size - before) if s)
            place = 1 if before else 0
            other = plan.cols if self.axis == 0 else plan.rows
            middle = len(other) // 2
            rows, cols = (cut, other) if self.axis == 0 else (other, cut)
            tile = place * len(cols) + middle if self.axis == 0 else middle * len(cols) + place
            grid = Grid(self.setting, rows, cols, [0] * (len(rows) * len(cols)))
            fits = grid.deepest >= self.end
            self.parts[units] = [grid.tile_part(*group, tile) for group in self.groups] if fits else []
        return self.parts[units]


def moved_cuts(plan: TilePlan, unit: int) -> Iterator[TilePlan]:
    """The same plan with one cut moved by a unit."""
    for axis, sizes in (("rows", plan.rows), ("cols", plan.cols)):
        for place in range(len(sizes) - 1):
            for step in (unit, -unit):
                moved = list(sizes)
                moved[place] += step
                moved[place + 1] -= step
                if min(moved) > 0:
                    changed = {"rows": plan.rows, "cols": plan.cols, axis: tuple(moved)}
                    yield TilePlan(
                        changed["rows"],
                        changed["cols"],
                        plan.group_starts,
                        plan.tail,
                        plan.tail_mode,
                        plan.devices,
                    )

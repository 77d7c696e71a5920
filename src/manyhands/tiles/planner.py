"""Chooses a plan: the grid's shape, its uneven cuts, where groups begin, and where tiling ends and how.

Numbers in (profiles, link, memory limits), a plan out. For given cuts, groups are found by dynamic
programming over where they begin, exact under the model of `pricing.py`; memory limits make it keep every
choice that is not beaten in both time and memory. For given groups, cuts are found by bisection on the time
by which every device must be done, then mended by moving single cuts. The two take turns until neither
gains.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf

from manyhands.errors import JobError
from manyhands.tiles.graph import TileGraph
from manyhands.tiles.plan import TailMode, TilePlan
from manyhands.tiles.pricing import Grid, Prediction, Setting, TilePart, predict

__all__ = ["balance", "best_groups", "boundaries", "grid_shapes", "make_plan"]

MOST_LABELS = 400  # kept at each boundary under memory limits; networks we ship need a few dozen
TURNS = 4
Cuts = tuple[tuple[int, ...], tuple[int, ...]]
FINEST = 4  # a cut may lie at a quarter of what one pixel of the smallest map stands for


def make_plan(
    setting: Setting,
    *,
    tails: Sequence[str] = (),
    tail_modes: Sequence[TailMode] = ("one", "data"),
    shapes: Sequence[tuple[int, int]] = (),
    checkpoint: bool | None = None,
) -> Prediction:
    """The fastest plan that keeps to every device's memory, and what is to be expected of it.

    Args:
        setting: Network, devices, link, batch.
        tails: Where tiling may end, as names of operations; empty means anywhere.
        tail_modes: How the rest may be computed.
        shapes: Grids to try, (rows, columns); empty means all of as many tiles as there are devices.
        checkpoint: Whether groups are recomputed; None means only where memory asks for it.

    Raises:
        JobError: No plan fits the network or the memory.
    """
    ends = _ends(setting.graph, tails)
    shapes = shapes or tuple(grid_shapes(setting.num_devices))

    def search(limits: tuple[float, ...], recompute: bool) -> Prediction | None:
        limited = replace(setting, memory_bytes=limits)
        found = (_plan_shape(limited, *shape, ends, tail_modes, recompute) for shape in shapes)
        return min((plan for plan in found if plan), key=lambda plan: plan.step_s, default=None)

    for recompute in (False, True) if checkpoint is None else (checkpoint,):
        # As a rule the best plan fits, and limits need not be looked at on the way.
        best = search((), recompute)
        if best is not None and not _keeps_limits(setting, best):
            best = search(setting.memory_bytes, recompute)
        if best is not None:
            return best
    raise JobError(
        "split.space",
        f"{setting.num_devices} tiles",
        "no cut of this network gives every tile a pixel and keeps to every device's memory_bytes; "
        "take more devices, a smaller batch, or checkpoint = true",
    )


def grid_shapes(num_tiles: int) -> Iterator[tuple[int, int]]:
    """Rows and columns of all grids of so many tiles, strips of rows first."""
    return ((num_tiles // cols, cols) for cols in range(1, num_tiles + 1) if num_tiles % cols == 0)


def boundaries(graph: TileGraph, end: int) -> tuple[int, ...]:
    """Nodes at which it can pay to begin a group.

    Those that look over borders; batch norms, whose sums then travel with the borders; and convolutions
    that widen their maps, whose input is smaller than what follows. A group that began at an activation or
    a plain pooling would be given borders no smaller than one that begins at the next of these, and compute
    more of them.
    """
    over = set(graph.windowed(end))
    return tuple(
        number
        for number in range(1, end)
        if number == 1
        or graph.nodes[number].name in over
        or graph.nodes[number].kind == "norm"
        or _widens(graph, number)
    )


def _widens(graph: TileGraph, number: int) -> bool:
    node = graph.nodes[number]
    return node.kind == "conv" and node.channels > graph.nodes[node.inputs[0]].channels


@dataclass(frozen=True)
class _Label:
    """A way to compute the nodes up to a boundary: its time, its memory by tile, and where groups began."""

    seconds: float
    summed: tuple[float, ...]
    largest: tuple[float, ...]
    starts: tuple[int, ...]

    def beats(self, other: _Label) -> bool:
        pairs = zip((*self.summed, *self.largest), (*other.summed, *other.largest), strict=True)
        return self.seconds <= other.seconds and all(mine <= theirs for mine, theirs in pairs)


def best_groups(
    grid: Grid, ends: Sequence[int], room: Sequence[float], checkpoint: bool
) -> dict[int, list[_Label]]:
    """For each end, the ways to group the nodes before it that no other beats in time and in memory.

    Args:
        grid: The cuts, with the prices of groups.
        ends: Operations at which tiling may end.
        room: Bytes that each tile may keep of maps; where it is infinite its memory is not looked at.
        checkpoint: Whether groups are recomputed.
    """
    limited = [tile for tile, most in enumerate(room) if most < inf]
    nothing = (0.0,) * len(limited)
    last = max(ends)
    starts = boundaries(grid.setting.graph, last)
    fronts: dict[int, list[_Label]] = {1: [_Label(0.0, nothing, nothing, ())]}
    for stop in sorted({*starts[1:], *ends}):
        made = []
        before = [start for start in starts if start < stop]
        finest = [grid.group(*pair) for pair in pairwise([*before, stop])]
        messages_s = sum(group.exchange_s for group in finest)
        apart_s = 0.0
        for first in reversed(before):
            price = grid.group(first, stop)
            apart_s += finest.pop().seconds(checkpoint)
            if not limited and price.seconds(checkpoint) - apart_s > messages_s:
                break  # computes more twice than all messages cost, and so does whatever begins earlier
            more = tuple((price.held if checkpoint else price.kept)[tile] for tile in limited)
            inner = tuple(price.inner[tile] if checkpoint else 0.0 for tile in limited)
            for label in fronts.get(first, ()):
                summed = tuple(a + b for a, b in zip(label.summed, more, strict=True))
                largest = tuple(map(max, label.largest, inner))
                total = [a + b for a, b in zip(summed, largest, strict=True)]
                if all(used <= room[tile] for used, tile in zip(total, limited, strict=True)):
                    seconds = label.seconds + price.seconds(checkpoint)
                    made.append(_Label(seconds, summed, largest, (*label.starts, first)))
        fronts[stop] = _unbeaten(made)
    return {end: fronts[end] for end in ends}


def _unbeaten(labels: list[_Label]) -> list[_Label]:
    labels.sort(key=lambda label: label.seconds)
    front: list[_Label] = []
    for label in labels:
        if len(front) == MOST_LABELS:
            break
        if not any(other.beats(label) for other in front):
            front.append(label)
    return front


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
        # At least one each, even where that is late: the deadline is then not met.
        return [
            max(1, bisect_left(range(1, limit + 1), True, key=lambda units, t=time: t(units) > deadline_s))
            for time, limit in zip(times, most, strict=True)
        ]

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


def _ends(graph: TileGraph, tails: Sequence[str]) -> tuple[int, ...]:
    if tails:
        return tuple(sorted({min(graph.index(name), graph.end) for name in tails}))
    # Where maps change hands anyway: before a convolution or a pooling, or at the end.
    return (*(number for number in boundaries(graph, graph.end) if number > 1), graph.end)


def _plan_shape(
    setting: Setting,
    rows: int,
    cols: int,
    ends: Sequence[int],
    modes: Sequence[TailMode],
    checkpoint: bool,
) -> Prediction | None:
    """The best plan of one grid shape, from cuts by speed and from even ones, coarse steps first."""
    best = None
    for unit in _units(setting.graph, ends):
        starts = _first_cuts(setting, rows, cols, unit)
        for cuts in [*starts, *([(best.plan.rows, best.plan.cols)] if best else [])]:
            found = _plan_from(setting, cuts, unit, ends, modes, checkpoint)
            best = found if best is None or (found and found.step_s < best.step_s) else best
    return best


def _units(graph: TileGraph, ends: Sequence[int]) -> Sequence[int]:
    """Where cuts may lie, in rows of the input: as far apart as one row of the smallest map, or finer."""
    height = graph.nodes[0].sides[0]
    coarsest = max(height // graph.nodes[end - 1].sides[0] for end in ends)
    return sorted({max(1, coarsest), max(1, coarsest // FINEST)}, reverse=True)


def _first_cuts(setting: Setting, rows: int, cols: int, unit: int) -> list[Cuts]:
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


def _plan_from(
    setting: Setting,
    cuts: Cuts,
    unit: int,
    ends: Sequence[int],
    modes: Sequence[TailMode],
    checkpoint: bool,
) -> Prediction | None:
    best: Prediction | None = None
    for _ in range(TURNS):
        grid = Grid(setting, *cuts, range(setting.num_devices))
        found = _best_on(grid, ends, modes, checkpoint)
        if found is not None and (best is None or found.step_s < best.step_s):
            best = found
        elif best is not None:
            break
        guide = found or _least_memory(grid, ends, modes, checkpoint)
        if guide is None:
            break
        moved = _recut(setting, guide, unit) if found else _towards_limits(setting, guide, unit)
        if moved is None or moved == cuts:
            break
        cuts = moved
    if best is None:
        return None
    mended = _mended(setting, best, unit)
    grid = Grid(setting, mended.plan.rows, mended.plan.cols, mended.plan.devices)
    return _best_on(grid, ends, modes, checkpoint) or mended  # groups may want to differ for the last cuts


def _best_on(
    grid: Grid, ends: Sequence[int], modes: Sequence[TailMode], checkpoint: bool
) -> Prediction | None:
    """The best groups, end and tail mode for given cuts, within every device's memory."""
    setting = grid.setting
    reachable = [end for end in ends if end <= grid.deepest and end > 1]
    if not reachable:
        return None
    tails = {(end, mode): grid.tail(end, mode) for end in reachable for mode in modes}
    # Room under the lightest tail; the exact sum is checked for each below.
    lightest = [min(tail.memory_bytes[tile] for tail in tails.values()) for tile in range(len(grid.devices))]
    room = [setting.limit(rank) - lightest[tile] for tile, rank in enumerate(grid.devices)]
    fronts = best_groups(grid, reachable, room, checkpoint)
    best: tuple[float, TilePlan] | None = None
    for (end, mode), tail in tails.items():
        for label in fronts[end]:
            seconds = label.seconds + tail.seconds
            if best is not None and seconds >= best[0]:
                break
            if _fits(grid, label, tail.memory_bytes):
                best = seconds, _plan(grid, label.starts, end, mode)
                break
    return predict(setting, best[1], checkpoint, grid) if best else None


def _fits(grid: Grid, label: _Label, tail: Sequence[float]) -> bool:
    limited = [t for t, rank in enumerate(grid.devices) if grid.setting.limit(rank) < inf]
    return all(
        a + b + tail[tile] <= grid.setting.limit(grid.devices[tile])
        for a, b, tile in zip(label.summed, label.largest, limited, strict=True)
    )


def _plan(grid: Grid, starts: Sequence[int], end: int, mode: TailMode) -> TilePlan:
    graph = grid.setting.graph
    names = tuple(graph.name(start) for start in starts if start > 1)
    return TilePlan(grid.rows, grid.cols, names, graph.name(end), mode, grid.devices)


def _least_memory(
    grid: Grid, ends: Sequence[int], modes: Sequence[TailMode], checkpoint: bool
) -> Prediction | None:
    """A plan with as many groups as there can be, which keeps the least, for cuts on which no plan fits."""
    setting = grid.setting
    reachable = [end for end in ends if 1 < end <= grid.deepest]
    if not reachable:
        return None
    plans = (
        predict(setting, _plan(grid, boundaries(setting.graph, end), end, mode), checkpoint, grid)
        for end in (reachable[0], reachable[-1])
        for mode in modes
    )
    return min(plans, key=lambda plan: _excess(setting, plan))


def _excess(setting: Setting, plan: Prediction) -> float:
    """Bytes by which devices are asked for more than they have."""
    return sum(max(0.0, used - setting.limit(rank)) for rank, used in enumerate(plan.memory_bytes))


def _keeps_limits(setting: Setting, plan: Prediction) -> bool:
    return _excess(setting, plan) == 0


def _towards_limits(setting: Setting, guide: Prediction, unit: int) -> Cuts | None:
    """Moves single cuts as long as that brings devices nearer to their limits."""
    start = guide
    while True:
        moved = (_try(setting, plan, guide.checkpoint) for plan in _neighbours(guide.plan, unit))
        best = min((m for m in moved if m), key=lambda plan: _excess(setting, plan), default=None)
        if best is None or _excess(setting, best) >= _excess(setting, guide):
            return None if guide is start else (guide.plan.rows, guide.plan.cols)
        guide = best


def _try(setting: Setting, plan: TilePlan, checkpoint: bool) -> Prediction | None:
    try:
        return predict(setting, plan, checkpoint)
    except JobError:  # a tile without a pixel
        return None


def _recut(setting: Setting, guide: Prediction, unit: int) -> Cuts | None:
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
    times = [lambda units, r=line: max(probe.seconds(rank, units) for rank in r) for line in ranks]  # type: ignore[misc]
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


def _mended(setting: Setting, best: Prediction, unit: int) -> Prediction:
    """Moves single cuts by a unit as long as that gains, groups as they are."""
    improved = True
    while improved:
        improved = False
        for candidate in _neighbours(best.plan, unit):
            found = _try(setting, candidate, best.checkpoint)
            if found and _keeps_limits(setting, found) and found.step_s < best.step_s * (1 - 1e-9):
                best, improved = found, True
                break
    return best


def _neighbours(plan: TilePlan, unit: int) -> Iterator[TilePlan]:
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

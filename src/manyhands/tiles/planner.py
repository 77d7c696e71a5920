"""Chooses a plan: the grid's shape, its uneven cuts, where groups begin, and where tiling ends and how.

Numbers in (profiles, link, memory limits), a plan out. Groups for given cuts (`grouping.py`) and cuts for
given groups (`cutting.py`) take turns until neither gains; then single cuts are moved as long as that helps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import inf

from manyhands.errors import JobError
from manyhands.tiles.cutting import Cuts, cut_units, first_cuts, moved_cuts, recut
from manyhands.tiles.graph import TileGraph
from manyhands.tiles.grouping import Label, best_groups, boundaries
from manyhands.tiles.plan import TailMode, TilePlan
from manyhands.tiles.pricing import Grid, Prediction, Setting, predict

__all__ = ["grid_shapes", "make_plan"]

TURNS = 4


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

    reason = "no cut of this network gives every tile a pixel; take fewer devices or larger pictures"
    for recompute in (False, True) if checkpoint is None else (checkpoint,):
        # As a rule the best plan fits, and limits need not be looked at on the way.
        best = search((), recompute)
        if best is not None and not _keeps_limits(setting, best):
            reason = "no cut keeps to every device's memory_bytes; take more devices or a smaller batch"
            reason += ', or leave checkpoint at "auto"' if checkpoint is False else ""
            best = search(setting.memory_bytes, recompute)
        if best is not None:
            return best
    raise JobError("split.space", f"{setting.num_devices} tiles", reason)


def grid_shapes(num_tiles: int) -> Iterator[tuple[int, int]]:
    """Rows and columns of all grids of so many tiles, strips of rows first."""
    return ((num_tiles // cols, cols) for cols in range(1, num_tiles + 1) if num_tiles % cols == 0)


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
    for unit in cut_units(setting.graph, ends):
        starts = first_cuts(setting, rows, cols, unit)
        for cuts in [*starts, *([(best.plan.rows, best.plan.cols)] if best else [])]:
            found = _plan_from(setting, cuts, unit, ends, modes, checkpoint)
            best = found if best is None or (found and found.step_s < best.step_s) else best
    return best


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
        moved = recut(setting, guide, unit) if found else _towards_limits(setting, guide, unit)
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


def _fits(grid: Grid, label: Label, tail: Sequence[float]) -> bool:
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
        moved = (_try(setting, plan, guide.checkpoint) for plan in moved_cuts(guide.plan, unit))
        best = min((m for m in moved if m), key=lambda plan: _excess(setting, plan), default=None)
        if best is None or _excess(setting, best) >= _excess(setting, guide):
            return None if guide is start else (guide.plan.rows, guide.plan.cols)
        guide = best


def _try(setting: Setting, plan: TilePlan, checkpoint: bool) -> Prediction | None:
    try:
        return predict(setting, plan, checkpoint)
    except JobError:  # a tile without a pixel
        return None


def _mended(setting: Setting, best: Prediction, unit: int) -> Prediction:
    """Moves single cuts by a unit as long as that gains, groups as they are."""
    improved = True
    while improved:
        improved = False
        for candidate in moved_cuts(best.plan, unit):
            found = _try(setting, candidate, best.checkpoint)
            if found and _keeps_limits(setting, found) and found.step_s < best.step_s * (1 - 1e-9):
                best, improved = found, True
                break
    return best

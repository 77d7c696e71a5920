"""A plan: how a network is cut into tiles. Written by a person or by the planner, carried out by `tile`."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import gcd
from typing import Literal

from manyhands.errors import JobError
from manyhands.tiles.graph import TileGraph

__all__ = ["TailMode", "TilePlan", "check_plan", "even_plan"]

TailMode = Literal["one", "data", "channels"]


@dataclass(frozen=True)
class TilePlan:
    """Which tile of which layers is whose.

    Attributes:
        rows: Heights of the rows of tiles in pixels of the network's *input*, first to last; they sum to its
            height. In every other map the cuts keep their place in proportion (`geometry.scale_cuts`).
        cols: Widths of the columns of tiles, in the same way.
        group_starts: Nodes at which a new group begins: there, and nowhere else, tiles are given their
            borders by their neighbours. The first node of the network begins the first group and need not be
            named.
        tail: The first node that is not computed in tiles; ``output`` if all are.
        tail_mode: How the nodes from there on are computed: by the first tile's device (``one``), by all,
            each for some of the examples (``data``), or with the dense layers' rows shared out
            (``channels``).
        devices: Of each tile, row after row, the rank that computes it.
    """

    rows: tuple[int, ...]
    cols: tuple[int, ...]
    group_starts: tuple[str, ...]
    tail: str
    tail_mode: TailMode
    devices: tuple[int, ...]

    @property
    def num_tiles(self) -> int:
        """How many tiles, and so how many devices."""
        return len(self.rows) * len(self.cols)


def even_plan(
    graph: TileGraph,
    rows: int,
    cols: int = 1,
    *,
    group_starts: tuple[str, ...] | None = None,
    tail: str | None = None,
    tail_mode: TailMode = "data",
) -> TilePlan:
    """Tiles of nearly the same size, cut at multiples of the network's strides as far as there are enough.

    Without `group_starts` a group begins wherever a tile would otherwise need more than it holds.
    Without `tail` as much is tiled as can be while every tile has a pixel of every map.
    """
    end = graph.index(tail) if tail is not None else _deepest(graph, rows, cols)
    height, width = graph.nodes[0].sides
    last = [node.sides for node in graph.nodes[1:end]] or [(height, width)]
    plan = TilePlan(
        rows=_even(height, rows, min(sides[0] for sides in last)),
        cols=_even(width, cols, min(sides[1] for sides in last)),
        group_starts=graph.windowed(end) if group_starts is None else group_starts,
        tail=graph.name(end),
        tail_mode=tail_mode,
        devices=tuple(range(rows * cols)),
    )
    check_plan(graph, plan)
    return plan


def check_plan(graph: TileGraph, plan: TilePlan) -> None:
    """Looks whether a plan fits a network.

    Raises:
        JobError: It does not; names the key and what would be right.
    """
    for key, sizes, side in (
        ("rows", plan.rows, graph.nodes[0].sides[0]),
        ("cols", plan.cols, graph.nodes[0].sides[1]),
    ):
        if not sizes or min(sizes) < 1 or sum(sizes) != side:
            raise JobError(f"plan.{key}", list(sizes), f"must be positive and sum to {side}")
    if sorted(plan.devices) != list(range(plan.num_tiles)):
        expected = f"must name each of the ranks 0 to {plan.num_tiles - 1} once"
        raise JobError("plan.devices", list(plan.devices), expected)
    end = graph.index(plan.tail)
    if end > graph.end:
        raise JobError("plan.tail", plan.tail, f"tiling must end at {graph.name(graph.end)}: {graph.reason}")
    if end < 2:
        raise JobError("plan.tail", plan.tail, f"leaves nothing to compute in tiles; {graph.reason}")
    for start in plan.group_starts:
        if not 1 <= graph.index(start) < end:
            raise JobError("plan.group_starts", start, f"must be before the tail, {plan.tail}")
    _check_pixels(graph, plan, end)


def _check_pixels(graph: TileGraph, plan: TilePlan, end: int) -> None:
    for node in graph.nodes[:end]:
        for key, sizes, side in (("rows", plan.rows, node.sides[0]), ("cols", plan.cols, node.sides[1])):
            cuts = [(2 * cut * side + sum(sizes)) // (2 * sum(sizes)) for cut in (0, *accumulate(sizes))]
            if any(a == b for a, b in pairwise(cuts)):
                raise JobError(
                    f"plan.{key}",
                    list(sizes),
                    f"leaves a tile without a pixel of {node.name} ({node.sides[0]}x{node.sides[1]}); "
                    "take fewer tiles or an earlier tail",
                )


def _deepest(graph: TileGraph, rows: int, cols: int) -> int:
    """The last node at which tiling can end so that every map before has a pixel for every tile."""
    for end in range(1, graph.end):
        height, width = graph.nodes[end].sides
        if height < rows or width < cols:
            return end
    return graph.end


def _even(side: int, parts: int, last_side: int) -> tuple[int, ...]:
    """A side in nearly equal parts, at multiples of what one pixel of the smallest map stands for."""
    step = side // last_side if last_side and side % last_side == 0 else gcd(side, max(1, side // last_side))
    step = step if side // step >= parts else 1
    units, rest = divmod(side, step)
    cuts = [units * number // parts * step for number in range(parts)] + [units * step + rest]
    return tuple(b - a for a, b in pairwise(cuts))

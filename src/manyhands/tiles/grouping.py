"""Where groups begin, for given cuts: dynamic programming, exact under the model of `pricing.py`.

Where memory is limited, every choice is kept that is not beaten in both time and memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from manyhands.tiles.graph import TileGraph
from manyhands.tiles.pricing import Grid

__all__ = ["Label", "best_groups", "boundaries"]

MOST_LABELS = 400  # kept at each boundary under memory limits


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
class Label:
    """A way to compute the nodes up to a boundary: its time, its memory by tile, and where groups began."""

    seconds: float
    summed: tuple[float, ...]
    largest: tuple[float, ...]
    starts: tuple[int, ...]

    def beats(self, other: Label) -> bool:
        """Whether the other is no better in anything."""
        pairs = zip((*self.summed, *self.largest), (*other.summed, *other.largest), strict=True)
        return self.seconds <= other.seconds and all(mine <= theirs for mine, theirs in pairs)


def best_groups(
    grid: Grid, ends: Sequence[int], room: Sequence[float], checkpoint: bool
) -> dict[int, list[Label]]:
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
    fronts: dict[int, list[Label]] = {1: [Label(0.0, nothing, nothing, ())]}
    for stop in sorted({*starts[1:], *ends}):
        made = []
        for first in (start for start in starts if start < stop):
            price = grid.group(first, stop)
            more = tuple((price.held if checkpoint else price.kept)[tile] for tile in limited)
            inner = tuple(price.inner[tile] if checkpoint else 0.0 for tile in limited)
            for label in fronts.get(first, ()):
                summed = tuple(a + b for a, b in zip(label.summed, more, strict=True))
                largest = tuple(map(max, label.largest, inner))
                total = [a + b for a, b in zip(summed, largest, strict=True)]
                if all(used <= room[tile] for used, tile in zip(total, limited, strict=True)):
                    seconds = label.seconds + price.seconds(checkpoint)
                    made.append(Label(seconds, summed, largest, (*label.starts, first)))
        fronts[stop] = _unbeaten(made)
    return {end: fronts[end] for end in ends}


def _unbeaten(labels: list[Label]) -> list[Label]:
    labels.sort(key=lambda label: label.seconds)
    front: list[Label] = []
    for label in labels:
        if len(front) == MOST_LABELS:
            break
        if not any(other.beats(label) for other in front):
            front.append(label)
    return front

"""From a plan to boxes: what each tile owns, needs and computes of every map, and what it is sent by whom.

A group is a stack of consecutive nodes. Of the maps that leave it, each tile computes just what it owns;
going back from there, each node must be computed wherever a later one looks, so that tiles of a deep group
overlap. What a group takes from outside (its imports) is put together from the owners' parts before it
begins. The network's input is given with the borders that any group needs, so nothing of it is sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from manyhands.tiles.geometry import Box, Interval, cut_tiles, hull
from manyhands.tiles.graph import Node, TileGraph
from manyhands.tiles.plan import TilePlan, check_plan

__all__ = ["Group", "Regions", "Send", "Share", "conv_sight", "group_regions", "input_box", "regions"]


@dataclass(frozen=True)
class Send:
    """One piece of a map that goes from its owner to a tile that needs it; both are numbers of tiles."""

    source: int
    target: int
    node: int
    box: Box


@dataclass(frozen=True)
class Share:
    """One tile's part in a group.

    Attributes:
        needed: Import -> the box of it that the tile must hold before the group begins.
        computed: Node of the group -> the box of it that the tile computes.
    """

    needed: Mapping[int, Box]
    computed: Mapping[int, Box]


@dataclass(frozen=True)
class Group:
    """Nodes from `first` up to but not including `stop`, computed without a word between tiles.

    Attributes:
        imports: Nodes from before the group (0 is the network's input) that it reads.
        exports: Nodes of the group that later ones read.
        shares: Each tile's part.
        sends: What is sent before the group begins; backward the same pieces return.
    """

    first: int
    stop: int
    imports: tuple[int, ...]
    exports: tuple[int, ...]
    shares: tuple[Share, ...]
    sends: tuple[Send, ...]

    def redundant_pixels(self, owned: Mapping[int, Sequence[Box]], tile: int) -> dict[int, int]:
        """Node -> pixels that the tile computes although another owns them."""
        return {
            node: box.area - box.and_(owned[node][tile]).area
            for node, box in self.shares[tile].computed.items()
        }


@dataclass(frozen=True)
class Regions:
    """A plan in boxes.

    Attributes:
        owned: Node -> each tile's own part; these cover every map once.
        groups: In the order in which they are computed.
        end: The first node of the tail.
        handoff: Nodes of the tiled part (or the input) that the tail reads.
    """

    owned: Mapping[int, tuple[Box, ...]]
    groups: tuple[Group, ...]
    end: int
    handoff: tuple[int, ...]


def regions(graph: TileGraph, plan: TilePlan) -> Regions:
    """Works a plan out.

    Raises:
        JobError: The plan does not fit the network.
    """
    check_plan(graph, plan)
    end = graph.index(plan.tail)
    owned = {
        number: cut_tiles(plan.rows, plan.cols, *node.sides) for number, node in enumerate(graph.nodes[:end])
    }
    starts = sorted({1, *(graph.index(start) for start in plan.group_starts)})
    handoff = graph.handoff(end)
    groups = tuple(
        group_regions(graph, owned, first, stop, set(handoff)) for first, stop in pairwise([*starts, end])
    )
    return Regions(owned, groups, end, handoff)


def input_box(found: Regions, tile: int) -> Box:
    """The part of the network's input that a tile must be given: its own, with the borders it needs."""
    boxes = [group.shares[tile].needed[0] for group in found.groups if 0 in group.imports]
    if 0 in found.handoff:
        boxes.append(found.owned[0][tile])
    return hull(boxes)


def group_regions(
    graph: TileGraph, owned: Mapping[int, tuple[Box, ...]], first: int, stop: int, handoff: set[int]
) -> Group:
    """The nodes from `first` up to `stop` as one group; `handoff` are nodes that the tail reads."""
    inside = range(first, stop)
    imports = sorted({source for node in inside for source in graph.nodes[node].inputs if source < first})
    exports = [node for node in inside if node in handoff or any(r >= stop for r in graph.readers(node))]
    num_tiles = len(owned[0])
    shares = tuple(_share(graph, owned, tile, first, stop, set(exports)) for tile in range(num_tiles))
    sends = tuple(
        Send(source, target, node, box)
        for node in imports
        if node
        for target in range(num_tiles)
        for source in range(num_tiles)
        if source != target and (box := owned[node][source].and_(shares[target].needed[node])).area
    )
    return Group(first, stop, tuple(imports), tuple(exports), shares, sends)


def _share(
    graph: TileGraph,
    owned: Mapping[int, tuple[Box, ...]],
    tile: int,
    first: int,
    stop: int,
    exports: set[int],
) -> Share:
    wanted: dict[int, list[Box]] = {}
    computed: dict[int, Box] = {}
    for number in reversed(range(first, stop)):
        node = graph.nodes[number]
        # A batch norm must have seen all of its tile, or its statistics would miss pixels.
        own = [owned[number][tile]] if number in exports or node.kind == "norm" else []
        computed[number] = box = hull([*wanted.get(number, ()), *own])
        for source in node.inputs:
            wanted.setdefault(source, []).append(seen_box(node, box, graph.nodes[source].sides))
    needed = {source: hull(boxes) for source, boxes in wanted.items() if source < first}
    return Share(needed, dict(sorted(computed.items())))


def seen_box(node: Node, box: Box, sides: tuple[int, int]) -> Box:
    """What a node must see of an input with these sides to compute a box."""
    if node.windows is None:
        return box
    rows, cols = node.windows
    return Box(rows.needs(box.rows, sides[0]), cols.needs(box.cols, sides[1]))


def conv_sight(node: Node, box: Box, sides: tuple[int, int]) -> tuple[Box, tuple[int, int]]:
    """What a convolution is handed to compute a box, and the padding that it may add by itself.

    It can pad both sides of an axis alike. Where only one side is at the image's border, the zeros must be in
    what it is handed.
    """
    assert node.windows is not None
    intervals, paddings = [], []
    for window, wanted, side in zip(node.windows, box, sides, strict=True):
        before, after = window.pads(wanted, side)
        alike = before == after
        intervals.append(window.needs(wanted, side) if alike else window.sees(wanted))
        paddings.append(before if alike else 0)
    return Box(*(Interval(*interval) for interval in intervals)), (paddings[0], paddings[1])

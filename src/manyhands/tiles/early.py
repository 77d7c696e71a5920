"""What of a group's first convolution can be computed before the borders have come.

Where messages travel over a network, a tile would wait for them at the beginning of every group. Instead it
sends its own, computes the *inner* part of the first convolution, all outputs that see nothing beyond the
tile, and after the borders have come the *strips* around it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from manyhands.tiles.geometry import Box, Interval, Window
from manyhands.tiles.graph import TileGraph
from manyhands.tiles.regions import Group, conv_sight

__all__ = ["Early", "find_early"]


@dataclass(frozen=True)
class Early:
    """A convolution in pieces.

    Attributes:
        inner: The outputs that need the tile's own pixels only.
        strips: The others, in up to four pieces.
        sight: All that the convolution is handed, borders and frame included.
        padding: What it adds by itself to that.
        frame: Parts of the sight that lie beyond the image.
    """

    inner: Box
    strips: tuple[Box, ...]
    sight: Box
    padding: tuple[int, int]
    frame: tuple[Box, ...]


def find_early(
    graph: TileGraph, owned: Mapping[int, tuple[Box, ...]], group: Group, tile: int
) -> Early | None:
    """The pieces of the group's first node for a tile; None where it cannot be cut so, or little is inner."""
    node = graph.nodes[group.first]
    if node.kind != "conv" or node.windows is None or node.inputs == (0,):
        return None
    (source,) = node.inputs
    box, own, sides = group.shares[tile].computed[group.first], owned[source][tile], graph.nodes[source].sides
    inner = Box(*map(_inner, node.windows, box, own, sides))
    if inner == box or 2 * inner.area < box.area:
        return None
    sight, padding = conv_sight(node, box, sides)
    strips = _around(inner, box)
    if not all(conv_sight(node, piece, sides)[0].inside(sight) for piece in (inner, *strips)):
        return None
    image = Box(sight.rows.clipped(sides[0]), sight.cols.clipped(sides[1]))
    return Early(inner, strips, sight, padding, _around(image, sight))


def _inner(window: Window, outputs: Interval, own: Interval, side: int) -> Interval:
    """The outputs along one axis that see nothing of the image but what is owned."""
    first, last = outputs.start, outputs.stop - 1
    while first <= last and not window.needs(Interval(first, first + 1), side).inside(own):
        first += 1
    while first <= last and not window.needs(Interval(last, last + 1), side).inside(own):
        last -= 1
    return Interval(first, last + 1)


def _around(inner: Box, box: Box) -> tuple[Box, ...]:
    """The rest of a box: above and below over its whole width, left and right between these."""
    rows, cols = inner
    pieces = (
        Box(Interval(box.rows.start, rows.start), box.cols),
        Box(Interval(rows.stop, box.rows.stop), box.cols),
        Box(rows, Interval(box.cols.start, cols.start)),
        Box(rows, Interval(cols.stop, box.cols.stop)),
    )
    return tuple(piece for piece in pieces if piece.area)

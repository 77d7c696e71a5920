"""Where the pixels of a tile come from: intervals, boxes, windows and cuts, in whole numbers.

The input that the outputs [a, b) of a convolution or pooling see is [a·s − p, (b−1)·s − p + d(k−1) + 1),
clipped to the image; what was clipped off is padding, and nothing else is. All of a network's tiles follow
from that rule, applied from the last layer back to the first (`regions.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

__all__ = ["Box", "Interval", "Window", "cut_tiles", "hull", "scale_cuts"]


class Interval(NamedTuple):
    """The pixels from `start` up to but not including `stop`."""

    start: int
    stop: int

    @property
    def size(self) -> int:
        """How many pixels."""
        return max(0, self.stop - self.start)

    def clipped(self, side: int) -> Interval:
        """The part of it inside an image of this side."""
        return Interval(max(0, self.start), min(side, self.stop))

    def and_(self, other: Interval) -> Interval:
        """What both hold; of no size where they do not meet."""
        start = max(self.start, other.start)
        return Interval(start, max(start, min(self.stop, other.stop)))

    def inside(self, other: Interval) -> bool:
        """Whether the other holds all of it."""
        return self.size == 0 or (other.start <= self.start and self.stop <= other.stop)


class Box(NamedTuple):
    """A rectangle of pixels of a map."""

    rows: Interval
    cols: Interval

    @property
    def area(self) -> int:
        """How many pixels."""
        return self.rows.size * self.cols.size

    @property
    def sides(self) -> tuple[int, int]:
        """Height and width."""
        return self.rows.size, self.cols.size

    def and_(self, other: Box) -> Box:
        """What both hold."""
        return Box(self.rows.and_(other.rows), self.cols.and_(other.cols))

    def inside(self, other: Box) -> bool:
        """Whether the other holds all of it."""
        return self.area == 0 or (self.rows.inside(other.rows) and self.cols.inside(other.cols))

    def within(self, other: Box) -> tuple[slice, slice]:
        """Where it lies in a tensor that holds the other box."""
        rows, cols = self.rows, self.cols
        return (
            slice(rows.start - other.rows.start, rows.stop - other.rows.start),
            slice(cols.start - other.cols.start, cols.stop - other.cols.start),
        )


class Window(NamedTuple):
    """What one output pixel sees along one axis; `padding` is what torch puts before the first pixel."""

    kernel: int = 1
    stride: int = 1
    padding: int = 0
    dilation: int = 1

    def sees(self, output: Interval) -> Interval:
        """The input of an interval of outputs, beyond the image's border where there is padding."""
        start = output.start * self.stride - self.padding
        return Interval(
            start, (output.stop - 1) * self.stride - self.padding + self.dilation * (self.kernel - 1) + 1
        )

    def needs(self, output: Interval, side: int) -> Interval:
        """The pixels of the image among them."""
        return self.sees(output).clipped(side)

    def pads(self, output: Interval, side: int) -> tuple[int, int]:
        """How much of what they see lies before and after the image."""
        seen = self.sees(output)
        return max(0, -seen.start), max(0, seen.stop - side)


def hull(boxes: Iterable[Box]) -> Box:
    """The smallest box that holds all of these."""
    found = list(boxes)
    return Box(
        Interval(min(box.rows.start for box in found), max(box.rows.stop for box in found)),
        Interval(min(box.cols.start for box in found), max(box.cols.stop for box in found)),
    )


def scale_cuts(sizes: Sequence[int], side: int) -> tuple[int, ...]:
    """Where cuts between tiles of these sizes fall in a map of another resolution, both ends included.

    Each cut keeps its place in proportion, rounded half up: a cut at a multiple of a layer's stride falls
    exactly where that pixel's outputs begin.
    """
    total = sum(sizes)
    return tuple((2 * cut * side + total) // (2 * total) for cut in (0, *accumulate(sizes)))


def cut_tiles(rows: Sequence[int], cols: Sequence[int], height: int, width: int) -> tuple[Box, ...]:
    """The boxes of a grid of tiles in a map of this height and width, row after row."""
    lines = [Interval(*ends) for ends in pairwise(scale_cuts(rows, height))]
    columns = [Interval(*ends) for ends in pairwise(scale_cuts(cols, width))]
    return tuple(Box(line, column) for line in lines for column in columns)

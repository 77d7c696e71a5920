"""Maps as a tile holds them: in one piece, or as its own part and what others have sent of theirs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from manyhands.tiles.geometry import Box, hull
from manyhands.tiles.pool import Pool, blank

__all__ = ["Gradient", "Part", "Value", "pack_into", "packed", "unpacked"]


@dataclass
class Part:
    """A tensor and the box of the map that it holds (beyond the image's border, where it has a frame)."""

    box: Box
    data: Tensor

    def view(self, box: Box) -> Tensor:
        """The tensor of a box inside."""
        if box == self.box:
            return self.data
        rows, cols = box.within(self.box)
        return self.data[..., rows, cols]


@dataclass
class Value:
    """A map in parts that do not overlap."""

    parts: list[Part]

    def view(self, box: Box) -> Tensor | None:
        """The tensor of a box, if one part holds it all."""
        for part in self.parts:
            if box.inside(part.box):
                return part.view(box)
        return None

    def whole(self, box: Box, pool: Pool, taken: list[Tensor]) -> Tensor:
        """The tensor of a box, put together if need be, with zeros where no part reaches."""
        found = self.view(box)
        if found is not None:
            return found
        like = self.parts[0].data
        shape = (*like.shape[:-2], box.rows.size, box.cols.size)
        made = Part(box, pool.take(shape, like) if like.dim() == 4 else like.new_empty(shape))
        if like.dim() == 4:
            taken.append(made.data)
        if (
            not box.inside(hull(part.box for part in self.parts))
            or sum(part.box.and_(box).area for part in self.parts) < box.area
        ):
            made.data.zero_()
        for part in self.parts:
            if (shared := part.box.and_(box)).area:
                made.view(shared).copy_(part.view(shared))
        return made.data


@dataclass
class Gradient:
    """The gradient of a map as far as it is known.

    Attributes:
        part: Where, and the numbers.
        ours: Whether they may be overwritten.
        pooled: The memory to give back when they have been read, if it is the pool's.
    """

    part: Part
    ours: bool
    pooled: Tensor | None = None


def packed(pieces: Sequence[Tensor], like: Tensor) -> Tensor:
    """Pieces of maps, and flat tensors, as one flat message."""
    if len(pieces) == 1 and pieces[0].dim() == 1 and pieces[0].is_contiguous():
        return pieces[0]
    flat = torch.empty(sum(piece.numel() for piece in pieces), dtype=like.dtype, device=like.device)
    pack_into(flat, pieces)
    return flat


def pack_into(flat: Tensor, pieces: Sequence[Tensor]) -> None:
    """Writes pieces one after the other into flat memory."""
    start = 0
    for piece in pieces:
        blank(piece.shape, flat[start : start + piece.numel()]).copy_(piece)
        start += piece.numel()


def unpacked(flat: Tensor, shapes: list[tuple[int, ...]]) -> list[Tensor]:
    """The same pieces from a message, as views."""
    pieces, start = [], 0
    for shape in shapes:
        size = 1
        for side in shape:
            size *= side
        pieces.append(blank(shape, flat[start : start + size]))
        start += size
    return pieces

"""Dropout masks that depend on the seed, the step, the layer and a number's place in the whole map alone.

Tiles that compute the same pixel drop the same numbers of it, and so does a single device. Places are hashed
in 32 bits held by 64, since integers that overflow are not the same on every device.
"""

from __future__ import annotations

import torch
from torch import Tensor

from manyhands.seeds import derive
from manyhands.tiles.geometry import Box

__all__ = ["keep_mask"]

_LOW = 0xFFFFFFFF


def keep_mask(
    shape: tuple[int, ...],
    box: Box,
    rate: float,
    key: tuple[int, int, str],
    *,
    first_example: int = 0,
    device: torch.device,
    width: int | None = None,
) -> Tensor:
    """Which numbers of a box are kept.

    Args:
        shape: Of the box's tensor, batch first; the last two are the box's height and width.
        box: Where the box lies in the whole map.
        rate: The part that is dropped.
        key: Seed, step and layer.
        first_example: The number in the whole batch of the tensor's first example.
        device: Where the mask is wanted.
        width: Of the whole map; that of the box if not given.

    Returns:
        A boolean tensor of the shape.
    """
    seed = derive(key[0], "dropout", key[1], key[2]) & _LOW
    count = 1
    for size in shape[1:-2]:
        count *= size
    maps = torch.arange(shape[0] * count, dtype=torch.int64, device=device) + first_example * count
    rows = torch.arange(box.rows.start, box.rows.stop, dtype=torch.int64, device=device)
    cols = torch.arange(box.cols.start, box.cols.stop, dtype=torch.int64, device=device)
    pixels = rows.view(-1, 1) * (box.cols.stop if width is None else width) + cols
    places = (_hashed(_hashed(maps ^ seed)).view(-1, 1) + pixels.view(1, -1)) & _LOW
    kept = _hashed(places) >= round(rate * (_LOW + 1))
    return kept.view(*shape)


def _hashed(x: Tensor) -> Tensor:
    x = ((x ^ (x >> 16)) * 0x21F0AAAD) & _LOW
    x = ((x ^ (x >> 15)) * 0x735A2D97) & _LOW
    return x ^ (x >> 15)

"""Memory that is used again in the next step.

Filling a fresh tensor of tens of megabytes was seen to take ten times as long as filling one that was used
before. The shapes of a tiled step are the same every time, so what one step is done with serves the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

__all__ = ["Pool", "blank"]


class Pool:
    """Hands out tensors in the channels-last layout, and takes them back.

    Args:
        keeps: Whether what comes back is kept. A buffer serves only where its size is wanted again, so where
            little memory is worth more than time it is let go.
    """

    def __init__(self, *, keeps: bool = True) -> None:
        self._keeps = keeps
        self._free: dict[tuple[int, torch.dtype, torch.device], list[Tensor]] = {}

    def take(self, shape: Sequence[int], like: Tensor) -> Tensor:
        """A tensor of this shape with anything in it, of the type and on the device of another."""
        free = self._free.get((prod(shape), like.dtype, like.device))
        flat = free.pop() if free else torch.empty(prod(shape), dtype=like.dtype, device=like.device)
        return blank(shape, flat)

    def give(self, tensor: Tensor) -> None:
        """Takes a whole tensor back that `take` gave and that nobody reads any more."""
        if not self._keeps:
            return
        flat = tensor.permute(0, 2, 3, 1).reshape(-1) if tensor.dim() == 4 else tensor.reshape(-1)
        self._free.setdefault((flat.numel(), flat.dtype, flat.device), []).append(flat)

    def clear(self) -> None:
        """Lets go of all memory that is not in use."""
        self._free.clear()


def blank(shape: Sequence[int], flat: Tensor) -> Tensor:
    """Flat memory as a tensor of this shape, maps in the channels-last layout."""
    if len(shape) != 4:
        return flat.view(*shape)
    batch, channels, height, width = shape
    return flat.view(batch, height, width, channels).permute(0, 3, 1, 2)

"""What every split hands out: a seat for each device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from manyhands.blocks import Layout
from manyhands.settings import Section

__all__ = ["Networks", "Seat", "Split", "SplitSection"]


class SplitSection(Section):
    """How the job is split (``[split]``)."""

    by: str = "homogeneous"


@dataclass(frozen=True)
class Networks:
    """The networks that a job's model section offers.

    Attributes:
        sizes: From the smallest to the largest.
        default: The size of a device that names none.
        state: A size's tensors by name; shapes are all that a split may look at.
    """

    sizes: tuple[str, ...]
    default: str
    state: Callable[[str], Mapping[str, torch.Tensor]]


@dataclass(frozen=True)
class Seat:
    """What one device trains: a size of the network, and the blocks of it that others hold too."""

    size: str
    layout: Layout


@dataclass(frozen=True)
class Split:
    """A seat for each device, and the network that the merged blocks make by themselves, if they do."""

    name: str
    seats: Mapping[str, Seat]
    merged: Seat | None = None

    @property
    def exchanges(self) -> bool:
        """Whether anything is shared at all."""
        return any(seat.layout for seat in self.seats.values())

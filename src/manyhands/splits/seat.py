"""What every split hands out: a seat for each device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from manyhands.blocks import Layout

__all__ = ["Networks", "Seat", "Split"]


@dataclass(frozen=True)
class Networks:
    """The networks that a job's model section offers.

    Attributes:
        sizes: From the smallest to the largest.
        state: A size's tensors by name; shapes are all that a split may look at.
        buffers: Which of them are counted and not trained, such as batch normalisation's statistics.
        by_class: Which of them have rows for each class by itself, class after class, where the network is
            decoupled by class.
    """

    sizes: tuple[str, ...]
    state: Callable[[str], Mapping[str, torch.Tensor]]
    buffers: Callable[[str], frozenset[str]]
    by_class: Callable[[str], frozenset[str]] = lambda _size: frozenset()


@dataclass(frozen=True)
class Seat:
    """What one device trains: a size of the network, and the blocks of it that others hold too."""

    size: str
    layout: Layout


@dataclass(frozen=True)
class Split:
    """A seat for each device.

    Attributes:
        name: The split.
        seats: Device -> what it trains.
        merged: The network that the merged blocks make by themselves, if they do.
        prepared: Whether the blocks were trained before the first round. The first version of one that was
            lost with its last holder then still makes sense.
    """

    name: str
    seats: Mapping[str, Seat]
    merged: Seat | None = None
    prepared: bool = False

    @property
    def exchanges(self) -> bool:
        """Whether anything is shared at all."""
        return any(seat.layout for seat in self.seats.values())

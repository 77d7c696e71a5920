"""The sizes that a job's network comes in: those a family draws itself, or as many widths as a job asks for.

``sizes = 3`` gives small, medium and full, each twice as wide as the one before; a table names the widths
(``sizes = { pocket = 0.125, desk = 1.0 }``); a list picks from a family's own sizes, or names those that a
network given by import path takes as its argument `size`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from torch import nn

from manyhands.errors import JobError

__all__ = ["Tier", "choices", "make_tiers", "readable_sizes"]

NAMES = {
    1: ("full",),
    2: ("small", "full"),
    3: ("small", "medium", "full"),
    4: ("tiny", "small", "medium", "full"),
    5: ("tiny", "small", "medium", "large", "full"),
}
"""What so many sizes are called."""

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")

Sizes = int | tuple[str, ...] | dict[str, float]


@dataclass(frozen=True)
class Tier:
    """One size of a network.

    Attributes:
        name: What a job calls it.
        width: The part of the largest network's channels (or, cut to depth, of its operations) it has.
        drawn: Whether it is a network of its own, not the largest one narrowed.
    """

    name: str
    width: float
    drawn: bool


def readable_sizes(value: Any) -> Any:
    """Refuses what can be no ``sizes`` at all, before the types are looked at.

    Raises:
        ValueError: with what would be right.
    """
    if isinstance(value, bool) or not isinstance(value, int | list | tuple | dict):
        raise ValueError(  # noqa: TRY004 - pydantic turns this one into its message
            'must be a number (3), names (["small", "full"]) or widths ({ small = 0.25, full = 1.0 })'
        )
    if isinstance(value, int):
        if value not in NAMES:
            raise ValueError(f"must be from 1 to {max(NAMES)}; more sizes need names and widths, as a table")
        return value
    if not value:
        raise ValueError("must name at least one size")
    for name in value:
        if not isinstance(name, str) or not NAME.fullmatch(name) or name == "auto":
            raise ValueError(f"{name!r} cannot be the name of a size: letters, digits, _ and -, and not auto")
        if hasattr(nn.ModuleDict(), name):
            raise ValueError(f"{name!r} cannot be the name of a size: torch calls something else so")
    if isinstance(value, dict):
        widths = list(value.values())
        if any(isinstance(width, bool) or not isinstance(width, int | float) for width in widths) or not all(
            0 < width <= 1 for width in widths
        ):
            raise ValueError("every width must be above 0 and at most 1")
        if any(a >= b for a, b in pairwise(widths)):
            raise ValueError("widths must ascend, the smallest size first")
    elif len(set(value)) < len(value):
        raise ValueError("every size needs a name of its own")
    return value


def make_tiers(network: str, sizes: Sizes | None, own: tuple[str, ...] | None) -> tuple[Tier, ...]:
    """The tiers, smallest first.

    Args:
        network: Its name, for messages.
        sizes: What the job says.
        own: The sizes that the family draws; None for a network given by import path.

    Raises:
        JobError: The family has no such sizes.
    """
    if isinstance(sizes, int):
        return _narrowed(NAMES[sizes], [2.0 ** (place + 1 - sizes) for place in range(sizes)])
    if isinstance(sizes, dict):
        return _narrowed(tuple(sizes), list(sizes.values()))
    names = tuple(sizes or own or ("full",))
    if own is not None:
        for name in names:
            if name not in own:
                raise JobError("model.sizes", name, f"{network} comes in {choices(own)}")
        names = tuple(sorted(names, key=own.index))
    return tuple(Tier(name, 2.0 ** (place + 1 - len(names)), True) for place, name in enumerate(names))


def _narrowed(names: tuple[str, ...], widths: list[float]) -> tuple[Tier, ...]:
    return tuple(Tier(name, width, False) for name, width in zip(names, widths, strict=True))


def choices(names: Sequence[str]) -> str:
    """The names in words, the last after "or"."""
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + f" or {names[-1]}"

"""The data that a device holds, its own and copies of others', and the points that stand for sets of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from manyhands.data import Examples
from manyhands.learn.ranking import Indices

__all__ = ["Gathered", "Share", "members_of"]


@dataclass(frozen=True)
class Gathered:
    """Aggregated points: as bytes with a label each, and the places of the examples that each stands for."""

    points: Examples
    members: tuple[Indices, ...]


@dataclass(frozen=True)
class Share:
    """One device's data, its own or a copy of another's.

    Attributes:
        owner: Whose data it is.
        examples: The data.
        gather: Makes its aggregated points.
    """

    owner: str
    examples: Examples
    gather: Callable[[], Gathered]

    @cached_property
    def gathered(self) -> Gathered:
        """Its aggregated points, made when they are first asked for."""
        return self.gather()


def members_of(shares: Sequence[Share]) -> list[Indices]:
    """The sets of all shares, as places in all of their examples in a row."""
    members: list[Indices] = []
    offset = 0
    for share in shares:
        members += [own + offset for own in share.gathered.members]
        offset += len(share.examples)
    return members

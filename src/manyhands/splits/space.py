"""Split by space: all devices compute one network together, each a tile of every feature map (paper 003).

To the rest of a run they are one participant, a tile group, which has all the data and shares nothing. The
same group can be a member of any other split; there, a device's table names it (``group = "shelf"``).
"""

from __future__ import annotations

from manyhands.fleet import Fleet
from manyhands.splits.seat import Networks, Seat, Split
from manyhands.splits.section import SplitSection

__all__ = ["space"]


def space(fleet: Fleet, networks: Networks, _section: SplitSection) -> Split:
    """The one group trains a network by itself."""
    (group,) = fleet.devices
    return Split("space", {group.name: Seat(group.size or networks.sizes[-1], {})})

"""Split by data: each device trains on the part of its data that it has time for (paper 002).

Everyone holds the block ``model``. How much of its data a device goes through is settled before each epoch
(`exchange.pace`), what of it comes first by `learn.selective`.
"""

from __future__ import annotations

from collections.abc import Sequence

from manyhands.blocks import whole_model
from manyhands.fleet import Fleet
from manyhands.splits.seat import Networks, Seat, Split
from manyhands.splits.section import SplitSection

__all__ = ["data", "replica_holders"]


def data(fleet: Fleet, networks: Networks, _section: SplitSection) -> Split:
    """Everyone trains the same network, the smallest that any device is given."""
    size = min((d.size or networks.sizes[-1] for d in fleet.devices), key=networks.sizes.index)
    seat = Seat(size, whole_model(networks.state(size)))
    return Split("data", {d.name: seat for d in fleet.devices}, merged=seat)


def replica_holders(names: Sequence[str], replicas: int) -> dict[str, tuple[str, ...]]:
    """Device -> those who hold a copy of its data: so many that come after it in the fleet, in a circle."""
    count = min(replicas, len(names) - 1)
    return {
        name: tuple(names[(place + step) % len(names)] for step in range(1, count + 1))
        for place, name in enumerate(names)
    }

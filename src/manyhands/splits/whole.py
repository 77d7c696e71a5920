"""The two baselines of every comparison: each device for itself, and all with the same network.

*Isolated*: each device trains the network of its own size on its own data. *Homogeneous* (FedAvg; paper 001,
section 4.1): all train one network together, which must then be the one that the weakest can carry.
"""

from __future__ import annotations

from manyhands.blocks import whole_model
from manyhands.fleet import Fleet
from manyhands.splits.seat import Networks, Seat, Split
from manyhands.splits.section import SplitSection

__all__ = ["homogeneous", "isolated"]


def isolated(fleet: Fleet, networks: Networks, _section: SplitSection) -> Split:
    """Nothing is shared."""
    return Split("isolated", {d.name: Seat(d.size or networks.sizes[-1], {}) for d in fleet.devices})


def homogeneous(fleet: Fleet, networks: Networks, _section: SplitSection) -> Split:
    """Everyone holds the block ``model``, the smallest network that any device trains."""
    size = min((d.size or networks.sizes[-1] for d in fleet.devices), key=networks.sizes.index)
    seat = Seat(size, whole_model(networks.state(size)))
    return Split("homogeneous", {d.name: seat for d in fleet.devices}, merged=seat)

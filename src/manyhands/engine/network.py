"""What a message costs: how long it takes through the links between two devices.

Each device has one link with a rate in each direction, and sends and receives one message after the
other over it. A message between devices that are not neighbours is passed on by those between them.
Two hands on the same device talk for free.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

from manyhands.fleet import Contention, Device, Fleet

__all__ = ["Network"]


class Network:
    """Keeps, per device, until when its link is taken in each direction; co-running work takes its part."""

    def __init__(self, fleet: Fleet, contention: Contention | None = None) -> None:
        self._fleet = fleet
        self._loads = contention.loads if contention is not None else {}
        self._up_free_s: defaultdict[str, float] = defaultdict(float)
        self._down_free_s: defaultdict[str, float] = defaultdict(float)

    def transfer(self, now_s: float, a: str, b: str, nbytes: int) -> float:
        """When a message that `a` sends now has arrived at `b` whole; takes the links until then."""
        if a == b:
            return now_s
        at_s = now_s
        route = self._fleet.path(a, b)
        for sender, receiver in pairwise(route):
            at_s = self._hop(at_s, sender, receiver, nbytes)
        return at_s

    def _hop(self, now_s: float, sender: str, receiver: str, nbytes: int) -> float:
        source, target = self._fleet[sender], self._fleet[receiver]
        latency_s = source.latency_s + target.latency_s
        start_s = max(now_s, self._up_free_s[sender])
        left_s = self._through(source, start_s, nbytes)
        self._up_free_s[sender] = left_s
        # The receiver's link is busy only as long as it needs at its own rate, so that a slow sender
        # does not keep a fast receiver from hearing others.
        heard_s = max(start_s + latency_s, self._down_free_s[receiver])
        taken_in_s = self._through(target, heard_s, nbytes)
        self._down_free_s[receiver] = taken_in_s
        return max(left_s + latency_s, taken_in_s)

    def _through(self, device: Device, start_s: float, nbytes: int) -> float:
        """When so many bytes are through a device's own link."""
        load = self._loads.get(device.name)
        if load is None:
            return start_s + 8 * nbytes / device.bandwidth_bps
        return load.link_free_at(start_s, 8 * nbytes, device.bandwidth_bps)

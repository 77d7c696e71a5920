"""What a message costs: how long it takes through the links between two devices.

Each device has one link with a rate in each direction, and sends and receives one message after the
other over it. A message between devices that are not neighbours is passed on by those between them.
Two hands on the same device talk for free.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

from manyhands.fleet import Fleet

__all__ = ["Network"]


class Network:
    """Keeps, per device, until when its link is taken in each direction."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
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
        left_s = start_s + 8 * nbytes / source.bandwidth_bps
        self._up_free_s[sender] = left_s
        # The receiver's link is busy only as long as it needs at its own rate, so that a slow sender
        # does not keep a fast receiver from hearing others.
        taken_in_s = max(start_s + latency_s, self._down_free_s[receiver]) + 8 * nbytes / target.bandwidth_bps
        self._down_free_s[receiver] = taken_in_s
        return max(left_s + latency_s, taken_in_s)

"""What a message costs: how long it takes through the links between two devices.

Each device has one link with a rate in each direction, and sends and receives one message after the
other over it. A message between devices that are not neighbours is passed on by those between them; one
that will reach a link only later leaves it to others until then. Two hands on the same device talk for free.
"""

from __future__ import annotations

from bisect import insort
from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise

from manyhands.fleet import Contention, Device, Fleet

__all__ = ["Network"]


class _Line:
    """One direction of a link: when it is taken, now and by messages on their way to it."""

    def __init__(self) -> None:
        self._taken_s: list[tuple[float, float]] = []

    def take(self, now_s: float, from_s: float, through: Callable[[float], float]) -> tuple[float, float]:
        """Takes the line for the first time after `from_s` that is long enough; from when until when.

        Args:
            now_s: What was over before is forgotten.
            from_s: When the message reaches the line.
            through: Start -> when the message is through, if nothing is in its way.
        """
        self._taken_s = [taken for taken in self._taken_s if taken[1] > now_s]
        start_s, end_s = from_s, through(from_s)
        for taken_from_s, taken_until_s in self._taken_s:
            if end_s <= taken_from_s:
                break
            if taken_until_s > start_s:
                start_s, end_s = taken_until_s, through(taken_until_s)
        insort(self._taken_s, (start_s, end_s))
        return start_s, end_s


class Network:
    """Keeps, per device, when its link is taken in each direction; co-running work takes its part."""

    def __init__(self, fleet: Fleet, contention: Contention | None = None) -> None:
        self._fleet = fleet
        self._loads = contention.loads if contention is not None else {}
        self._up: defaultdict[str, _Line] = defaultdict(_Line)
        self._down: defaultdict[str, _Line] = defaultdict(_Line)

    def transfer(self, now_s: float, a: str, b: str, nbytes: int) -> float:
        """When a message that `a` sends now has arrived at `b` whole; takes the links until then."""
        if a == b:
            return now_s
        at_s = now_s
        for sender, receiver in pairwise(self._fleet.path(a, b)):
            at_s = self._hop(now_s, at_s, self._fleet[sender], self._fleet[receiver], nbytes)
        return at_s

    def _hop(self, now_s: float, at_s: float, source: Device, target: Device, nbytes: int) -> float:
        latency_s = source.latency_s + target.latency_s
        start_s, left_s = self._up[source.name].take(
            now_s, at_s, lambda from_s: self._through(source, from_s, nbytes)
        )
        # The receiver's link is busy only as long as it needs at its own rate, so that a slow sender
        # does not keep a fast receiver from hearing others.
        _, taken_in_s = self._down[target.name].take(
            now_s, start_s + latency_s, lambda from_s: self._through(target, from_s, nbytes)
        )
        return max(left_s + latency_s, taken_in_s)

    def _through(self, device: Device, start_s: float, nbytes: int) -> float:
        """When so many bytes are through a device's own link."""
        load = self._loads.get(device.name)
        if load is None:
            return start_s + 8 * nbytes / device.bandwidth_bps
        return load.link_free_at(start_s, 8 * nbytes, device.bandwidth_bps)

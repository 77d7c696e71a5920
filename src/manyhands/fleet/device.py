"""One device, the link between two, and the fleet they form.

All figures are plain numbers with their unit in the name; `fleet.tables` makes them of what a job file says.
Nothing here measures anything: `manyhands profile` does that.
"""

from __future__ import annotations

from array import array
from collections import deque
from dataclasses import dataclass
from functools import cached_property

__all__ = ["Device", "Fleet", "Link"]


@dataclass(frozen=True)
class Device:
    """One participant's hardware, and its part of the job.

    Attributes:
        name: Unique in the fleet; also the name of its files and its address.
        kind: The catalogue entry it was made from.
        flops: Sustained training FLOP/s (a multiply and an add are two).
        cores: Processor cores.
        memory_bytes: What a training process can have.
        bandwidth_bps: Bits per second of its own network link, in each direction.
        latency_s: One way, of its own link; a path between two devices adds both.
        active_watts: Power drawn while it trains.
        idle_watts: Power drawn while it waits.
        share: Fraction of all data that it holds; ``None`` means an equal one.
        interaction_rate: How fast it plays, where it learns from a game: its part of the steps of a round.
        torch_device: Where its arithmetic runs.
        size: Its network's size within a family; ``None`` means what the model section says, ``"auto"`` the
            largest that fits it.
        time_budget_s: How long a local phase of a network that is chosen for it may take; ``None``: any time.
        classes: The classes that it trains, by name or number, where the job is split by task; ``None``: all,
            or those that the job assigns.
        executors: Where this participant is a tile group: the devices that compute one network together.
            Its own figures are then theirs taken together.
    """

    name: str
    kind: str
    flops: float
    cores: int
    memory_bytes: int
    bandwidth_bps: float
    latency_s: float
    active_watts: float
    idle_watts: float
    share: float | None = None
    interaction_rate: float = 1.0
    torch_device: str = "cpu"
    size: str | None = None
    time_budget_s: float | None = None
    classes: tuple[int | str, ...] | None = None
    executors: tuple[Device, ...] = ()


@dataclass(frozen=True, slots=True)
class Link:
    """A direct connection, as fast as the slower end and as late as both ends together."""

    a: str
    b: str
    bandwidth_bps: float
    latency_s: float


@dataclass(frozen=True)
class Fleet:
    """Devices and the links between them: one connected graph."""

    devices: tuple[Device, ...]
    links: tuple[Link, ...]

    @cached_property
    def names(self) -> tuple[str, ...]:
        """All names, in the job's order."""
        return tuple(device.name for device in self.devices)

    @property
    def hardware(self) -> tuple[Device, ...]:
        """The devices themselves: of a tile group, those that it is made of."""
        return tuple(part for device in self.devices for part in device.executors or (device,))

    def __getitem__(self, name: str) -> Device:
        return self.devices[self._index[name]]

    def neighbours(self, name: str) -> tuple[str, ...]:
        """Those who have a direct link with `name`, in fleet order."""
        return tuple(self.names[i] for i in self._adjacent[self._index[name]])

    def path(self, a: str, b: str) -> tuple[str, ...]:
        """A shortest route from `a` to `b`, both included; the way back is the same way."""
        if (a, b) in self._linked:
            return a, b
        first, last = sorted((self._index[a], self._index[b]))
        if first not in self._parents:
            self._parents[first] = self._search(first)
        parents = self._parents[first]
        route = [last]
        while route[-1] != first:
            route.append(parents[route[-1]])
        names = tuple(self.names[i] for i in route)
        return names if names[0] == a else names[::-1]

    @cached_property
    def _index(self) -> dict[str, int]:
        return {name: i for i, name in enumerate(self.names)}

    @cached_property
    def _adjacent(self) -> list[list[int]]:
        adjacent: list[list[int]] = [[] for _ in self.devices]
        for link in self.links:
            i, j = self._index[link.a], self._index[link.b]
            adjacent[i].append(j)
            adjacent[j].append(i)
        return [sorted(row) for row in adjacent]

    @cached_property
    def _linked(self) -> frozenset[tuple[str, str]]:
        return frozenset(pair for link in self.links for pair in ((link.a, link.b), (link.b, link.a)))

    @cached_property
    def _parents(self) -> dict[int, array[int]]:
        """Of each source asked for so far: every device's predecessor on the way from there."""
        return {}

    def _search(self, source: int) -> array[int]:
        """Breadth first, neighbours in fleet order, so that ties always fall the same way."""
        parents = array("i", [-1]) * len(self.devices)
        parents[source] = source
        queue, unseen = deque([source]), len(self.devices) - 1
        while unseen:  # a mesh is done after its first turn
            if not queue:
                raise ValueError("a fleet must be one connected graph, and this one is not")
            here = queue.popleft()
            for there in self._adjacent[here]:
                if parents[there] < 0:
                    parents[there] = here
                    unseen -= 1
                    queue.append(there)
        return parents

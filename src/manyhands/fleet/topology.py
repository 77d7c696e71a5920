"""Who is linked with whom: the job file's fleet table, and the graph it asks for.

Graphs come from networkx and are always one connected piece. A link is as fast as its slower end, and its
latency is that of both ends together.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from itertools import pairwise
from typing import Literal

import networkx as nx
from pydantic import Field

from manyhands.errors import JobError
from manyhands.fleet.device import Device, Fleet, Link
from manyhands.fleet.tables import DeviceSection, make_devices
from manyhands.settings import Section

__all__ = ["FleetSection", "make_fleet"]

Edge = tuple[int, int]


class FleetSection(Section):
    """The ``[fleet]`` table: the devices, and how they are connected."""

    device: tuple[DeviceSection, ...] = Field(min_length=1)
    topology: Literal["star", "ring", "mesh", "random_regular", "line", "custom"] = "star"
    hub: str | None = None
    degree: int = 3
    edges: tuple[tuple[str, str], ...] = ()

    @property
    def has_groups(self) -> bool:
        """Whether some of the devices form tile groups."""
        return any(table.group is not None for table in self.device)


ONE_GROUP = "crew"
"""What a tile group of all devices is called where the job does not say."""


def make_fleet(section: FleetSection, *, seed: int, tiled: bool = False) -> Fleet:
    """The devices and links that a job's fleet table describes; a tile group is one of the devices.

    Args:
        section: The table.
        seed: Of the job; only a random graph uses it.
        tiled: All devices form one tile group.

    Raises:
        JobError: Something in the table is not possible.
    """
    devices = make_devices(section.device, _one_group(section) if tiled else None)
    edges = _make_edges(section, devices, seed)
    # Sorted, so that a fleet depends on its graph and not on how the graph was made.
    ordered = sorted({(min(edge), max(edge)) for edge in edges})
    return Fleet(devices, tuple(_make_link(devices[i], devices[j]) for i, j in ordered))


def _one_group(section: FleetSection) -> str:
    """The name of the group that all devices form."""
    names = {table.group: index for index, table in enumerate(section.device)}
    if len(names) > 1:
        (name, index) = next((name, index) for name, index in names.items() if name is not None)
        expected = (
            'with by = "space" all devices are one group: give them all the same, or none; '
            "groups that exchange with others are members of any other split"
        )
        raise JobError(f"fleet.device[{index}].group", name, expected)
    return next(iter(names)) or ONE_GROUP


def _make_link(a: Device, b: Device) -> Link:
    return Link(a.name, b.name, min(a.bandwidth_bps, b.bandwidth_bps), a.latency_s + b.latency_s)


def _make_edges(section: FleetSection, devices: Sequence[Device], seed: int) -> Iterable[Edge]:
    """Pairs of positions in `devices`."""
    names, n = [device.name for device in devices], len(devices)
    _refuse_unread(section)
    if section.topology == "custom":
        return _custom(section.edges, names)
    if section.topology == "star":
        hub = _find_hub(section.hub, devices)
        return [(hub, i) for i in range(n) if i != hub]
    if section.topology == "random_regular":
        return _random_regular(section.degree, n, seed)
    if section.topology == "mesh":
        return list(nx.complete_graph(n).edges)
    if section.topology == "ring" and n > 2:
        return list(nx.cycle_graph(n).edges)
    # A line; and a ring of two is a line of two, because it has no second way round.
    return list(nx.path_graph(n).edges)


def _refuse_unread(section: FleetSection) -> None:
    """A key that the chosen topology would ignore is a mistake, not a wish to be dropped in silence."""
    if section.hub is not None and section.topology != "star":
        expected = f'only topology = "star" has a hub, and this one is "{section.topology}"; leave it out'
        raise JobError("fleet.hub", section.hub, expected)
    if section.edges and section.topology != "custom":
        expected = (
            f'only topology = "custom" reads edges, and this one is "{section.topology}"; leave them out'
        )
        raise JobError("fleet.edges", None, expected)


def _find_hub(hub: str | None, devices: Sequence[Device]) -> int:
    if hub is None:
        return max(range(len(devices)), key=lambda i: devices[i].flops)
    return _find_name("fleet.hub", hub, [device.name for device in devices])


def _find_name(key: str, name: str, names: Sequence[str]) -> int:
    if name in names:
        return names.index(name)
    close = get_close_matches(name, names, n=1)
    hint = f'; did you mean "{close[0]}"?' if close else "."
    raise JobError(key, name, f"no device has this name{hint} The devices are: {_listed(names)}")


def _random_regular(degree: int, n: int, seed: int) -> list[Edge]:
    if n == 1:
        return []
    _check_degree(degree, n)
    rng = random.Random(f"fleet.topology {seed}")
    if degree <= 2:
        # networkx would mostly return several separate rings; a shuffled ring is the connected one.
        order = rng.sample(range(n), n)
        return [*pairwise(order), (order[-1], order[0])]
    while True:
        graph = nx.random_regular_graph(degree, n, seed=rng)
        # Random graphs of degree 3 and more are nearly always connected: seldom a second turn.
        if nx.is_connected(graph):
            return list(graph.edges)


def _check_degree(degree: int, n: int) -> None:
    least = 1 if n == 2 else 2
    feasible = [d for d in range(least, n) if d * n % 2 == 0]
    if degree in feasible:
        return
    reason = ""
    if least <= degree < n:
        reason = f" ({n} devices x {degree} links each is odd, and every link has two ends)"
    expected = f"a connected graph of {n} devices can have degree {_listed(feasible)}{reason}"
    raise JobError("fleet.degree", degree, expected)


def _custom(edges: Sequence[tuple[str, str]], names: Sequence[str]) -> list[Edge]:
    graph = nx.empty_graph(len(names))
    for k, (a, b) in enumerate(edges):
        key = f"fleet.edges[{k}]"
        i, j = _find_name(key, a, names), _find_name(key, b, names)
        if i == j:
            raise JobError(key, f"{a} - {b}", "a link needs two different devices; leave this one out")
        graph.add_edge(i, j)
    parts = [sorted(part) for part in nx.connected_components(graph)]
    if len(parts) > 1:
        apart = " | ".join(_listed([names[i] for i in part], most=4) for part in parts[:6])
        more = f" | {len(parts) - 6} more" if len(parts) > 6 else ""
        raise JobError("fleet.edges", None, f"must be one connected graph; these are apart: {apart}{more}")
    return list(graph.edges)


def _listed(items: Sequence[object], most: int = 12) -> str:
    shown = ", ".join(str(item) for item in items[:most])
    return shown if len(items) <= most else f"{shown}, ... ({len(items)} in all)"

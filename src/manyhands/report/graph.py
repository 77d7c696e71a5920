"""The drawing of a fleet: who is linked with whom, of which kind, with how much of the data.

Beyond 60 devices single ones can no longer be made out; then each kind is one circle with its number of
devices, and the lines between circles say how many links there are.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import networkx as nx

from manyhands.report.look import (
    COLOURS,
    INK,
    MUTED,
    SERIES,
    SMALL,
    SURFACE,
    make_figure,
    style_axes,
    style_legend,
)
from manyhands.report.reading import Result, devices_of, number, plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["topology_figure"]

MOST_NODES = 60
MOST_LABELS = 24
MARKERS = ("o", "s", "D", "^")
LARGEST, SMALLEST = 900.0, 70.0  # areas of nodes, in square points

# A pale ground that keeps a label readable where a line passes behind it.
PATCH = {"boxstyle": "round,pad=0.15", "facecolor": SURFACE, "edgecolor": "none", "alpha": 0.8}

Place = tuple[float, float]


def topology_figure(result: Result) -> Figure | None:
    """Devices and links: the area of a node for its share of the data, its colour for its kind."""
    topology = result.get("topology") or {}
    graph: nx.Graph[str] = nx.Graph()
    graph.add_nodes_from(plain(name) for name in topology.get("nodes") or [])
    graph.add_edges_from((plain(a), plain(b)) for a, b in topology.get("edges") or [])
    if not graph:
        return None
    devices = {plain(device.get("name")): device for device in devices_of(result)}
    kinds = {name: plain(devices.get(name, {}).get("kind", "other")) for name in graph}
    coordinator = plain(topology.get("coordinator"))
    figure = make_figure(9.0, 4.4)
    axes = style_axes(figure.add_subplot(), title="Who is linked with whom", grid="")
    axes.set_axis_off()
    axes.set(xlim=(-3.0, 3.0), ylim=(-1.4, 1.35))  # nodes keep within 1.5 x 1, labels need the rest
    if len(graph) > MOST_NODES:
        _draw_kinds(axes, graph, kinds, coordinator)
    else:
        shares = {name: number(devices.get(name, {}), "share") or 1 / len(graph) for name in graph}
        _draw_devices(axes, graph, kinds, shares, coordinator)
    return figure


def _draw_devices(
    axes: Axes, graph: nx.Graph[str], kinds: Mapping[str, str], shares: Mapping[str, float], coordinator: str
) -> None:
    places = _place(graph)
    for a, b in graph.edges:
        axes.plot(
            *zip(places[a], places[b], strict=True), color=COLOURS["grey"], linewidth=0.9, alpha=0.7, zorder=1
        )
    largest = max(shares.values())
    room = LARGEST * min(1.0, 14 / len(graph))
    areas = {name: max(room * share / largest, SMALLEST) for name, share in shares.items()}
    for kind, (marker, colour) in _styles(kinds.values()).items():
        members = [name for name in graph if kinds[name] == kind]
        x, y = zip(*(places[name] for name in members), strict=True)
        sizes = [areas[name] for name in members]
        axes.scatter(x, y, sizes, c=colour, marker=marker, edgecolors=SURFACE, linewidths=1.5, zorder=3)
        axes.scatter(
            [],
            [],
            60,
            c=colour,
            marker=marker,
            label=kind if len(members) == 1 else f"{kind} × {len(members)}",
        )
    if coordinator in places:
        ring: dict[str, Any] = {"facecolors": "none", "edgecolors": INK, "linewidths": 1.8}
        axes.scatter(*places[coordinator], (math.sqrt(areas[coordinator]) + 9) ** 2, zorder=2, **ring)
        axes.scatter([], [], 90, label="coordinator", **ring)
    if len(graph) <= MOST_LABELS:
        for name, place in places.items():
            _label(axes, name, place, areas[name])
    style_legend(
        axes.figure.legend(loc="outside right upper", title="area: share of the data", alignment="left")
    )


def _label(axes: Axes, name: str, place: Place, area: float) -> None:
    """Beside the node, on the side that faces away from the middle."""
    x, y = place
    away = math.hypot(x, y)
    dx, dy = (x / away, y / away) if away > 0.05 else (0.0, -1.0)
    gap = math.sqrt(area) / 2 + 8
    text = name if len(name) <= 26 or "\n" in name else f"{name[:14]}…{name[-11:]}"
    side = "center" if abs(dx) < 0.12 else ("left" if dx > 0 else "right")
    axes.annotate(
        text,
        place,
        (dx * gap, dy * gap),
        textcoords="offset points",
        ha=side,
        va="center" if side != "center" else ("bottom" if dy > 0 else "top"),
        color=INK,
        fontsize=SMALL,
        bbox=PATCH,
        zorder=4,
    )


def _draw_kinds(axes: Axes, graph: nx.Graph[str], kinds: Mapping[str, str], coordinator: str) -> None:
    members = Counter(kinds[name] for name in graph)
    links = Counter(tuple(sorted((kinds[a], kinds[b]))) for a, b in graph.edges)
    places = dict(zip(members, _circle(len(members)), strict=True))
    most_links, most_members = max(links.values(), default=1), max(members.values())
    for (a, b), count in links.items():
        if a != b:
            ends = zip(places[a], places[b], strict=True)
            width = 1 + 7 * count / most_links
            axes.plot(*ends, color=COLOURS["grid"], linewidth=width, solid_capstyle="butt", zorder=1)
            middle = ((places[a][0] + places[b][0]) / 2, (places[a][1] + places[b][1]) / 2)
            axes.annotate(
                f"{count:,}",
                middle,
                ha="center",
                va="center",
                color=INK,
                fontsize=SMALL,
                zorder=2,
                bbox=PATCH,
            )
    for kind, (marker, colour) in _styles(kinds.values()).items():
        area = 2.2 * max(LARGEST * members[kind] / most_members, SMALLEST)
        axes.scatter(
            *places[kind], area, c=colour, marker=marker, edgecolors=SURFACE, linewidths=1.5, zorder=3
        )
        text = f"{kind} × {members[kind]:,}"
        if within := links.get((kind, kind)):
            text += f"\n{within:,} links among them"
        if kinds.get(coordinator) == kind:
            text += "\nwith the coordinator"
        _label(axes, text, places[kind], area)
    note = (
        f"{len(graph):,} devices, {len(graph.edges):,} links; numbers on lines count the links between kinds"
    )
    axes.annotate(note, (0, 0), xycoords="axes fraction", color=MUTED, fontsize=SMALL, va="top")


def _styles(kinds: Iterable[str]) -> dict[str, tuple[str, str]]:
    """A marker and a colour for each kind, all different."""
    return dict(zip(dict.fromkeys(kinds), itertools.cycle(itertools.product(MARKERS, SERIES)), strict=False))


def _place(graph: nx.Graph[str]) -> dict[str, Place]:
    """Where to draw each node: the shape that the graph has, centred on zero."""
    names, degrees = list(graph), dict(graph.degree)
    n, hub = len(names), max(degrees, key=lambda name: degrees[name])
    if n == 1:
        return {names[0]: (0.0, 0.0)}
    if n > 2 and len(graph.edges) == n - 1 == degrees[hub]:
        others = [name for name in names if name != hub]
        return {hub: (0.0, 0.0), **dict(zip(others, _circle(n - 1, below=False), strict=True))}
    if degrees[hub] == 2 and nx.is_connected(graph):
        return dict(zip(_walk(graph, names), _circle(n), strict=True))
    if n <= MOST_LABELS:  # a circle leaves every label its place; beyond, there are none
        return dict(zip(names, _circle(n), strict=True))
    return {name: (1.5 * float(x), float(y)) for name, (x, y) in nx.kamada_kawai_layout(graph).items()}


def _walk(graph: nx.Graph[str], names: Sequence[str]) -> list[str]:
    """A ring or a line from one end to the other (a ring, from its first node)."""
    ends = [name for name in names if graph.degree[name] == 1]
    return list(nx.dfs_preorder_nodes(graph, ends[0] if ends else names[0]))


def _circle(n: int, *, below: bool = True) -> list[Place]:
    """Clockwise from the top, wider than high; without `below`, nobody straight below the middle."""
    start = math.pi / 2 - (math.pi / n if not below and n % 2 == 0 else 0)
    angles = [start - 2 * math.pi * i / n for i in range(n)]
    return [(1.5 * math.cos(angle), math.sin(angle)) for angle in angles]

from __future__ import annotations

from collections import Counter
from itertools import combinations
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.exchange.mixing import (
    Pair,
    block_graphs,
    mixing_rows,
    mixing_weights,
    num_averagings,
    ring_order,
)
from manyhands.fleet import DeviceSection, Fleet, FleetSection, make_fleet


def fleet_of(count: int, topology: str, **section: Any) -> Fleet:
    devices = tuple(DeviceSection(kind="laptop", name=f"d{i}") for i in range(count))
    return make_fleet(FleetSection(device=devices, topology=topology, **section), seed=0)


def holding(block: str, *numbers: int) -> dict[str, tuple[str, ...]]:
    return {f"d{i}": (block,) for i in numbers}


@st.composite
def graphs(draw: st.DrawFn, least: int = 2, most: int = 8) -> list[tuple[int, int]]:
    """The edges of a connected graph: a tree, and some more."""
    count = draw(st.integers(least, most))
    tree = [(draw(st.integers(0, i - 1)), i) for i in range(1, count)]
    more = draw(st.lists(st.sampled_from(list(combinations(range(count), 2))), max_size=6))
    return sorted({*tree, *more})


# Who exchanges a block with whom.


def test_holders_that_are_linked_exchange_over_their_links_alone() -> None:
    ring = block_graphs(fleet_of(5, "ring"), holding("model", 0, 1, 2, 3, 4))
    assert ring == {"model": [("d0", "d1"), ("d0", "d4"), ("d1", "d2"), ("d2", "d3"), ("d3", "d4")]}
    part = block_graphs(fleet_of(5, "ring"), holding("task/3", 3, 4, 0))
    assert part == {"task/3": [("d0", "d4"), ("d3", "d4")]}


def test_each_block_has_a_graph_of_its_own() -> None:
    holds = {"d0": ("stem",), "d1": ("stem", "task/3"), "d2": ("task/3", "alone"), "d3": ()}
    graphs = block_graphs(fleet_of(4, "line"), holds)
    assert graphs == {"stem": [("d0", "d1")], "task/3": [("d1", "d2")], "alone": []}


def test_pieces_are_joined_where_they_are_nearest() -> None:
    # 0 1 . 3 . . 6: the way from {0, 1} to 3 has two hops, from 3 to 6 three.
    graph = block_graphs(fleet_of(7, "line"), holding("b", 0, 1, 3, 6))["b"]
    assert graph == [("d0", "d1"), ("d1", "d3"), ("d3", "d6")]


def test_no_way_is_longer_than_it_must_be() -> None:
    # Each of the holders 0 to 3 hangs on a device of its own, 4 to 7; 4, 5 and 6 are linked with 7.
    edges = (("d0", "d4"), ("d1", "d5"), ("d2", "d6"), ("d3", "d7"), ("d4", "d7"), ("d5", "d7"), ("d6", "d7"))
    fleet = fleet_of(8, "custom", edges=edges)
    graph = block_graphs(fleet, holding("b", 0, 1, 2, 3))["b"]
    assert graph == [("d0", "d3"), ("d1", "d3"), ("d2", "d3")]
    assert {len(fleet.path(a, b)) - 1 for a, b in graph} == {3}


def test_the_leaves_of_a_star_average_without_its_hub_and_none_of_them_with_all() -> None:
    star = fleet_of(101, "star", hub="d50")
    graph = block_graphs(star, holding("b", *(i for i in range(101) if i != 50)))["b"]
    assert len(graph) == 99
    assert nx.is_connected(nx.Graph(graph))
    assert nx.diameter(nx.Graph(graph)) <= 12
    assert max(Counter(end for pair in graph for end in pair).values()) <= 3
    assert graph[:3] == [("d0", "d1"), ("d0", "d2"), ("d1", "d3")]


@pytest.mark.parametrize("topology", ["star", "ring"])
def test_a_thousand_devices_are_no_matter(topology: str) -> None:
    fleet = fleet_of(1000, topology)
    holds = holding("odd", *range(1, 1000, 2)) | holding("even", *range(0, 1000, 2))
    for graph in block_graphs(fleet, holds).values():
        assert nx.is_connected(nx.Graph(graph))
        assert len(graph) == 499
    assert not fleet._parents  # no search of the fleet from each device


@given(graphs(least=3), st.data())
def test_a_graph_has_all_direct_links_and_a_smallest_tree_between_the_pieces(
    links: list[tuple[int, int]], data: st.DataObject
) -> None:
    count = 1 + max(b for _, b in links)
    named = tuple((f"d{a}", f"d{b}") for a, b in links)
    fleet = fleet_of(count, "custom", edges=named)
    holders = data.draw(st.sets(st.integers(0, count - 1), min_size=1))
    graph = block_graphs(fleet, holding("b", *holders))["b"]

    held = {f"d{i}" for i in holders}
    joined = nx.Graph(graph)
    joined.add_nodes_from(held)
    assert set(joined) == held
    assert nx.is_connected(joined)
    direct = {pair for pair in named if held.issuperset(pair)}
    extra = [pair for pair in graph if pair not in direct]
    assert direct <= set(graph)
    assert len(set(graph)) == len(graph)

    between = nx.Graph()
    between.add_nodes_from(held)
    between.add_edges_from(direct)
    assert len(extra) == nx.number_connected_components(between) - 1
    hops = dict(nx.all_pairs_shortest_path_length(nx.Graph(named)))
    whole = nx.Graph()
    whole.add_weighted_edges_from((a, b, hops[a][b]) for a, b in combinations(sorted(held), 2))
    smallest = nx.minimum_spanning_tree(whole).size("weight")
    # The pieces themselves have trees of one hop an edge.
    assert sum(hops[a][b] for a, b in extra) == smallest - (len(held) - 1 - len(extra))


def test_the_order_in_which_holders_are_named_does_not_matter() -> None:
    fleet = fleet_of(9, "star", hub="d8")
    holds = holding("b", *range(8))
    assert block_graphs(fleet, holds) == block_graphs(fleet, dict(reversed(holds.items())))


# With what weight.


def matrix(pairs: list[Pair], num_examples: dict[str, int]) -> np.ndarray:
    names = list(num_examples)
    rows = mixing_weights(pairs, num_examples)
    mixing = np.zeros((len(names), len(names)))
    for device, row in rows.items():
        for peer, weight in row.items():
            mixing[names.index(device), names.index(peer)] = weight
    return mixing + np.diag(1 - mixing.sum(axis=1))


def test_with_equal_data_these_are_the_metropolis_weights() -> None:
    rows = mixing_weights([("a", "b"), ("b", "c")], {"a": 7, "b": 7, "c": 7})
    assert rows == {"a": {"b": 1 / 3}, "b": {"a": 1 / 3, "c": 1 / 3}, "c": {"b": 1 / 3}}


def test_a_device_with_more_data_listens_less() -> None:
    rows = mixing_weights([("a", "b")], {"a": 30, "b": 10})
    assert rows == {"a": {"b": pytest.approx(1 / 6)}, "b": {"a": 0.5}}


def test_a_device_without_data_still_passes_on() -> None:
    rows = mixing_weights([("a", "b"), ("b", "c")], {"a": 1, "b": 0, "c": 1})
    assert rows["a"]["b"] == pytest.approx(1 / 3)


@given(graphs(), st.data())
def test_averaging_keeps_the_mean_over_the_data_and_leads_to_it(
    edges: list[tuple[int, int]], data: st.DataObject
) -> None:
    count = 1 + max(b for _, b in edges)
    amounts = data.draw(st.lists(st.integers(1, 500), min_size=count, max_size=count))
    values = np.array(data.draw(st.lists(st.floats(-9, 9), min_size=count, max_size=count)))
    pairs = [(f"d{a}", f"d{b}") for a, b in edges]
    mixing = matrix(pairs, {f"d{i}": amount for i, amount in enumerate(amounts)})
    pi = np.array(amounts) / sum(amounts)

    assert (mixing >= 0).all()
    assert (np.diag(mixing) > 0).all()
    assert mixing.sum(axis=1) == pytest.approx(np.ones(count))
    flow = pi[:, None] * mixing
    assert flow == pytest.approx(flow.T)
    assert pi @ (mixing @ values) == pytest.approx(pi @ values, abs=1e-9)
    assert np.linalg.matrix_power(mixing, 2**20) @ values == pytest.approx(
        np.full(count, pi @ values), abs=1e-6
    )


# How often, until all agree.


@given(graphs(), st.data())
def test_the_fewest_averagings_that_shrink_every_disagreement(
    edges: list[tuple[int, int]], data: st.DataObject
) -> None:
    count = 1 + max(b for _, b in edges)
    amounts = data.draw(st.lists(st.integers(1, 20), min_size=count, max_size=count))
    tolerance = data.draw(st.floats(0.001, 0.9))
    num_examples = {f"d{i}": amount for i, amount in enumerate(amounts)}
    pairs = [(f"d{a}", f"d{b}") for a, b in edges]
    often = num_averagings(mixing_weights(pairs, num_examples), num_examples, tolerance)

    # By brute force: what is left of the worst disagreement, in the norm that weighs each device by its data.
    pi, mixing = np.array(amounts) / sum(amounts), matrix(pairs, num_examples)
    assert worst(np.linalg.matrix_power(mixing, often) - pi, pi) <= tolerance * (1 + 1e-6)
    if often > 1:
        assert worst(np.linalg.matrix_power(mixing, often - 1) - pi, pi) > tolerance * (1 - 1e-6)


def worst(errors: np.ndarray, pi: np.ndarray) -> float:
    root = np.sqrt(pi)
    return float(np.linalg.norm(root[:, None] * errors / root, ord=2))


def test_a_mesh_of_equals_agrees_at_once_and_a_long_line_late() -> None:
    equal = dict.fromkeys((f"d{i}" for i in range(10)), 7)
    often = {}
    for topology in ("mesh", "ring", "line"):
        pairs = block_graphs(fleet_of(10, topology), holding("b", *range(10)))["b"]
        often[topology] = num_averagings(mixing_weights(pairs, equal), equal, 0.01)
    assert often["mesh"] == 1
    assert 1 < often["ring"] < often["line"]


def test_a_shrinking_to_exactly_the_tolerance_is_enough() -> None:
    # Two devices of equal data agree at once; this pair keeps 0.1 of its disagreement.
    weights = {"a": {"b": 0.45}, "b": {"a": 0.45}}
    assert [num_averagings(weights, {"a": 1, "b": 1}, t) for t in (0.1, 0.01, 0.001, 0.0099)] == [1, 2, 3, 3]


def test_one_device_agrees_with_itself() -> None:
    assert num_averagings({"a": {}}, {"a": 3}, 0.5) == 1


# Along which ring.


@given(st.permutations(range(7)))
def test_a_ring_of_links_is_followed_in_whatever_order_its_devices_are_named(order: list[int]) -> None:
    links = tuple((f"d{a}", f"d{b}") for a, b in zip(order, [*order[1:], order[0]], strict=True))
    fleet = fleet_of(7, "custom", edges=links)
    found = ring_order(fleet)
    assert sorted(found) == sorted(fleet.names)
    assert all(b in fleet.neighbours(a) for a, b in zip(found, [*found[1:], found[0]], strict=True))


@pytest.mark.parametrize(
    ("topology", "num_far"), [("ring", 0), ("mesh", 0), ("line", 1), ("star", 4), ("random_regular", 2)]
)
def test_a_ring_follows_links_where_it_can(topology: str, num_far: int) -> None:
    fleet = fleet_of(6, topology)
    order = ring_order(fleet)
    assert sorted(order) == sorted(fleet.names)
    far = [a for a, b in zip(order, [*order[1:], order[0]], strict=True) if b not in fleet.neighbours(a)]
    assert len(far) <= num_far


def test_rows_are_a_device_s_own_view_of_every_block() -> None:
    holds = {"d0": ("stem",), "d1": ("stem", "task/3"), "d2": ("task/3", "alone")}
    rows = mixing_rows(fleet_of(3, "line"), holds, {"d0": 30, "d1": 10, "d2": 10})
    assert rows == {
        "d0": {"stem": {"d1": pytest.approx(1 / 6)}},
        "d1": {"stem": {"d0": 0.5}, "task/3": {"d2": 0.5}},
        "d2": {"task/3": {"d1": 0.5}, "alone": {}},
    }

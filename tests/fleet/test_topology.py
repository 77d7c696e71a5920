import time
from itertools import pairwise

import networkx as nx
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from manyhands.errors import JobError
from manyhands.fleet import Fleet, FleetSection, make_fleet

TOPOLOGIES = ["star", "ring", "mesh", "line", "random_regular"]


def fleet_of(n, topology, *, seed=0, **keys):
    section = FleetSection(device=[{"kind": "laptop", "name": "d", "count": n}], topology=topology, **keys)
    return make_fleet(section, seed=seed)


def graph_of(fleet: Fleet):
    graph = nx.Graph()
    graph.add_nodes_from(fleet.names)
    graph.add_edges_from((link.a, link.b) for link in fleet.links)
    return graph


def refusal(n, topology, **keys):
    with pytest.raises(JobError) as caught:
        fleet_of(n, topology, **keys)
    return str(caught.value)


@st.composite
def fleets(draw):
    n = draw(st.integers(1, 24))
    topology = draw(st.sampled_from([*TOPOLOGIES, "custom"]))
    keys = {}
    if topology == "random_regular":
        keys["degree"] = draw(st.integers(2, 6))
        assume(n == 1 or (keys["degree"] < n and keys["degree"] * n % 2 == 0))
    if topology == "custom" and n > 1:
        tree = [(f"d-{i + 1}", f"d-{draw(st.integers(1, i))}") for i in range(1, n)]
        numbers = st.integers(1, n)
        extra = draw(st.lists(st.tuples(numbers, numbers).filter(lambda p: p[0] != p[1]), max_size=5))
        keys["edges"] = [*tree, *((f"d-{i}", f"d-{j}") for i, j in extra)]
    return fleet_of(n, topology, seed=draw(st.integers(0, 99)), **keys)


@given(fleets())
def test_every_fleet_is_one_connected_simple_graph(fleet):
    graph = graph_of(fleet)
    assert nx.is_connected(graph)
    assert len(graph.edges) == len(fleet.links)
    assert nx.number_of_selfloops(graph) == 0


@given(fleets())
def test_neighbours_are_symmetric_and_in_fleet_order(fleet):
    graph = graph_of(fleet)
    for name in fleet.names:
        around = fleet.neighbours(name)
        assert set(around) == set(graph[name])
        assert list(around) == sorted(around, key=fleet.names.index)
        assert all(name in fleet.neighbours(other) for other in around)


@given(fleets(), st.data())
def test_paths_are_shortest_and_the_same_both_ways(fleet, data):
    a, b = data.draw(st.sampled_from(fleet.names)), data.draw(st.sampled_from(fleet.names))
    path = fleet.path(a, b)
    assert (path[0], path[-1]) == (a, b)
    assert all(there in fleet.neighbours(here) for here, there in pairwise(path))
    assert len(path) - 1 == nx.shortest_path_length(graph_of(fleet), a, b)
    assert fleet.path(b, a) == path[::-1]


@pytest.mark.parametrize(
    ("topology", "degrees"),
    [
        ("star", [4, 1, 1, 1, 1]),
        ("ring", [2, 2, 2, 2, 2]),
        ("mesh", [4, 4, 4, 4, 4]),
        ("line", [1, 2, 2, 2, 1]),
    ],
)
def test_a_topology_has_its_shape(topology, degrees):
    fleet = fleet_of(5, topology)
    assert [len(fleet.neighbours(name)) for name in fleet.names] == degrees


@pytest.mark.parametrize("topology", [*TOPOLOGIES, "custom"])
def test_one_device_is_a_fleet(topology):
    fleet = fleet_of(1, topology)
    assert fleet.links == ()
    assert fleet.path("d", "d") == ("d",)
    assert fleet.neighbours("d") == ()


def test_a_ring_of_two_is_one_link():
    assert len(fleet_of(2, "ring").links) == 1


def test_a_link_has_the_slower_bandwidth_and_both_latencies():
    tables = [
        {"kind": "laptop", "bandwidth_bps": 100.0, "latency_s": 0.25},
        {"kind": "phone-low", "bandwidth_bps": 7.0, "latency_s": 0.5},
    ]
    (link,) = make_fleet(FleetSection(device=tables), seed=0).links
    assert (link.a, link.b, link.bandwidth_bps, link.latency_s) == ("laptop", "phone-low", 7.0, 0.75)


def test_the_fastest_device_is_the_hub_and_the_first_of_equals():
    tables = [{"kind": "phone-low"}, {"kind": "laptop", "count": 2}, {"kind": "raspberry-pi-4"}]
    fleet = make_fleet(FleetSection(device=tables), seed=0)
    assert fleet.neighbours("laptop-1") == ("phone-low", "laptop-2", "raspberry-pi-4")
    chosen = make_fleet(FleetSection(device=tables, hub="phone-low"), seed=0)
    assert chosen.neighbours("laptop-1") == ("phone-low",)
    assert chosen.path("laptop-1", "laptop-2") == ("laptop-1", "phone-low", "laptop-2")


def test_a_random_graph_follows_the_seed_only():
    first, again, other = (fleet_of(20, "random_regular", seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first != other
    assert {len(first.neighbours(name)) for name in first.names} == {3}


def test_degree_two_is_a_single_ring_however_many_devices():
    fleet = fleet_of(101, "random_regular", degree=2)
    assert nx.is_connected(graph_of(fleet))
    assert {len(fleet.neighbours(name)) for name in fleet.names} == {2}


@pytest.mark.parametrize(
    ("n", "degree", "says"),
    [
        (2, 3, "fleet.degree = 3: a connected graph of 2 devices can have degree 1"),
        (5, 3, "fleet.degree = 3: a connected graph of 5 devices can have degree 2, 4 (5 devices x 3 links"),
        (6, 1, "fleet.degree = 1: a connected graph of 6 devices can have degree 2, 3, 4, 5"),
        (6, 6, "fleet.degree = 6: a connected graph of 6 devices can have degree 2, 3, 4, 5"),
        (4, -1, "fleet.degree = -1: a connected graph of 4 devices can have degree 2, 3"),
    ],
)
def test_a_degree_that_cannot_be_is_refused_with_those_that_can(n, degree, says):
    assert refusal(n, "random_regular", degree=degree).startswith(says)


def test_a_hub_that_does_not_exist_is_refused():
    text = refusal(3, "star", hub="d-4")
    assert text.startswith('fleet.hub = "d-4": no device has this name; did you mean "d-')
    assert text.endswith("The devices are: d-1, d-2, d-3")


def test_an_edge_to_an_unknown_device_is_refused():
    text = refusal(2, "custom", edges=[("d-1", "d-2"), ("d-1", "x")])
    assert text == 'fleet.edges[1] = "x": no device has this name. The devices are: d-1, d-2'


def test_an_edge_to_itself_is_refused():
    text = refusal(2, "custom", edges=[("d-1", "d-1")])
    assert text.startswith('fleet.edges[0] = "d-1 - d-1": a link needs two different devices')


def test_a_graph_in_pieces_is_refused_with_the_pieces():
    text = refusal(5, "custom", edges=[("d-1", "d-2"), ("d-3", "d-4")])
    assert text == "fleet.edges: must be one connected graph; these are apart: d-1, d-2 | d-3, d-4 | d-5"
    many = refusal(100, "custom", edges=[(f"d-{i}", f"d-{i + 1}") for i in range(1, 50)])
    assert "d-1, d-2, d-3, d-4, ... (50 in all) | d-51 |" in many
    assert many.endswith("45 more")


def test_keys_that_the_topology_would_ignore_are_refused():
    assert refusal(3, "ring", hub="d-1").startswith('fleet.hub = "d-1": only topology = "star" has a hub')
    assert refusal(3, "star", edges=[("d-1", "d-2")]).startswith("fleet.edges: only topology = ")


def test_a_thousand_devices_are_quick():
    started = time.perf_counter()
    for topology in ("star", "ring", "random_regular"):
        fleet = fleet_of(1000, topology)
        ends = fleet.names[::50]
        assert all(fleet.path(a, b)[-1] == b for a in ends for b in fleet.names)
    assert time.perf_counter() - started < 20

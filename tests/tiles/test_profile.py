"""Profiles: times between measured heights, the file, and what is counted for absent devices."""

from __future__ import annotations

import pytest
from crew import Crew
from hypothesis import given
from hypothesis import strategies as st
from link_case import link_of
from torch import nn

from manyhands.errors import RunError
from manyhands.models.cost import cost_of
from manyhands.tiles import read_graph
from manyhands.tiles.measure import measure_profile
from manyhands.tiles.profile import (
    NOTHING,
    Curve,
    LayerTimes,
    LinkProfile,
    Profile,
    predicted_profile,
    read_profile,
)
from manyhands.tiles.works import operation_works

NETWORK = nn.Sequential(
    nn.Conv2d(3, 4, 3, padding=1),
    nn.BatchNorm2d(4),
    nn.LeakyReLU(0.1, inplace=True),
    nn.MaxPool2d(2),
    nn.Conv2d(4, 8, 3, padding=1, stride=2),
    nn.Flatten(),
    nn.Linear(8 * 4 * 4, 5),
)
SHAPE = (3, 16, 16)


def test_a_curve_goes_through_its_points_and_between_them():
    curve = Curve((2.0, 4.0, 8.0), (1.0, 3.0, 4.0))
    assert [curve.at(rows) for rows in (2, 3, 4, 6, 8)] == [1.0, 2.0, 3.0, 3.5, 4.0]
    assert curve.at(12) == 5.0
    assert curve.at(0) == 0.0
    assert curve.at(1) == 0.5  # the line would say 0
    assert Curve((2.0, 4.0), (3.0, 4.0)).at(1) == 2.5


def test_a_curve_of_one_point_is_proportional():
    assert Curve((4.0,), (2.0,)).at(2) == 1.0


@pytest.mark.parametrize(("rows", "seconds"), [((), ()), ((1.0, 2.0), (1.0,)), ((2.0, 2.0), (1.0, 1.0))])
def test_a_curve_that_is_none_is_refused(rows, seconds):
    with pytest.raises(ValueError, match="curve"):
        Curve(rows, seconds)


@given(
    st.lists(st.tuples(st.floats(0.1, 50), st.floats(0, 10)), min_size=1, max_size=5),
    st.floats(0, 100),
    st.floats(0, 100),
)
def test_time_is_never_negative_and_rises_where_it_was_measured_to(steps, a, b):
    rows, seconds = [], []
    for width, more in steps:
        rows.append((rows[-1] if rows else 0) + width)
        seconds.append((seconds[-1] if seconds else 0) + more)
    curve = Curve(tuple(rows), tuple(seconds))
    low, high = sorted((a, b))
    assert 0 <= curve.at(low) <= curve.at(high) + 1e-9 * (1 + curve.at(high))


def test_a_profile_is_read_as_it_was_saved(tmp_path):
    times = LayerTimes(Curve((1.0, 2.5), (0.1, 0.2)), weight_gradient=Curve((1.0,), (0.3,)))
    profile = Profile("pi", {"stem.conv1": times}, 8, 3e9, predicted=True)
    profile.save(tmp_path / "folder" / "pi.json")
    assert read_profile(tmp_path / "folder" / "pi.json") == profile
    assert read_profile(tmp_path / "none.json") is None


@pytest.mark.parametrize("text", ["", "{", '{"device": 3}'])
def test_a_damaged_profile_is_named(tmp_path, text):
    file = tmp_path / "pi.json"
    file.write_text(text)
    with pytest.raises(RunError, match=r"pi\.json: not a profile"):
        read_profile(file)


def test_a_slower_device_takes_longer_for_everything():
    times = LayerTimes(*(Curve((1.0, 2.0), (s, 2 * s)) for s in (1.0, 2.0, 3.0)))
    slow = Profile("a", {"x": times}, 1, copy_bps=6.0).scaled(3).layers["x"]
    assert (slow.forward.at(2), slow.input_gradient.at(1), slow.weight_gradient.at(2)) == (6.0, 6.0, 18.0)


def test_works_count_the_operations_of_the_network():
    graph = read_graph(NETWORK, SHAPE)
    works = operation_works(graph, 3)
    cost = cost_of(NETWORK, SHAPE)
    assert [work.name for work in works] == list(graph.names[1:])
    assert sum(work.forward_flops for work in works) == 3 * cost.forward_flops
    assert sum(work.weight_bytes for work in works) == 4 * cost.parameters
    # Neither is the gradient of the images wanted, nor are there weights to have one in a pooling.
    assert [work.has_input_gradient for work in works][:2] == [False, True]
    assert works[3].map_bytes == 4 * 3 * 4 * (16 * 16 + 8 * 8)


def test_a_predicted_profile_is_the_slower_of_arithmetic_and_memory():
    works = operation_works(read_graph(NETWORK, SHAPE), 1)
    conv = works[0]
    slow_core = predicted_profile("a", works, 1, flops_per_s=1e3, memory_bytes_per_s=1e30)
    slow_memory = predicted_profile("a", works, 1, flops_per_s=1e30, memory_bytes_per_s=1e3, call_s=2.0)
    assert slow_core.predicted
    assert slow_core.layers["0"].forward.at(16) == pytest.approx(conv.forward_flops / 1e3)
    assert slow_core.layers["0"].forward.at(8) == pytest.approx(conv.forward_flops / 2e3)
    assert slow_core.layers["0"].input_gradient.at(8) == 0  # of the images
    assert slow_core.layers["4"].input_gradient.at(4) > 0
    assert slow_core.layers["3"].weight_gradient.at(4) == 0  # a pooling has no weights
    expected = 2.0 + (conv.weight_bytes + conv.map_bytes) / 1e3
    assert slow_memory.layers["0"].forward.at(16) == pytest.approx(expected)


def test_every_layer_is_measured():
    graph = read_graph(NETWORK, SHAPE)
    before = {name: value.clone() for name, value in NETWORK.state_dict().items()}
    profile = measure_profile("here", graph, 2, heights=(0.5, 1.0), num_passes=1, least_s=1e-4)
    assert set(profile.layers) == set(graph.names[1:])
    assert profile.layers["0"].forward.rows == (8.0, 16.0)
    assert profile.layers["4"].forward.rows == (2.0, 4.0)
    assert all(
        second > 0
        for second in profile.layers["0"].weight_gradient.seconds + profile.layers["0"].forward.seconds
    )
    assert profile.layers["1"].input_gradient.at(8) > 0
    assert profile.layers["2"] == LayerTimes(NOTHING)  # computed together with the norm before it
    assert profile.layers["6"].weight_gradient.at(1) > 0
    assert profile.group_s >= 0
    assert profile.copy_bps > 0
    assert not profile.predicted
    assert all(value.equal(before[name]) for name, value in NETWORK.state_dict().items())


def test_a_message_takes_latency_and_bytes():
    assert LinkProfile(0.5, 100.0).seconds(50) == 1.0


def test_all_ranks_are_told_the_same_of_their_links(tmp_path):
    crew = Crew(3, tmp_path)  # an odd one out has nobody to speak to, and must not hang the others
    try:
        for size in (2, 3):
            found = crew(size, link_of)
            assert len(set(found)) == 1
            assert all(latency_s > 0 and bytes_per_s > 0 for latency_s, bytes_per_s in found)
    finally:
        crew.stop()

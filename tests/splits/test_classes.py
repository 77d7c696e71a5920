"""Who trains which classes: rings, meshes, by speed; and what is refused."""

from __future__ import annotations

from collections import Counter

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.errors import JobError
from manyhands.splits.classes import by_speed, check_classes, classes_text, mesh, read_classes, ring


def names(count):
    return [f"d{i}" for i in range(count)]


def classes(count):
    return [f"c{i}" for i in range(count)]


def shared(held):
    """How many classes each device has in common with the next around the ring."""
    return [len({*own} & {*held[(i + 1) % len(held)]}) for i, own in enumerate(held)]


# Rings.


def test_the_papers_four_devices_with_five_classes_each():
    assert [set(own) for own in ring(4, 10, overlap=2, each=5)] == [
        {9, 0, 1, 2, 3},
        {2, 3, 4, 5, 6},
        {5, 6, 7, 8, 9},
        {8, 9, 0, 1, 2},
    ]


@pytest.mark.parametrize(("num_devices", "num_classes", "overlap"), [(4, 100, 25), (10, 10, 1), (6, 12, 2)])
def test_with_n_overlap_each_class_is_with_two_devices_and_neighbours_share_n(
    num_devices, num_classes, overlap
):
    held = ring(num_devices, num_classes, overlap)
    assert set(Counter(c for own in held for c in own).values()) == {2}
    assert shared(held) == [overlap] * num_devices
    assert {len(own) for own in held} == {2 * overlap}


def test_what_is_left_over_goes_to_the_last_device():
    held = ring(3, 11, overlap=3)  # three steps of three leave two
    assert [len(own) for own in held] == [6, 6, 8]
    assert shared(held) == [3, 3, 3]
    check_classes(held, names(3), classes(11))


def test_without_an_overlap_every_class_is_with_two_devices_at_least():
    for num_devices in range(2, 12):
        held = ring(num_devices, 10)
        counts = Counter(c for own in held for c in own)
        assert set(counts) == set(range(10))
        assert min(counts.values()) >= 2


@given(st.integers(1, 12), st.integers(2, 40), st.integers(1, 20), st.integers(2, 40))
def test_a_ring_that_there_is_covers_all_classes_and_is_one_piece(num_devices, num_classes, overlap, each):
    try:
        held = ring(num_devices, num_classes, overlap, each)
    except JobError:
        return
    check_classes(held, names(num_devices), classes(num_classes))
    assert all(list(own) == sorted(set(own)) for own in held)


def test_too_few_devices_are_told_how_many_it_takes():
    with pytest.raises(JobError, match=r"overlap = 2: 4 devices take 8 of 12 classes .* take 6 devices"):
        ring(4, 12, overlap=2)
    check_classes(ring(6, 12, overlap=2), names(6), classes(12))


def test_impossible_rings_are_refused():
    with pytest.raises(JobError, match=r"classes_per_device = 2: must be more than the 2 that are shared"):
        ring(4, 10, overlap=2, each=2)
    with pytest.raises(JobError, match=r"overlap = 11: neighbours cannot share more classes than there are"):
        ring(4, 10, overlap=11)


# Meshes.


@pytest.mark.parametrize("num_devices", [2, 3, 4, 5])
def test_in_a_mesh_every_two_devices_share_classes(num_devices):
    held = mesh(num_devices, 10)
    check_classes(held, names(num_devices), classes(10))
    assert set(Counter(c for own in held for c in own).values()) == {2}
    assert all(set(a) & set(b) for i, a in enumerate(held) for b in held[:i])


def test_a_mesh_of_many_devices_and_few_classes_is_still_one_piece():
    held = mesh(6, 6)
    check_classes(held, names(6), classes(6))  # which refuses parts that have nothing in common
    assert [len(own) for own in held] == [2] * 6


# By speed.


def seconds(held, speeds, examples, alone, own):
    holders = Counter(c for o in held for c in o)
    return [
        sum(examples[c] / holders[c] for c in o) * (alone + own * len(o)) / speed
        for o, speed in zip(held, speeds, strict=True)
    ]


@given(
    st.lists(st.floats(0.5, 50), min_size=2, max_size=9),
    st.lists(st.integers(1, 500), min_size=2, max_size=25),
)
def test_by_speed_each_class_is_with_two_and_all_are_joined(speeds, examples):
    held = by_speed(speeds, examples, 100.0, 3.0, [1 / len(speeds)] * len(speeds))
    check_classes(held, names(len(speeds)), classes(len(examples)))
    assert min(Counter(c for own in held for c in own).values()) >= 2


def test_by_speed_a_fast_device_has_more_classes_and_phases_take_about_as_long():
    speeds, examples = [1.0, 1.0, 4.0, 8.0], [100] * 20
    held = by_speed(speeds, examples, 100.0, 1.0, [0.25] * 4)
    assert len(held[0]) < len(held[2]) < len(held[3])
    took = seconds(held, speeds, examples, 100.0, 1.0)
    assert max(took) / min(took) < 2
    equal = seconds(ring(4, 20), speeds, examples, 100.0, 1.0)
    assert max(took) < max(equal)  # than with as many classes for each


def test_by_speed_twins_are_joined_too():
    held = by_speed([1.0] * 4, [10, 10], 1.0, 1.0)  # fewer classes than pairs of devices
    check_classes(held, names(4), classes(2))
    graph = nx.Graph((i, -1 - c) for i, own in enumerate(held) for c in own)
    assert nx.is_connected(graph)


# What cannot be.


def test_a_class_that_nobody_holds_is_named():
    with pytest.raises(JobError, match=r"nobody holds class frog and 1 more"):
        check_classes([(0,), (0,)], ["a", "b"], ["cat", "frog", "ship"])


def test_parts_that_have_nothing_in_common_are_named():
    with pytest.raises(JobError, match=r"could never agree: a, b \| c, d"):
        check_classes([(0, 1), (1,), (2, 3), (3,)], list("abcd"), classes(4))


def test_a_device_without_a_class_is_named():
    with pytest.raises(JobError, match=r"b has none"):
        check_classes([(0,), ()], ["a", "b"], ["cat"])


@given(st.sets(st.integers(0, 99), min_size=1))
def test_classes_are_written_in_short_and_read_again(held):
    own = tuple(sorted(held))
    assert read_classes(classes_text(own)) == own


def test_runs_are_written_as_runs():
    assert classes_text((0, 1, 2, 3, 9)) == "0-3,9"
    assert classes_text((7,)) == "7"


def test_by_speed_a_device_with_a_greater_share_of_a_class_has_fewer_classes():
    held = by_speed([1.0] * 4, [100] * 20, 100.0, 1.0, [0.7, 0.1, 0.1, 0.1])
    assert len(held[0]) < min(len(own) for own in held[1:])

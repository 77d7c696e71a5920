"""A convolution in pieces: the inner one sees nothing of others, together they are all of it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from manyhands.tiles import even_plan, read_graph
from manyhands.tiles.early import find_early
from manyhands.tiles.pricing import Setting, predict
from manyhands.tiles.profile import LinkProfile, predicted_profile
from manyhands.tiles.regions import conv_sight, regions
from manyhands.tiles.works import operation_works

SIDE = 24


def two_convs(**given_):
    return read_graph(nn.Sequential(nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, **given_)), (3, SIDE, SIDE))


def pixels(box):
    return {(row, col) for row in range(*box.rows) for col in range(*box.cols)}


@given(
    st.integers(1, 5),
    st.integers(1, 2),
    st.integers(0, 2),
    st.integers(1, 2),
    st.sampled_from([(2, 1), (1, 3), (2, 2), (3, 2)]),
)
@settings(max_examples=60, deadline=None)
def test_pieces_are_the_whole_and_the_inner_one_sees_only_what_is_owned(
    kernel, stride, padding, dilation, grid
):
    padding = min(padding, kernel // 2)
    graph = two_convs(kernel_size=kernel, stride=stride, padding=padding, dilation=dilation)
    found = regions(graph, even_plan(graph, *grid, group_starts=("1",), tail="output"))
    group, node, sides = found.groups[1], graph.nodes[2], graph.nodes[1].sides
    for tile in range(len(group.shares)):
        early = find_early(graph, found.owned, group, tile)
        if early is None:
            continue
        box = group.shares[tile].computed[2]
        pieces = (early.inner, *early.strips)
        assert sum(piece.area for piece in pieces) == box.area
        assert set().union(*map(pixels, pieces)) == pixels(box)
        sight = conv_sight(node, early.inner, sides)[0]
        inside = {(row, col) for row, col in pixels(sight) if 0 <= row < sides[0] and 0 <= col < sides[1]}
        assert inside <= pixels(found.owned[1][tile])
        beyond = pixels(early.sight) - {(row, col) for row in range(sides[0]) for col in range(sides[1])}
        assert set().union(*map(pixels, early.frame)) == beyond


@pytest.mark.parametrize(("kernel", "strips"), [(3, 1), (1, None)])
def test_only_what_looks_over_the_border_is_cut(kernel, strips):
    graph = two_convs(kernel_size=kernel, padding=kernel // 2)
    found = regions(graph, even_plan(graph, 2, group_starts=("1",), tail="output"))
    early = find_early(graph, found.owned, found.groups[1], 0)
    assert (early and len(early.strips)) == strips


def test_borders_that_travel_behind_the_inner_part_are_not_waited_for():
    graph = two_convs(kernel_size=3, padding=1)
    profile = predicted_profile("d", operation_works(graph, 1), 1, flops_per_s=1e3, memory_bytes_per_s=1e15)
    plan = even_plan(graph, 2, group_starts=("1",), tail="output")
    far = Setting(graph, (profile,) * 2, LinkProfile(0.1, 1e6), 1)
    near = replace(far, link=LinkProfile(0.1, 1e6, through_memory=True))
    # Both ways there is more to compute than the message takes; in shared memory only on the way back.
    assert predict(far, plan).parts["halos"] == pytest.approx(profile.group_s, abs=1e-9)
    assert predict(near, plan).parts["halos"] == pytest.approx(0.1, rel=0.1)

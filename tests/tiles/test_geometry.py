"""Intervals against a walk over every pixel, tiles that cover once, pieces that make up what is needed."""

from __future__ import annotations

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import nn

from manyhands.errors import JobError
from manyhands.tiles import Box, Interval, TilePlan, Window, even_plan, input_box, read_graph, regions
from manyhands.tiles.geometry import cut_tiles, scale_cuts

SIDES = st.integers(1, 40)


@given(st.integers(1, 5), st.integers(1, 4), st.integers(0, 4), st.integers(1, 3), SIDES, st.data())
def test_an_interval_sees_what_its_pixels_see(kernel, stride, padding, dilation, side, data):
    window = Window(kernel, stride, padding, dilation)
    start = data.draw(st.integers(0, 12))
    stop = data.draw(st.integers(start + 1, 14))
    taps = [
        place * stride - padding + tap * dilation for place in range(start, stop) for tap in range(kernel)
    ]
    seen = window.sees(Interval(start, stop))
    assert (seen.start, seen.stop) == (min(taps), max(taps) + 1)
    needed = window.needs(Interval(start, stop), side)
    assert (needed.start, needed.stop) == (max(0, seen.start), min(side, seen.stop))
    before, after = window.pads(Interval(start, stop), side)
    if needed.size:
        assert before + needed.size + after == seen.size


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), SIDES)
def test_cuts_keep_their_order_and_both_ends(sizes, side):
    cuts = scale_cuts(sizes, side)
    assert cuts[0] == 0
    assert cuts[-1] == side
    assert list(cuts) == sorted(cuts)
    assert scale_cuts(sizes, sum(sizes)) == tuple(sum(sizes[:n]) for n in range(len(sizes) + 1))


@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=4),
    st.lists(st.integers(1, 9), min_size=1, max_size=4),
    SIDES,
    SIDES,
)
def test_tiles_cover_every_pixel_once(rows, cols, height, width):
    count = torch.zeros(height, width)
    for box in cut_tiles(rows, cols, height, width):
        count[slice(*box.rows), slice(*box.cols)] += 1
    assert (count == 1).all()


def chain(*layers):
    return nn.Sequential(*layers)


def deep():
    """Looks far over the border: with narrow tiles, past the neighbour."""
    return chain(
        nn.Conv2d(2, 3, 5, padding=2),
        nn.ReLU(),
        nn.Conv2d(3, 3, 4, padding=1),
        nn.MaxPool2d(2),
        nn.Conv2d(3, 3, 3, padding=2, dilation=2),
        nn.Conv2d(3, 2, 3, stride=2, padding=1),
    )


@given(
    st.lists(st.integers(2, 9), min_size=2, max_size=5),
    st.lists(st.integers(4, 9), min_size=1, max_size=3),
    st.sets(st.integers(1, 6)),
)
def test_own_pixels_and_pieces_make_up_what_is_needed(rows, cols, starts):
    shape = (2, sum(rows) * 4, sum(cols) * 4)
    graph = read_graph(deep(), shape)
    names = tuple(graph.names[number] for number in sorted(starts))
    tiles = len(rows) * len(cols)
    plan = TilePlan(
        tuple(4 * r for r in rows), tuple(4 * c for c in cols), names, "output", "data", tuple(range(tiles))
    )
    try:
        found = regions(graph, plan)
    except JobError:  # tiles too narrow for the last map
        assume(False)
    for group in found.groups:
        for tile, share in enumerate(group.shares):
            for node, box in share.needed.items():
                if node == 0:
                    assert box.inside(input_box(found, tile))
                    continue
                pieces = [found.owned[node][tile].and_(box)]
                pieces += [s.box for s in group.sends if s.target == tile and s.node == node]
                assert sum(piece.area for piece in pieces) == box.area
                assert all(piece.inside(box) for piece in pieces)
        for send in group.sends:
            assert send.box.inside(found.owned[send.node][send.source])
        for node in group.exports:
            assert all(group.shares[t].computed[node] == found.owned[node][t] for t in range(tiles))


def test_a_halo_deeper_than_a_neighbour_comes_from_several():
    graph = read_graph(chain(nn.ReLU(), nn.Conv2d(1, 1, 7, padding=3)), (1, 8, 8))
    plan = TilePlan((2, 2, 2, 2), (8,), ("1",), "output", "data", (0, 1, 2, 3))
    group = regions(graph, plan).groups[1]
    assert {s.source for s in group.sends if s.target == 0} == {1, 2}
    assert next(s.box for s in group.sends if s.target == 0 and s.source == 2) == Box(
        Interval(4, 5), Interval(0, 8)
    )


def test_all_in_one_group_computes_the_overlap_and_sends_nothing():
    graph = read_graph(deep(), (2, 32, 32))
    fused = regions(graph, even_plan(graph, 2, group_starts=()))
    single = regions(graph, even_plan(graph, 2, group_starts=graph.names[1:]))
    assert [len(group.sends) for group in fused.groups] == [0]
    assert sum(fused.groups[0].redundant_pixels(fused.owned, 0).values()) > 0
    assert all(sum(g.redundant_pixels(single.owned, 0).values()) == 0 for g in single.groups)


class Odd(nn.Conv2d):
    def forward(self, input):
        return super().forward(input) * input.shape[-1]


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        (Odd(2, 2, 3, padding=1), "1 is a Odd, which is not computed in tiles"),
        (nn.Conv2d(2, 2, 3, padding=1, padding_mode="reflect"), "1 pads with 'reflect'"),
        (nn.Conv2d(2, 2, 1, padding=1), "1 has outputs that see nothing but padding"),
        (nn.ConvTranspose2d(2, 2, 2), "1 is a ConvTranspose2d"),
        (nn.GroupNorm(1, 2), "1 is a GroupNorm"),
        (nn.Upsample(scale_factor=2), "1 is a Upsample"),
        (nn.utils.parametrizations.weight_norm(nn.Conv2d(2, 2, 1)), "1 is a ParametrizedConv2d"),
        (nn.Softmax(1), "1 is a Softmax"),
    ],
)
def test_what_cannot_be_tiled_exactly_is_named(layer, reason):
    graph = read_graph(chain(nn.Conv2d(1, 2, 3), layer, nn.Conv2d(2, 2, 1)), (1, 12, 12))
    assert graph.reason.startswith(reason)
    assert graph.name(graph.end) == "1"
    with pytest.raises(JobError, match=r'^plan\.tail = "output": tiling must end at 1: 1 '):
        even_plan(graph, 2, tail="output")


def test_hooks_and_overwritten_inputs_are_named():
    hooked = nn.Conv2d(1, 1, 1)
    hooked.register_forward_hook(lambda *_: None)
    assert "has hooks" in read_graph(chain(nn.ReLU(), hooked), (1, 4, 4)).reason

    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.relu = nn.Conv2d(1, 1, 1), nn.ReLU(inplace=True)

        def forward(self, x):
            y = self.conv(x)
            return self.relu(y) + y

    assert "relu overwrites its input, which others read" in read_graph(Twice(), (1, 4, 4)).reason


def test_a_network_that_cannot_be_read_is_refused():
    class Branches(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(1, 1, 1)

        def forward(self, x):
            return self.conv(x) if x.sum() > 0 else -x

    with pytest.raises(JobError, match=r"torch\.fx cannot read it"):
        read_graph(Branches(), (1, 4, 4))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": (8, 8)}, r"^plan\.rows = \[8, 8\]: must be positive and sum to 32"),
        ({"devices": (0, 0)}, r"^plan\.devices = \[0, 0\]: must name each of the ranks 0 to 1 once"),
        ({"tail": "nowhere"}, "no operation of this name"),
        ({"group_starts": ("output",)}, r"^plan\.group_starts"),
        ({"rows": (31, 1)}, "leaves a tile without a pixel of 3"),
    ],
)
def test_plans_that_do_not_fit_are_refused(change, message):
    graph = read_graph(deep(), (2, 32, 32))
    given = {
        "rows": (16, 16),
        "cols": (32,),
        "group_starts": (),
        "tail": "output",
        "tail_mode": "data",
        "devices": (0, 1),
    }
    with pytest.raises(JobError, match=message):
        regions(graph, TilePlan(**(given | change)))

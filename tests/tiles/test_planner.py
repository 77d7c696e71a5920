"""The planner against its own model: exact groups, kept limits, and never worse than doing without it."""

from __future__ import annotations

from itertools import combinations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from manyhands.errors import JobError
from manyhands.tiles import TilePlan, check_plan, even_plan, read_graph
from manyhands.tiles.cutting import balance
from manyhands.tiles.grouping import best_groups, boundaries
from manyhands.tiles.planner import grid_shapes, make_plan
from manyhands.tiles.pricing import Grid, Setting, predict
from manyhands.tiles.profile import Curve, LayerTimes, LinkProfile, Profile, predicted_profile
from manyhands.tiles.works import operation_works

SIDE = 24


def chain(kinds: str, dense: bool = False) -> nn.Sequential:
    """A small network: c is a convolution, w one that widens, b a batch norm, p a pooling."""
    layers: list[nn.Module] = []
    channels = 3
    for kind in kinds:
        if kind == "p":
            layers.append(nn.MaxPool2d(2))
        elif kind == "b":
            layers += [nn.BatchNorm2d(channels), nn.ReLU()]
        else:
            width = channels * 2 if kind == "w" else channels
            layers.append(
                nn.Conv2d(channels, width, 1 if kind == "w" else 3, padding=0 if kind == "w" else 1)
            )
            channels = width
    if dense:
        side = SIDE // 2 ** kinds.count("p")
        layers += [nn.Flatten(), nn.Linear(channels * side * side, 4)]
    return nn.Sequential(*layers)


def setting_of(
    kinds: str,
    *,
    speeds: tuple[float, ...] = (1.0, 1.0),
    link: LinkProfile | None = None,
    memory: tuple[float, ...] = (),
    batch_size: int = 2,
) -> Setting:
    graph = read_graph(chain(kinds), (3, SIDE, SIDE))
    works = operation_works(graph, batch_size)
    profiles = tuple(
        predicted_profile(f"d{i}", works, batch_size, flops_per_s=1e9 * speed, memory_bytes_per_s=1e9 * speed)
        for i, speed in enumerate(speeds)
    )
    return Setting(graph, profiles, link or LinkProfile(1e-4, 1e8), batch_size, memory)


kinds_of_chains = st.text("cwb", min_size=1, max_size=2).map(lambda body: "c" + body + "pcc")
links = st.builds(LinkProfile, st.floats(1e-6, 1e-3), st.floats(1e5, 1e10))
speeds_of_two_or_three = st.lists(st.floats(0.2, 5), min_size=2, max_size=3).map(tuple)


def all_groupings(setting: Setting, end: int) -> list[tuple[str, ...]]:
    starts = [setting.graph.name(number) for number in boundaries(setting.graph, end) if number > 1]
    return [chosen for count in range(len(starts) + 1) for chosen in combinations(starts, count)]


@given(kinds_of_chains, speeds_of_two_or_three, links, st.booleans(), st.floats(0.3, 1.5))
@settings(max_examples=10, deadline=None)
def test_groups_are_the_best_of_all(kinds, speeds, link, checkpoint, tightness):
    setting = setting_of(kinds, speeds=speeds, link=link)
    plan = even_plan(setting.graph, len(speeds), tail="output", tail_mode="one")
    every = [
        predict(setting, TilePlan(plan.rows, plan.cols, groups, "output", "one", plan.devices), checkpoint)
        for groups in all_groupings(setting, setting.graph.end)
    ]
    grid = Grid(setting, plan.rows, plan.cols, plan.devices)
    tail = grid.tail(setting.graph.end, "one")
    limits = [tightness * max(p.memory_bytes[t] for p in every) for t in range(len(speeds))]
    for most in ([float("inf")] * len(speeds), limits):
        fit = [p for p in every if all(b <= m for b, m in zip(p.memory_bytes, most, strict=True))]
        room = [m - b for m, b in zip(most, tail.memory_bytes, strict=True)]
        labels = best_groups(grid, [setting.graph.end], room, checkpoint)[setting.graph.end]
        assert bool(labels) == bool(fit)
        if fit:
            best = min(p.step_s for p in fit)
            assert labels[0].seconds + tail.seconds == pytest.approx(best, rel=1e-9)


@given(kinds_of_chains, speeds_of_two_or_three, links)
@settings(max_examples=6, deadline=None)
def test_a_plan_is_never_worse_than_none_or_all_fused(kinds, speeds, link):
    setting = setting_of(kinds, speeds=speeds, link=link)
    found = make_plan(setting)
    check_plan(setting.graph, found.plan)
    assert found.step_s == pytest.approx(predict(setting, found.plan).step_s)
    assert sum(found.plan.rows) == sum(found.plan.cols) == SIDE
    assert sorted(found.plan.devices) == list(range(len(speeds)))
    plan = found.plan
    for groups, mode in product((None, ()), ("one", "data")):
        even = even_plan(setting.graph, len(speeds), group_starts=groups, tail_mode=mode)
        assert found.step_s <= predict(setting, even).step_s * (1 + 1e-9)
        starts = setting.graph.windowed(setting.graph.index(plan.tail)) if groups is None else ()
        here = TilePlan(plan.rows, plan.cols, starts, plan.tail, mode, plan.devices)
        assert found.step_s <= predict(setting, here).step_s * (1 + 1e-9)


@given(kinds_of_chains, st.floats(0.2, 1.2), st.sampled_from([None, True, False]))
@settings(max_examples=6, deadline=None)
def test_memory_limits_are_kept(kinds, part, checkpoint):
    free = setting_of(kinds, speeds=(1.0, 2.0), link=LinkProfile(1e-3, 1e7))
    wanted = make_plan(free).memory_bytes
    limits = (wanted[0] * part, wanted[1])
    setting = setting_of(kinds, speeds=(1.0, 2.0), link=LinkProfile(1e-3, 1e7), memory=limits)
    try:
        found = make_plan(setting, checkpoint=checkpoint)
    except JobError:
        assert part < 1 or checkpoint
        return
    assert all(used <= limit for used, limit in zip(found.memory_bytes, limits, strict=True))
    assert checkpoint is None or found.checkpoint is checkpoint


def test_recomputing_is_taken_only_where_memory_asks_for_it():
    kinds = "cbcbcbpcbcc"
    free = make_plan(setting_of(kinds), tails=["output"])
    assert not free.checkpoint
    assert free.parts["recompute"] == 0
    lean = make_plan(setting_of(kinds), tails=["output"], checkpoint=True)
    assert max(lean.memory_bytes) < max(free.memory_bytes)
    limit = max(lean.memory_bytes)
    tight = make_plan(setting_of(kinds, memory=(limit, limit)), tails=["output"])
    assert tight.checkpoint
    assert tight.parts["recompute"] > 0
    assert max(tight.memory_bytes) <= limit


def test_a_slow_link_fuses_and_a_fast_one_does_not():
    fast = make_plan(setting_of("ccccc", link=LinkProfile(0.0, 1e15)), tails=["output"])
    slow = make_plan(setting_of("ccccc", link=LinkProfile(1.0, 1e15)), tails=["output"])
    assert len(slow.plan.group_starts) == 0
    assert len(fast.plan.group_starts) == 4


def test_a_faster_device_gets_more_rows():
    found = make_plan(setting_of("cbcbc", speeds=(1.0, 3.0), link=LinkProfile(1e-7, 1e12)), shapes=[(2, 1)])
    assert found.plan.rows[1] > 2 * found.plan.rows[0]


def test_time_that_is_not_proportional_to_rows_is_believed():
    setting = setting_of("cc", link=LinkProfile(0.0, 1e15))
    graph = setting.graph
    # The second device takes a second however few its rows: it had better have many.
    flat = LayerTimes(Curve((1.0, float(SIDE)), (1.0, 1.0)))
    slope = LayerTimes(Curve((1.0, float(SIDE)), (1.0, float(SIDE))))
    profiles = tuple(
        Profile(name, dict.fromkeys(graph.names[1:], times), 2) for name, times in (("a", slope), ("b", flat))
    )
    found = make_plan(Setting(graph, profiles, LinkProfile(0.0, 1e15), 2), shapes=[(2, 1)])
    assert found.plan.rows[0] <= 2


def test_a_tail_that_cannot_be_tiled_is_priced():
    graph = read_graph(chain("cbpc", dense=True), (3, SIDE, SIDE))
    works = operation_works(graph, 4)
    profile = predicted_profile("d", works, 4, flops_per_s=1e9, memory_bytes_per_s=1e9)
    found = make_plan(Setting(graph, (profile,) * 2, LinkProfile(1e-6, 1e9), 4))
    assert graph.index(found.plan.tail) <= graph.end < len(graph.names)
    assert found.parts["tail"] > 0
    assert found.parts["handoff"] > 0
    every = [
        make_plan(Setting(graph, (profile,) * 2, LinkProfile(1e-6, 1e9), 4), tail_modes=[mode])
        for mode in ("one", "data")
    ]
    assert found.step_s == min(other.step_s for other in every)


def test_more_tiles_than_rows_are_refused():
    setting = setting_of("cpppc", speeds=(1.0,) * 5)
    with pytest.raises(JobError, match="every tile a pixel"):
        make_plan(setting, tails=["output"], shapes=[(5, 1)])


def test_grids():
    assert list(grid_shapes(6)) == [(6, 1), (3, 2), (2, 3), (1, 6)]
    assert list(grid_shapes(1)) == [(1, 1)]


@given(st.integers(1, 12), st.lists(st.tuples(st.floats(0.1, 9), st.floats(0, 5)), min_size=1, max_size=3))
@settings(max_examples=60, deadline=None)
def test_balance_is_the_best_of_all(total, lines):
    times = [lambda units, a=slope, b=base: b + a * units for slope, base in lines]
    found = balance(total, times)
    shares = [s for s in product(range(1, total + 1), repeat=len(times)) if sum(s) == total]
    if not shares:
        assert found is None
        return
    assert found is not None
    assert sum(found) == total

    def last(units):
        return max(time(u) for time, u in zip(times, units, strict=True))

    assert last(found) == pytest.approx(min(map(last, shares)), rel=1e-6)


def test_balance_keeps_to_what_devices_can_hold():
    times = [float, lambda units: 10.0 * units]
    assert balance(10, times, [4, 10]) == (4, 6)
    assert balance(10, times, [4, 5]) is None

"""Split by capacity: which blocks there are, who holds them, and that merging them is merging entries."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from manyhands.blocks import Part, Weights, absorb, extract
from manyhands.engine.scripted import ScriptedHand
from manyhands.errors import JobError
from manyhands.exchange.coordination import Coordination, ExchangeSection
from manyhands.exchange.coordinator import coordinate
from manyhands.fleet import DeviceSection, Fleet, FleetSection, make_fleet
from manyhands.hand import Message
from manyhands.models import Form, ModelSection, build_in_form, sizes_of
from manyhands.splits import SPLITS, Networks, Split, SplitSection

State = Mapping[str, torch.Tensor]
DIGITS = (1, 8, 8)


def fleet_of(*sizes: str | None) -> Fleet:
    devices = tuple(DeviceSection(kind="laptop", name=f"d{k}", size=size) for k, size in enumerate(sizes))
    return make_fleet(FleetSection(device=devices), seed=0)


@cache
def networks_of(form: str, name: str = "lenet5", sizes: int | tuple[tuple[str, float], ...] = 3) -> Networks:
    """The real networks of a family, in a form, without numbers."""
    section = ModelSection(name=name, sizes=sizes if isinstance(sizes, int) else dict(sizes))
    with torch.device("meta"):
        built = {
            size: build_in_form(section, DIGITS, 10, seed=0, size=size, form=Form(form))
            for size in sizes_of(section)
        }
    return Networks(
        tuple(built),
        lambda size: built[size].state_dict(),
        lambda size: frozenset(name for name, _ in built[size].named_buffers()),
    )


def bare(**states: State) -> Networks:
    """Networks of which only the tensors are known."""
    return Networks(tuple(states), states.__getitem__, lambda size: frozenset())


def split_of(networks: Networks, form: str, *sizes: str | None, **settings: Any) -> Split:
    section = SplitSection(by="capacity", form=form, **settings)
    return SPLITS["capacity"](fleet_of(*sizes), networks, section)


def blocks_of(split: Split) -> dict[str, list[str]]:
    return {name: list(seat.layout) for name, seat in split.seats.items()}


def times_held(state: State, layout: Mapping[str, Mapping[str, Part]]) -> dict[str, torch.Tensor]:
    """For every entry of a state, how many blocks hold it."""
    count = {name: torch.zeros(tensor.shape, dtype=torch.int64) for name, tensor in state.items()}
    for parts in layout.values():
        for part in parts.values():
            part.view(count).add_(1)
    return count


def all_once(state: State, layout: Mapping[str, Mapping[str, Part]]) -> bool:
    return all(bool((held == 1).all()) for held in times_held(state, layout).values())


def numbered(state: State) -> dict[str, torch.Tensor]:
    """The same shapes with a number of its own in every entry."""
    start, numbers = 0, {}
    for name, tensor in state.items():
        numbers[name] = torch.arange(start, start + tensor.numel(), dtype=torch.float64).reshape(tensor.shape)
        start += tensor.numel()
    return numbers


# Who holds what.


@pytest.mark.parametrize("form", ["cascade", "depth"])
def test_each_size_holds_its_own_branch_and_those_of_all_smaller(form: str) -> None:
    networks = networks_of(form, "vgg16")
    split = split_of(networks, form, "small", "medium", "full", "small", "medium", "full")
    small, medium = ["stem", "branch/small"], ["stem", "branch/small", "branch/medium"]
    assert blocks_of(split) == {
        "d0": small,
        "d1": medium,
        "d2": [*medium, "branch/full"],
        "d3": small,
        "d4": medium,
        "d5": [*medium, "branch/full"],
    }
    for seat in split.seats.values():
        assert all_once(networks.state(seat.size), seat.layout)


def test_in_the_stem_form_sizes_have_the_stem_in_common_and_nothing_else() -> None:
    networks = networks_of("stem")
    split = split_of(networks, "stem", "small", "medium", "small", "medium")
    assert blocks_of(split) == {
        "d0": ["stem", "branch/small"],
        "d1": ["stem", "branch/medium"],
        "d2": ["stem", "branch/small"],
        "d3": ["stem", "branch/medium"],
    }
    assert all(all_once(networks.state(seat.size), seat.layout) for seat in split.seats.values())


def test_widths_are_shells_and_statistics_stay_within_a_size() -> None:
    networks = networks_of("width", "vgg16")
    split = split_of(networks, "width", "small", "medium", "full", "small", "medium", "full")
    assert blocks_of(split)["d0"] == ["branch/small", "statistics/small"]
    assert blocks_of(split)["d1"] == ["branch/small", "branch/medium", "statistics/medium"]
    assert blocks_of(split)["d2"] == ["branch/small", "branch/medium", "branch/full", "statistics/full"]
    for seat in split.seats.values():
        assert all_once(networks.state(seat.size), seat.layout)
        counted = {part.tensor for part in seat.layout[f"statistics/{seat.size}"].values()}
        assert counted == networks.buffers(seat.size)


def test_a_network_without_statistics_has_no_block_for_them() -> None:
    assert blocks_of(split_of(networks_of("width"), "width", "small", "small"))["d0"] == ["branch/small"]


@pytest.mark.parametrize("form", ["stem", "cascade", "width", "depth"])
def test_what_one_device_alone_holds_is_not_exchanged(form: str) -> None:
    networks = networks_of(form, "vgg16")
    split = split_of(networks, form, "small", "small", "full")
    expected = {
        "stem": ["stem"],
        "cascade": ["stem", "branch/small"],
        "depth": ["stem", "branch/small"],
        "width": ["branch/small"],
    }
    assert blocks_of(split)["d2"] == expected[form]
    assert split.exchanges


@pytest.mark.parametrize("form", ["stem", "cascade", "width", "depth"])
def test_a_device_by_itself_exchanges_nothing(form: str) -> None:
    split = split_of(networks_of(form, "vgg16"), form, "full")
    assert not split.exchanges
    assert split.merged is None


@pytest.mark.parametrize("form", ["stem", "cascade", "width", "depth"])
def test_devices_of_one_size_share_all_of_it(form: str) -> None:
    networks = networks_of(form, "vgg16")
    split = split_of(networks, form, None, None)  # the largest
    assert split.merged == split.seats["d0"] == split.seats["d1"]
    assert split.merged is not None
    assert split.merged.size == "full"
    assert all_once(networks.state("full"), split.merged.layout)


@pytest.mark.parametrize(
    ("form", "sizes", "merged"),
    [
        ("cascade", ("small", "medium", "full"), "medium"),
        ("cascade", ("small", "full"), "small"),
        ("cascade", ("small", "full", "full"), "full"),
        ("depth", ("small", "medium", "full"), "medium"),
        ("stem", ("small", "medium", "full"), None),
        ("stem", ("small", "small", "full"), "small"),
        ("stem", ("small", "full", "full"), "full"),
        # Statistics are only shared within a size, so a network that has them needs two devices.
        ("width", ("small", "medium", "full"), None),
        ("width", ("small", "small", "medium"), "small"),
        ("width", ("small", "medium", "medium"), "medium"),
    ],
)
def test_the_merged_network_is_the_largest_made_of_shared_blocks_alone(
    form: str, sizes: tuple[str, ...], merged: str | None
) -> None:
    networks = networks_of(form, "vgg16")
    split = split_of(networks, form, *sizes)
    assert (split.merged and split.merged.size) == merged
    if split.merged is not None:
        assert all_once(networks.state(split.merged.size), split.merged.layout)


def test_without_statistics_a_narrower_network_is_merged_although_one_device_holds_it() -> None:
    split = split_of(networks_of("width"), "width", "small", "medium", "full")
    assert split.merged is not None
    assert split.merged.size == "medium"


# Shells.


@st.composite
def nested_shapes(draw: st.DrawFn) -> list[tuple[int, ...]]:
    """Shapes of one tensor in several sizes, none larger than the next in any dimension."""
    dims, tiers = draw(st.integers(0, 4)), draw(st.integers(1, 4))
    sides = [sorted(draw(st.lists(st.integers(1, 4), min_size=tiers, max_size=tiers))) for _ in range(dims)]
    return [tuple(side[tier] for side in sides) for tier in range(tiers)]


@given(st.lists(nested_shapes(), min_size=1, max_size=3))
def test_shells_hold_every_entry_once_and_the_round_trip_is_the_same(shapes: list) -> None:
    tiers = min(len(tensor) for tensor in shapes)
    states = {
        f"s{tier}": {f"t{k}": torch.zeros(tensor[tier]) for k, tensor in enumerate(shapes)}
        for tier in range(tiers)
    }
    names = [size for size in states for _ in range(2)]
    split = split_of(bare(**states), "width", *names)
    for seat in split.seats.values():
        state = numbered(states[seat.size])
        assert all_once(state, seat.layout)
        blocks = extract(state, seat.layout)
        empty = {name: torch.full_like(tensor, math.nan) for name, tensor in state.items()}
        back = absorb(empty, seat.layout, blocks)
        assert all(torch.equal(back[name], state[name]) for name in state)


@given(nested_shapes())
def test_a_shell_holds_what_the_next_smaller_network_does_not(tensor: list) -> None:
    """Block by block against the definition: an entry is in the shell of the first size that reaches it."""
    states = {f"s{tier}": {"t": torch.zeros(shape)} for tier, shape in enumerate(tensor)}
    split = split_of(bare(**states), "width", *(size for size in states for _ in range(2)))
    expected = torch.full(tensor[-1], -1)
    for tier in reversed(range(len(tensor))):
        expected[tuple(slice(0, end) for end in tensor[tier])] = tier
    found = {"t": torch.full(tensor[-1], -1)}
    for block, parts in split.seats[f"d{2 * len(tensor) - 1}"].layout.items():
        for part in parts.values():
            part.view(found).fill_(int(block.removeprefix("branch/s")))
    assert torch.equal(found["t"], expected)


def test_the_same_block_has_the_same_tensors_for_all_who_hold_it() -> None:
    """What one device cuts out another of another size can put in."""
    networks = networks_of("width")
    split = split_of(networks, "width", "small", "medium", "full")
    cut = [
        {n: tuple(t.shape) for n, t in extract(networks.state(s.size), s.layout)["branch/small"].items()}
        for s in split.seats.values()
    ]
    assert cut[0] == cut[1] == cut[2]


# Merging.


def test_every_entry_is_the_mean_over_exactly_those_who_hold_it() -> None:
    """Paper 001, appendix A, for nested widths: by the coordinator, and by brute force, in float64."""
    networks = networks_of("width", "vgg16", (("narrow", 0.05), ("middle", 0.08), ("wide", 0.1)))
    sizes = ("narrow", "wide", "middle", "wide")
    data = {"d0": 10, "d1": 25, "d2": 5, "d3": 60}
    split = split_of(networks, "width", *sizes)
    draws = torch.Generator().manual_seed(0)
    states = {
        name: {
            key: torch.randn(tensor.shape, generator=draws, dtype=torch.float64)
            for key, tensor in networks.state(seat.size).items()
        }
        for name, seat in split.seats.items()
    }
    merged = merged_by_coordinator(split, states, data)
    for name, seat in split.seats.items():
        own = absorb(states[name], seat.layout, {block: merged[block] for block in seat.layout})
        for key, tensor in own.items():
            expected = brute_force(key, name, split, states, data, networks.buffers(seat.size))
            assert torch.allclose(tensor, expected, rtol=0, atol=1e-12), key


def merged_by_coordinator(
    split: Split, states: Mapping[str, State], data: Mapping[str, int]
) -> dict[str, Weights]:
    """One synchronous round in which each device answers with its state."""
    updates = {
        name: {block: Weights(tensors) for block, tensors in extract(states[name], seat.layout).items()}
        for name, seat in split.seats.items()
    }
    first = {block: tensors for blocks in updates.values() for block, tensors in blocks.items()}
    coordination = Coordination(
        ExchangeSection(rounds=1, deadline_s=10),
        seed=0,
        blocks=first,
        holds={name: tuple(seat.layout) for name, seat in split.seats.items()},
        expected_s=dict.fromkeys(split.seats, 1.0),
        num_examples=data,
    )
    inbox = [Message("update", 0, {"call": [0, 0]}, blocks, sender=name) for name, blocks in updates.items()]
    inbox += [Message("stopped", sender=name) for name in split.seats]
    progress = asyncio.run(coordinate(ScriptedHand("coordinator", inbox, tuple(split.seats)), coordination))
    return dict(progress.blocks)


def brute_force(
    key: str,
    device: str,
    split: Split,
    states: Mapping[str, State],
    data: Mapping[str, int],
    counted: frozenset[str],
) -> torch.Tensor:
    """What all who have an entry say, added up on a sheet as large as the largest, by the amount of data."""
    size, own = split.seats[device].size, states[device][key]
    holders = [name for name in states if key not in counted or split.seats[name].size == size]
    largest = max((states[name][key].shape for name in holders), key=lambda shape: shape.numel())
    said, data_behind = (torch.zeros(largest, dtype=torch.float64) for _ in range(2))
    for name in holders:
        corner = tuple(slice(0, end) for end in states[name][key].shape)
        said[corner] += data[name] * states[name][key]
        data_behind[corner] += data[name]
    return (said / data_behind)[tuple(slice(0, end) for end in own.shape)]


# Claims that do not hold.


def t(*shape: int) -> torch.Tensor:
    return torch.zeros(shape)


@pytest.mark.parametrize(
    ("form", "small", "full", "settings", "parts"),
    [
        (
            "stem",
            {"stem.w": t(2, 3), "features.w": t(4)},
            {"stem.w": t(2, 3), "features.w": t(8)},
            {"stem": ["features"]},
            ['split.stem = "features"', "small and full", "features.w is 4 in small and 8 in full"],
        ),
        (
            "stem",
            {"stem.w": t(2, 3), "head.w": t(1)},
            {"stem.w": t(4, 3), "head.w": t(1)},
            {},
            ['split.stem = "stem"', "stem.w is 2x3 in small and 4x3 in full"],
        ),
        (
            "stem",
            {"stem.w": t(2), "head.w": t(1)},
            {"stem.w": t(2), "stem.v": t(3), "head.w": t(1)},
            {},
            ["stem.v is missing in small and 3 in full"],
        ),
        (
            "stem",
            {"stem.w": t(2), "stem.v": t(), "head.w": t(1)},
            {"stem.w": t(2), "head.w": t(1)},
            {},
            ["stem.v is a number in small and missing in full"],
        ),
        (
            "stem",
            {"stem.w": t(2), "head.w": t(1)},
            {"stem.w": t(2), "head.w": t(1)},
            {"stem": ["stem", "trunk"]},
            ['split.stem = "trunk"', "no such part with weights; its parts are stem, head"],
        ),
        (
            "stem",
            {"stemming.w": t(2)},
            {"stemming.w": t(2)},
            {},
            ['split.stem = "stem"', "its parts are stemming"],
        ),
        (
            "width",
            {"w": t(2, 5)},
            {"w": t(4, 4)},
            {},
            ['split.form = "width"', "small is no slice of full: w is 2x5 in small and 4x4 in full"],
        ),
        ("width", {"w": t(2)}, {"w": t(4, 4)}, {}, ["w is 2 in small and 4x4 in full"]),
        ("width", {"w": t(2)}, {"v": t(4)}, {}, ["w is 2 in small and missing in full"]),
        ("width", {"w": t(2)}, {"w": t(2), "v": t(4)}, {}, ["v is missing in small and 4 in full"]),
    ],
)
def test_claims_that_do_not_hold_name_the_tensor_and_both_shapes(
    form: str, small: State, full: State, settings: dict[str, Any], parts: list[str]
) -> None:
    with pytest.raises(JobError) as error:
        split_of(bare(small=small, full=full), form, "small", "full", **settings)
    assert all(part in str(error.value) for part in parts), error.value
    assert "\n" not in str(error.value)


def test_a_longer_stem_is_shared_where_the_claim_holds() -> None:
    networks = bare(
        small={"stem.w": t(2), "trunk.w": t(3), "head.w": t(1)},
        full={"stem.w": t(2), "trunk.w": t(3), "head.w": t(9)},
    )
    split = split_of(networks, "stem", "small", "full", stem=["stem", "trunk"])
    assert blocks_of(split) == {"d0": ["stem"], "d1": ["stem"]}
    assert set(split.seats["d0"].layout["stem"]) == {"stem.w", "trunk.w"}


# Settings.


@pytest.mark.parametrize(
    ("key", "value", "form"),
    [
        ("stem", ["features"], "stem"),
        ("branch_dropout", 0.25, "cascade"),
        ("distillation", 0.5, "depth"),
        ("scaler", not SplitSection.model_fields["scaler"].default, "width"),
    ],
)
def test_a_setting_is_taken_by_its_form_and_refused_by_the_others(key: str, value: Any, form: str) -> None:
    taken = SplitSection(by="capacity", form=form, **{key: value})
    assert getattr(taken, key) == (tuple(value) if key == "stem" else value)
    if key != "stem":
        assert getattr(taken.network_form, key) == value
    for other in {"stem", "cascade", "width", "depth"} - {form}:
        with pytest.raises(
            ValidationError, match=rf'{key} is read by by = "capacity", form = "{form}" alone'
        ):
            SplitSection(by="capacity", form=other, **{key: value})


@pytest.mark.parametrize(
    ("key", "value"), [("branch_dropout", 1.0), ("branch_dropout", -0.1), ("distillation", -1), ("stem", [])]
)
def test_impossible_values_are_refused(key: str, value: Any) -> None:
    form = {"branch_dropout": "cascade", "distillation": "depth", "stem": "stem"}[key]
    with pytest.raises(ValidationError, match=key):
        SplitSection(by="capacity", form=form, **{key: value})


def test_under_another_split_what_fits_is_kept() -> None:
    section = SplitSection(by="capacity", form="cascade", branch_dropout=0.25)
    assert section.under("cascade") == section
    assert section.under("depth") == SplitSection(by="capacity", form="depth")
    assert section.under("depth").under("cascade").branch_dropout == 0.5  # no longer known
    isolated = section.under("isolated")
    assert isolated.by == "isolated"
    assert isolated.network_form == Form()
    assert isolated.under("capacity") == section
    assert isolated.under("cascade") == section


def test_a_form_without_a_split_means_the_split_by_capacity() -> None:
    assert SplitSection(form="width").by == "capacity"
    assert SplitSection().by == "homogeneous"


def test_networks_are_built_in_the_form_only_if_the_split_is_by_capacity() -> None:
    assert SplitSection(by="homogeneous", form="width").network_form == Form()
    assert SplitSection(by="capacity", form="width").network_form.name == "width"

from __future__ import annotations

import torch

from manyhands.fleet import DeviceSection, FleetSection, make_fleet
from manyhands.splits import SPLITS, Networks, SplitSection

STATES = {"light": {"w": torch.zeros(2)}, "complex": {"w": torch.zeros(8), "v": torch.zeros(1)}}
NETWORKS = Networks(("light", "complex"), STATES.__getitem__, lambda size: frozenset())
FLEET = make_fleet(
    FleetSection(
        device=(
            DeviceSection(kind="laptop", name="strong"),
            DeviceSection(kind="raspberry-pi-3b", name="weak", size="light"),
        )
    ),
    seed=0,
)


def test_isolated_gives_each_its_own_size_and_shares_nothing() -> None:
    split = SPLITS["isolated"](FLEET, NETWORKS, SplitSection(by="isolated"))
    assert {name: seat.size for name, seat in split.seats.items()} == {"strong": "complex", "weak": "light"}
    assert not split.exchanges
    assert split.merged is None


def test_homogeneous_gives_all_the_network_of_the_weakest() -> None:
    split = SPLITS["homogeneous"](FLEET, NETWORKS, SplitSection())
    assert {seat.size for seat in split.seats.values()} == {"light"}
    assert split.exchanges
    assert split.merged is not None
    assert set(split.merged.layout) == {"model"}

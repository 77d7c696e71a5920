from __future__ import annotations

import pytest

from manyhands.errors import JobError
from manyhands.fleet import DeviceSection, FleetSection, make_fleet

PI = DeviceSection(kind="raspberry-pi-3b", name="pi", count=3, group="shelf")
DESK = DeviceSection(kind="laptop", name="desk")


def section(*devices: DeviceSection, **settings: object) -> FleetSection:
    return FleetSection.model_validate({"device": devices, **settings})


def test_devices_of_a_group_are_one_participant() -> None:
    fleet = make_fleet(section(PI, DESK), seed=0)
    assert fleet.names == ("shelf", "desk")
    assert [device.name for device in fleet["shelf"].executors] == ["pi-1", "pi-2", "pi-3"]
    assert [device.name for device in fleet.hardware] == ["pi-1", "pi-2", "pi-3", "desk"]
    assert fleet["desk"].executors == ()


def test_its_figures_are_those_of_its_devices_together_and_its_link_is_the_best_of_theirs() -> None:
    fast = DeviceSection(kind="raspberry-pi-4", group="shelf")
    group = make_fleet(section(PI, fast, DESK), seed=0)["shelf"]
    for figure in ("flops", "cores", "memory_bytes", "active_watts", "idle_watts"):
        assert getattr(group, figure) == sum(getattr(device, figure) for device in group.executors)
    assert group.bandwidth_bps == group.executors[-1].bandwidth_bps > group.executors[0].bandwidth_bps
    assert group.kind == "3 x raspberry-pi-3b + 1 x raspberry-pi-4"


def test_a_group_has_the_share_of_one_participant_unless_its_devices_have_shares() -> None:
    assert [device.share for device in make_fleet(section(PI, DESK), seed=0).devices] == [0.5, 0.5]
    shared = PI.model_copy(update={"share": 0.2}), DESK.model_copy(update={"share": 0.4})
    assert [device.share for device in make_fleet(section(*shared), seed=0).devices] == pytest.approx(
        [0.6, 0.4]
    )


def test_links_join_groups_by_their_names() -> None:
    fleet = make_fleet(section(PI, DESK, topology="custom", edges=(("shelf", "desk"),)), seed=0)
    assert [(link.a, link.b) for link in fleet.links] == [("shelf", "desk")]
    with pytest.raises(JobError, match="no device has this name"):
        make_fleet(section(PI, DESK, topology="custom", edges=(("pi-1", "desk"),)), seed=0)


def test_split_by_space_all_devices_are_one_group() -> None:
    bare = PI.model_copy(update={"group": None})
    assert make_fleet(section(bare, DESK), seed=0, tiled=True).names == ("crew",)
    named = DESK.model_copy(update={"group": "shelf"})
    assert make_fleet(section(PI, named), seed=0, tiled=True).names == ("shelf",)
    with pytest.raises(JobError, match=r"fleet.device\[0\].group = \"shelf\": with by = \"space\""):
        make_fleet(section(PI, DESK), seed=0, tiled=True)


@pytest.mark.parametrize(
    ("devices", "said"),
    [
        ([PI.model_copy(update={"count": 1}), DESK], "needs two devices or more"),
        ([PI, DESK.model_copy(update={"name": "shelf"})], "a device has this name already"),
        ([PI.model_copy(update={"group": "a b"})], "must begin with a letter or digit"),
        ([PI.model_copy(update={"group": "global"})], "are names manyhands uses itself"),
        ([PI, DESK.model_copy(update={"group": "shelf", "size": "light"})], "need the same"),
    ],
)
def test_a_group_that_cannot_be_is_refused(devices: list[DeviceSection], said: str) -> None:
    with pytest.raises(JobError, match=said):
        make_fleet(section(*devices), seed=0)

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from manyhands.errors import JobError
from manyhands.fleet import CATALOG, DeviceSection, FleetSection, make_fleet


def fleet_of(*tables, **keys):
    return make_fleet(FleetSection(device=tables, **keys), seed=0)


def refusal(*tables, **keys):
    with pytest.raises(JobError) as caught:
        fleet_of(*tables, **keys)
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_takes_the_figures_of_its_kind():
    device = fleet_of({"kind": "raspberry-pi-4"}).devices[0]
    kind = CATALOG["raspberry-pi-4"]
    assert (device.name, device.kind, device.share) == ("raspberry-pi-4", "raspberry-pi-4", 1.0)
    assert (device.flops, device.memory_bytes, device.idle_watts) == (
        kind.flops,
        kind.memory_bytes,
        kind.idle_watts,
    )
    assert (device.torch_device, device.interaction_rate, device.size) == ("cpu", 1.0, None)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("flops", 1e9),
        ("cores", 2),
        ("memory_bytes", 5),
        ("bandwidth_bps", 1e6),
        ("latency_s", 0.0),
        ("active_watts", 99.0),
        ("idle_watts", 0.0),
        ("interaction_rate", 0.5),
        ("torch_device", "cuda:1"),
        ("size", "small"),
    ],
)
def test_a_job_may_replace_any_figure(field, value):
    plain = fleet_of({"kind": "laptop"}).devices[0]
    changed = fleet_of({"kind": "laptop", field: value}).devices[0]
    assert changed == dataclasses.replace(plain, **{field: value})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("flops", 0),
        ("flops", float("nan")),
        ("flops", float("inf")),
        ("cores", 0),
        ("memory_bytes", -1),
        ("bandwidth_bps", -1.0),
        ("latency_s", -0.1),
        ("active_watts", 0),
        ("idle_watts", -1),
        ("interaction_rate", 0),
        ("count", 0),
        ("speed", 3),
    ],
)
def test_impossible_figures_and_unknown_keys_are_refused(field, value):
    with pytest.raises(ValidationError) as caught:
        DeviceSection(**{"kind": "laptop", field: value})
    assert caught.value.errors()[0]["loc"] == (field,)


def test_names_are_numbered_where_there_are_several():
    fleet = fleet_of(
        {"kind": "raspberry-pi-4", "count": 2},
        {"kind": "laptop"},
        {"kind": "raspberry-pi-4"},
        {"kind": "raspberry-pi-4", "name": "attic"},
        {"kind": "phone-low", "name": "phone", "count": 2},
    )
    assert fleet.names == (
        "raspberry-pi-4-1",
        "raspberry-pi-4-2",
        "laptop",
        "raspberry-pi-4-3",
        "attic",
        "phone-1",
        "phone-2",
    )
    assert fleet["attic"] is fleet.devices[4]


@pytest.mark.parametrize("name", ["", "-a", "a b", "a/b", "../x", "é", "a\tb", "a" * 65])
def test_names_that_cannot_be_files_are_refused(name):
    text = refusal({"kind": "laptop"}, {"kind": "laptop", "name": name})
    assert text.startswith("fleet.device[1].name")
    assert "letters, digits and _ . -" in text


@pytest.mark.parametrize("name", ["coordinator", "Coordinator", "global"])
def test_names_in_use_are_refused(name):
    assert "manyhands uses itself" in refusal({"kind": "laptop", "name": name})


def test_two_devices_of_one_name_are_refused():
    text = refusal({"kind": "laptop", "name": "a"}, {"kind": "phone-low", "name": "A"})
    assert text == (
        'fleet.device[1].name = "A": every device needs a name of its own; fleet.device[0] has it already'
    )


def test_an_unknown_kind_is_answered_with_the_closest_and_all():
    text = refusal({"kind": "laptop"}, {"kind": "raspbery-pi-4"})
    assert text.startswith('fleet.device[1].kind = "raspbery-pi-4": no such kind of device')
    assert 'did you mean "raspberry-pi-4"?' in text
    assert all(kind in text for kind in CATALOG)
    assert "did you mean" not in refusal({"kind": "zzz"})


def test_idle_above_active_is_refused():
    text = refusal({"kind": "laptop", "active_watts": 2})
    assert text == "fleet.device[0].idle_watts = 6.0: must not be above active_watts, which is 2"


def test_a_torch_device_that_is_none_is_refused():
    text = refusal({"kind": "laptop", "torch_device": "gpu"})
    assert text.startswith('fleet.device[0].torch_device = "gpu"')
    assert '"cuda:1"' in text


@given(st.integers(1, 40))
def test_without_shares_all_are_equal(n):
    fleet = fleet_of({"kind": "phone-mid", "count": n})
    assert {device.share for device in fleet.devices} == {1 / n}


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=12))
def test_shares_that_make_a_whole_are_kept(parts):
    shares = [part / sum(parts) for part in parts]
    fleet = fleet_of(*({"kind": "laptop", "share": share} for share in shares))
    assert [device.share for device in fleet.devices] == shares


def test_a_count_multiplies_the_share():
    fleet = fleet_of({"kind": "laptop", "share": 0.25, "count": 2}, {"kind": "phone-low", "share": 0.5})
    assert [device.share for device in fleet.devices] == [0.25, 0.25, 0.5]


def test_shares_that_do_not_sum_are_refused_with_their_sum():
    text = refusal({"kind": "laptop", "share": 0.5, "count": 2}, {"kind": "phone-low", "share": 0.2})
    assert text.startswith(
        "fleet.device.share: the shares of all devices must sum to 1, and these sum to 1.2"
    )


@pytest.mark.parametrize("share", [1.5, 0.0, -0.5])
def test_a_share_that_is_no_fraction_is_refused(share):
    text = refusal({"kind": "laptop", "share": 0.5}, {"kind": "phone-low", "share": share, "name": "mine"})
    assert text.startswith(f"fleet.device[1].share = {share}")
    assert 'the share of "mine" must be above 0 and at most 1' in text


def test_shares_for_some_only_are_refused():
    text = refusal({"kind": "laptop", "share": 0.5}, {"kind": "phone-low"})
    assert text == (
        'fleet.device[1].share: "phone-low" has no share but others have; give every device one, or none'
    )

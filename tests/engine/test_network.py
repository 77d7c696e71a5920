"""How long messages take, and what they make each other wait."""

from __future__ import annotations

import pytest

from manyhands.engine.network import Network
from manyhands.fleet import DeviceSection, Fleet, FleetSection, make_fleet

MB = 1_000_000


def test_a_message_takes_its_bytes_and_both_latencies(fleet: Fleet) -> None:
    assert Network(fleet).transfer(0.0, "a", "b", MB) == pytest.approx(1.02)


def test_a_device_sends_one_message_after_the_other(fleet: Fleet) -> None:
    network = Network(fleet)
    assert [network.transfer(0.0, "a", peer, MB) for peer in "bcd"] == pytest.approx([1.02, 2.02, 3.02])


def test_a_device_hears_one_message_after_the_other(fleet: Fleet) -> None:
    network = Network(fleet)
    assert [network.transfer(0.0, peer, "d", MB) for peer in "abc"] == pytest.approx([1.02, 2.02, 3.02])


def test_a_message_that_comes_later_leaves_the_link_free_until_then(fleet: Fleet) -> None:
    """``a`` sends to b, c and then d: d can hear others before that, and what does not fit in waits."""
    network = Network(fleet)
    for peer in "bcd":
        network.transfer(0.0, "a", peer, MB)
    assert network.transfer(0.0, "b", "d", MB) == pytest.approx(1.02)
    assert network.transfer(0.5, "c", "d", 2 * MB) == pytest.approx(5.02)


def test_one_that_passes_messages_on_can_send_before_they_reach_it() -> None:
    device = DeviceSection(kind="laptop", flops=1e9, bandwidth_bps=8e6, latency_s=0.01)
    named = tuple(device.model_copy(update={"name": name}) for name in "abcde")
    ring = make_fleet(FleetSection(device=named, topology="ring"), seed=0)
    network = Network(ring)
    assert network.transfer(0.0, "a", "c", 3 * MB) == pytest.approx(6.04)
    assert network.transfer(0.0, "b", "c", MB) == pytest.approx(1.02)


def test_a_line_is_never_taken_twice(fleet: Fleet) -> None:
    """However many send to whom, a link carries no more than its rate."""
    network = Network(fleet)
    arrivals = [network.transfer(0.1 * i, "abc"[i % 3], "d", MB // 2) for i in range(30)]
    assert max(arrivals) >= 30 * 0.5
    assert len(set(arrivals)) == 30

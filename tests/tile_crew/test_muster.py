"""Who calls whom, without a network: devices tell each other how they stand, and one of them calls."""

from __future__ import annotations

import socket
from typing import Any

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.crew.address import interface_of, own_address
from manyhands.crew.muster import REST_S, Call, Muster, read_call
from manyhands.errors import MessageDamaged

NAMES = ("a", "b", "c")


class Town:
    """Devices that hear each other at once."""

    def __init__(self, *names: str, material: str = "digits") -> None:
        self.material = material
        self.devices: dict[str, Muster] = {}
        for name in names:
            self.come(name)

    def come(self, name: str, material: str | None = None) -> Muster:
        muster = Muster(name, NAMES, material or self.material)
        for other, theirs in self.devices.items():
            theirs.presence(name, True)
            muster.presence(other, True)
        self.devices[name] = muster
        self.talk()
        return muster

    def go(self, name: str) -> None:
        del self.devices[name]
        for theirs in self.devices.values():
            theirs.presence(name, False)

    def talk(self) -> list[str]:
        return [
            theirs.hear(name, muster.greeting())
            for name, muster in self.devices.items()
            for other, theirs in self.devices.items()
            if other != name
        ]

    def calls(self, now_s: float = 0.0, *, waited: bool = False) -> dict[str, tuple[str, ...]]:
        """Who calls, and whom."""
        found = {n: m.whom_to_call(now_s, waited=waited) for n, m in self.devices.items()}
        return {name: roster for name, roster in found.items() if roster}

    def form(self, roster: tuple[str, ...]) -> None:
        call = Call(self.devices[roster[0]].next_number(), roster, "127.0.0.1", 7000)
        for name in roster:
            assert self.devices[name].takes(call)
            self.devices[name].busy, self.devices[name].number = True, call.number
        self.talk()

    def end(self, *names: str, done: bool = False) -> None:
        for name in names:
            self.devices[name].busy, self.devices[name].done = False, done
        self.talk()


def test_the_first_calls_when_all_are_there() -> None:
    town = Town("c", "b")
    assert town.calls() == {}
    town.come("a")
    assert town.calls() == {"a": NAMES}
    town.form(NAMES)
    assert town.calls() == {}


def test_who_is_there_suffices_after_a_while_if_a_quorum_is() -> None:
    town = Town("b", "c")
    assert town.calls(waited=True) == {}
    for muster in town.devices.values():
        muster._quorum = 2
    assert town.calls(waited=True) == {"b": ("b", "c")}


def test_those_who_are_left_are_called_at_once_and_all_have_ended_the_step_before() -> None:
    town = Town(*NAMES)
    town.form(NAMES)
    town.go("a")
    town.end("b")
    assert town.calls() == {}  # c has not noticed yet
    town.end("c")
    assert town.calls() == {"b": ("b", "c")}
    town.form(("b", "c"))
    assert town.devices["c"].number == 2


def test_one_that_returns_is_waited_for_by_the_group_and_called_when_its_round_is_over() -> None:
    town = Town(*NAMES)
    town.form(NAMES)
    town.go("a")
    town.end("b", "c")
    town.form(("b", "c"))
    assert not town.devices["b"].waits_for(("b", "c"), 0.0)
    town.come("a")
    assert town.calls(waited=True) == {}  # it is the first, and does not disturb those who train
    assert town.devices["b"].waits_for(("b", "c"), 0.0)
    town.end("b", "c")
    assert town.calls() == {"a": NAMES}
    town.form(NAMES)
    assert {muster.number for muster in town.devices.values()} == {3}


def test_where_others_have_begun_nobody_waits_for_all() -> None:
    town = Town(*NAMES)
    town.form(NAMES)
    for name in ("a", "c"):
        town.go(name)
    town.end("b")
    town.come("a")
    assert town.calls() == {"a": ("a", "b")}


def test_who_is_done_calls_only_for_one_that_is_not() -> None:
    town = Town(*NAMES)
    town.form(NAMES)
    town.go("c")
    town.end("a", "b", done=True)
    assert town.calls() == {}
    assert town.devices["a"].unfinished == ("c",)
    town.come("c")
    assert town.calls() == {"a": NAMES}
    town.form(NAMES)
    town.end(*NAMES, done=True)
    town.go("a")
    assert town.devices["b"].unfinished == ()  # it said so before it went


def test_one_that_does_not_come_is_left_out_longer_each_time() -> None:
    town = Town(*NAMES)
    town.form(NAMES)
    town.end(*NAMES)
    first = town.devices["a"]
    first.rest("b", 100.0)
    assert first.whom_to_call(101.0, waited=False) == ("a", "c")
    assert not first.waits_for(("a", "c"), 101.0)
    assert first.whom_to_call(101.0 + REST_S, waited=False) == NAMES
    first.rest("b", 200.0)
    assert first.whom_to_call(201.0 + REST_S, waited=False) == ("a", "c")


def test_other_data_is_named_and_left_out() -> None:
    town = Town("b", "c")
    town.come("a", material="something else")
    assert town.devices["b"].usable(0.0) == ("b", "c")
    town.devices["b"].presence("a", True)
    assert "same data" in town.devices["b"].hear("a", town.devices["a"].greeting())


def test_an_old_word_does_not_count() -> None:
    town = Town(*NAMES)
    old = town.devices["b"].greeting()
    town.form(NAMES)
    town.end("a", "c")
    assert town.devices["a"].hear("b", old) == ""
    assert town.calls() == {}  # b was heard to be busy after that


def test_a_call_is_answered_once_and_by_whom_it_names() -> None:
    town = Town(*NAMES)
    call = Call(1, ("a", "c"), "127.0.0.1", 7000)
    assert town.devices["c"].takes(call)
    assert not town.devices["b"].takes(call)
    town.devices["c"].number = 1
    assert not town.devices["c"].takes(call)


def test_a_call_is_read_as_it_was_sent() -> None:
    call = Call(3, ("a", "c"), "192.168.1.7", 41000)
    assert read_call(call.facts, "a", NAMES) == call


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@given(key=st.sampled_from(["number", "roster", "host", "port"]), value=JSON)
def test_a_call_that_cannot_be_is_refused(key: str, value: Any) -> None:
    facts = Call(3, ("a", "c"), "192.168.1.7", 41000).facts | {key: value}
    try:
        call = read_call(facts, "a", NAMES)
    except MessageDamaged:
        return
    assert call.facts == facts
    assert type(call.number) is int
    assert set(call.roster) <= set(NAMES)


@pytest.mark.parametrize("roster", [["c", "a"], ["b"], [], ["a", "a"], ["a", "z"], "a"])
def test_a_roster_has_its_caller_first_and_only_devices_of_the_job(roster: Any) -> None:
    facts = Call(3, ("a", "c"), "192.168.1.7", 41000).facts | {"roster": roster}
    with pytest.raises(MessageDamaged, match="roster"):
        read_call(facts, "a", NAMES)


@given(facts=st.dictionaries(st.sampled_from(["said", "number", "busy", "done", "material"]), JSON))
def test_whatever_a_peer_says_of_itself_is_no_harm(facts: dict[str, Any]) -> None:
    town = Town(*NAMES)
    try:
        town.devices["a"].hear("b", facts)
    except MessageDamaged:
        assert town.calls() == {"a": NAMES}
    assert town.devices["a"].here == NAMES
    town.devices["a"].next_number()


def test_the_address_is_what_was_said_or_what_the_links_have() -> None:
    assert own_address(("192.168.1.7:7447",), ["10.0.0.1"]) == "192.168.1.7"
    assert own_address(("0.0.0.0:7447",), ["10.0.0.1", "10.0.0.2", "10.0.0.2"]) == "10.0.0.2"
    assert own_address(("[::]:7447",), ["::ffff:10.0.0.1"]) == "10.0.0.1"
    assert own_address((), []) == "127.0.0.1"


def test_the_interface_is_the_one_that_has_the_address() -> None:
    name = interface_of("127.0.0.1")
    assert name is not None
    assert "127.0.0.1" in [a.address for a in psutil.net_if_addrs()[name] if a.family == socket.AF_INET]
    assert own_address(("192.168.1.7:7447",), [], name) == "127.0.0.1"
    assert interface_of("203.0.113.9") is None

"""Peers that are drawn anew in every round."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toys import member, one

from manyhands.engine.cores import Cores
from manyhands.engine.faults import Faults
from manyhands.engine.participant import Participant
from manyhands.engine.simulate import Simulation
from manyhands.exchange.coordination import ExchangeSection
from manyhands.exchange.epidemic import meeting_rows, round_pairs
from manyhands.exchange.neighbourhood import Neighbourhood
from manyhands.exchange.neighbours import exchange_with_neighbours
from manyhands.fleet import Fleet

NAMES = tuple("abcdefg")


@given(st.integers(0, 7), st.integers(0, 1000), st.integers(1, 3))
def test_everybody_is_paired_but_one_of_an_odd_number(count: int, number: int, fanout: int) -> None:
    names = NAMES[:count]
    pairs = round_pairs(names, 1, number, fanout)
    assert len(set(pairs)) == len(pairs)
    assert all(names.index(a) < names.index(b) for a, b in pairs)
    met = [name for pair in pairs for name in pair]
    assert len(met) <= fanout * (count - count % 2)
    if fanout == 1:
        assert len(met) == len(set(met)) == count - count % 2


def test_rounds_differ_and_are_the_same_for_everybody() -> None:
    rounds = [tuple(round_pairs(NAMES[:6], 1, number)) for number in range(10)]
    assert len(set(rounds)) > 5
    assert rounds == [tuple(round_pairs(NAMES[:6], 1, number)) for number in range(10)]


@given(st.lists(st.integers(1, 1000), min_size=2, max_size=7), st.integers(0, 100))
def test_an_averaging_leaves_the_mean_over_the_data_as_it_is(sizes: list[int], number: int) -> None:
    data = dict(zip(NAMES, sizes, strict=False))
    holds = dict.fromkeys(data, ("model",))
    rows = {
        name: meeting_rows(name, number, holds=holds, num_examples=data, seed=1, fanout=2)["model"]
        for name in data
    }
    for a, row in rows.items():
        assert sum(row.values()) < 1
        for b, weight in row.items():
            assert data[a] * weight == pytest.approx(data[b] * rows[b][a])


def test_a_block_is_averaged_by_those_of_a_pair_who_both_hold_it() -> None:
    holds = {"a": ("stem", "task"), "b": ("stem",)}
    rows = meeting_rows("a", 0, holds=holds, num_examples={"a": 1, "b": 1}, seed=1)
    assert rows == {"stem": {"b": 0.5}, "task": {}}


def _simulate(fleet: Fleet, rounds: int, phase_flops: dict[str, float]) -> tuple[list[float], list[str]]:
    """Devices that start at 0, 1, 2 … and train nothing: where they end, and what they report."""
    section = ExchangeSection(mode="epidemic", rounds=rounds, deadline_s=1e6)
    holds = dict.fromkeys(fleet.names, ("model",))
    participants = {}
    for value, name in enumerate(fleet.names):
        meet = partial(meeting_rows, name, holds=holds, num_examples=dict.fromkeys(fleet.names, 7), seed=1)
        others = tuple(other for other in fleet.names if other != name)
        place = Neighbourhood(
            section, {"model": one(float(value))}, meet(0), 5.0, 0, meet=meet, company=others
        )
        program = partial(exchange_with_neighbours, member=member(0.0, phase_flops[name]), place=place)
        participants[name] = Participant(program, name, place.peers)
    events: list[str] = []
    simulation = Simulation(
        fleet,
        participants,
        lambda event, _line: events.append(event["event"]),
        faults=Faults(),
        cores=Cores(0),
    )
    values = [float(replica.weights["w"]) for replica in simulation.run().values()]
    return values, events


def test_all_come_to_the_mean(fleet: Fleet) -> None:
    values, _ = _simulate(fleet, 25, dict.fromkeys(fleet.names, 1e9))
    assert values == pytest.approx([1.5] * 4, abs=1e-3)


def test_those_ahead_do_not_make_others_skip_a_round(fleet: Fleet) -> None:
    """Fast pairs get rounds ahead of slow ones; nobody may leave its partner of a round alone for that."""
    speeds = dict(zip(fleet.names, (1e7, 2e7, 1e9, 5e9), strict=True))
    values, events = _simulate(fleet, 25, speeds)
    assert values == pytest.approx([1.5] * 4, abs=1e-3)
    assert events.count("round") == 4 * 25
    assert not {"missed", "late"}.intersection(events)

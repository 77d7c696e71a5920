"""Keeping pace: what is announced, what follows from it, and who is not waited for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from manyhands.blocks import Weights
from manyhands.engine.scripted import ScriptedHand
from manyhands.exchange.member import Member
from manyhands.exchange.pace import MEMORY, Pace, Pacing, Portion, local_phase
from manyhands.hand import Message, Outcome, Work
from manyhands.replica import Blocks, Replica
from manyhands.splits import DataSplitSection

SIZES = {"x": 100, "p": 100, "q": 200}


def pace(
    *, slowdown: Callable[[float, float], float] = lambda _from_s, _until_s: 1.0, **section: Any
) -> Pace:
    """x needs a tenth of a second for an example."""

    def train(_replica: Replica, _blocks: Blocks, number: int, portion: Portion) -> Work:
        facts = {"num_steps": 1, "examples": 1, "loss": 0.0, "portion": [portion.ratio, *portion.taken]}
        return Work("train", lambda: Outcome(facts, {"replica": Weights({})}), 100.0, {"round": number})

    return Pace(
        DataSplitSection(**section),
        SIZES,
        {"p": ("x", "q"), "q": ("x",)},
        0.1,
        slowdown,
        lambda: Work("aggregate", lambda: Outcome({"points": 3})),
        train,
        flops_per_example=1.0,
    )


def said(sender: str, throughput: Any, examples: Any = 100, number: int = 0) -> Message:
    return Message("announce", number, {"throughput": throughput, "examples": examples}, sender=sender)


def plan(hand: ScriptedHand, number: int = 0, **section: Any) -> Portion:
    return asyncio.run(Pacing(pace(**section)).plan(hand, number))


def events(hand: ScriptedHand, kind: str) -> list[dict[str, Any]]:
    return [event for event in hand.events if event["event"] == kind]


def test_it_announces_to_all_and_goes_through_what_the_fastest_leaves_it_time_for() -> None:
    hand = ScriptedHand("x", [said("p", 50.0), said("q", 50.0, 200)], ("p", "q"))
    assert plan(hand) == Portion(0.2)  # p is done in 2 s, and x would take 10
    facts = {"throughput": 10.0, "examples": 100, "fixed_s": 0.0}
    assert [(peer, m.kind, m.facts) for peer, m in hand.sent] == [
        ("p", "announce", facts),
        ("q", "announce", facts),
    ]
    (balanced,) = events(hand, "balanced")
    assert (balanced["ratio"], balanced["epoch_s"], balanced["failed"]) == (0.2, 2.0, [])
    assert hand.seconds == 0


def test_who_is_silent_is_waited_for_a_part_of_an_epoch() -> None:
    hand = ScriptedHand("x", [said("p", 50.0)], ("p", "q"))
    assert plan(hand, patience=0.25) == Portion(0.2)
    assert hand.seconds == 0.25 * 10  # of its own, when it began to wait it knew of no other


def test_of_who_is_late_the_last_word_counts_and_an_older_one_does_not() -> None:
    pacing = Pacing(pace(patience=0.0))
    asyncio.run(pacing.plan(ScriptedHand("x", [said("p", 50.0, number=3)], ("p", "q"), queued=True), 3))
    hand = ScriptedHand("x", [said("p", 5.0, number=2)], ("p", "q"), queued=True)
    assert asyncio.run(pacing.plan(hand, 4)) == Portion(0.2)


def test_where_nobody_waits_for_anybody_only_the_first_announcements_are_waited_for() -> None:
    pacing = Pacing(replace(pace(), waits=False))
    hand = ScriptedHand("x", [said("p", 50.0), said("q", 50.0, 200)], ("p", "q"))
    assert asyncio.run(pacing.plan(hand, 0)) == Portion(0.2)
    assert asyncio.run(pacing.plan(hand, 5)) == Portion(0.2)
    assert hand.seconds == 0


def test_without_balancing_everybody_goes_through_all_and_the_slowest_decides() -> None:
    hand = ScriptedHand("x", [said("p", 50.0), said("q", 5.0, 200)], ("p", "q"))
    assert plan(hand, balance=False) == Portion(1.0)
    assert events(hand, "balanced")[0]["epoch_s"] == 40.0


def test_too_many_gone_are_taken_up_where_there_is_a_copy() -> None:
    hand = ScriptedHand("x", [], ("q",))
    found = plan(hand, failure_threshold=0.3, patience=0.0)
    assert found.taken == ("p",)
    assert events(hand, "taken_up") == [{"event": "taken_up", "round": 0, "peers": ["p"]}]
    assert events(hand, "gone_without") == []


def test_few_gone_are_gone_without_and_that_is_said_once() -> None:
    pacing = Pacing(pace(failure_threshold=0.5, patience=0.0))
    hand = ScriptedHand("x", [], ("q",))
    for number in range(3):
        assert asyncio.run(pacing.plan(hand, number)).taken == ()
    assert events(hand, "gone_without") == [{"event": "gone_without", "round": 0, "peers": ["p"]}]
    hand.peers = ("p", "q")
    asyncio.run(pacing.plan(hand, 3))
    hand.peers = ("q",)
    asyncio.run(pacing.plan(hand, 4))
    assert len(events(hand, "gone_without")) == 2


def test_a_device_learns_how_fast_it_really_is() -> None:
    pacing = Pacing(pace())
    assert pacing.throughput(0.0) == 10.0
    pacing.measured(0.0, 20.0, flops=100.0)
    assert pacing.throughput(20.0) == 5.0
    for _ in range(2):  # one odd epoch among several does not count
        pacing.measured(0.0, 10.0, flops=100.0)
    assert pacing.throughput(20.0) == 10.0


def test_co_running_work_slows_what_is_expected_and_not_what_is_learned() -> None:
    pacing = Pacing(pace(slowdown=lambda _from_s, until_s: 2.0 if until_s > 5 else 1.0))
    assert pacing.throughput(10.0) == 5.0
    pacing.measured(0.0, 20.0, flops=100.0)
    assert pacing.throughput(10.0) == 5.0
    assert pacing.throughput(1.0) == 10.0


@pytest.mark.parametrize(
    "message",
    [
        said("p", -1.0),
        said("p", float("nan")),
        said("p", float("inf")),
        said("p", "fast"),
        said("p", 1.0, 0.5),
        Message("announce", 0, {"throughput": 1.0, "examples": 100, "fixed_s": -1.0}, sender="p"),
        Message("announce", 0, {"throughput": 1.0, "examples": 100, "fixed_s": "long"}, sender="p"),
        said("stranger", 1.0),
        Message("announce", 0, {}, sender="p"),
    ],
)
def test_nonsense_is_refused(message: Message) -> None:
    hand = ScriptedHand("x", [message], ("p", "q"))
    assert plan(hand) == Portion(1.0)
    assert [event["reason"] for event in events(hand, "refused")] == ["no announcement"]


def test_an_epoch_is_a_part_of_the_data_if_the_job_says_so() -> None:
    hand = ScriptedHand("x", [said("p", 50.0), said("q", 50.0, 200)], ("p", "q"))
    assert plan(hand, epoch_part=0.5) == Portion(0.1)
    assert events(hand, "balanced")[0]["epoch_s"] == 1.0
    hand = ScriptedHand("x", [said("p", 50.0), said("q", 5.0, 200)], ("p", "q"))
    assert plan(hand, balance=False, epoch_part=0.5) == Portion(0.5)
    assert events(hand, "balanced")[0]["epoch_s"] == 20.0


def test_what_a_round_takes_besides_training_and_waiting_is_announced_and_left_free() -> None:
    hand = ScriptedHand("x", [], ())
    pacing = Pacing(pace(failure_threshold=0.9))
    pacing.round_took(3.0, waited_s=1.0)
    asyncio.run(pacing.compute(hand, Work("train", Outcome)))
    assert pacing.fixed_s == 2.0
    heard = ScriptedHand("x", [said("p", 50.0), said("q", 50.0, 200)], ("p", "q"))
    # p is done in 2 s, which is what x needs for all else: it still trains a little.
    assert 0 < asyncio.run(pacing.plan(heard, 1)).ratio < 0.01
    assert heard.sent[0][1].facts["fixed_s"] == 2.0
    for _ in range(MEMORY):
        pacing.round_took(1.0, waited_s=0.5)
    assert pacing.fixed_s == 0.5
    heard = ScriptedHand("x", [said("p", 50.0, number=2), said("q", 50.0, 200, 2)], ("p", "q"))
    assert asyncio.run(pacing.plan(heard, 2)) == Portion(0.15)


def test_points_are_made_once_before_the_first_epoch() -> None:
    hand = ScriptedHand("x", [], ())
    pacing = Pacing(pace(failure_threshold=0.9))
    plain = Member("x", Replica(Weights({})), 100, *[None] * 3)  # type: ignore[arg-type]
    for number in range(2):
        outcome = asyncio.run(local_phase(hand, plain, pacing, plain.replica, {}, number))
        assert outcome.facts["portion"] == [1.0]
    assert hand.works == ["aggregate", "train", "train"]

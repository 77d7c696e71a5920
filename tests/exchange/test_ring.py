from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
import torch

from manyhands.blocks import Weights
from manyhands.engine.scripted import ScriptedHand
from manyhands.exchange.consensus import Belt, Ring, all_reduce
from manyhands.hand import Message

# One device of a ring of three, to the letter: p sends to x, and x to q. The block is one number a chunk.

DATA = (2, 3, 5)  # of x, q and p
RING = Ring(0, DATA, "p", "q")
OWN = {"stem": Weights({"w": torch.ones(3, dtype=torch.float64)})}


def chunk(stage: int, value: float, weight: int, number: int = 0, sender: str = "p") -> Message:
    blocks = {"stem": Weights({"float64": torch.tensor([value], dtype=torch.float64)})}
    return Message("chunk", number, {"stage": stage, "weight": weight}, blocks, sender)


# Before it has all, x hears p's own third chunk, then the second with q's in it, then two that are done.
CHUNKS = [chunk(0, 8.0, 5), chunk(1, 4.0, 8), chunk(2, 20.0, 10), chunk(3, 30.0, 10)]


def reduce(hand: ScriptedHand, belt: Belt | None = None, number: int = 0) -> list[float] | None:
    belt = belt or Belt(RING, 9)
    blocks = asyncio.run(all_reduce(hand, RING, belt, OWN, number, 10.0))
    return blocks["stem"]["w"].tolist() if blocks else None


MEAN = pytest.approx([20.0, (8 * 4 + 2 * 1) / 10, 30.0])


def told(hand: ScriptedHand) -> list[tuple[str, Any]]:
    return [(peer, m.facts["newest"]) for peer, m in hand.sent if m.kind == "broken"]


def events(hand: ScriptedHand, kind: str) -> list[dict[str, Any]]:
    return [event for event in hand.events if event["event"] == kind]


def test_a_chunk_carries_the_mean_so_far_and_the_data_behind_it() -> None:
    hand = ScriptedHand("x", CHUNKS, ("p", "q"))
    assert reduce(hand) == MEAN
    assert [(peer, m.facts["weight"], float(m.blocks["stem"]["float64"])) for peer, m in hand.sent] == [
        ("q", 2, 1.0),
        ("q", 7, pytest.approx((5 * 8 + 2 * 1) / 7)),
        ("q", 10, pytest.approx((8 * 4 + 2 * 1) / 10)),
        ("q", 10, 20.0),
    ]
    assert [m.facts["stage"] for _, m in hand.sent] == [0, 1, 2, 3]
    assert hand.works == ["cut", "take", "take", "take", "take", "merge"]


def test_chunks_may_come_twice_and_in_any_order() -> None:
    inbox = [CHUNKS[1], CHUNKS[0], CHUNKS[1], chunk(0, 9.0, 5, number=0), CHUNKS[3], CHUNKS[2]]
    assert reduce(ScriptedHand("x", inbox, ("p", "q"))) == MEAN


def test_chunks_of_the_next_round_wait_for_it() -> None:
    belt = Belt(RING, 9)
    early = [chunk(stage, 1.0, RING.weight_due(stage), number=1) for stage in range(4)]
    for message in early:
        belt.take(ScriptedHand("x"), message, 0)
    hand = ScriptedHand("x", [], ("p", "q"))
    assert reduce(hand, belt, number=1) == [1.0, 1.0, 1.0]
    assert hand.seconds == len(hand.works)  # it did not wait


@pytest.mark.parametrize("num_came", [0, 1, 3])
def test_when_time_is_up_the_device_keeps_its_own_and_says_so(num_came: int) -> None:
    hand = ScriptedHand("x", CHUNKS[:num_came], ("p", "q"))
    assert reduce(hand) is None
    assert told(hand) == [("q", 0), ("p", 0)]
    assert events(hand, "missed") == [{"event": "missed", "round": 0, "peers": ["p"]}]
    assert hand.seconds >= 10


@pytest.mark.parametrize("kind", ["lost", "joined"])
@pytest.mark.parametrize("sender", ["p", "q"])
def test_one_beside_it_who_is_lost_or_back_breaks_the_ring_at_once(kind: str, sender: str) -> None:
    hand = ScriptedHand("x", [CHUNKS[0], Message(kind, sender=sender), *CHUNKS[1:]], ("p", "q"))
    assert reduce(hand) is None
    assert len(told(hand)) == 2
    assert hand.seconds == 2  # a cut and a chunk


def test_one_elsewhere_who_is_lost_does_not() -> None:
    assert reduce(ScriptedHand("x", [Message("lost", sender="z"), *CHUNKS], ("p", "q", "z")))


def test_without_its_neighbours_a_device_does_not_begin() -> None:
    hand = ScriptedHand("x", CHUNKS, ("q",))
    assert reduce(hand) is None
    assert [(peer, m.kind) for peer, m in hand.sent] == [("q", "broken")]
    assert hand.works == []


@pytest.mark.parametrize(("sender", "other"), [("p", "q"), ("q", "p")])
def test_that_the_ring_is_broken_is_passed_on(sender: str, other: str) -> None:
    broken = Message("broken", 0, {"newest": 0}, sender=sender)
    hand = ScriptedHand("x", [CHUNKS[0], broken, *CHUNKS[1:]], ("p", "q"))
    assert reduce(hand) is None
    assert told(hand) == [(other, 0)]
    assert hand.seconds == 2


def test_a_ring_that_was_broken_before_the_device_came_to_it_is_not_waited_for() -> None:
    belt = Belt(RING, 9)
    belt.take(ScriptedHand("x"), Message("broken", 1, {"newest": 1}, sender="q"), 0)
    hand = ScriptedHand("x", [], ("p", "q"))
    assert reduce(hand, belt, number=1) is None
    assert told(hand) == [("p", 1)]
    assert hand.seconds == 1


def test_a_device_that_hears_of_a_later_round_leaves_its_own_and_tells() -> None:
    hand = ScriptedHand("x", [CHUNKS[0], chunk(0, 1.0, 5, number=4)], ("p", "q"))
    assert reduce(hand) is None
    assert told(hand) == [("q", 4), ("p", 4)]


def test_what_belongs_to_a_round_that_is_over_is_late() -> None:
    belt = Belt(RING, 9)
    old = [chunk(3, 9.0, 10, number=0), Message("broken", 0, {"newest": 0}, sender="q")]
    now = [chunk(stage, 1.0, RING.weight_due(stage), number=1) for stage in range(4)]
    hand = ScriptedHand("x", [*old, *now], ("p", "q"))
    assert reduce(hand, belt, number=1) == [1.0, 1.0, 1.0]
    assert events(hand, "late") == [{"event": "late", "peer": "p", "round": 0}]


def misfits() -> dict[str, Message]:
    fine = CHUNKS[1]
    two = {"stem": Weights({"float64": torch.ones(2, dtype=torch.float64)})}
    return {
        "not finite": chunk(1, float("nan"), 8),
        "not 8": chunk(1, 4.0, 9),
        "(2,)": replace(fine, blocks=two),
        "names differ": replace(fine, blocks={"stem": Weights({"float32": torch.ones(1)})}),
        "other blocks": replace(fine, blocks={"branch": fine.blocks["stem"]}),
    }


@pytest.mark.parametrize("reason", misfits())
def test_a_chunk_that_does_not_fit_is_refused_and_breaks_the_ring(reason: str) -> None:
    hand = ScriptedHand("x", [CHUNKS[0], misfits()[reason], *CHUNKS[2:]], ("p", "q"))
    assert reduce(hand) is None
    (refused,) = events(hand, "refused")
    assert (refused["peer"], refused["round"]) == ("p", 0)
    assert reason in refused["reason"]
    assert len(told(hand)) == 2


@pytest.mark.parametrize(
    "odd",
    [
        chunk(0, 9.0, 5, sender="q"),
        chunk(0, 9.0, 5, number=9),
        chunk(4, 9.0, 5),
        Message("chunk", 0, {"stage": "0", "weight": 5}, CHUNKS[0].blocks, "p"),
        Message("chunk", 0, {}, CHUNKS[0].blocks, "p"),
        Message("broken", 0, {"newest": 99}, sender="p"),
        Message("broken", 0, {"newest": "all"}, sender="p"),
        Message("broken", 0, {"newest": 0}, sender="z"),
    ],
)
def test_what_makes_no_sense_is_refused_and_the_ring_goes_on(odd: Message) -> None:
    hand = ScriptedHand("x", [odd, *CHUNKS], ("p", "q"))
    assert reduce(hand) == MEAN
    assert len(events(hand, "refused")) == 1

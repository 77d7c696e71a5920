from __future__ import annotations

import asyncio

import torch

from manyhands.blocks import Weights
from manyhands.engine.scripted import ScriptedHand
from manyhands.exchange.device import take_part, work_alone
from manyhands.exchange.member import Member
from manyhands.hand import Message, Outcome, Work
from manyhands.replica import Blocks, Replica


def member() -> Member:
    """A device whose network is one number; a local phase adds one to it."""

    def train(replica: Replica, blocks: Blocks, number: int) -> Work:
        value = float(blocks["model"]["w"] if blocks else replica.weights["w"]) + 1
        new = {"replica": one(value), "update/model": one(value)}
        return Work(
            "train", lambda: Outcome({"num_steps": replica.num_steps + 1, "examples": 7, "loss": 0.5}, new)
        )

    def settle(replica: Replica, blocks: Blocks) -> Work:
        return Work("settle", lambda: Outcome({}, {"replica": blocks["model"]}))

    def evaluate(replica: Replica, blocks: Blocks) -> Work:
        value = float(blocks["model"]["w"] if blocks else replica.weights["w"])
        return Work("evaluate", lambda: Outcome({"accuracy": value, "loss": 0.0}))

    return Member("pi", Replica(one(0.0)), 7, train, settle, evaluate)


def one(value: float) -> Weights:
    return Weights({"w": torch.tensor(value)})


def call(number: int, value: float, attempt: int = 0, kind: str = "round") -> Message:
    return Message(kind, number, {"call": [attempt, number]}, {"model": one(value)}, sender="coordinator")


def test_a_device_answers_each_round_and_ends_with_the_final_blocks() -> None:
    hand = ScriptedHand("pi", [call(0, 10.0), call(2, 99.0, kind="stop")])
    replica = asyncio.run(take_part(hand, member(), num_rounds=2, evaluate_every=1))
    [(peer, update), (_, farewell)] = hand.sent
    assert farewell.kind == "stopped"
    assert (peer, update.kind, update.round, update.facts["examples"]) == ("coordinator", "update", 0, 7)
    assert float(update.blocks["model"]["w"]) == 11.0
    assert float(replica.weights["w"]) == 99.0
    assert [(e["round"], e["accuracy"]) for e in hand.events if e["event"] == "evaluated"] == [
        (0, 10.0),
        (2, 99.0),
    ]


def test_of_several_calls_that_wait_only_the_newest_is_answered() -> None:
    hand = ScriptedHand(
        "pi", [call(1, 1.0), call(3, 3.0), call(2, 2.0), call(9, 9.0, kind="stop")], queued=True
    )
    replica = asyncio.run(take_part(hand, member(), 4, 0))
    # The stop is among what waits, so nothing is worth answering any more.
    assert [message.kind for _, message in hand.sent] == ["stopped"]
    assert float(replica.weights["w"]) == 9.0


def test_a_doubled_or_overtaken_call_is_not_answered_again() -> None:
    calls = [call(1, 1.0), call(1, 1.0), call(0, 0.0), call(1, 5.0, attempt=1), call(2, 2.0, attempt=1)]
    hand = ScriptedHand("pi", [*calls, call(3, 0.0, kind="stop")])
    asyncio.run(take_part(hand, member(), 4, 0))
    assert [m.facts["call"] for _, m in hand.sent if m.kind == "update"] == [[0, 1], [1, 1], [1, 2]]


def test_a_restarted_device_goes_on_with_what_it_saved() -> None:
    hand = ScriptedHand("pi")
    hand.saved = Replica(one(5.0), num_steps=5, num_rounds=5)
    replica = asyncio.run(work_alone(hand, member(), num_rounds=8, evaluate_every=2))
    assert float(replica.weights["w"]) == 8.0
    assert hand.works == ["train"] * 3
    assert [e["round"] for e in hand.events if e["event"] == "evaluated"] == [6, 8]
    assert hand.saved is replica

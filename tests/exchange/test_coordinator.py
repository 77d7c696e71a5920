from __future__ import annotations

import asyncio
from typing import Any

import pytest
import torch

from manyhands.blocks import Weights
from manyhands.engine.scripted import ScriptedHand
from manyhands.exchange.coordination import Coordination, ExchangeSection, Progress
from manyhands.exchange.coordinator import coordinate
from manyhands.hand import Message, Outcome, Work

DEVICES = ("a", "b", "c")


def one(value: float) -> Weights:
    return Weights({"w": torch.tensor(value)})


def job(**section: Any) -> Coordination:
    return Coordination(
        ExchangeSection(**{"rounds": 1, "deadline_s": 10, **section}),
        seed=0,
        blocks={"stem": one(0.0), "task/3": one(0.0)},
        holds={"a": ("stem",), "b": ("stem", "task/3"), "c": ("stem", "task/3")},
        expected_s=dict.fromkeys(DEVICES, 1.0),
        num_examples={"a": 10, "b": 20, "c": 70},
        evaluate=lambda blocks: Work("evaluate", lambda: Outcome({"accuracy": float(blocks["stem"]["w"])})),
    )


def update(sender: str, number: int = 0, attempt: int = 0, **blocks: float) -> Message:
    named = {name.replace("_", "/"): one(value) for name, value in blocks.items()}
    return Message("update", number, {"call": [attempt, number]}, named, sender)


def run(hand: ScriptedHand, coordination: Coordination) -> dict[str, float]:
    hand.inbox += [Message("stopped", sender=name) for name in DEVICES]
    progress = asyncio.run(coordinate(hand, coordination))
    return {name: float(weights["w"]) for name, weights in progress.blocks.items()}


def events(hand: ScriptedHand, kind: str) -> list[dict[str, Any]]:
    return [event for event in hand.events if event["event"] == kind]


def test_each_block_is_averaged_over_those_who_hold_it_by_their_data() -> None:
    inbox = [update("b", stem=2.0, task_3=3.0), update("a", stem=1.0), update("c", stem=3.0, task_3=6.0)]
    hand = ScriptedHand("coordinator", inbox, DEVICES)
    assert run(hand, job()) == pytest.approx({"stem": 0.1 + 0.4 + 2.1, "task/3": (20 * 3 + 70 * 6) / 90})
    assert [sorted(m.blocks) for p, m in hand.sent if p == "a"] == [["stem"], ["stem"]]
    assert [m.kind for p, m in hand.sent if p == "b"] == ["round", "stop"]
    assert events(hand, "merged")[0]["accuracy"] == pytest.approx(2.6)


def test_gradients_add_up_to_the_same_as_parameters() -> None:
    inbox = [update("a", stem=1.0), update("b", stem=2.0, task_3=3.0), update("c", stem=3.0, task_3=6.0)]
    start = {"stem": one(5.0), "task/3": one(5.0)}
    with_change = job(send="gradients")
    changed = Coordination(**{**vars(with_change), "blocks": start})
    got = run(ScriptedHand("coordinator", inbox, DEVICES), changed)
    assert got == pytest.approx({"stem": 5 + 2.6, "task/3": 5 + 480 / 90})


def test_the_deadline_ends_a_round_without_the_missing() -> None:
    hand = ScriptedHand("coordinator", [update("b", stem=4.0, task_3=4.0)], DEVICES)
    assert run(hand, job())["stem"] == 4.0
    assert events(hand, "missed") == [{"event": "missed", "round": 0, "peers": ["a", "c"]}]


def test_a_lost_device_is_not_waited_for() -> None:
    inbox = [update("b", stem=4.0), Message("lost", sender="a"), Message("lost", sender="c")]
    hand = ScriptedHand("coordinator", inbox, DEVICES)
    run(hand, job())
    assert hand.seconds < 10  # not the deadline


def test_a_late_update_is_left_out() -> None:
    inbox = [
        update("a", number=7, stem=100.0),
        update("a", stem=1.0),
        update("b", stem=1.0),
        update("c", stem=1.0),
    ]
    hand = ScriptedHand("coordinator", inbox, DEVICES)
    assert run(hand, job())["stem"] == pytest.approx(1.0)
    assert events(hand, "late") == [{"event": "late", "peer": "a", "round": 7}]


def test_a_doubled_update_counts_once() -> None:
    inbox = [update("a", stem=1.0), update("a", stem=1.0), update("b", stem=4.0), update("c", stem=4.0)]
    assert run(ScriptedHand("coordinator", inbox, DEVICES), job())["stem"] == pytest.approx(0.1 + 0.9 * 4)


def test_what_is_not_finite_or_does_not_fit_is_refused_and_the_rest_go_on() -> None:
    misfit = Message("update", 0, {"call": [0, 0]}, {"stem": Weights({"w": torch.zeros(3)})}, "b")
    hand = ScriptedHand(
        "coordinator", [update("a", stem=float("nan")), misfit, update("c", stem=2.0)], DEVICES
    )
    assert run(hand, job())["stem"] == 2.0
    refused = {event["peer"]: event["reason"] for event in events(hand, "refused")}
    assert "not finite" in refused["a"]
    assert "(3,)" in refused["b"]


def test_if_all_are_refused_the_blocks_stay() -> None:
    inbox = [update(name, stem=float("inf")) for name in DEVICES]
    assert run(ScriptedHand("coordinator", inbox, DEVICES), job()) == {"stem": 0.0, "task/3": 0.0}


def test_a_fraction_of_the_devices_is_called_and_another_each_round() -> None:
    chosen = set()
    hand = ScriptedHand("coordinator", [], DEVICES)
    run(hand, job(rounds=12, fraction=0.34, deadline_s=1))
    calls = [(message.round, peer) for peer, message in hand.sent if message.kind == "round"]
    assert len(calls) == 12
    chosen = {peer for _, peer in calls}
    assert chosen == set(DEVICES)


def test_a_restarted_coordinator_goes_on_from_its_last_merge() -> None:
    hand = ScriptedHand("coordinator", [update("a", number=2, attempt=1, stem=9.0)], ("a",))
    hand.saved = Progress({"stem": one(1.0), "task/3": one(1.0)}, round=2)
    assert run(hand, job(rounds=3)) == {"stem": 9.0, "task/3": 1.0}
    assert [(m.kind, m.round, m.facts.get("call")) for _, m in hand.sent] == [
        ("round", 2, [1, 2]),
        ("stop", 3, None),
    ]


def test_asynchronous_answers_whoever_comes() -> None:
    inbox = [update("c", 3, stem=10.0), update("c", 4, stem=10.0), update("a", 1, stem=0.0)]
    hand = ScriptedHand("coordinator", inbox, DEVICES)
    coordination = job(mode="asynchronous", rounds=1, mix=0.5)
    got = run(hand, coordination)
    # c has 2.1 times the average data, so its step is capped at 1; a has 0.3, so it moves 0.15 of the way.
    assert got["stem"] == pytest.approx(10 * 0.85)
    assert [p for p, m in hand.sent if m.kind == "round"] == ["a", "b", "c", "c", "c", "a"]


def test_staleness_discounts_old_updates() -> None:
    inbox = [update("c", 3, stem=10.0), update("c", 4, stem=10.0), update("a", 1, stem=0.0)]
    got = run(ScriptedHand("coordinator", inbox, DEVICES), job(mode="asynchronous", mix=0.5, staleness=1.0))
    assert got["stem"] == pytest.approx(10 * (1 - 0.15 / 3))  # two merges happened since a was called


def test_asynchronous_calls_again_when_an_answer_is_overdue() -> None:
    class Patient(ScriptedHand):
        """Hears nothing the first time it waits."""

        waits = 0

        async def receive(self, *kinds: str, timeout_s: float | None = None) -> Message | None:
            self.waits += 1
            if self.waits == 1 and timeout_s is not None:
                self.seconds += timeout_s
                return None
            return await super().receive(*kinds, timeout_s=timeout_s)

    hand = Patient("coordinator", [update(name, 4 + k, stem=1.0) for k, name in enumerate(DEVICES)], DEVICES)
    run(hand, job(mode="asynchronous"))
    assert [p for p, m in hand.sent if m.kind == "round"][:6] == ["a", "b", "c", "a", "b", "c"]
    assert len(events(hand, "missed")) == 3


def test_asynchronous_takes_an_answer_to_an_older_call() -> None:
    class Impatient(ScriptedHand):
        """Hears nothing the first time it waits, so that everybody is called twice."""

        waits = 0

        async def receive(self, *kinds: str, timeout_s: float | None = None) -> Message | None:
            self.waits += 1
            if self.waits == 1 and timeout_s:
                self.seconds += timeout_s
                return None
            return await super().receive(*kinds, timeout_s=timeout_s)

    late = [update(name, 1 + k, stem=float(k)) for k, name in enumerate(DEVICES)]
    hand = Impatient("coordinator", late, DEVICES)
    assert run(hand, job(mode="asynchronous"))["stem"] > 0
    assert events(hand, "late") == []
    # Those who have a newer call waiting are not called a third time.
    assert [m.kind for _, m in hand.sent].count("round") == 6


def test_news_from_before_a_round_is_not_taken_for_news_of_it() -> None:
    class Stale(ScriptedHand):
        """Finds an old note when it looks."""

        async def receive(self, *kinds: str, timeout_s: float | None = None) -> Message | None:
            if timeout_s == 0 and self.inbox and self.inbox[0].kind == "joined":
                return self.inbox.pop(0)
            return await super().receive(*kinds, timeout_s=timeout_s)

    inbox = [Message("joined", sender="a"), *(update(name, stem=4.0) for name in DEVICES)]
    hand = Stale("coordinator", inbox, DEVICES)
    assert run(hand, job())["stem"] == pytest.approx(4.0)
    assert events(hand, "missed") == []


def test_the_final_blocks_are_sent_again_until_they_are_confirmed() -> None:
    hand = ScriptedHand("coordinator", [update(name, stem=4.0) for name in DEVICES], DEVICES)
    hand.inbox += [Message("stopped", sender="a"), Message("stopped", sender="b")]
    asyncio.run(coordinate(hand, job()))
    stops = [peer for peer, message in hand.sent if message.kind == "stop"]
    assert stops.count("a") == stops.count("b") == 1
    assert stops.count("c") == 5


def test_a_second_restart_is_not_taken_for_the_first() -> None:
    hand = ScriptedHand("coordinator", [], DEVICES)
    hand.saved = Progress({"stem": one(1.0), "task/3": one(1.0)}, round=0, attempt=1)
    asyncio.run(coordinate(hand, job()))  # nobody answers
    assert [m.facts["call"][0] for _, m in hand.sent if m.kind == "round"] == [2, 2, 2]
    assert hand.saved.attempt == 2


def test_asynchronous_a_blocks_step_depends_on_those_who_hold_it() -> None:
    """Paper 001, appendix A, block by block: with b and c alone, c has 70 of 90 examples, not 70 of 100."""

    def after(**updates: dict[str, float]) -> dict[str, float]:
        inbox = [update(name, 1 + DEVICES.index(name), **blocks) for name, blocks in updates.items()]
        return run(ScriptedHand("coordinator", inbox, DEVICES), job(mode="asynchronous", rounds=1, mix=0.4))

    got = after(b={"stem": 10.0, "task_3": 10.0}, a={"stem": 0.0}, c={"stem": 0.0, "task_3": 0.0})
    stem = {"a": 0.4 * 0.3, "b": 0.4 * 0.6, "c": 0.4 * 2.1}  # three hold it, 33.3 examples on average
    task = {"b": 0.4 * 20 / 45, "c": 0.4 * 70 / 45}  # two do, 45 on average
    assert got["stem"] == pytest.approx(10 * stem["b"] * (1 - stem["a"]) * (1 - stem["c"]))
    assert got["task/3"] == pytest.approx(10 * task["b"] * (1 - task["c"]))


def test_asynchronous_what_a_device_does_not_hold_it_does_not_move() -> None:
    inbox = [update("a", 1, stem=10.0), update("a", 4, stem=10.0), update("a", 5, stem=10.0)]
    got = run(ScriptedHand("coordinator", inbox, DEVICES), job(mode="asynchronous", rounds=1))
    assert got["stem"] > 0
    assert got["task/3"] == 0


@pytest.mark.parametrize("mode", ["synchronous", "asynchronous"])
def test_a_block_that_its_sender_does_not_hold_is_refused(mode: str) -> None:
    inbox = [update("a", stem=1.0, task_3=9.0), *([update("b", stem=4.0, task_3=4.0)] * 3)]
    if mode == "asynchronous":  # the calls are numbered through, one a device
        inbox = [update("a", 1, stem=1.0, task_3=9.0), update("b", 2, stem=4.0), update("c", 3, stem=4.0)]
    hand = ScriptedHand("coordinator", inbox, DEVICES)
    got = run(hand, job(mode=mode))
    assert got["task/3"] == (4.0 if mode == "synchronous" else 0.0)
    assert [(e["peer"], e["reason"]) for e in events(hand, "refused")] == [
        ("a", "it does not hold block 'task/3'")
    ]

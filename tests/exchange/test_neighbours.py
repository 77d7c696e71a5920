from __future__ import annotations

import asyncio
import weakref
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import TypeAdapter, ValidationError

from manyhands.blocks import Weights
from manyhands.engine.checkpoint import read_checkpoint
from manyhands.engine.cores import Cores
from manyhands.engine.faults import Fault, Faults
from manyhands.engine.holdings import Keeping
from manyhands.engine.participant import Participant
from manyhands.engine.scripted import ScriptedHand
from manyhands.engine.simulate import Simulation, Until
from manyhands.exchange.coordination import ExchangeSection
from manyhands.exchange.member import Member
from manyhands.exchange.mixing import mixing_rows
from manyhands.exchange.neighbourhood import Neighbourhood
from manyhands.exchange.neighbours import Standing, exchange_with_neighbours
from manyhands.fleet import DeviceSection, Fleet, FleetSection, make_fleet
from manyhands.hand import Message, Outcome, Work
from manyhands.replica import Blocks, Replica


def one(value: float) -> Weights:
    return Weights({"w": torch.tensor(value, dtype=torch.float64)})


def values(blocks: Mapping[str, Mapping[str, torch.Tensor]]) -> dict[str, float]:
    return {block: float(weights["w"]) for block, weights in blocks.items()}


def member(push: float = 1.0, num_examples: int = 7, flops: float = 0.0) -> Member:
    """A device whose blocks are one number each; a local phase adds `push` to them."""

    def train(replica: Replica, blocks: Blocks, number: int) -> Work:
        def run() -> Outcome:
            new = {f"update/{block}": one(value + push) for block, value in values(blocks).items()}
            facts = {"num_steps": replica.num_steps + 1, "examples": num_examples, "loss": 0.5}
            return Outcome(facts, {"replica": one(100.0 + number), **new})

        return Work("train", run, flops, {"round": number})

    def settle(replica: Replica, blocks: Blocks) -> Work:
        def run() -> Outcome:
            return Outcome({}, {"replica": Weights({b: w["w"] for b, w in blocks.items()})})

        return Work("settle", run)

    def evaluate(replica: Replica, blocks: Blocks) -> Work:
        def run() -> Outcome:
            shown = values(blocks) if blocks else {b: float(t) for b, t in replica.weights.items()}
            return Outcome({"accuracy": shown.get("stem"), "loss": 0.0})

        return Work("evaluate", run)

    return Member("x", Replica(one(0.0)), num_examples, train, settle, evaluate)


# One device, to the letter.

PEERS = ("p", "q")


def place(evaluate_every: int = 0, **section: Any) -> Neighbourhood:
    """The device shares the stem with p and q, and a task with q alone."""
    weights = {"stem": {"p": 0.25, "q": 0.5}, "task/3": {"q": 0.5}, "own": {}}
    told = ExchangeSection(mode="neighbours", **{"rounds": 1, "deadline_s": 10, **section})
    return Neighbourhood(told, {block: one(0.0) for block in weights}, weights, 1.0, evaluate_every)


def said(sender: str, number: int = 0, **blocks: float) -> Message:
    named = {name.replace("_", "/"): one(value) for name, value in blocks.items()}
    return Message("blocks", number, blocks=named, sender=sender)


def run(hand: ScriptedHand, where: Neighbourhood) -> dict[str, float]:
    replica = asyncio.run(exchange_with_neighbours(hand, member(), where))
    return {block: float(tensor) for block, tensor in replica.weights.items()}


def events(hand: ScriptedHand, kind: str) -> list[dict[str, Any]]:
    return [event for event in hand.events if event["event"] == kind]


def test_each_block_is_averaged_with_those_who_hold_it() -> None:
    hand = ScriptedHand("x", [said("q", stem=9.0, task_3=5.0), said("p", stem=5.0)], PEERS)
    # Its own are 1 after the local phase.
    assert run(hand, place()) == {"stem": 0.25 + 0.25 * 5 + 0.5 * 9, "task/3": 3.0, "own": 1.0}
    assert [(peer, m.kind, m.round, values(m.blocks)) for peer, m in hand.sent] == [
        ("p", "blocks", 0, {"stem": 1.0}),
        ("q", "blocks", 0, {"stem": 1.0, "task/3": 1.0}),
    ]
    assert hand.works == ["train", "merge", "settle"]
    assert [event["event"] for event in hand.events] == ["round", "evaluated", "finished"]


def test_who_does_not_answer_leaves_their_weight_to_the_device() -> None:
    hand = ScriptedHand("x", [said("p", stem=5.0)], PEERS)
    assert run(hand, place()) == {"stem": 0.75 + 0.25 * 5, "task/3": 1.0, "own": 1.0}
    assert events(hand, "missed") == [{"event": "missed", "round": 0, "peers": ["q"]}]
    assert hand.seconds == 1 + 10 + 1 + 1  # train, the deadline, merge, settle


def test_without_a_deadline_it_waits_a_multiple_of_what_a_round_should_take() -> None:
    hand = ScriptedHand("x", [], PEERS)
    run(hand, place(deadline_s=None, slack=4.0))
    assert hand.seconds == 1 + 4 + 1


def test_a_lost_neighbour_is_not_waited_for() -> None:
    hand = ScriptedHand("x", [said("p", stem=5.0), Message("lost", sender="q")], PEERS)
    assert run(hand, place())["stem"] == 2.0
    assert events(hand, "missed")[0]["peers"] == ["q"]
    assert hand.seconds == 3


def test_one_that_came_back_is_not_waited_for_in_this_round() -> None:
    hand = ScriptedHand("x", [Message("joined", sender="p"), said("q", stem=1.0)], PEERS)
    run(hand, place())
    assert hand.seconds == 3


def test_what_a_lost_neighbour_said_before_counts() -> None:
    inbox = [said("q", stem=9.0), Message("lost", sender="q"), said("p", stem=1.0)]
    hand = ScriptedHand("x", inbox, PEERS)
    assert run(hand, place())["stem"] == 5.0
    assert events(hand, "missed") == []


def test_news_from_before_a_round_is_not_taken_for_news_of_it() -> None:
    inbox = [Message("lost", sender="p"), Message("joined", sender="p"), said("q", stem=1.0)]
    hand = ScriptedHand("x", inbox, PEERS, queued=True)
    run(hand, place())
    assert hand.seconds == 13  # it waits for p, who is there


def test_when_nobody_is_there_it_does_not_wait() -> None:
    hand = ScriptedHand("x", [], ())
    assert run(hand, place(rounds=3)) == {"stem": 3.0, "task/3": 3.0, "own": 3.0}
    assert hand.sent == []
    assert hand.seconds == 4
    assert hand.works == ["train"] * 3 + ["settle"]


def test_an_old_word_is_late_and_left_out() -> None:
    inbox = [said("p", 0, stem=1.0), said("q", 0, stem=1.0), said("p", 0, stem=99.0)]
    inbox += [said("p", 1, stem=2.0), said("q", 1, stem=2.0)]
    hand = ScriptedHand("x", inbox, PEERS)
    assert run(hand, place(rounds=2))["stem"] == 2.0
    assert events(hand, "late") == [{"event": "late", "peer": "p", "round": 0}]


def test_one_that_was_away_and_is_behind_is_told_how_far_this_device_is() -> None:
    """Else it waits for this device, which waits for one that waits for the one that is behind."""

    class Away(ScriptedHand):
        """Its peer p comes back when it has sent its words of the second round."""

        async def send(self, peer: str, message: Message) -> None:
            await super().send(peer, message)
            if message.round == 1:
                self.peers = PEERS

    inbox = [said("q", 0, stem=1.0), said("p", 0, stem=9.0), said("p", 0, stem=9.0), said("q", 1, stem=2.0)]
    hand = Away("x", inbox, ("q",))
    run(hand, place(rounds=2))
    assert [(peer, m.round) for peer, m in hand.sent] == [("q", 0), ("q", 1), ("p", 1)]
    assert values(hand.sent[-1][1].blocks).keys() == {"stem"}
    assert len(events(hand, "late")) == 2  # a doubled word is answered once


def test_a_doubled_word_counts_once() -> None:
    inbox = [said("p", stem=5.0), said("p", stem=5.0), said("q", stem=1.0)]
    hand = ScriptedHand("x", inbox, PEERS)
    assert run(hand, place())["stem"] == 2.0
    assert events(hand, "late") == []


def test_of_a_neighbour_one_round_ahead_each_word_counts_in_its_round() -> None:
    inbox = [said("p", 0, stem=5.0), said("p", 1, stem=-2.0), said("q", 0, stem=1.0), said("q", 1, stem=3.0)]
    hand = ScriptedHand("x", inbox, PEERS)
    assert run(hand, place(rounds=2))["stem"] == 0.25 * 3 - 0.25 * 2 + 0.5 * 3
    assert hand.seconds == 5  # in its second round it does not wait for p, who has spoken
    assert [m.round for peer, m in hand.sent if peer == "p"] == [0, 1]


def test_the_newest_counts_of_one_that_has_gone_on() -> None:
    inbox = [said("p", 0, stem=99.0), said("p", 3, stem=5.0), said("p", 2, stem=99.0), said("q", stem=1.0)]
    hand = ScriptedHand("x", inbox, PEERS)
    # p's round 3 counts in round 0, and is the round to go on with: 2, then 0.75 * 3 + 0.25 * 5, then alone.
    assert run(hand, place(rounds=5))["stem"] == 4.5
    assert [m.round for peer, m in hand.sent if peer == "p"] == [0, 3, 4]
    assert hand.works.count("train") == 3


def test_the_newest_counts_when_the_word_of_this_round_was_lost() -> None:
    hand = ScriptedHand("x", [said("p", 1, stem=5.0), said("q", 0, stem=1.0)], PEERS)
    # Two rounds with p's 5: to 0.75 * 1 + 0.25 * 5 = 2, then to 0.75 * 3 + 0.25 * 5, because q is silent.
    assert run(hand, place(rounds=2))["stem"] == 3.5
    assert events(hand, "missed") == [{"event": "missed", "round": 1, "peers": ["q"]}]


def test_what_waits_is_read_before_a_slow_device_goes_on() -> None:
    inbox = [*(said(p, n, stem=1.0) for n in range(5) for p in PEERS)]
    hand = ScriptedHand("x", inbox, PEERS, queued=True)
    run(hand, place(rounds=5))
    assert [m.round for peer, m in hand.sent if peer == "p"] == [0, 4]
    assert events(hand, "late") == []


def test_what_was_merged_is_not_kept() -> None:
    class Watches(ScriptedHand):
        """Counts at each round's end which of the others' words are still alive."""

        def report(self, event: str, **facts: Any) -> None:
            if event == "round":
                alive.append([name for name, word in words.items() if word() is not None])

    inbox = [said("p", 0, stem=1.0), said("p", 1, stem=1.0), said("q", 0, stem=1.0), said("q", 1, stem=1.0)]
    words = {f"{m.sender}{m.round}": weakref.ref(m.blocks["stem"]) for m in inbox}
    alive: list[list[str]] = []
    hand = Watches("x", inbox, PEERS)
    inbox.clear()
    run(hand, place(rounds=2))
    assert alive == [["p1", "q1"], []]  # p1 waits for its round; q1 is still in the script


def test_what_does_not_fit_is_refused_and_the_rest_go_on() -> None:
    nan = said("q", stem=float("nan"), task_3=9.0)
    hand = ScriptedHand("x", [nan, said("p", stem=5.0)], PEERS)
    assert run(hand, place()) == {"stem": 2.0, "task/3": 1.0, "own": 1.0}
    (refused,) = events(hand, "refused")
    assert (refused["peer"], refused["round"]) == ("q", 0)
    assert "not finite" in refused["reason"]


@pytest.mark.parametrize(("sender", "number"), [("stranger", 0), ("p", 7), ("p", -1)])
def test_strangers_and_rounds_that_are_none_are_refused(sender: str, number: int) -> None:
    inbox = [said(sender, number, stem=99.0), said("q", stem=1.0), said("p", stem=5.0)]
    hand = ScriptedHand("x", inbox, PEERS)
    assert run(hand, place())["stem"] == 2.0
    (refused,) = events(hand, "refused")
    assert (refused["peer"], refused["round"]) == (sender, number)


def test_a_block_that_is_not_exchanged_with_a_peer_is_not_taken_from_it() -> None:
    hand = ScriptedHand("x", [said("p", stem=5.0, task_3=99.0, own=99.0), said("q", stem=1.0)], PEERS)
    assert run(hand, place()) == {"stem": 1.0, "task/3": 1.0, "own": 1.0}
    assert [e["peer"] for e in hand.events if e["event"] == "refused"] == ["p"]


def test_robust_rules_count_everybody_once() -> None:
    inbox = [said("p", stem=3.0), said("q", stem=1000.0)]
    assert run(ScriptedHand("x", inbox, PEERS), place(merge={"rule": "median"}))["stem"] == 3.0
    trimmed = place(merge={"rule": "trimmed_mean", "trim": 0.34})
    assert run(ScriptedHand("x", inbox, PEERS), trimmed)["stem"] == 3.0


def test_a_peer_moves_a_block_no_further_than_the_clip() -> None:
    inbox = [said("p", stem=1.0), said("q", stem=1000.0)]
    hand = ScriptedHand("x", inbox, PEERS)
    assert run(hand, place(merge={"clip_norm": 4.0}))["stem"] == 1.0 + 0.5 * 4.0


def test_it_is_looked_at_every_so_often_and_at_the_end() -> None:
    hand = ScriptedHand("x", [], ())
    run(hand, place(rounds=5, evaluate_every=2))
    looks = [(e["round"], e["accuracy"]) for e in events(hand, "evaluated")]
    assert looks == [(2, 2.0), (4, 4.0), (5, 5.0)]
    assert [e["round"] for e in events(hand, "round")] == [1, 2, 3, 4, 5]


def test_a_restarted_device_goes_on_after_its_last_merge() -> None:
    hand = ScriptedHand("x", [said("p", 3, stem=5.0), said("q", 3, stem=11.0)], PEERS)
    hand.saved = Standing(Replica(one(0.0), num_steps=3, num_rounds=3), {"stem": one(10.0)}, round=3)
    where = place(rounds=4)
    only_stem = Neighbourhood(
        where.section, {"stem": one(0.0)}, {"stem": where.weights["stem"]}, where.expected_s
    )
    assert run(hand, only_stem) == {"stem": 0.25 * 11 + 0.25 * 5 + 0.5 * 11}
    assert events(hand, "finished") == [{"event": "finished", "round": 4}]


def test_what_was_merged_is_saved() -> None:
    class Dies(ScriptedHand):
        """Crashes in its second local phase."""

        async def compute(self, work: Work) -> Outcome:
            if self.works.count("train") and work.name == "train":
                raise KeyboardInterrupt
            return await super().compute(work)

    hand = Dies("x", [said("p", stem=5.0), said("q", stem=1.0)], PEERS)
    with pytest.raises(KeyboardInterrupt):
        run(hand, place(rounds=2))
    assert (hand.saved.round, hand.saved.trained) == (1, False)
    assert values(hand.saved.blocks)["stem"] == 2.0


def test_a_restarted_device_that_nobody_answers_ends_after_its_deadlines() -> None:
    hand = ScriptedHand("x", [], PEERS)
    hand.saved = Standing(Replica(one(0.0)), place().blocks, round=2)
    assert run(hand, place(rounds=5))["stem"] == 3.0
    assert hand.seconds == 3 * (1 + 10) + 1


def test_a_device_restarted_while_it_waited_says_again_what_it_had_trained() -> None:
    class Dies(ScriptedHand):
        """Crashes when it first waits for somebody."""

        async def receive(self, *kinds: str, timeout_s: float | None = None) -> Message | None:
            if timeout_s:
                raise KeyboardInterrupt
            return await super().receive(*kinds, timeout_s=timeout_s)

    before = Dies("x", [], PEERS)
    with pytest.raises(KeyboardInterrupt):
        run(before, place())
    assert before.saved.trained
    after = ScriptedHand("x", [said("p", stem=5.0), said("q", stem=1.0)], PEERS)
    after.saved = before.saved
    assert run(after, place())["stem"] == 2.0
    assert after.works == ["merge", "settle"]
    assert [values(m.blocks) for _, m in after.sent] == [values(m.blocks) for _, m in before.sent]


@pytest.mark.parametrize(
    ("key", "value"),
    [("coordinator", "x"), ("fraction", 0.5), ("staleness", 1.0), ("mix", 0.2), ("send", "gradients")],
)
def test_what_makes_no_sense_without_a_coordinator_is_refused(key: str, value: Any) -> None:
    with pytest.raises(ValidationError, match=key):
        ExchangeSection(mode="neighbours", **{key: value})


# Several devices on the virtual clock.

HOLDS = {
    "a": ("stem", "task/1"),
    "b": ("stem", "task/2"),
    "c": ("stem", "task/1", "task/2"),
    "d": ("stem", "own"),
    "e": ("task/1", "task/2"),
}
EXAMPLES = {"a": 10, "b": 20, "c": 5, "d": 40, "e": 25}
FIRST = {"a": 1.0, "b": -4.0, "c": 7.0, "d": 2.0, "e": 30.0}


MIXED = {"a": 1e9, "b": 7e7, "c": 3e8, "d": 1e8, "e": 5e8}
ALIKE = dict.fromkeys(HOLDS, 1e8)


def fleet_of(topology: str, speeds: Mapping[str, float]) -> Fleet:
    devices = tuple(
        DeviceSection(kind="laptop", name=n, flops=f, bandwidth_bps=1e6, latency_s=0.01)
        for n, f in speeds.items()
    )
    hub = {"hub": "d"} if topology == "star" else {}
    return make_fleet(FleetSection(device=devices, topology=topology, **hub), seed=0)


class Team:
    """Five devices that train nothing (or a little) and average, and what came of it."""

    def __init__(
        self,
        topology: str,
        faults: tuple[dict[str, Any], ...] = (),
        *,
        speeds: Mapping[str, float] = ALIKE,
        push: float = 0.0,
        rounds: int = 80,
    ) -> None:
        self.events: list[dict[str, Any]] = []
        self.lines: list[str] = []
        self._fleet = fleet_of(topology, speeds)
        self._script = [TypeAdapter(Fault).validate_python(fault) for fault in faults]
        self._push = push
        self._section = ExchangeSection(mode="neighbours", rounds=rounds)

    def run(self, kind: type[Simulation] = Simulation, **options: Any) -> dict[str, dict[str, float]]:
        rows = mixing_rows(self._fleet, HOLDS, EXAMPLES)
        participants = {}
        for name, held in HOLDS.items():
            first = {block: one(FIRST[name]) for block in held}
            where = Neighbourhood(self._section, first, rows[name], 2.0, 50)
            work = member(self._push, EXAMPLES[name], flops=1e8)
            program = partial(exchange_with_neighbours, member=work, place=where)
            participants[name] = Participant(program, name, where.peers)
        simulation = kind(
            self._fleet,
            participants,
            self._write,
            faults=Faults(self._script, 3),
            cores=Cores(0),
            **options,
        )
        self.ends = simulation.run()
        return {
            name: {b: float(t) for b, t in end.weights.items()}
            for name, end in self.ends.items()
            if isinstance(end, Replica)
        }

    def _write(self, event: dict[str, Any], line: str) -> None:
        self.events.append(event)
        self.lines.append(line)

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["event"] == kind]


def mean_over_data(held: Mapping[str, float]) -> float:
    return sum(EXAMPLES[n] * value for n, value in held.items()) / sum(EXAMPLES[n] for n in held)


@pytest.mark.parametrize("topology", ["ring", "star", "line", "mesh"])
def test_all_come_to_the_mean_over_the_data_of_those_who_hold_a_block(topology: str) -> None:
    team = Team(topology, speeds=MIXED, rounds=150)
    ends = team.run()
    for block in ("stem", "task/1", "task/2", "own"):
        reached = {name: end[block] for name, end in ends.items() if block in end}
        mean = mean_over_data({name: FIRST[name] for name in reached})
        # Whatever the speeds of the devices, no averaging moves the mean by more than a rounding error.
        assert mean_over_data(reached) == pytest.approx(mean, abs=1e-9)
        assert reached == pytest.approx(dict.fromkeys(reached, mean), abs=0.01)
    assert {event["round"] for event in team.of("finished")} == {150}
    assert team.of("missed") == team.of("late") == team.of("refused") == []


FAULTS: dict[str, tuple[dict[str, Any], ...]] = {
    "restart": ({"kind": "crash", "device": "c", "at_s": 20.3, "restart_at_s": 60.0},),
    "short restart": ({"kind": "crash", "device": "c", "at_s": 20.3, "restart_at_s": 20.5},),
    "gone": ({"kind": "crash", "device": "c", "at_s": 20.3},),
    "loss": ({"kind": "loss", "probability": 0.3},),
    "twice and out of order": (
        {"kind": "duplicate", "probability": 0.5},
        {"kind": "reorder", "probability": 0.5, "window_s": 9.0},
    ),
    "partition": (
        {"kind": "partition", "groups": [["a", "b"], ["c", "d", "e"]], "from_s": 9, "until_s": 50},
    ),
    "apart for ever": ({"kind": "partition", "groups": [["a"], ["b", "c", "d", "e"]], "from_s": 9},),
    "slow": ({"kind": "slow_down", "device": "b", "factor": 40, "from_s": 10, "until_s": 200},),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("topology", ["ring", "star", "line"])
def test_nothing_hangs_and_those_who_are_there_agree(topology: str, fault: str) -> None:
    team = Team(topology, FAULTS[fault])
    ends = team.run()
    assert team.of("stranded") == []
    assert ends.keys() == HOLDS.keys() - ({"c"} if fault == "gone" else set())
    if fault not in ("gone", "apart for ever"):
        for block in ("stem", "task/1", "task/2"):
            reached = [end[block] for end in ends.values() if block in end]
            assert max(reached) - min(reached) < 2  # of 34 at the start
            assert min(FIRST.values()) < reached[0] < max(FIRST.values())


def test_a_device_that_was_down_skips_what_the_others_did_without_it() -> None:
    team = Team("ring", FAULTS["restart"])
    team.run()
    phases = {event["device"]: event["round"] for event in team.of("finished")}
    others = min(phases[name] for name in "abde")
    assert others > 75
    assert phases["c"] < others - 10
    ended = {event["device"]: event["seconds"] for event in team.of("finished")}
    assert ended["c"] < max(ended[name] for name in "abde") + 10


def test_a_fast_device_that_is_cut_off_does_not_run_away() -> None:
    apart = {"kind": "partition", "from_s": 9, "until_s": 29, "groups": [["a"], list("bcde")]}
    team = Team("ring", (apart,), speeds=MIXED)
    team.run()
    phases = {event["device"]: event["round"] for event in team.of("finished")}
    assert min(phases.values()) > 70  # of 80: the four did not have to skip theirs to catch up with it


def test_one_who_comes_back_when_the_others_end_does_not_hang() -> None:
    crash = {"kind": "crash", "device": "c", "at_s": 2.0}
    gone = Team("mesh", (crash,), rounds=5)
    gone.run()
    last_s = max(event["seconds"] for event in gone.of("finished"))
    team = Team("mesh", ({**crash, "restart_at_s": last_s - 0.001},), rounds=5)
    assert "c" in team.run()
    assert team.events[-1]["event"] == "finished"
    assert team.events[-1]["seconds"] < last_s + 5 * 10


def test_the_same_job_gives_the_same_bytes() -> None:
    first, second = Team("star", FAULTS["loss"], rounds=20), Team("star", FAULTS["loss"], rounds=20)
    first.run()
    second.run()
    assert first.lines == second.lines


class Keeps(Simulation):
    """Stops dead after so many events."""

    stop_after = 0

    def emit(self, *args: Any, **options: Any) -> None:
        if self.journal.num_events >= self.stop_after:
            raise KeyboardInterrupt
        super().emit(*args, **options)


@pytest.mark.parametrize("at", ["round", "sent", "received"])  # between rounds, and in the middle of things
@pytest.mark.parametrize("stop_after", [60, 131, 202, 333])
def test_a_run_stopped_anywhere_resumes_to_the_same_bytes(stop_after: int, at: str, tmp_path: Path) -> None:
    changes: dict[str, Any] = {"rounds": 12, "push": 1.0}
    whole = Team("ring", FAULTS["loss"], **changes)
    ends = whole.run()
    assert len(whole.lines) > 333
    Keeps.stop_after = stop_after
    cut = Team("ring", FAULTS["loss"], **changes)
    with pytest.raises(KeyboardInterrupt):
        cut.run(Keeps, keeping=Keeping(tmp_path, "hash", 0.0, before=lambda: None, at=at))
    checkpoint = read_checkpoint(tmp_path)
    assert checkpoint is not None
    resumed = Team("ring", FAULTS["loss"], **changes)
    recorded = cut.lines[: checkpoint.num_events]
    assert resumed.run(until=Until(tuple(recorded), checkpoint)) == ends
    assert [*recorded, *resumed.lines] == whole.lines

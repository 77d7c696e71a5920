"""The live engine with posts inside one process: verbs, quorum, loss and return, states on disk."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from manyhands.blocks import Weights
from manyhands.engine.clock import epoch_seconds
from manyhands.engine.life import Diary, Manners, Past
from manyhands.engine.live import LiveDevice, LiveSection, Place
from manyhands.engine.live_hand import LiveHand
from manyhands.engine.participant import Participant
from manyhands.engine.state import StateFolder
from manyhands.errors import RunError
from manyhands.exchange.coordination import Progress
from manyhands.exchange.memory_post import Exchange
from manyhands.exchange.neighbours import Standing
from manyhands.hand import Hand, Message, Outcome, Work
from manyhands.replica import Replica

SECTION = LiveSection(wait_s=0.0, quorum=1, patience_s=60.0, linger_s=0.0)
LIMIT_S = 60.0


class Stage:
    """Devices of one hand each, in one process."""

    def __init__(self, folder: Path, section: LiveSection = SECTION) -> None:
        self.folder, self.section = folder, section
        self.exchange = Exchange()
        self.events: list[dict[str, Any]] = []
        self.done: list[str] = []
        self.names = ("a", "b")

    def device(
        self,
        name: str,
        program: Callable[[Hand], Any],
        incarnation: int = 1,
        *,
        done: bool = False,
        serves: bool = False,
        material: str = "digits",
    ) -> LiveDevice:
        peers = tuple(other for other in self.names if other != name)
        state = StateFolder(self.folder / name, "job")
        place = Place(Participant(program, name, peers, serves), self.exchange.post(name, incarnation), state)
        return LiveDevice(
            name,
            {name: place},
            self.names,
            self.section,
            Diary(
                Past(epoch_seconds(), incarnation, frozenset({name} if done else ())),
                lambda event, line: self.events.append(json.loads(line)),
                self.done.append,
            ),
            Manners(
                {"material": material},
                lambda _peer, facts: "" if facts["material"] == material else "other classes",
            ),
        )

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["event"] == kind]


async def lived(*devices: LiveDevice) -> list[dict[str, Any]]:
    try:
        async with asyncio.timeout(LIMIT_S):
            return await asyncio.gather(*(device.run() for device in devices))
    finally:
        for device in devices:
            device.shut()


async def nothing(hand: Hand) -> str:
    return hand.name


def replica(value: float) -> Replica:
    return Replica(Weights({"w": torch.full((3,), value)}), None, 2, 1)


def test_a_message_arrives_whole_and_both_sides_have_events(tmp_path: Path) -> None:
    stage = Stage(tmp_path, SECTION.model_copy(update={"quorum": 2}))

    async def speak(hand: Hand) -> None:
        await hand.send("b", Message("note", 3, {"x": 1}, {"m": Weights({"w": torch.arange(4.0)})}))

    async def listen(hand: Hand) -> Message | None:
        return await hand.receive("note")

    _, got = asyncio.run(lived(stage.device("a", speak), stage.device("b", listen)))
    message = got["b"]
    assert (message.sender, message.kind, message.round, message.facts) == ("a", "note", 3, {"x": 1})
    assert message.blocks["m"]["w"].tolist() == [0, 1, 2, 3]
    (sent,), (received,) = stage.of("sent"), stage.of("received")
    assert sent["bytes"] == received["bytes"] == message.nbytes
    assert (sent["to"], received["from"]) == ("b", "a")
    assert sorted(stage.done) == ["a", "b"]


def test_a_work_is_done_in_a_thread_and_measured(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.names = ("a",)

    async def program(hand: Hand) -> Any:
        weights = {"m": Weights({"w": torch.zeros(2)})}
        work = Work("train", lambda: Outcome({"loss": 0.5}, weights), 7.0, {"round": 1})
        outcome = await hand.compute(work)
        hand.report("evaluated", observe=Work("look", lambda: Outcome({"accuracy": 0.25})), round=1)
        return outcome

    (ends,) = asyncio.run(lived(stage.device("a", program)))
    assert ends["a"].weights["m"]["w"].tolist() == [0, 0]
    (event,) = stage.of("computed")
    assert event["seconds"] >= event["started"] >= 0
    assert (event["work"], event["flops"], event["round"], event["facts"]) == ("train", 7.0, 1, {"loss": 0.5})
    assert event["bytes"] == {"m": 8 + 128}
    assert stage.of("evaluated")[0]["accuracy"] == 0.25


def test_a_failing_work_ends_the_device_and_says_where(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.names = ("a",)

    async def program(hand: Hand) -> None:
        await hand.compute(Work("train", lambda: 1 // 0, facts={"round": 4}))  # type: ignore[arg-type]

    with pytest.raises(RunError, match=r"a: train \(round 4\): ZeroDivisionError"):
        asyncio.run(lived(stage.device("a", program)))


def test_what_a_hand_saved_is_there_after_it_was_killed(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.names = ("a",)

    async def work(hand: Hand) -> Any:
        before = hand.saved
        hand.save(replica((before.weights["w"][0].item() if before else 0) + 1))
        return before

    assert asyncio.run(lived(stage.device("a", work)))[0]["a"] is None
    again = asyncio.run(lived(stage.device("a", work, 2)))[0]["a"]
    assert again.weights["w"].tolist() == [1, 1, 1]
    assert (again.num_steps, again.num_rounds) == (2, 1)
    assert [event["incarnation"] for event in stage.of("restarted")] == [2]


def test_what_others_hear_is_on_disk_before(tmp_path: Path) -> None:
    stage = Stage(tmp_path, SECTION.model_copy(update={"quorum": 2}))
    seen = []

    async def speak(hand: Hand) -> None:
        for number in range(20):
            hand.save(replica(number))
            await hand.send("b", Message("note", number))
            await hand.receive("seen")  # nobody writes while the other reads

    async def listen(hand: Hand) -> None:
        for number in range(20):
            await hand.receive("note")
            stored = StateFolder(tmp_path / "a", "job").read().weights["w"][0].item()
            seen.append(stored == number)
            await hand.send("a", Message("seen"))

    asyncio.run(lived(stage.device("a", speak), stage.device("b", listen)))
    assert seen == [True] * 20


@pytest.mark.parametrize("event", ["round", "merged"])
def test_what_is_reported_as_done_is_on_disk(
    event: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether a program saves before it reports or right after."""
    stage = Stage(tmp_path)
    stage.names = ("a",)
    told: list[int] = []
    write = StateFolder.write

    def written(folder: StateFolder, state: Any) -> None:
        told.append(len(stage.of(event)))
        write(folder, state)
        told.append(len(stage.of(event)))

    monkeypatch.setattr(StateFolder, "write", written)

    async def work(hand: Hand) -> None:
        hand.save(replica(1))
        hand.report(event, round=1)
        while not stage.of(event):
            await hand.sleep(0.01)
        hand.report(event, round=2)
        hand.save(replica(2))

    asyncio.run(lived(stage.device("a", work)))
    assert [said["round"] for said in stage.of(event)] == [1, 2]
    assert told == [0, 0, 1, 1]


def test_a_hand_that_is_done_is_not_run_again(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.names = ("a",)

    async def once(hand: Hand) -> Any:
        hand.save(replica(5))
        return hand.saved

    asyncio.run(lived(stage.device("a", once)))
    (ends,) = asyncio.run(lived(stage.device("a", nothing, 2, done=True)))
    assert ends["a"].weights["w"].tolist() == [5, 5, 5]


def test_nobody_begins_before_the_quorum_is_there(tmp_path: Path) -> None:
    stage = Stage(tmp_path, LiveSection(wait_s=0.0, linger_s=0.0))
    first = stage.device("a", nothing)

    async def both() -> list[Any]:
        waiting = asyncio.create_task(first.run())
        for _ in range(20):
            await asyncio.sleep(0.01)
        assert not first.begun
        assert stage.of("gathering")[0]["missing"] == ["b"]
        return [*await lived(stage.device("b", nothing)), await waiting]

    assert asyncio.run(both()) == [{"b": "b"}, {"a": "a"}]
    first.shut()


def test_losing_a_peer_and_having_it_back_is_told(tmp_path: Path) -> None:
    stage = Stage(tmp_path, SECTION.model_copy(update={"quorum": 2}))
    heard: list[str] = []

    async def watch(hand: Hand) -> None:
        stage.exchange.cut("a", "b")
        lost = await hand.receive("lost")
        assert hand.peers == ()
        stage.exchange.mend("a", "b")
        back = await hand.receive("joined")
        assert hand.peers == ("b",)
        heard.extend(message.sender for message in (lost, back) if message)
        await hand.send("b", Message("note"))

    async def wait(hand: Hand) -> None:
        await hand.receive("note")

    asyncio.run(lived(stage.device("a", watch), stage.device("b", wait)))
    assert heard == ["b", "b"]
    assert [event["peer"] for event in stage.of("peer_lost") if event["device"] == "a"] == ["b"]
    assert [event["peer"] for event in stage.of("peer_back") if event["device"] == "a"] == ["b"]


def test_another_incarnation_is_a_peer_that_is_back_and_the_same_one_is_no_news(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    seen: list[int] = []

    async def watch(hand: LiveHand) -> None:
        for incarnation in (1, 1, 2, 2, 3):
            hand.presence("b", incarnation)
            while await hand.receive("joined", timeout_s=0):
                seen.append(incarnation)
        hand.presence("b", None)

    asyncio.run(lived(stage.device("a", watch)))
    assert seen == [1, 2, 3]
    assert [e["event"] for e in stage.events if e.get("peer") == "b"] == [
        "peer_joined",
        "peer_back",
        "peer_back",
        "peer_lost",
    ]


def test_one_that_is_done_need_not_be_waited_for_once_its_word_has_come(tmp_path: Path) -> None:
    stage = Stage(tmp_path, SECTION.model_copy(update={"quorum": 2, "linger_s": 60.0}))

    async def speak(hand: Hand) -> None:
        for number in range(3):
            await hand.send("b", Message("note", number))

    async def listen(hand: Hand) -> list[str]:
        kinds = []
        while (message := await hand.receive()) is not None and message.kind != "lost":
            kinds.append(message.kind)
        return kinds

    _, ends = asyncio.run(lived(stage.device("a", speak), stage.device("b", listen)))
    assert ends["b"] == ["note"] * 3
    assert stage.of("peer_lost") == []


def test_one_that_serves_answers_who_comes_back_late(tmp_path: Path) -> None:
    stage = Stage(tmp_path, SECTION.model_copy(update={"quorum": 2, "linger_s": 60.0}))

    async def serve(hand: Hand) -> None:
        for peer in hand.peers:
            await hand.send(peer, Message("stop"))

    async def wait(hand: Hand) -> None:
        await hand.receive("stop")

    async def scene() -> list[Any]:
        served = asyncio.create_task(stage.device("a", serve, serves=True).run())
        killed = stage.device("b", lambda hand: hand.receive("never"))
        task = asyncio.create_task(killed.run())
        while not stage.of("received"):
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        killed.shut()
        return [await lived(stage.device("b", wait, 2)), await served]

    async def limited() -> list[Any]:
        async with asyncio.timeout(LIMIT_S):
            return await scene()

    asyncio.run(limited())
    assert [event["event"] for event in stage.events if event["event"] in ("left", "restarted")] == [
        "left",
        "restarted",
    ]
    assert len(stage.of("received")) == 2


@pytest.mark.parametrize(
    "state",
    [
        replica(1.5),
        Replica(
            Weights({"w": torch.ones(2, dtype=torch.int64)}),
            Weights({}),
            memory=(
                Weights({"x": torch.zeros(1)}, lasting=True),
                Weights({"x": torch.ones(1)}, lasting=True),
            ),
        ),
        Progress({"stem": Weights({"w": torch.zeros(2, 2)})}, 3, 1, 7),
        Standing(replica(2.0), {"task/3": Weights({"w": torch.ones(1)})}, 4, True),
    ],
    ids=["replica", "memory", "progress", "standing"],
)
def test_every_state_comes_back_as_it_was(state: Any, tmp_path: Path) -> None:
    StateFolder(tmp_path, "job").write(state)
    assert shown(StateFolder(tmp_path, "job").read()) == shown(state)


def shown(value: Any) -> Any:
    if isinstance(value, Weights):
        return {name: (t.dtype, t.tolist()) for name, t in value.items()} | {"lasting": value.lasting}
    if isinstance(value, dict):
        return {key: shown(part) for key, part in value.items()}
    if isinstance(value, tuple):
        return tuple(shown(part) for part in value)
    return {k: shown(v) for k, v in vars(value).items()} if hasattr(value, "__dataclass_fields__") else value


def test_lasting_pieces_are_written_once_and_go_when_they_are_forgotten(tmp_path: Path) -> None:
    first, second, third = (Weights({"x": torch.full((1,), float(n))}, lasting=True) for n in range(3))
    base = replica(0)
    folder = StateFolder(tmp_path, "job")
    folder.write(Replica(base.weights, memory=(first, second)))
    before = {file.name: file.stat().st_mtime_ns for file in tmp_path.glob("*.piece")}
    resumed = StateFolder(tmp_path, "job")
    stored = resumed.read()
    resumed.write(Replica(base.weights, memory=(stored.memory[1], third)))
    after = {file.name: file.stat().st_mtime_ns for file in tmp_path.glob("*.piece")}
    assert len(before) == len(after) == 2
    assert len(before.items() & after.items()) == 1
    assert [w["x"].item() for w in StateFolder(tmp_path, "job").read().memory] == [1.0, 2.0]


def test_a_state_of_another_job_is_refused(tmp_path: Path) -> None:
    StateFolder(tmp_path, "job").write(replica(1))
    with pytest.raises(RunError, match="another job"):
        StateFolder(tmp_path, "other").read()


@pytest.mark.parametrize(
    "message",
    [
        Message("update", 0, {}),
        Message("update", 0, {"call": 3}),
        Message("update", 0, {"call": [1, "x"]}),
        Message("consensus", 0, {"stage": [1]}),
        Message("blocks", 0, {"stage": {}}),
        Message("chunk", 0, {"stage": 1}),
    ],
    ids=["no call", "no pair", "no numbers", "a list", "a table", "no weight"],
)
def test_what_no_program_could_read_is_refused(message: Message, tmp_path: Path) -> None:
    stage = Stage(tmp_path, SECTION.model_copy(update={"quorum": 2}))

    async def speak(hand: Hand) -> None:
        await hand.send("b", message)
        await hand.send("b", Message("update", 0, {"call": [0, 1], "examples": 3}))

    async def listen(hand: Hand) -> Message | None:
        return await hand.receive()

    _, ends = asyncio.run(lived(stage.device("a", speak), stage.device("b", listen)))
    assert ends["b"].facts == {"call": [0, 1], "examples": 3}
    (refused,) = stage.of("refused")
    assert refused["peer"] == "a"


def test_one_with_whom_nothing_can_be_learned_is_not_listened_to(tmp_path: Path) -> None:
    stage = Stage(tmp_path, SECTION.model_copy(update={"quorum": 2}))

    async def speak(hand: Hand) -> None:
        await hand.send("b", Message("note"))

    async def listen(hand: Hand) -> str:
        message = await hand.receive("note", "lost")
        assert message is not None
        return message.kind

    devices = stage.device("a", speak, material="letters"), stage.device("b", listen)
    _, ends = asyncio.run(lived(*devices))
    assert ends["b"] == "lost"
    assert {(e["device"], e["peer"], e["reason"]) for e in stage.of("refused")} == {
        ("a", "b", "other classes"),
        ("b", "a", "other classes"),
    }

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from pydantic import TypeAdapter

from manyhands.blocks import Weights
from manyhands.engine.cores import Cores
from manyhands.engine.faults import Fault, Faults
from manyhands.engine.outages import LEASE_S
from manyhands.engine.participant import Participant
from manyhands.engine.simulate import Simulation
from manyhands.errors import RunError
from manyhands.fleet import DeviceSection, Fleet, FleetSection, make_fleet
from manyhands.hand import ENVELOPE_BYTES, Hand, Message, Outcome, Work

MEGABYTE = Weights({"w": torch.zeros(250_000)})


class Run:
    """A simulation of programs, and what came of it."""

    def __init__(
        self, fleet: Fleet, programs: dict[str, Callable[[Hand], Any]], faults: list[dict] = (), seed: int = 0
    ) -> None:
        self.events: list[dict[str, Any]] = []
        self.lines: list[str] = []
        peers = tuple(programs)
        script = [TypeAdapter(Fault).validate_python(fault) for fault in faults]
        simulation = Simulation(
            fleet,
            {n: Participant(p, n, tuple(x for x in peers if x != n)) for n, p in programs.items()},
            self._write,
            faults=Faults(script, seed),
            cores=Cores(0),
        )
        self.results = simulation.run()

    def _write(self, event: dict[str, Any], line: str) -> None:
        self.events.append(event)
        self.lines.append(line)

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["event"] == kind]


def sender(
    count: int = 1, every_s: float = 0.0, blocks: dict[str, Weights] | None = None
) -> Callable[[Hand], Any]:
    async def program(hand: Hand) -> None:
        for number in range(count):
            await hand.send("b", Message("note", number, blocks=blocks or {}))
            await hand.sleep(every_s)

    return program


def listener(timeout_s: float) -> Callable[[Hand], Any]:
    async def program(hand: Hand) -> list[int]:
        heard = []
        while (message := await hand.receive("note", timeout_s=timeout_s)) is not None:
            heard.append(message.round)
        return heard

    return program


def test_work_takes_as_long_as_the_device_needs(fleet: Fleet) -> None:
    async def program(hand: Hand) -> float:
        outcome = await hand.compute(Work("add", lambda: Outcome({"sum": 3}), flops=2e9))
        assert outcome.facts == {"sum": 3}
        return hand.seconds

    run = Run(fleet, {"a": program})
    assert run.results == {"a": 2.0}
    assert run.of("computed")[0]["started"] == 0.0


def test_a_message_takes_latency_and_bandwidth(fleet: Fleet) -> None:
    run = Run(fleet, {"a": sender(blocks={"model": MEGABYTE}), "b": listener(100.0)})
    expected = 0.02 + 8 * (ENVELOPE_BYTES + MEGABYTE.nbytes) / 8e6
    assert run.of("received")[0]["seconds"] == pytest.approx(expected)


def test_messages_share_a_link_one_after_the_other(fleet: Fleet) -> None:
    run = Run(fleet, {"a": sender(3, blocks={"model": MEGABYTE}), "b": listener(100.0)})
    gaps = [event["seconds"] for event in run.of("received")]
    each = 8 * (ENVELOPE_BYTES + MEGABYTE.nbytes) / 8e6
    assert gaps == pytest.approx([0.02 + each, 0.02 + 2 * each, 0.02 + 3 * each])
    assert run.results["b"] == [0, 1, 2]


def test_a_work_that_fails_says_where(fleet: Fleet) -> None:
    def broken() -> Outcome:
        raise ValueError("bad shape")

    async def program(hand: Hand) -> None:
        await hand.compute(Work("train", broken, facts={"round": 4}))

    with pytest.raises(RunError, match=r"a: train \(round 4\): ValueError: bad shape"):
        Run(fleet, {"a": program})


def test_a_program_that_fails_says_where(fleet: Fleet) -> None:
    async def program(hand: Hand) -> None:
        await hand.sleep(2)
        raise KeyError("gone")

    with pytest.raises(RunError, match=r"a at 2\.000 s: KeyError"):
        Run(fleet, {"a": program})


# Each fault.


def test_crash(fleet: Fleet) -> None:
    async def works(hand: Hand) -> str:
        hand.save("before")
        await hand.sleep(10)
        return "after"

    async def watches(hand: Hand) -> tuple[float, tuple[str, ...]]:
        message = await hand.receive("lost")
        assert message is not None
        assert message.sender == "a"
        return hand.seconds, hand.peers

    run = Run(fleet, {"a": works, "b": watches}, [{"kind": "crash", "device": "a", "at_s": 3}])
    assert run.results == {"a": "before", "b": (3 + LEASE_S, ())}
    assert run.of("crashed")[0]["seconds"] == 3


def test_crash_and_restart(fleet: Fleet) -> None:
    async def works(hand: Hand) -> str:
        if hand.saved:
            return f"again from {hand.saved} at {hand.seconds:g}"
        hand.save("step 1")
        await hand.sleep(10)
        return "not reached"

    async def watches(hand: Hand) -> list[str]:
        kinds = []
        while (message := await hand.receive("lost", "joined", timeout_s=60)) is not None:
            kinds.append(message.kind)
        return kinds

    faults = [{"kind": "crash", "device": "a", "at_s": 3, "restart_at_s": 20}]
    run = Run(fleet, {"a": works, "b": watches}, faults)
    assert run.results == {"a": "again from step 1 at 20", "b": ["lost", "joined"]}


def test_messages_to_a_crashed_device_are_missed(fleet: Fleet) -> None:
    faults = [{"kind": "crash", "device": "b", "at_s": 2.5, "restart_at_s": 4.5}]
    run = Run(fleet, {"a": sender(6, every_s=1.0), "b": listener(3.0)}, faults)
    assert [event["round"] for event in run.of("message_missed")] == [3, 4]
    assert run.results["b"] == [5]


def test_loss(fleet: Fleet) -> None:
    faults = [{"kind": "loss", "probability": 0.5, "from_s": 100, "until_s": 300}]
    run = Run(fleet, {"a": sender(400, every_s=1.0), "b": listener(500.0)}, faults)
    heard = set(run.results["b"])
    assert set(range(100)) <= heard
    assert set(range(300, 400)) <= heard
    assert 50 < len(heard & set(range(100, 300))) < 150
    assert len(run.of("message_lost")) == 400 - len(heard)


def test_delay(fleet: Fleet) -> None:
    run = Run(fleet, {"a": sender(), "b": listener(100.0)}, [{"kind": "delay", "delay_s": 7}])
    assert run.of("received")[0]["seconds"] == pytest.approx(7.02, abs=0.01)


def test_duplicate(fleet: Fleet) -> None:
    run = Run(fleet, {"a": sender(3, every_s=1.0), "b": listener(10.0)}, [{"kind": "duplicate"}])
    assert run.results["b"] == [0, 0, 1, 1, 2, 2]


def test_reorder(fleet: Fleet) -> None:
    run = Run(
        fleet, {"a": sender(20, every_s=0.1), "b": listener(10.0)}, [{"kind": "reorder", "window_s": 2}]
    )
    assert sorted(run.results["b"]) == list(range(20))
    assert run.results["b"] != list(range(20))


def test_partition_and_heal(fleet: Fleet) -> None:
    async def watches(hand: Hand) -> list[tuple[str, float]]:
        seen = []
        while (message := await hand.receive("lost", "joined", "note", timeout_s=20)) is not None:
            seen.append((message.kind, hand.seconds))
        return seen

    faults = [{"kind": "partition", "groups": [["a"], ["b"]], "from_s": 2.5, "until_s": 8.5}]
    run = Run(fleet, {"a": sender(12, every_s=1.0), "b": watches}, faults)
    seen = run.results["b"]
    assert [event["round"] for event in run.of("message_lost")] == [3, 4, 5, 6, 7, 8]
    assert ("lost", 2.5 + LEASE_S) in seen
    assert ("joined", 8.5) in seen
    assert sum(kind == "note" for kind, _ in seen) == 6


def test_slow_down(fleet: Fleet) -> None:
    async def program(hand: Hand) -> float:
        await hand.compute(Work("train", Outcome, flops=2e9))
        return hand.seconds

    faults = [{"kind": "slow_down", "device": "a", "factor": 3, "from_s": 1}]
    assert Run(fleet, {"a": program, "b": program}, faults).results == {"a": 4.0, "b": 2.0}


@pytest.mark.parametrize(("how", "value"), [("nan", "nan"), ("flip", "-2.0"), ("scale", "200.0")])
def test_corrupt(fleet: Fleet, how: str, value: str) -> None:
    async def hears(hand: Hand) -> str:
        message = await hand.receive("note")
        assert message is not None
        return str(float(message.blocks["model"]["w"]))

    blocks = {"model": Weights({"w": torch.tensor(2.0)})}
    faults = [{"kind": "corrupt", "device": "a", "how": how}]
    assert Run(fleet, {"a": sender(blocks=blocks), "b": hears}, faults).results["b"] == value


# Order, size, and what is left hanging.


def chatter(hand: Hand) -> Any:
    async def program() -> int:
        heard = 0
        for number in range(5):
            for peer in hand.peers:
                await hand.send(peer, Message("note", number))
            await hand.compute(Work("think", Outcome, flops=1e8 * (number + 1)))
            while await hand.receive("note", timeout_s=0.3) is not None:
                heard += 1
        hand.report("done", observe=Work("look", lambda: Outcome({"heard": heard})), name=hand.name)
        return heard

    return program()


def test_two_runs_give_the_same_bytes(fleet: Fleet) -> None:
    faults = [{"kind": "loss", "probability": 0.3}, {"kind": "reorder", "window_s": 0.5, "probability": 0.5}]
    programs = dict.fromkeys("abcd", chatter)
    first, second = Run(fleet, programs, faults, seed=5), Run(fleet, programs, faults, seed=5)
    assert first.lines == second.lines
    assert first.lines != Run(fleet, programs, faults, seed=6).lines
    assert [json.loads(line) for line in first.lines] == first.events


def test_a_hand_that_waits_for_ever_is_named(fleet: Fleet) -> None:
    async def waits(hand: Hand) -> None:
        hand.save("kept")
        await hand.receive("never")

    run = Run(fleet, {"a": waits})
    assert run.results == {"a": "kept"}
    assert run.of("stranded")[0]["device"] == "a"


def test_a_run_ends_with_its_programs_not_with_its_fault_script(fleet: Fleet) -> None:
    run = Run(fleet, {"a": sender(), "b": listener(1.0)}, [{"kind": "crash", "device": "a", "at_s": 1e6}])
    assert not run.of("crashed")
    assert run.events[-1]["seconds"] < 2


def test_a_thousand_hands_live_in_one_process() -> None:
    section = FleetSection(device=(DeviceSection(kind="raspberry-pi-4", count=1000),), topology="ring")
    ring = make_fleet(section, seed=0)

    async def program(hand: Hand) -> int:
        for peer in hand.peers:
            await hand.send(peer, Message("note"))
        return sum([await hand.receive("note") is not None for _ in hand.peers])

    participants = {n: Participant(program, n, ring.neighbours(n)) for n in ring.names}
    heard = Simulation(ring, participants, lambda event, line: None, cores=Cores(0)).run()
    assert set(heard.values()) == {2}
    assert len(heard) == 1000


def test_works_that_overlap_on_the_clock_overlap_on_the_cores(fleet: Fleet) -> None:
    together = threading.Barrier(2, timeout=60)

    async def program(hand: Hand) -> float:
        # Each work waits for the other: run one after the other they would never end.
        await hand.compute(Work("train", lambda: Outcome({"met": together.wait() >= 0}), flops=1e9))
        return hand.seconds

    participants = {name: Participant(program, name) for name in "ab"}
    assert Simulation(fleet, participants, lambda event, line: None, cores=Cores(2)).run() == {
        "a": 1.0,
        "b": 1.0,
    }


# What a device is charged, and for how long a run lasts.


def test_a_device_does_one_thing_after_the_other(fleet: Fleet) -> None:
    async def program(hand: Hand) -> float:
        await hand.compute(Work("train", Outcome, flops=1e9))
        return hand.seconds

    participants = {"a": Participant(program, "a"), "coordinator": Participant(program, "a")}
    ends = Simulation(fleet, participants, lambda event, line: None, cores=Cores(0)).run()
    assert ends == {"a": 1.0, "coordinator": 2.0}


def test_work_cut_short_by_a_crash_is_told(fleet: Fleet) -> None:
    async def program(hand: Hand) -> None:
        await hand.compute(Work("train", Outcome, flops=1e10))

    run = Run(fleet, {"a": program}, [{"kind": "crash", "device": "a", "at_s": 4}])
    [event] = run.of("interrupted")
    assert (event["seconds"], event["started"], event["work"]) == (4.0, 0.0, "train")


def test_a_run_does_not_wait_for_one_that_comes_back_too_late(fleet: Fleet) -> None:
    async def waits(hand: Hand) -> None:
        await hand.receive("never")

    async def leads(hand: Hand) -> None:
        await hand.sleep(5)

    faults = [{"kind": "crash", "device": "a", "at_s": 1, "restart_at_s": 1e6}]
    run = Run(fleet, {"a": waits, "b": leads}, faults)
    assert run.events[-1]["seconds"] < 10


def test_messages_stop_where_nobody_passes_them_on() -> None:
    devices = tuple(DeviceSection(kind="laptop", name=name) for name in "abc")
    line = make_fleet(FleetSection(device=devices, topology="line"), seed=0)

    async def sends(hand: Hand) -> None:
        for _ in range(3):
            await hand.send("c", Message("note"))
            await hand.sleep(10)

    async def idles(hand: Hand) -> None:
        await hand.sleep(100)

    programs = {"a": sends, "b": idles, "c": listener(50.0)}
    assert len(Run(line, programs).results["c"]) == 3
    crash = [{"kind": "crash", "device": "b", "at_s": 5, "restart_at_s": 15}]
    assert len(Run(line, programs, crash).results["c"]) == 2
    cut = [{"kind": "partition", "groups": [["a"], ["b"]], "from_s": 5, "until_s": 15}]
    assert len(Run(line, programs, cut).results["c"]) == 2

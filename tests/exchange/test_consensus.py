from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import TypeAdapter, ValidationError
from safetensors.torch import load_file

from manyhands.blocks import HEADER_BYTES, Weights
from manyhands.engine.checkpoint import read_checkpoint
from manyhands.engine.cores import Cores
from manyhands.engine.faults import Fault, Faults
from manyhands.engine.holdings import Keeping
from manyhands.engine.participant import Participant
from manyhands.engine.scripted import ScriptedHand
from manyhands.engine.simulate import Simulation, Until
from manyhands.errors import JobError
from manyhands.exchange.consensus import Ring
from manyhands.exchange.coordination import ExchangeSection
from manyhands.exchange.member import Member
from manyhands.exchange.merge import MergeSection, merge
from manyhands.exchange.mixing import mixing_rows
from manyhands.exchange.neighbourhood import Neighbourhood, plan_consensus
from manyhands.exchange.neighbours import Standing, exchange_with_neighbours
from manyhands.fleet import DeviceSection, Fleet, FleetSection, make_fleet
from manyhands.hand import ENVELOPE_BYTES, Message, Outcome, Work
from manyhands.job import Job
from manyhands.replica import Blocks, Replica
from manyhands.run import train


def version(seed: int, num_floats: int = 30) -> dict[str, torch.Tensor]:
    """A block as a convolution with batch normalisation leaves it: several shapes, types, and a counter."""
    dice = torch.Generator().manual_seed(seed)
    return {
        "weight": torch.randn(2, num_floats // 2, generator=dice),
        "scale": torch.randn((), generator=dice),
        "exact": torch.randn(7, dtype=torch.float64, generator=dice),
        "count": torch.randint(0, 1000, (), generator=dice),
    }


def member(num_examples: int, push: float = 0.0, flops: float = 0.0) -> Member:
    """A device whose local phase adds `push` to its blocks; its network is its blocks."""

    def train(replica: Replica, blocks: Blocks, number: int) -> Work:
        def run() -> Outcome:
            new = {
                f"update/{block}": Weights({n: (t + push).to(t.dtype) for n, t in tensors.items()})
                for block, tensors in blocks.items()
            }
            facts = {"num_steps": replica.num_steps + 1, "examples": num_examples, "loss": 0.5}
            return Outcome(facts, {"replica": Weights({}), **new})

        return Work("train", run, flops, {"round": number})

    def settle(replica: Replica, blocks: Blocks) -> Work:
        def run() -> Outcome:
            named = {f"{b}:{n}": t for b, tensors in blocks.items() for n, t in tensors.items()}
            return Outcome({}, {"replica": Weights(named)})

        return Work("settle", run)

    def evaluate(replica: Replica, blocks: Blocks) -> Work:
        return Work("evaluate", lambda: Outcome({"accuracy": 0.0, "loss": 0.0}))

    return Member("x", Replica(Weights({})), num_examples, train, settle, evaluate)


def fleet_of(count: int, topology: str) -> Fleet:
    """Devices of different speeds, whose names are in no order along a custom ring."""
    devices = tuple(
        DeviceSection(kind="laptop", name=f"d{i}", flops=1e8 * (1 + i % 3), bandwidth_bps=8e6, latency_s=0.01)
        for i in range(count)
    )
    edges = tuple((f"d{3 * i % count}", f"d{3 * (i + 1) % count}") for i in range(count))
    own: dict[str, Any] = {"custom": {"edges": edges}, "star": {"hub": "d1"}}.get(topology, {})
    return make_fleet(FleetSection(device=devices, topology=topology, **own), seed=4)


def examples_of(names: tuple[str, ...]) -> dict[str, int]:
    return {name: 5 + 17 * i % 20 for i, name in enumerate(names)}


class Team:
    """Devices that bring a stem to consensus, and what came of it.

    The first two also hold a task that is averaged between them as ever.
    """

    def __init__(
        self,
        consensus: str,
        topology: str = "ring",
        count: int = 5,
        faults: tuple[dict[str, Any], ...] = (),
        *,
        rounds: int = 1,
        push: float = 0.0,
        num_floats: int = 30,
        **section: Any,
    ) -> None:
        self.fleet = fleet_of(count, topology)
        self.examples = examples_of(self.fleet.names)
        self.events: list[dict[str, Any]] = []
        self.lines: list[str] = []
        self._push = push
        self._script = [TypeAdapter(Fault).validate_python(fault) for fault in faults]
        told = ExchangeSection(mode="neighbours", consensus=consensus, rounds=rounds, **section)
        self.first = {
            name: {"stem": Weights(version(i, num_floats))}
            | ({"task": Weights(version(50 + i))} if i < 2 else {})
            for i, name in enumerate(self.fleet.names)
        }
        holds = {name: tuple(blocks) for name, blocks in self.first.items()}
        rows = mixing_rows(self.fleet, holds, self.examples)
        places = {n: Neighbourhood(told, self.first[n], rows[n], 2.0, 0) for n in self.fleet.names}
        planned = plan_consensus(places, self.fleet, self.examples)
        stages, _ = planned["d0"].further_stages()
        self.places = {n: replace(place, expected_s=1.5 + 0.03 * stages) for n, place in planned.items()}

    def run(
        self, kind: type[Simulation] = Simulation, **options: Any
    ) -> dict[str, Mapping[str, torch.Tensor]]:
        """Device -> its tensors in the end, of those that came to one."""
        participants = {}
        for name, place in self.places.items():
            work = member(self.examples[name], self._push, flops=1e8)
            program = partial(exchange_with_neighbours, member=work, place=place)
            participants[name] = Participant(program, name, place.peers)
        faults = Faults(self._script, 3)
        simulation = kind(self.fleet, participants, self._write, faults=faults, cores=Cores(0), **options)
        ends = simulation.run()
        return {name: end.weights for name, end in ends.items() if isinstance(end, Replica)}

    def _write(self, event: dict[str, Any], line: str) -> None:
        self.events.append(event)
        self.lines.append(line)

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["event"] == kind]

    def mean(self, block: str = "stem") -> dict[str, torch.Tensor]:
        """The mean of the first versions over the data."""
        held = [
            (float(self.examples[n]), blocks[block]) for n, blocks in self.first.items() if block in blocks
        ]
        return merge(MergeSection(), held)

    def sent_bytes(self, *kinds: str) -> dict[str, int]:
        return {
            name: sum(e["bytes"] for e in self.of("sent") if e["device"] == name and e["kind"] in kinds)
            for name in self.fleet.names
        }


def stem_of(end: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name.removeprefix("stem:"): t for name, t in end.items() if name.startswith("stem:")}


def spread(ends: Mapping[str, Mapping[str, torch.Tensor]]) -> float:
    """How far apart any two versions of the stem are, at most; counters aside."""
    stems = [torch.cat([end["stem:weight"].reshape(-1), end["stem:exact"]]) for end in ends.values()]
    return max(float((a - b).abs().max()) for a in stems for b in stems)


def all_finite(ends: Mapping[str, Mapping[str, torch.Tensor]]) -> bool:
    return all(bool(t.isfinite().all()) for end in ends.values() for t in end.values())


# What devices come to.

TOPOLOGIES = ["ring", "custom", "line", "star", "mesh", "random_regular"]


@pytest.mark.parametrize(
    ("topology", "count"), [*((t, 8) for t in TOPOLOGIES), ("ring", 2), ("ring", 3), ("line", 5)]
)
def test_a_ring_brings_all_to_the_mean_over_the_data_in_one_round(topology: str, count: int) -> None:
    team = Team("ring", topology, count)
    ends = team.run()
    mean = team.mean()
    for end in ends.values():
        stem = stem_of(end)
        assert stem.keys() == mean.keys()
        for name, tensor in stem.items():
            assert (tensor.dtype, tensor.shape) == (mean[name].dtype, mean[name].shape)
            close = 1e-14 if tensor.dtype == torch.float64 else 1e-6
            torch.testing.assert_close(tensor, mean[name], rtol=0, atol=close)
    assert spread(ends) == 0  # they hold the same chunks
    assert team.of("missed") == team.of("refused") == team.of("late") == []
    assert "broken" not in {e["kind"] for e in team.of("sent")}


@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("tolerance", [0.3, 0.01])
def test_gossip_brings_all_near_the_mean_over_the_data_in_one_round(topology: str, tolerance: float) -> None:
    team = Team("gossip", topology, 8, tolerance=tolerance)
    ends = team.run()
    mean = team.mean()
    for name in ("weight", "exact"):
        before = {n: blocks["stem"][name] - mean[name] for n, blocks in team.first.items()}
        after = {n: end[f"stem:{name}"] - mean[name] for n, end in ends.items()}
        assert disagreement(after, team.examples) <= tolerance * disagreement(before, team.examples) + 1e-6
        drift = sum(team.examples[n] * change for n, change in after.items())
        assert float(drift.abs().max()) / sum(team.examples.values()) < 1e-5  # the mean is what it was
    assert team.of("missed") == team.of("refused") == team.of("late") == []


def disagreement(changes: Mapping[str, torch.Tensor], examples: Mapping[str, int]) -> float:
    return math.sqrt(sum(examples[n] * float(c.double().square().sum()) for n, c in changes.items()))


@pytest.mark.parametrize("consensus", ["gossip", "ring"])
def test_other_blocks_are_averaged_once_a_round_as_ever(consensus: str) -> None:
    team, plain = Team(consensus, push=0.5, rounds=3), Team("none", push=0.5, rounds=3)
    ends, expected = team.run(), plain.run()
    for device in ("d0", "d1"):
        for name in version(0):
            assert torch.equal(ends[device][f"task:{name}"], expected[device][f"task:{name}"])


@pytest.mark.parametrize("consensus", ["gossip", "ring"])
def test_consensus_holds_in_every_round(consensus: str) -> None:
    """Each local phase adds a half to every number, and so to their mean."""
    team = Team(consensus, "mesh", 4, rounds=6, push=0.5)
    for end in team.run().values():
        atol = 0.02 if consensus == "gossip" else 1e-6
        torch.testing.assert_close(end["stem:weight"], team.mean()["weight"] + 3.0, rtol=0, atol=atol)
    assert [e["round"] for e in team.of("finished")] == [6] * 4


def test_whole_numbers_are_rounded_once() -> None:
    """Rounded on every hop, the counters of most fleets would not come out as the mean's."""
    for seed in range(5):
        team = Team("ring", "ring", 8)
        dice = torch.Generator().manual_seed(seed)
        for blocks in team.first.values():
            blocks["stem"]["count"].random_(0, 4, generator=dice)
        assert {int(end["stem:count"]) for end in team.run().values()} == {int(team.mean()["count"])}


# What it costs.


@pytest.mark.parametrize("count", [3, 4, 10])
def test_a_ring_sends_each_device_s_share_of_the_block(count: int) -> None:
    team = Team("ring", "ring", count, num_floats=2000)
    team.run()
    # weight and scale are 2001 numbers of 4 bytes, exact and count 8 numbers of 8 bytes: two tensors a chunk.
    data = 2001 * 4 + 8 * 8
    stages = 2 * (count - 1)
    for sent in team.sent_bytes("chunk").values():
        assert sent == pytest.approx(
            stages * data / count + stages * (ENVELOPE_BYTES + 2 * HEADER_BYTES), abs=stages * 12
        )
    assert len([e for e in team.of("sent") if e["kind"] == "chunk"]) == stages * count


@pytest.mark.parametrize(("topology", "links"), [("ring", 2), ("mesh", 4)])
def test_gossip_sends_the_block_to_each_neighbour_once_a_repetition(topology: str, links: int) -> None:
    team = Team("gossip", topology, tolerance=0.05)
    team.run()
    often = team.places["d0"].repetitions
    assert often > 1
    whole = Message("consensus", blocks={"stem": team.first["d0"]["stem"]}).nbytes
    assert set(team.sent_bytes("consensus").values()) == {(often - 1) * links * whole}
    assert team.sent_bytes("blocks")["d3"] == links * whole


def test_a_ring_follows_the_links_of_a_fleet_that_is_one() -> None:
    team = Team("ring", "custom", 8)
    for name, place in team.places.items():
        assert place.ring is not None
        assert {place.ring.before, place.ring.after} == set(team.fleet.neighbours(name))


# What goes wrong.

HEALED_S = 30.0
FAULTS: dict[str, tuple[dict[str, Any], ...]] = {
    "restart": ({"kind": "crash", "device": "d2", "at_s": 4.3, "restart_at_s": 14.0},),
    "short restart": ({"kind": "crash", "device": "d2", "at_s": 4.3, "restart_at_s": 4.5},),
    "two restarts": (
        {"kind": "crash", "device": "d2", "at_s": 4.3, "restart_at_s": 14.0},
        {"kind": "crash", "device": "d3", "at_s": 5.1, "restart_at_s": 11.0},
    ),
    "loss": ({"kind": "loss", "probability": 0.2, "until_s": HEALED_S},),
    "partition": (
        {"kind": "partition", "groups": [["d0", "d1"], ["d2", "d3", "d4"]], "from_s": 5, "until_s": 18},
    ),
    "duplicates": ({"kind": "duplicate", "probability": 0.5},),
    "out of order": (
        {"kind": "duplicate", "probability": 0.5, "until_s": HEALED_S},
        {"kind": "reorder", "probability": 0.5, "window_s": 3.0, "until_s": HEALED_S},
    ),
    "slow": ({"kind": "slow_down", "device": "d1", "factor": 40, "from_s": 5, "until_s": 20},),
    "nonsense": ({"kind": "corrupt", "device": "d1", "probability": 0.3, "until_s": HEALED_S},),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("topology", ["ring", "star", "mesh"])
@pytest.mark.parametrize("consensus", ["gossip", "ring"])
def test_nobody_hangs_and_all_agree_when_it_is_over(consensus: str, topology: str, fault: str) -> None:
    tolerance = {"tolerance": 0.3} if consensus == "gossip" else {}
    team = Team(consensus, topology, 5, FAULTS[fault], rounds=40, push=0.01, **tolerance)
    ends = team.run()
    assert team.of("stranded") == []
    assert len(ends) == 5
    assert team.events[-1]["seconds"] > HEALED_S + 5  # there was time to heal
    assert all_finite(ends)
    assert spread(ends) <= (0 if consensus == "ring" else 0.01)


def test_a_ring_without_one_who_is_gone_for_good_averages_with_neighbours() -> None:
    gone = Team("ring", "mesh", 5, ({"kind": "crash", "device": "d2", "at_s": 3.3},), rounds=60)
    ends = gone.run()
    assert ends.keys() == {"d0", "d1", "d3", "d4"}
    assert all_finite(ends)
    assert spread(ends) < 1e-3
    # After the first rounds nobody waits until time is up.
    rounds = [e["seconds"] for e in gone.of("round") if e["device"] == "d0"]
    assert max(later - sooner for sooner, later in pairwise(rounds[10:])) < 3


@pytest.mark.parametrize("consensus", ["gossip", "ring"])
def test_loss_that_never_ends_does_not_keep_anybody_from_the_end(consensus: str) -> None:
    team = Team(consensus, "ring", 5, ({"kind": "loss", "probability": 0.2},), rounds=20, push=0.01)
    ends = team.run()
    assert len(ends) == 5
    assert all_finite(ends)
    assert spread(ends) < 0.2  # of more than 2 at first
    # A round is a local phase, the ring and the neighbours, each waited for once, and what they take to tell.
    assert team.events[-1]["seconds"] < 20 * (1 + 2 * team.places["d0"].wait_s + 0.5)


@pytest.mark.parametrize(
    "fault",
    [
        *FAULTS["duplicates"],
        {"kind": "slow_down", "device": "d1", "factor": 2},
        {"kind": "delay", "delay_s": 0.1},
    ],
)
def test_a_ring_is_not_broken_by_what_is_only_late_or_doubled(fault: dict[str, Any]) -> None:
    team = Team("ring", "ring", 5, (fault,), rounds=20)
    ends = team.run()
    assert spread(ends) == 0
    assert team.of("missed") == []
    assert "broken" not in {e["kind"] for e in team.of("sent")}


def test_a_restarted_device_is_in_the_ring_again() -> None:
    team = Team("ring", "ring", 5, FAULTS["restart"], rounds=60, push=0.01)
    team.run()
    broken = {e["seconds"] for e in team.of("sent") if e["kind"] == "broken"}
    assert 4.3 < min(broken) < max(broken) < 14 + 15
    assert max(e["seconds"] for e in team.of("sent") if e["kind"] == "chunk") > max(broken) + 10


def test_the_same_job_gives_the_same_bytes() -> None:
    first, second = (Team("ring", "star", 5, FAULTS["loss"], rounds=9) for _ in range(2))
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


@pytest.mark.parametrize("consensus", ["gossip", "ring"])
@pytest.mark.parametrize("at", ["round", "sent", "computed"])  # between rounds, and in the middle of things
@pytest.mark.parametrize("stop_after", [220, 470])
def test_a_run_stopped_anywhere_resumes_to_the_same_bytes(
    consensus: str, stop_after: int, at: str, tmp_path: Path
) -> None:
    faults = ({"kind": "loss", "probability": 0.02}, *FAULTS["short restart"])
    changes: dict[str, Any] = {"faults": faults, "rounds": 12, "push": 1.0}
    whole = Team(consensus, "ring", 4, **changes)
    ends = whole.run()
    assert len(whole.lines) > 470
    Keeps.stop_after = stop_after
    cut = Team(consensus, "ring", 4, **changes)
    with pytest.raises(KeyboardInterrupt):
        cut.run(Keeps, keeping=Keeping(tmp_path, "hash", 0.0, before=lambda: None, at=at))
    checkpoint = read_checkpoint(tmp_path)
    assert checkpoint is not None
    resumed = Team(consensus, "ring", 4, **changes)
    recorded = cut.lines[: checkpoint.num_events]
    again = resumed.run(until=Until(tuple(recorded), checkpoint))
    assert [*recorded, *resumed.lines] == whole.lines
    assert again.keys() == ends.keys()
    assert all(torch.equal(again[d][n], t) for d, end in ends.items() for n, t in end.items())


# One device, to the letter. p sends to x, and x to q; a block is three numbers, one a chunk.

RING = Ring(0, (2, 3, 5), "p", "q")


def chunk(stage: int, value: float, number: int = 0) -> Message:
    blocks = {"stem": Weights({"float64": torch.tensor([value], dtype=torch.float64)})}
    return Message("chunk", number, {"stage": stage, "weight": RING.weight_due(stage)}, blocks, "p")


CHUNKS = [chunk(stage, 20.0) for stage in range(4)]


def events(hand: ScriptedHand, kind: str) -> list[dict[str, Any]]:
    return [event for event in hand.events if event["event"] == kind]


def place(**changes: Any) -> Neighbourhood:
    """The stem is averaged with p and q, a task with q alone."""
    weights = {"stem": {"p": 0.25, "q": 0.5}, "task": {"q": 0.5}}
    rounds, consensus = changes.pop("rounds", 1), "ring" if "ring" in changes else "gossip"
    told = ExchangeSection(mode="neighbours", consensus=consensus, rounds=rounds, deadline_s=10)
    first = {block: Weights({"w": torch.zeros(3, dtype=torch.float64)}) for block in weights}
    return Neighbourhood(told, first, weights, 1.0, 0, ("stem",), **changes)


def said(sender: str, number: int = 0, stage: int = 0, **blocks: float) -> Message:
    named = {n: Weights({"w": torch.full((3,), v, dtype=torch.float64)}) for n, v in blocks.items()}
    kind, facts = ("consensus", {"stage": stage}) if stage else ("blocks", {})
    return Message(kind, number, facts, named, sender)


def run(hand: ScriptedHand, where: Neighbourhood) -> dict[str, float]:
    """The first number of each block in the end; a local phase adds one."""
    replica = asyncio.run(exchange_with_neighbours(hand, member(7, push=1.0), where))
    return {name.partition(":")[0]: float(tensor[0]) for name, tensor in replica.weights.items()}


def test_a_broken_ring_leaves_the_round_to_the_neighbours() -> None:
    broken = Message("broken", 0, {"newest": 0}, sender="p")
    inbox = [broken, said("p", stem=5.0), said("q", stem=9.0, task=3.0)]
    hand = ScriptedHand("x", inbox, ("p", "q"))
    assert run(hand, place(ring=RING)) == {"stem": 0.25 + 0.25 * 5 + 0.5 * 9, "task": 2.0}
    sent = [(peer, sorted(m.blocks)) for peer, m in hand.sent if m.kind == "blocks"]
    assert sent == [("p", ["stem"]), ("q", ["stem", "task"])]


def test_a_whole_ring_leaves_the_other_blocks_to_the_neighbours() -> None:
    hand = ScriptedHand("x", [*CHUNKS, said("q", stem=99.0, task=3.0)], ("p", "q"))
    assert run(hand, place(ring=RING)) == {"stem": 20.0, "task": 2.0}
    assert [(peer, sorted(m.blocks)) for peer, m in hand.sent if m.kind == "blocks"] == [("q", ["task"])]


def test_who_missed_the_last_chunk_does_not_wait_for_those_who_have_gone_on() -> None:
    early = chunk(0, 1.0, number=1)
    hand = ScriptedHand("x", [*CHUNKS[:3], early], ("p", "q"))
    ends = run(hand, place(ring=RING, rounds=2))
    assert ends == {"stem": 2.0, "task": 2.0}  # nothing of the three chunks
    assert [m.round for _, m in hand.sent if m.kind == "chunk"] == [0, 0, 0, 0, 1, 1]
    assert hand.seconds < 2 * 10 + 10  # only the second round waits until time is up, for ring and neighbours


def test_a_device_that_fell_back_goes_on_in_the_round_of_the_others() -> None:
    broken = Message("broken", 0, {"newest": 3}, sender="q")
    hand = ScriptedHand("x", [broken], ("p", "q"))
    run(hand, place(ring=RING, rounds=4))
    assert [m.round for _, m in hand.sent if m.kind == "chunk"] == [0, 3]
    assert hand.works.count("train") == 2


def test_gossip_repeats_the_averaging_of_the_blocks_that_all_hold() -> None:
    inbox = [said("p", stem=5.0), said("q", stem=9.0, task=3.0)]
    inbox += [said("p", stage=1, stem=2.0), said("q", stage=1, stem=4.0)]
    hand = ScriptedHand("x", inbox, ("p", "q"))
    once = 0.25 + 0.25 * 5 + 0.5 * 9
    assert run(hand, place(repetitions=2)) == {"stem": 0.25 * once + 0.25 * 2 + 0.5 * 4, "task": 2.0}
    assert [(peer, m.kind, m.facts, sorted(m.blocks)) for peer, m in hand.sent] == [
        ("p", "blocks", {}, ["stem"]),
        ("q", "blocks", {}, ["stem", "task"]),
        ("p", "consensus", {"stage": 1}, ["stem"]),
        ("q", "consensus", {"stage": 1}, ["stem"]),
    ]


def test_a_word_that_was_lost_is_made_up_for_by_the_next() -> None:
    inbox = [said("p", stage=1, stem=5.0), said("q", stem=9.0), said("q", stage=1, stem=9.0)]
    hand = ScriptedHand("x", inbox, ("p", "q"))
    once = 0.25 + 0.25 * 5 + 0.5 * 9
    assert run(hand, place(repetitions=2))["stem"] == 0.25 * once + 0.25 * 5 + 0.5 * 9
    assert hand.seconds == len(hand.works)  # it did not wait


def test_who_is_missing_is_not_waited_for_again_in_this_round() -> None:
    inbox = [Message("joined", sender="p"), *(said("q", stage=stage, stem=9.0) for stage in range(3))]
    hand = ScriptedHand("x", inbox, ("p", "q"))
    run(hand, place(repetitions=3))
    assert hand.seconds == len(hand.works)
    assert events(hand, "missed") == [{"event": "missed", "round": 0, "peers": ["p"]}]
    assert [peer for peer, m in hand.sent if m.kind == "consensus"] == ["p", "q"] * 2  # it may hear it


def test_a_round_of_gossip_has_one_deadline() -> None:
    hand = ScriptedHand("x", [said("p", stem=5.0)], ("p", "q"))
    run(hand, place(repetitions=50))
    assert hand.seconds == len(hand.works) + 10


def test_who_is_far_ahead_in_a_round_is_caught_up_with() -> None:
    inbox = [*(said(peer, stage=7, stem=1.0) for peer in ("p", "q")), said("p", stage=8, stem=1.0)]
    hand = ScriptedHand("x", inbox, ("p", "q"), queued=True)
    run(hand, place(repetitions=9))
    assert [m.facts.get("stage", 0) for peer, m in hand.sent if peer == "p"] == [0, 8]


@pytest.mark.parametrize("stage", [3, -1, "1", None])
def test_a_stage_that_is_none_is_refused(stage: Any) -> None:
    odd = Message("consensus", 0, {"stage": stage}, said("p", stem=99.0).blocks, "p")
    inbox = [odd, *(said(peer, stage=s, stem=1.0) for s in range(3) for peer in ("p", "q"))]
    hand = ScriptedHand("x", inbox, ("p", "q"))
    assert run(hand, place(repetitions=3))["stem"] == 1.0
    assert len(events(hand, "refused")) == 1


def test_a_restarted_device_takes_part_in_the_ring() -> None:
    hand = ScriptedHand("x", [chunk(stage, 1.0, number=3) for stage in range(4)], ("p", "q"))
    hand.saved = Standing(Replica(Weights({}), num_rounds=3), said("x", stem=1.0, task=1.0).blocks, 3, True)
    assert run(hand, place(ring=RING, rounds=4))["stem"] == 1.0
    assert hand.works.count("train") == 0


# Settings and plans.


@pytest.mark.parametrize(
    ("key", "section"),
    [
        ("consensus needs", {"mode": "synchronous", "consensus": "gossip"}),
        ("consensus needs", {"mode": "asynchronous", "consensus": "ring"}),
        ("tolerance needs", {"mode": "neighbours", "tolerance": 0.1}),
        ("tolerance needs", {"mode": "neighbours", "consensus": "ring", "tolerance": 0.1}),
        ("merge.rule", {"mode": "neighbours", "consensus": "ring", "merge": {"rule": "median"}}),
        ("merge.clip_norm", {"mode": "neighbours", "consensus": "ring", "merge": {"clip_norm": 1.0}}),
        ("less than 1", {"mode": "neighbours", "consensus": "gossip", "tolerance": 1.0}),
        ("greater than 0", {"mode": "neighbours", "consensus": "gossip", "tolerance": 0.0}),
    ],
)
def test_what_makes_no_sense_is_refused(key: str, section: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=key) as error:
        ExchangeSection.model_validate(section)
    assert len(error.value.errors()) == 1


def test_consensus_needs_a_block_that_all_hold() -> None:
    fleet = fleet_of(3, "line")
    told = ExchangeSection(mode="neighbours", consensus="ring")
    places = {n: Neighbourhood(told, {n: Weights({})}, {n: {}}, 1.0) for n in fleet.names}
    with pytest.raises(JobError, match="no block that every device holds"):
        plan_consensus(places, fleet, examples_of(fleet.names))


def test_a_device_alone_needs_no_ring() -> None:
    fleet = fleet_of(1, "line")
    told = ExchangeSection(mode="neighbours", consensus="ring")
    places = {"d0": Neighbourhood(told, {"stem": Weights({})}, {"stem": {}}, 1.0)}
    assert plan_consensus(places, fleet, {"d0": 3}) == places


@pytest.mark.parametrize("consensus", ["gossip", "ring"])
def test_a_job_brings_its_networks_to_consensus(
    small_job: Callable[..., Job], tmp_path: Path, consensus: str
) -> None:
    job = small_job(
        exchange={"mode": "neighbours", "consensus": consensus, "rounds": 2},
        fleet={"topology": "ring", "device": [{"kind": "raspberry-pi-4", "count": 8}]},
        run={"save_models": True},
    )
    result = train(job, tmp_path)
    assert result["rounds"] == 2
    networks = [load_file(path) for path in sorted((tmp_path / "models").glob("raspberry*.safetensors"))]
    assert len(networks) == 8
    apart = max(float((network[n] - t).abs().max()) for network in networks for n, t in networks[0].items())
    assert apart == 0 if consensus == "ring" else 0 < apart < 0.01
    trace = [json.loads(line) for line in (tmp_path / "trace.jsonl").read_text().splitlines()]
    assert [e for e in trace if e["event"] in ("missed", "late", "refused", "stranded")] == []
    assert {e["kind"] for e in trace if e["event"] == "sent"} == (
        {"chunk"} if consensus == "ring" else {"blocks", "consensus"}
    )

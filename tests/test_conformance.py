"""One program, two engines: what the simulator does, the live engine does.

Every program runs in the simulator first, then on the live engine over posts inside one process. The
networks must agree to float32 rounding and the messages be the same. Where the order in which messages come
decides over the result (asynchronous merging), they reach each hand in the order in which they did in the
simulator.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from manyhands.engine.clock import epoch_seconds
from manyhands.engine.cores import Cores
from manyhands.engine.life import Diary, Past
from manyhands.engine.live import LiveDevice, LiveSection, Place
from manyhands.engine.simulate import Simulation
from manyhands.engine.state import StateFolder
from manyhands.exchange.memory_post import Exchange
from manyhands.fleet import Fleet
from manyhands.job import Job
from manyhands.lessons import load_material
from manyhands.replica import Replica
from manyhands.run import put_together
from manyhands.sizing import Library
from manyhands.team import Team

Events = list[dict[str, Any]]

TASK = {
    "by": "task",
    "task": {"part": 0.2, "pretrain_epochs": 1, "settle_epochs": 1, "overlap": 2, "classes_per_device": 5},
}
CAPACITY = [
    {"kind": "raspberry-pi-3b", "name": "weak", "size": "small"},
    {"kind": "raspberry-pi-4", "name": "middle", "size": "small"},
    {"kind": "laptop", "name": "strong", "size": "full"},
]
RING = {"topology": "ring", "device": [{"kind": "raspberry-pi-4", "name": name} for name in "abcd"]}
NEIGHBOURS = {"mode": "neighbours"}

JOBS: dict[str, dict[str, Any]] = {
    "isolated": {"split": {"by": "isolated"}},
    "synchronous": {},
    "synchronous, some devices, gradients": {"exchange": {"fraction": 0.5, "send": "gradients"}},
    "synchronous, packed": {"exchange": {"send": "gradients", "compress": "int8"}},
    "synchronous, median": {"exchange": {"merge": {"rule": "median"}}},
    "asynchronous": {"exchange": {"mode": "asynchronous", "staleness": 0.5}},
    "neighbours": {"exchange": NEIGHBOURS, "fleet": RING},
    "gossip to consensus": {"exchange": NEIGHBOURS | {"consensus": "gossip"}, "fleet": RING},
    "ring": {"exchange": NEIGHBOURS | {"consensus": "ring"}, "fleet": RING},
    "epidemic": {"exchange": {"mode": "epidemic"}, "fleet": RING},
    "data, all of it": {"split": {"by": "data", "data": {"balance": False}}, "exchange": NEIGHBOURS},
    "capacity, stem": {"split": {"by": "capacity", "form": "stem"}, "fleet": {"device": CAPACITY}},
    "capacity, cascade": {"split": {"by": "capacity", "form": "cascade"}, "fleet": {"device": CAPACITY}},
    "task, ring": {"split": TASK, "exchange": NEIGHBOURS | {"consensus": "ring"}, "fleet": RING},
    "task, coordinator": {"split": TASK, "fleet": RING},
}


@pytest.fixture(autouse=True, scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Prepared networks are kept for the tests of this file alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


def assembled(job: Job, *, live: bool) -> tuple[Fleet, Team]:
    material = load_material(job)
    lineup = put_together(job, material, Library(job, material), live=live)
    return lineup.fleet, lineup.team


def simulated(job: Job) -> tuple[dict[str, Any], Events]:
    fleet, team = assembled(job, live=False)
    events: Events = []
    simulation = Simulation(
        fleet, team.participants, lambda _event, line: events.append(json.loads(line)), cores=Cores(0)
    )
    return simulation.run(), events


def lived(job: Job, folder: Path, seen: Events) -> tuple[dict[str, Any], Events]:
    """The same job on the live engine; asynchronous, messages come to each hand in the order of a trace."""
    _, team = assembled(job, live=True)
    events: Events = []
    hosts, exchange = team.hosts, Exchange()
    if job.exchange.mode == "asynchronous":
        # Between hands on one device nothing goes through a post, and there would be no order to be had.
        hosts = {name: name for name in hosts}
        exchange = Exchange({name: arrivals(seen, name) for name in hosts})
    section = LiveSection(patience_s=600.0, linger_s=600.0)
    devices = [
        LiveDevice(
            device,
            {
                hand: Place(participant, exchange.post(hand), StateFolder(folder / hand, job.hash))
                for hand, participant in team.participants.items()
                if hosts[hand] == device
            },
            sorted(set(hosts.values())),
            section,
            Diary(Past(epoch_seconds()), lambda _event, line: events.append(json.loads(line))),
        )
        for device in sorted(set(hosts.values()))
    ]
    ends: dict[str, Any] = {}

    async def all_of_them() -> None:
        async with asyncio.timeout(500):
            for end in await asyncio.gather(*(device.run() for device in devices)):
                ends.update(end)

    try:
        asyncio.run(all_of_them())
    finally:
        for device in devices:
            device.shut()
    return ends, events


def arrivals(events: Events, name: str) -> list[tuple[str, str, int]]:
    received = [e for e in events if e["event"] == "received" and e["device"] == name]
    return [(e["from"], e["kind"], e["round"]) for e in received]


def messages(events: Events, kind: str, *, sizes: bool) -> Counter[tuple[Any, ...]]:
    keys = ("device", "to", "from", "kind", "round", *(["bytes"] if sizes else []))
    return Counter(tuple(e.get(key) for key in keys) for e in events if e["event"] == kind)


def facts(events: Events, name: str) -> list[dict[str, Any]]:
    return [e for e in events if e["device"] == name and e["event"] in ("computed", "evaluated", "merged")]


@pytest.mark.parametrize("changes", JOBS.values(), ids=JOBS.keys())
def test_both_engines_give_the_same_networks_and_messages(
    changes: dict[str, Any], small_job: Callable[..., Job], tmp_path: Path
) -> None:
    exchange = {"rounds": 3, "deadline_s": 600.0} | changes.get("exchange", {})
    job = small_job(**{**changes, "exchange": exchange}).changed({"live.patience_s": 600.0})
    ends, events = simulated(job)
    live_ends, live_events = lived(job, tmp_path, events)
    assert live_ends.keys() == ends.keys()
    for name, end in ends.items():
        assert_same(live_ends[name], end)
        stored = StateFolder(tmp_path / name, job.hash).read()
        if isinstance(end, Replica):
            stored = getattr(stored, "replica", stored)
        assert_same(stored, end)
    sizes = job.exchange.mode != "asynchronous"  # there, each hand was on a device of its own
    for kind in ("sent", "received"):
        assert messages(live_events, kind, sizes=sizes) == messages(events, kind, sizes=sizes)
    for name in ends:
        assert_same_story(facts(live_events, name), facts(events, name))


def assert_same(live: Any, simulated: Any) -> None:
    if isinstance(simulated, Replica):
        pairs = {"network": (live.weights, simulated.weights)}
        assert (live.num_rounds, live.num_steps) == (simulated.num_rounds, simulated.num_steps)
    else:
        pairs = {block: (live.blocks[block], simulated.blocks[block]) for block in simulated.blocks}
        assert (live.round, live.num_merged) == (simulated.round, simulated.num_merged)
    for ours, theirs in pairs.values():
        assert ours.keys() == theirs.keys()
        for name, tensor in theirs.items():
            torch.testing.assert_close(ours[name], tensor, rtol=1e-6, atol=1e-6)


def assert_same_story(live: Events, simulated: Events) -> None:
    """The same works with the same cost and facts, and the same measurements."""
    for kind in ("computed", "evaluated", "merged"):
        ours, theirs = ([e for e in events if e["event"] == kind] for events in (live, simulated))
        ours.sort(key=lambda e: e["seconds"])
        assert [(e.get("work"), e.get("round"), e.get("flops"), e.get("bytes")) for e in ours] == [
            (e.get("work"), e.get("round"), e.get("flops"), e.get("bytes")) for e in theirs
        ]
        assert [e.get("accuracy") for e in ours] == pytest.approx([e.get("accuracy") for e in theirs])
        assert [e.get("facts", {}).get("loss") for e in ours] == pytest.approx(
            [e.get("facts", {}).get("loss") for e in theirs]
        )

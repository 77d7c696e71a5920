"""The team: from a job's fleet, data and split to the programs that its hands will run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch

from manyhands.blocks import Weights, covers, extract
from manyhands.company import Company
from manyhands.coordinated import coordinated, coordinator_host
from manyhands.engine.participant import Participant
from manyhands.errors import JobError
from manyhands.exchange.counts import Counts
from manyhands.exchange.device import work_alone
from manyhands.exchange.member import Member
from manyhands.fleet import Device, Fleet
from manyhands.fleet.outlook import Slowdown
from manyhands.gossip import gossip
from manyhands.hand import Work
from manyhands.job import Job
from manyhands.lessons import Lessons, MeasureName, Phase
from manyhands.looking import Looker, Together, merged_network
from manyhands.replica import Blocks, Replica
from manyhands.report.units import memory_text
from manyhands.sizing import Library, Sizing
from manyhands.splits import Networks, Split

__all__ = ["Team", "check_fleet", "make_team", "offered_networks"]


@dataclass(frozen=True)
class Team:
    """The hands of a run, and what is known about each device before it starts."""

    participants: Mapping[str, Participant]
    statics: Mapping[str, Mapping[str, Any]]
    members: Mapping[str, Member]
    coordinator_host: str | None
    looker: Looker
    measure: MeasureName
    blocks: Blocks
    counts: Counts

    @property
    def hosts(self) -> dict[str, str]:
        """Hand -> the device it lives on."""
        return {name: participant.host for name, participant in self.participants.items()}


@dataclass(frozen=True)
class _Setting:
    """What every part of the team is made from."""

    job: Job
    fleet: Fleet
    split: Split
    networks: Library
    lessons: Lessons
    looker: Looker

    @cached_property
    def blocks(self) -> dict[str, Weights]:
        """Every block before the first round, cut out of the largest network that holds it."""
        library, blocks = self.networks, dict[str, Weights]()
        merged = self.split.merged
        by_size = {seat.size: seat for seat in (*self.split.seats.values(), *([merged] if merged else []))}
        for size in [size for size in reversed(library.sizes) if size in by_size]:
            missing = {name: parts for name, parts in by_size[size].layout.items() if name not in blocks}
            cut = extract(library(size).first, missing)
            blocks |= {name: Weights(tensors) for name, tensors in cut.items()}
        return blocks


def offered_networks(library: Library) -> Networks:
    """What a split may know of the job's networks."""
    return Networks(
        library.sizes,
        lambda size: library(size).first,
        lambda size: library(size).buffers,
        lambda size: library(size).by_class,
    )


def check_fleet(job: Job, fleet: Fleet) -> None:
    """What can be said of the devices before a network is built or prepared.

    Raises:
        JobError: A device cannot compute here, or the coordinator's is no device.
    """
    for device in fleet.hardware:
        _check_torch_device(device)
    if job.exchange.coordinated:
        coordinator_host(job, fleet)


def make_team(
    job: Job,
    sizing: Sizing,
    split: Split,
    library: Library,
    lessons: Lessons,
    *,
    live: bool = False,
    slowdown: Slowdown | None = None,
) -> Team:
    """Seats every device and binds the programs.

    Args:
        job: The job.
        sizing: Its devices, and which size each can train.
        split: Who trains what.
        library: The networks.
        lessons: How devices learn.
        live: For hosts of their own, whose speed is not known.
        slowdown: What co-running work costs this host, where that is known.
    """
    fleet = sizing.fleet
    looker = Looker(lessons, len(library.sizes) + 4)
    setting = _Setting(job, fleet, split, library, lessons, looker)
    for device in fleet.devices:
        if not device.executors:  # a group's plan has seen to it
            _check_memory(setting, device)
    phases = {device.name: _phase(setting, device) for device in fleet.devices}
    counts = Counts(fleet, {name: phase.num_examples for name, phase in phases.items()})
    # On hosts of their own nobody sees what all have.
    together = None if live else _together(setting, phases)
    members = {name: _member(setting, phase, together) for name, phase in phases.items()}
    statics = {
        name: _statics(setting, phase) | {"size_reason": sizing.reason(name, split.seats[name].size)}
        for name, phase in phases.items()
    }
    host = coordinator_host(job, fleet) if split.exchanges and job.exchange.coordinated else None
    company = Company(job, fleet, split, members, phases, setting.blocks, counts, live, slowdown)
    participants = _participants(setting, company, host)
    return Team(participants, statics, members, host, looker, lessons.measure, setting.blocks, counts)


def _phase(setting: _Setting, device: Device) -> Phase:
    job, seat = setting.job, setting.split.seats[device.name]
    network = setting.networks(seat.size)
    keep = job.learn.keep_optimizer
    if keep is None:
        # A network that is wholly shared is another one each round, and remembering the steps on it would
        # cost every idle device a network's worth of memory.
        keep = not covers(seat.layout, network.first)
    return setting.lessons.phase(device, seat.size, network.architecture, seat.layout, keep)


def _check_torch_device(device: Device) -> None:
    """What is not there must be said before anything is trained."""
    try:
        torch.empty(0, device=device.torch_device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        key = f"fleet.device {device.name}: torch_device"
        raise JobError(key, device.torch_device, f"cannot be used here ({reason}); cpu always can") from error


def _check_memory(setting: _Setting, device: Device) -> None:
    job, seat = setting.job, setting.split.seats[device.name]
    needed = setting.lessons.memory_bytes(device, seat.size, setting.networks(seat.size).architecture)
    if needed > device.memory_bytes:
        by_class = job.split.decouples
        remedy = (
            "fewer classes, a smaller split.task.part or batch"
            if by_class
            else f"a smaller network, size{', play.replay' if job.game.name else ''} or batch, "
            'or size = "auto"'
        )
        raise JobError(
            f"fleet.device {device.name}: {'classes' if by_class else 'size'}",
            seat.size,
            f"training {job.model.name} in batches of {job.learn.batch_size} takes {memory_text(needed)} and "
            f"{device.name} ({device.kind}) has {memory_text(device.memory_bytes)}; take {remedy}",
        )


def _together(setting: _Setting, phases: Mapping[str, Phase]) -> Together:
    num_examples = {name: phase.num_examples for name, phase in phases.items()}
    fastest = max(setting.fleet.devices, key=lambda device: device.flops)
    return Together(
        setting.job, setting.split, setting.networks, setting.looker, num_examples, fastest.torch_device
    )


def _member(setting: _Setting, phase: Phase, together: Together | None) -> Member:
    def train(replica: Replica, blocks: Blocks, number: int) -> Work:
        return phase.work(replica, blocks, number)

    def evaluate(replica: Replica, blocks: Blocks) -> Work:
        settled = phase.settle(replica, blocks)
        return setting.looker.work(
            phase.architecture, lambda: settled.run().weights["replica"], phase.torch_device
        )

    def settle(replica: Replica, blocks: Blocks) -> Work:
        return phase.settle(replica, blocks)

    first = setting.networks(setting.split.seats[phase.device].size).first
    return Member(
        phase.device,
        Replica(first),
        phase.num_examples,
        train,
        settle,
        evaluate,
        (lambda _round, _blocks: None) if together is None else partial(together.after, phase.device),
    )


def _statics(setting: _Setting, phase: Phase) -> dict[str, Any]:
    cost, size = phase.architecture.cost, setting.split.seats[phase.device].size
    return {
        "size": size,
        "parameters": cost.parameters,
        "classes": _class_names(setting, phase.device),
        "train_flops": cost.train_flops,
        "memory_bytes": setting.lessons.memory_bytes(setting.fleet[phase.device], size, phase.architecture),
        "num_examples": phase.num_examples,
        "steps_per_round": phase.num_examples if setting.lessons.measure == "score" else None,
    }


def _class_names(setting: _Setting, device: str) -> list[str] | None:
    own = setting.fleet[device].classes
    return None if own is None else [setting.networks.classes[int(c)] for c in own]


def _participants(setting: _Setting, company: Company, host: str | None) -> Mapping[str, Participant]:
    job = setting.job
    if not setting.split.exchanges:
        program = partial(work_alone, num_rounds=job.exchange.rounds, evaluate_every=job.run.devices_every)
        return {
            name: Participant(partial(program, member=member), name, ())
            for name, member in company.members.items()
        }
    if host is None:
        return gossip(company)
    return coordinated(company, host, _look_at_merged(setting, host))


def _look_at_merged(setting: _Setting, host: str) -> Callable[[Blocks], Work] | None:
    """How to measure the merged blocks, where they make a network by themselves."""
    merged = setting.split.merged
    if merged is None:
        return None
    architecture = setting.networks(merged.size).architecture

    def look(blocks: Blocks) -> Work:
        return setting.looker.work(
            architecture,
            lambda: merged_network(merged, setting.networks, blocks),
            setting.fleet[host].torch_device,
        )

    return look

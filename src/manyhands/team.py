"""The team: from a job's fleet, data and split to the programs that its hands will run."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from manyhands.blocks import Weights, absorb, extract, private_names
from manyhands.data import Dataset, Examples, plan_shares, train_validation
from manyhands.engine.network import Network
from manyhands.engine.simulate import Participant
from manyhands.errors import JobError
from manyhands.exchange.coordination import Coordination
from manyhands.exchange.coordinator import coordinate
from manyhands.exchange.device import take_part, work_alone
from manyhands.exchange.member import Blocks, Member, Replica
from manyhands.fleet import Device, Fleet
from manyhands.hand import Message, Outcome, Work
from manyhands.job import Job
from manyhands.learn.optimizers import num_slots
from manyhands.learn.supervised import Architecture, LocalPhase, accuracy_of
from manyhands.models import build, cost_of, sizes_of
from manyhands.seeds import derive, numpy_generator
from manyhands.splits import Networks, Seat, Split

__all__ = ["COORDINATOR", "Team", "make_team", "offered_networks"]

COORDINATOR = "coordinator"
"""The name of the coordinator's hand; no device may have it."""


@dataclass(frozen=True)
class Team:
    """The hands of a run, and what is known about each device before it starts."""

    participants: Mapping[str, Participant]
    statics: Mapping[str, Mapping[str, Any]]
    members: Mapping[str, Member]
    coordinator_host: str | None

    @property
    def hosts(self) -> dict[str, str]:
        """Hand -> the device it lives on."""
        return {name: participant.host for name, participant in self.participants.items()}


class _Library:
    """The networks of a job, each built once: its first weights and its cost."""

    def __init__(self, job: Job, dataset: Dataset) -> None:
        self._job, self._dataset = job, dataset
        self._built: dict[str, tuple[Architecture, Weights]] = {}

    def __call__(self, size: str) -> tuple[Architecture, Weights]:
        if size not in self._built:
            data = self._dataset
            seed = derive(self._job.seed, "first weights", size)
            module = build(self._job.model, data.shape, len(data.classes), seed=seed, size=size)
            key = (repr(self._job.model), data.shape, len(data.classes), size)
            weights = Weights({n: t.detach().clone() for n, t in module.state_dict().items()})
            # Copies of one network instead of new ones: building draws from torch's global generator.
            architecture = Architecture(key, partial(copy.deepcopy, module), cost_of(module, data.shape))
            self._built[size] = architecture, weights
        return self._built[size]


def offered_networks(job: Job, dataset: Dataset) -> tuple[Networks, _Library]:
    """What the job's model section offers, for a split to choose from."""
    library = _Library(job, dataset)
    sizes = sizes_of(job.model)
    for index, entry in enumerate(job.fleet.device):
        if entry.size is not None and entry.size not in sizes:
            expected = f"{job.model.name} has no such size; choose one of {', '.join(sizes)}"
            raise JobError(f"fleet.device[{index}].size", entry.size, expected)
    return Networks(sizes, job.model.size or sizes[-1], lambda size: library(size)[1]), library


@dataclass(frozen=True)
class _Setting:
    """What every part of the team is made from."""

    job: Job
    fleet: Fleet
    split: Split
    network_of: _Library
    looker: _Looker


def make_team(job: Job, dataset: Dataset, fleet: Fleet, split: Split, library: _Library) -> Team:
    """Seats every device, shares out the data, and binds the programs."""
    setting = _Setting(job, fleet, split, library, _Looker(dataset.test, job.run.evaluate_examples))
    for device in fleet.devices:
        _check_torch_device(device)
        _check_memory(job, device, split.seats[device.name], library)
    phases = {
        device.name: _phase(setting, device, train)
        for device, train in zip(fleet.devices, _shared_out(job, dataset, fleet), strict=True)
    }
    members = {name: _member(setting, phase) for name, phase in phases.items()}
    statics = {name: _statics(setting, phase) for name, phase in phases.items()}
    host = _coordinator_host(job, fleet) if split.exchanges else None
    return Team(_participants(setting, members, phases, host), statics, members, host)


def _phase(setting: _Setting, device: Device, train: Examples) -> LocalPhase:
    job, seat = setting.job, setting.split.seats[device.name]
    architecture, first = setting.network_of(seat.size)
    keep = job.learn.keep_optimizer
    if keep is None:
        # A network that is wholly shared is another one each round, and remembering the steps on it would
        # cost every idle device a network's worth of memory.
        keep = bool(private_names(first, seat.layout))
    return LocalPhase(
        device.name,
        architecture,
        seat.layout,
        train,
        job.learn,
        job.seed,
        device.torch_device,
        job.exchange.send,
        keep,
    )


def _check_torch_device(device: Device) -> None:
    """What is not there must be said before anything is trained."""
    try:
        torch.empty(0, device=device.torch_device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        key = f"fleet.device {device.name}: torch_device"
        raise JobError(key, device.torch_device, f"cannot be used here ({reason}); cpu always can") from error


def _check_memory(job: Job, device: Device, seat: Seat, library: _Library) -> None:
    needed = library(seat.size)[0].cost.memory_bytes(job.learn.batch_size, num_slots(job.learn))
    if needed > device.memory_bytes:
        raise JobError(
            "model.name",
            job.model.name,
            f"training it ({seat.size}, batch {job.learn.batch_size}) takes {needed / 2**20:,.0f} MiB and "
            f"{device.name} ({device.kind}) has {device.memory_bytes / 2**20:,.0f} MiB; "
            "take a smaller network, size or batch",
        )


def _shared_out(job: Job, dataset: Dataset, fleet: Fleet) -> list[Examples]:
    """Each device's training examples; its validation fifth stays with it, unused in training."""
    labels = dataset.train.y.numpy()
    fractions = [device.share or 1 / len(fleet.devices) for device in fleet.devices]
    shares = plan_shares(
        labels,
        fractions,
        rng=numpy_generator(job.seed, "shares"),
        kind=job.data.shares,
        alpha=job.data.alpha,
        classes_per_device=job.data.classes_per_device,
    )
    parts = []
    for device, share in zip(fleet.devices, shares, strict=True):
        rng = numpy_generator(job.seed, device.name, "validation")
        train, _ = train_validation(share, labels, rng, job.data.validation)
        parts.append(dataset.train.take(train))
    return parts


def _member(setting: _Setting, phase: LocalPhase) -> Member:
    def train(replica: Replica, blocks: Blocks, number: int) -> Work:
        return phase.work(replica.weights, replica.optimizer, replica.num_steps, blocks, number)

    def evaluate(replica: Replica, blocks: Blocks) -> Work:
        settled = phase.settle(replica.weights, blocks)
        return setting.looker.work(
            phase.architecture, lambda: settled.run().weights["replica"], phase.torch_device
        )

    def settle(replica: Replica, blocks: Blocks) -> Work:
        return phase.settle(replica.weights, blocks)

    first = setting.network_of(setting.split.seats[phase.device].size)[1]
    return Member(phase.device, Replica(first), len(phase.train), train, settle, evaluate)


def _statics(setting: _Setting, phase: LocalPhase) -> dict[str, Any]:
    cost, learn = phase.architecture.cost, setting.job.learn
    return {
        "size": setting.split.seats[phase.device].size,
        "parameters": cost.parameters,
        "train_flops": cost.train_flops,
        "memory_bytes": cost.memory_bytes(learn.batch_size, num_slots(learn)),
        "num_examples": len(phase.train),
    }


def _coordinator_host(job: Job, fleet: Fleet) -> str:
    """Where the coordinator lives: where the job says, else on the hub, else on the fastest device."""
    named = job.exchange.coordinator
    if named is None:
        return job.fleet.hub or max(fleet.devices, key=lambda device: device.flops).name
    if named not in [device.name for device in fleet.devices]:
        expected = f"there is no such device; choose one of {', '.join(d.name for d in fleet.devices[:10])}"
        raise JobError("exchange.coordinator", named, expected)
    return named


def _participants(
    setting: _Setting, members: Mapping[str, Member], phases: Mapping[str, LocalPhase], host: str | None
) -> dict[str, Participant]:
    job = setting.job
    program = partial(
        work_alone if host is None else take_part,
        num_rounds=job.exchange.rounds,
        evaluate_every=job.run.evaluate_every,
    )
    peers = () if host is None else (COORDINATOR,)
    devices = {
        name: Participant(partial(program, member=member), name, peers) for name, member in members.items()
    }
    if host is None:
        return devices
    coordinator = Participant(
        partial(coordinate, job=_coordination(setting, phases, host)), host, tuple(members)
    )
    return {**devices, COORDINATOR: coordinator}


def _coordination(setting: _Setting, phases: Mapping[str, LocalPhase], host: str) -> Coordination:
    job, split, library = setting.job, setting.split, setting.network_of
    blocks: dict[str, Weights] = {}
    for seat in split.seats.values():
        missing = {name: parts for name, parts in seat.layout.items() if name not in blocks}
        blocks |= {
            name: Weights(tensors) for name, tensors in extract(library(seat.size)[1], missing).items()
        }
    return Coordination(
        job.exchange,
        job.seed,
        blocks,
        {name: tuple(seat.layout) for name, seat in split.seats.items()},
        _expected_s(setting, phases, blocks, host),
        {name: len(phase.train) for name, phase in phases.items()},
        _look_at_merged(setting, host),
        job.run.evaluate_every,
    )


def _look_at_merged(setting: _Setting, host: str) -> Callable[[Blocks], Work] | None:
    """How to measure the merged blocks, where they make a network by themselves."""
    merged = setting.split.merged
    if merged is None:
        return None
    architecture, first = setting.network_of(merged.size)

    def look(blocks: Blocks) -> Work:
        own = {name: blocks[name] for name in merged.layout}
        return setting.looker.work(
            architecture, lambda: Weights(absorb(first, merged.layout, own)), setting.fleet[host].torch_device
        )

    return look


def _expected_s(
    setting: _Setting, phases: Mapping[str, LocalPhase], blocks: Blocks, host: str
) -> dict[str, float]:
    """How long each device's round should take if all take part: blocks out, the local phase, blocks back.

    Found by sending them through an empty network, so that queues at the coordinator and at devices that pass
    messages on are in it.
    """
    fleet, network = setting.fleet, Network(setting.fleet)
    sizes = {
        name: Message("round", blocks={b: blocks[b] for b in seat.layout}).nbytes
        for name, seat in setting.split.seats.items()
    }
    trained_s = {
        name: network.transfer(0.0, host, name, sizes[name]) + phase.flops / fleet[name].flops
        for name, phase in phases.items()
    }
    return {
        name: network.transfer(at_s, name, host, sizes[name])
        for name, at_s in sorted(trained_s.items(), key=lambda item: item[1])
    }


class _Looker:
    """Measures networks on the test set; the same network, however many devices hold it, only once."""

    def __init__(self, test: Examples, limit: int | None) -> None:
        self._test = test if limit is None or limit >= len(test) else test.take(_spread(len(test), limit))
        self._lock = threading.Lock()
        # Keeping the tensors keeps their identity from being given to others.
        self._known: dict[tuple[int, ...], tuple[Future[Outcome], tuple[torch.Tensor, ...]]] = {}

    def work(self, architecture: Architecture, weights: Callable[[], Weights], torch_device: str) -> Work:
        """The work of looking at the weights that a function gives."""
        return Work("evaluate", lambda: self._look(architecture, weights(), torch_device))

    def _look(self, architecture: Architecture, weights: Weights, torch_device: str) -> Outcome:
        tensors = tuple(weights.values())
        key = tuple(map(id, tensors))
        with self._lock:
            known = self._known.get(key)
            if known is None:
                future: Future[Outcome] = Future()
                self._known[key] = (future, tensors)
                while len(self._known) > 4:
                    del self._known[next(iter(self._known))]
        if known is not None:
            return replace(known[0].result())
        try:
            future.set_result(Outcome(accuracy_of(architecture, weights, self._test, torch_device)))
        except BaseException as error:
            future.set_exception(error)
            raise
        return future.result()


def _spread(count: int, limit: int) -> torch.Tensor:
    """Evenly spaced positions, so that a sorted test set is not cut to its first classes."""
    return torch.from_numpy(np.linspace(0, count - 1, limit).astype(np.int64))

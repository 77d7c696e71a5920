"""The programs of devices with a coordinator, and the coordinator's own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from manyhands.company import Company
from manyhands.engine.network import Network
from manyhands.engine.participant import Participant
from manyhands.errors import JobError
from manyhands.exchange.coordination import Coordination
from manyhands.exchange.coordinator import coordinate
from manyhands.exchange.device import take_part
from manyhands.fleet import Fleet
from manyhands.hand import Message, Work
from manyhands.job import Job
from manyhands.replica import Blocks

__all__ = ["COORDINATOR", "coordinated", "coordinator_host"]

COORDINATOR = "coordinator"
"""The name of the coordinator's hand; no device may have it."""


def coordinator_host(job: Job, fleet: Fleet) -> str:
    """Where the coordinator lives: where the job says, else on the hub, else on the fastest device."""
    named = job.exchange.coordinator
    if named is None:
        return job.fleet.hub or max(fleet.devices, key=lambda device: device.flops).name
    if named not in [device.name for device in fleet.devices]:
        expected = f"there is no such device; choose one of {', '.join(d.name for d in fleet.devices[:10])}"
        raise JobError("exchange.coordinator", named, expected)
    return named


def coordinated(company: Company, host: str, look: Callable[[Blocks], Work] | None) -> dict[str, Participant]:
    """The hands of all devices, and the coordinator's.

    Args:
        company: Who exchanges what.
        host: The device that the coordinator lives on.
        look: How to measure the merged blocks, where they make a network by themselves.
    """
    job = company.job
    program = partial(
        take_part,
        packing=job.exchange.packing,
        num_rounds=job.exchange.rounds,
        evaluate_every=job.run.devices_every,
    )
    devices = {
        name: Participant(partial(program, member=member), name, (COORDINATOR,))
        for name, member in company.members.items()
    }
    coordination = Coordination(
        job.exchange,
        job.seed,
        company.blocks,
        company.holds,
        {name: _patient_s(company, s) for name, s in _expected_s(company, host).items()},
        company.num_examples,
        look,
        job.run.evaluate_every,
    )
    coordinator = Participant(
        partial(coordinate, job=coordination), host, tuple(company.members), serves=True
    )
    return {**devices, COORDINATOR: coordinator}


def _patient_s(company: Company, expected_s: float) -> float:
    """How long a round may be expected to take; live, nobody is given up sooner than `patience_s`."""
    return max(expected_s, company.patience_s / company.job.exchange.slack)


def _expected_s(company: Company, host: str) -> dict[str, float]:
    """How long each device's round should take if all take part: blocks out, the local phase, blocks back.

    Found by sending them through an empty network, so that queues at the coordinator and at devices that pass
    messages on are in it.
    """
    fleet, blocks, network = company.fleet, company.blocks, Network(company.fleet)
    sizes = {
        name: Message("round", blocks={b: blocks[b] for b in seat.layout}).nbytes
        for name, seat in company.split.seats.items()
    }
    trained_s = {
        name: network.transfer(0.0, host, name, sizes[name]) + phase.flops / fleet[name].flops
        for name, phase in company.phases.items()
    }
    return {
        name: network.transfer(at_s, name, host, sizes[name])
        for name, at_s in sorted(trained_s.items(), key=lambda item: item[1])
    }

"""The programs of devices without a coordinator: with neighbours, with drawn peers, or by push."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from manyhands.company import Company
from manyhands.engine.network import Network
from manyhands.engine.participant import Participant
from manyhands.errors import JobError
from manyhands.exchange.epidemic import meeting_rows
from manyhands.exchange.neighbourhood import Neighbourhood, plan_consensus
from manyhands.exchange.neighbours import exchange_with_neighbours
from manyhands.exchange.pace import Pace, Portion
from manyhands.exchange.push import PushPlace, push_to_peers
from manyhands.exchange.sum_weights import FIRST_UNITS
from manyhands.fleet import Contention
from manyhands.fleet.outlook import Slowdown
from manyhands.hand import Message, Work
from manyhands.learn.selective import SelectivePhase
from manyhands.replica import Blocks, Replica
from manyhands.splits import replica_holders

__all__ = ["gossip"]


def gossip(company: Company) -> dict[str, Participant]:
    """The hands of all devices."""
    return _pushing(company) if company.job.exchange.mode == "push" else _averaging(company)


def _averaging(company: Company) -> dict[str, Participant]:
    """Devices that go from round to round together."""
    job, fleet, holds, num_examples = company.job, company.fleet, company.holds, company.num_examples
    epidemic = job.exchange.mode == "epidemic"
    rows = company.counts.rows(holds)
    places = {
        name: Neighbourhood(
            job.exchange, {b: company.blocks[b] for b in held}, rows[name], 0.0, job.run.devices_every
        )
        for name, held in holds.items()
    }
    places = plan_consensus(places, fleet, num_examples)
    expected_s = _expected_s(company, places)
    exchange_s = _expected_s(company, places, trained=True)
    # How long to wait is one thing; at what pace to go on while somebody is away, the expected time is right.
    wait_s = job.exchange.deadline_s or max(job.exchange.slack * expected_s, company.patience_s)
    section = job.exchange.model_copy(update={"deadline_s": wait_s})
    participants = {}
    for name, place in places.items():
        meet = partial(
            meeting_rows,
            name,
            holds=holds,
            num_examples=num_examples,
            seed=job.seed,
            fanout=job.exchange.fanout,
        )
        pace = _pace(company, name, exchange_s, waits=True)
        own = replace(
            place,
            section=section,
            expected_s=expected_s,
            meet=meet if epidemic else None,
            pace=pace,
            company=company.others(name) if epidemic or pace is not None else (),
        )
        program = partial(exchange_with_neighbours, member=company.members[name], place=own)
        participants[name] = Participant(program, name, own.peers)
    return participants


def _pushing(company: Company) -> dict[str, Participant]:
    """Devices that wait for nobody."""
    job, holds = company.job, company.holds
    if len({frozenset(held) for held in holds.values()}) > 1:
        expected = f'a split by {company.split.name} gives devices unlike blocks; take "neighbours"'
        raise JobError("exchange.mode", "push", expected)
    rows = company.counts.rows(holds)
    places = {
        name: Neighbourhood(job.exchange, {b: company.blocks[b] for b in held}, rows[name], 0.0)
        for name, held in holds.items()
    }
    expected_s = _expected_s(company, places)
    exchange_s = _expected_s(company, places, trained=True)
    participants = {}
    for name, place in places.items():
        pace = _pace(company, name, exchange_s, waits=False)
        own = PushPlace(
            job.exchange,
            job.seed,
            place.blocks,
            place.neighbours,
            FIRST_UNITS * len(places),
            max(expected_s, company.patience_s / job.exchange.slack),
            job.run.devices_every,
            pace,
            company.others(name) if pace is not None else (),
        )
        program = partial(push_to_peers, member=company.members[name], place=own)
        participants[name] = Participant(program, name, own.peers)
    return participants


def _pace(company: Company, name: str, exchange_s: float, *, waits: bool) -> Pace | None:
    """How a device keeps pace with the others, where the split is by data."""
    job, phase = company.job, company.phases[name]
    section = job.split.data
    if not isinstance(phase, SelectivePhase) or section is None:
        return None
    flops_per_example = float(phase.architecture.cost.train_flops)

    def train(replica: Replica, blocks: Blocks, number: int, portion: Portion) -> Work:
        return phase.part(replica, blocks, number, portion.ratio, portion.taken)

    return Pace(
        section,
        company.num_examples,
        replica_holders(company.fleet.names, section.replicas),
        flops_per_example / company.fleet[name].flops,
        _slowdown(company, name),
        phase.prepare,
        train,
        flops_per_example,
        exchange_s,
        waits,
        company.patience_s,
        tries=company.live,
    )


def _slowdown(company: Company, name: str) -> Slowdown:
    """What co-running work costs a device, over a span of time.

    Without a profile what it costs a real one is in what its last epochs took, and in nothing else.
    """
    if company.live:
        return company.slowdown or (lambda _from_s, _until_s: 1.0)
    contention = Contention(company.job.contention, company.fleet, company.job.seed)
    return lambda from_s, until_s: contention.mean(name, from_s, until_s).slowdown


def _expected_s(company: Company, places: Mapping[str, Neighbourhood], *, trained: bool = False) -> float:
    """How long a round should take the slowest, as in a chain of neighbours all come to wait for it.

    Once all have trained, it is how long exchanging takes.
    """
    fleet = company.fleet
    network = Network(fleet)
    ready_s = {
        name: 0.0 if trained else phase.flops / fleet[name].flops for name, phase in company.phases.items()
    }
    arrivals_s = [
        network.transfer(
            at_s, name, peer, Message("blocks", blocks=place.shared_with(peer, place.blocks)).nbytes
        )
        for name, at_s in sorted(ready_s.items(), key=lambda item: item[1])
        for place in [places[name]]
        for peer in place.neighbours
    ]
    idle = Network(fleet)
    stages_s = [
        count * idle.transfer(0.0, name, peer, nbytes)
        for name, place in places.items()
        for count, sent in [place.further_stages()]
        for peer, nbytes in sent.items()
    ]
    return max([*arrivals_s, *ready_s.values()]) + max(stages_s, default=0.0)

"""A device's neighbourhood: with whom it averages which blocks, for how long it waits, what all agree on.

Planned for all devices before the first round, and nothing but data afterwards; `exchange.neighbours` is the
program that goes by it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from manyhands.errors import JobError
from manyhands.exchange.consensus import Ring, make_rings
from manyhands.exchange.coordination import ExchangeSection
from manyhands.exchange.mixing import num_averagings, ring_order
from manyhands.exchange.pace import Pace
from manyhands.fleet import Fleet
from manyhands.hand import Message
from manyhands.replica import Blocks

__all__ = ["Neighbourhood", "plan_consensus"]


@dataclass(frozen=True)
class Neighbourhood:
    """What one device is given to exchange with its neighbours.

    Attributes:
        section: The job's settings.
        blocks: Its blocks before the first round.
        weights: Block -> peer -> how much the peer's version counts; its own version keeps the rest.
        expected_s: How long a round should take the slowest of the fleet, for whom in the end all wait. It
            waits until `section.deadline_s`, or `section.slack` times this, after it has sent its own blocks.
        evaluate_every: Look at its network every so many local phases (0: only at the end).
        consensus_blocks: The blocks that all devices are to agree on in every round.
        repetitions: How often these are averaged in a round.
        ring: Its place in the ring on which they come to their mean instead, if there is one.
        meet: Round -> `weights` of that round, where peers are drawn anew in each.
        pace: How it keeps pace with the others, if it goes through a part of its data only.
        company: Whom it may talk to besides.
    """

    section: ExchangeSection
    blocks: Blocks
    weights: Mapping[str, Mapping[str, float]]
    expected_s: float
    evaluate_every: int = 1
    consensus_blocks: tuple[str, ...] = ()
    repetitions: int = 1
    ring: Ring | None = None
    meet: Callable[[int], Mapping[str, Mapping[str, float]]] | None = None
    pace: Pace | None = None
    company: tuple[str, ...] = ()

    def at(self, number: int) -> Neighbourhood:
        """The neighbourhood of a round."""
        return self if self.meet is None else replace(self, weights=self.meet(number))

    @cached_property
    def neighbours(self) -> tuple[str, ...]:
        """All with whom it averages a block."""
        return tuple(dict.fromkeys(peer for row in self.weights.values() for peer in row))

    @cached_property
    def peers(self) -> tuple[str, ...]:
        """All whom it talks to."""
        beside = (self.ring.before, self.ring.after) if self.ring else ()
        return tuple(dict.fromkeys((*self.neighbours, *beside, *self.company)))

    @property
    def wait_s(self) -> float:
        """How long it waits for its neighbours in a round, and before that for the ring."""
        return self.section.deadline_s or self.section.slack * self.expected_s

    def blocks_of(self, peer: str) -> list[str]:
        """The blocks that it averages with a peer."""
        return [block for block, row in self.weights.items() if peer in row]

    def shared_with(self, peer: str, blocks: Blocks) -> Blocks:
        """Those of some blocks that it averages with a peer."""
        return {block: blocks[block] for block in self.blocks_of(peer) if block in blocks}

    def further_stages(self) -> tuple[int, dict[str, int]]:
        """How often a round sends something for the sake of consensus alone, and to whom how many bytes."""
        agreed = {block: self.blocks[block] for block in self.consensus_blocks}
        if self.ring is not None:
            return self.ring.num_stages, {self.ring.after: self.ring.chunk_bytes(agreed)}
        shared = {peer: self.shared_with(peer, agreed) for peer in self.neighbours}
        sent = {peer: Message("consensus", blocks=blocks).nbytes for peer, blocks in shared.items() if blocks}
        return self.repetitions - 1, sent


def plan_consensus(
    places: Mapping[str, Neighbourhood], fleet: Fleet, num_examples: Mapping[str, int]
) -> dict[str, Neighbourhood]:
    """The places of all devices, with what brings the blocks that everybody holds to consensus.

    Raises:
        JobError: There is no such block.
    """
    first = next(iter(places.values()))
    consensus = first.section.consensus
    if consensus == "none" or len(places) == 1:
        return dict(places)
    common = tuple(b for b in first.blocks if all(b in place.blocks for place in places.values()))
    if not common:
        raise JobError(
            "exchange.consensus", consensus, "there is no block that every device holds; leave it out"
        )
    planned = {name: replace(place, consensus_blocks=common) for name, place in places.items()}
    if consensus == "ring":
        rings = make_rings(ring_order(fleet), num_examples)
        return {name: replace(place, ring=rings[name]) for name, place in planned.items()}
    # As everybody holds these blocks, the graph of each is the fleet's.
    weights = {name: place.weights[common[0]] for name, place in places.items()}
    repetitions = num_averagings(weights, num_examples, first.section.tolerance)
    return {name: replace(place, repetitions=repetitions) for name, place in planned.items()}

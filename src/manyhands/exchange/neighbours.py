"""The exchange without a coordinator: every device averages its blocks with its neighbours.

A round of a device: train, send each neighbour the blocks that both hold, wait for theirs, average. That is
decentralised averaging with local phases; papers 000 and 002 exchange in this way over rings and meshes. Who
is whose neighbour, and with what weight, is planned beforehand (`exchange.mixing`).

Neighbours wait for each other, so two of them are at most one round apart as long as nobody is cut off. A
device that lost touch, because it was down, too slow or apart, goes on with the newest that it hears: it
takes over its neighbours' round number and skips the local phases in between.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from manyhands.blocks import Weights
from manyhands.exchange.coordination import ExchangeSection, accept_updates, skip_news
from manyhands.exchange.member import Member, looks, updated_blocks
from manyhands.exchange.merge import merge
from manyhands.hand import Hand, Message, Outcome, Work
from manyhands.replica import Blocks, Replica

__all__ = ["Neighbourhood", "Standing", "exchange_with_neighbours"]


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
    """

    section: ExchangeSection
    blocks: Blocks
    weights: Mapping[str, Mapping[str, float]]
    expected_s: float
    evaluate_every: int = 1

    @cached_property
    def peers(self) -> tuple[str, ...]:
        """All with whom it exchanges a block."""
        return tuple(dict.fromkeys(peer for row in self.weights.values() for peer in row))

    @property
    def wait_s(self) -> float:
        """How long it waits for its neighbours."""
        return self.section.deadline_s or self.section.slack * self.expected_s

    def blocks_of(self, peer: str) -> list[str]:
        """The blocks that it exchanges with a peer."""
        return [block for block, row in self.weights.items() if peer in row]

    def shared_with(self, peer: str, blocks: Blocks) -> Blocks:
        """Those of some blocks that it exchanges with a peer."""
        return {block: blocks[block] for block in self.blocks_of(peer)}


@dataclass(frozen=True)
class Standing:
    """What a device saves: enough to go on after a crash.

    Attributes:
        replica: What is its own.
        blocks: What it shares, as merged last or, when it has just `trained`, as trained.
        round: The round it is in.
        trained: Whether this round's local phase is done.
    """

    replica: Replica
    blocks: Blocks
    round: int = 0
    trained: bool = False


async def exchange_with_neighbours(hand: Hand, member: Member, place: Neighbourhood) -> Replica:
    """Trains and averages until the job's rounds are done; gives the network it ends with."""
    standing: Standing = hand.saved or Standing(member.replica, place.blocks)
    post = _Post(place.section.rounds, place.peers)
    while standing.round < place.section.rounds:
        began_s = hand.seconds
        if not standing.trained:
            standing = await _train(hand, member, standing)
        standing = await _average(hand, place, standing, post)
        _report_round(hand, member, place, standing)
        if len(hand.peers) < len(place.peers):
            # Some are gone. A fast device that did not wait for them would be many rounds ahead when they are
            # back, and they would skip theirs to catch up.
            await hand.sleep(max(began_s + place.expected_s - hand.seconds, 0.0))
    settled = await hand.compute(member.settle(standing.replica, standing.blocks))
    replica = standing.replica.settled(settled)
    hand.save(replace(standing, replica=replica, blocks={}))
    hand.report("evaluated", observe=member.evaluate(replica, {}), round=standing.round)
    hand.report("finished", round=replica.num_rounds)
    return replica


async def _train(hand: Hand, member: Member, standing: Standing) -> Standing:
    trained = await hand.compute(member.train(standing.replica, standing.blocks, standing.round))
    after = replace(
        standing, replica=standing.replica.after(trained), blocks=updated_blocks(trained), trained=True
    )
    hand.save(after)
    return after


def _report_round(hand: Hand, member: Member, place: Neighbourhood, standing: Standing) -> None:
    last, num_phases = place.section.rounds, standing.replica.num_rounds
    if standing.round < last and looks(num_phases, place.evaluate_every, last):
        observe = member.evaluate(standing.replica, standing.blocks)
        hand.report("evaluated", observe=observe, round=standing.round)
    hand.report("round", round=num_phases)


async def _average(hand: Hand, place: Neighbourhood, standing: Standing, post: _Post) -> Standing:
    """Exchanges what was trained in a round, and goes on to the next one or to where the others are."""
    number, blocks = standing.round, standing.blocks
    await _exchange(hand, place, standing, post)
    said = {peer: post.word(peer) for peer in place.peers if post.has(peer, number)}
    if said:
        outcome = await hand.compute(_merge_work(place, blocks, said, number))
        blocks = {**blocks, **outcome.weights}
        for peer, reason in outcome.facts["refused"].items():
            hand.report("refused", peer=peer, round=number, reason=reason)
    after = Standing(standing.replica, blocks, max(number + 1, post.newest))
    post.forget(after.round)
    hand.save(after)
    return after


async def _exchange(hand: Hand, place: Neighbourhood, standing: Standing, post: _Post) -> None:
    """Sends the blocks to those who are there, and waits until all of them have answered or time is up."""
    number = standing.round
    await skip_news(hand)
    there = [peer for peer in hand.peers if post.knows(peer)]
    for peer in there:
        await hand.send(peer, Message("blocks", number, blocks=place.shared_with(peer, standing.blocks)))
    deadline_s = hand.seconds + place.wait_s
    missing = {peer for peer in there if not post.has(peer, number)}
    while True:
        # When nobody is missing, what is in the mailbox is still read: it may say that others are far ahead.
        left_s = max(deadline_s - hand.seconds, 0.0) if missing else 0.0
        message = await hand.receive("blocks", "lost", "joined", timeout_s=left_s)
        if message is None:
            break
        if message.kind == "blocks":
            post.take(hand, message, number)
        if message.kind != "blocks" or post.has(message.sender, number):
            # Said what was to be said; or lost, or back without what it was sent: not worth waiting for.
            missing.discard(message.sender)
    absent = [peer for peer in there if not post.has(peer, number)]
    if absent:
        hand.report("missed", round=number, peers=absent)


def _merge_work(place: Neighbourhood, blocks: Blocks, said: Mapping[str, Message], number: int) -> Work:
    """Averages this device's version of each block with those that came and fit.

    What others do not say, or say in vain, leaves their weight to the device's own version.
    """
    section = place.section

    def run() -> Outcome:
        kept, refused = accept_updates(section, blocks, said, {peer: place.blocks_of(peer) for peer in said})
        merged = {}
        for block, row in place.weights.items():
            theirs = [(row[p], kept[p][block]) for p in row if p in kept and block in kept[p]]
            if theirs:
                own = 1 - sum(weight for weight, _ in theirs)
                merged[block] = Weights(merge(section.merge, [(own, blocks[block]), *theirs]))
        return Outcome({"refused": refused}, merged)

    flops = 2 * sum(w.nbytes / 4 for m in said.values() for w in m.blocks.values())
    return Work("merge", run, flops, {"round": number})


class _Post:
    """What neighbours have said and is still of use.

    Of a neighbour at most one round ahead, which is as far as those get who wait for each other, the word of
    each round counts in that round: it then averaged with this device's word of the same round, and the mean
    over the data stays what it was. One that is further ahead has gone on without this device; its newest
    word counts, and no other is kept.
    """

    def __init__(self, num_rounds: int, peers: Iterable[str]) -> None:
        self._num_rounds = num_rounds
        self._said: dict[str, dict[int, Message]] = {peer: {} for peer in peers}

    @property
    def newest(self) -> int:
        """The newest round that anybody is known to be in."""
        return max((number for said in self._said.values() for number in said), default=0)

    def knows(self, peer: str) -> bool:
        """Whether somebody is a neighbour."""
        return peer in self._said

    def has(self, peer: str, number: int) -> bool:
        """Whether a neighbour's word is there for a round."""
        return any(said >= number for said in self._said.get(peer, ()))

    def word(self, peer: str) -> Message:
        """What of a neighbour counts now."""
        said = self._said[peer]
        return said[min(said)]

    def take(self, hand: Hand, message: Message, number: int) -> None:
        """Puts a message away that came in a round, or says why not."""
        said = self._said.get(message.sender)
        if said is None or not 0 <= message.round < self._num_rounds:
            reason = "no neighbour" if said is None else "there is no such round"
            hand.report("refused", peer=message.sender, round=message.round, reason=reason)
        elif message.round < number:
            hand.report("late", peer=message.sender, round=message.round)
        else:
            said[message.round] = message
            self._tidy(said, number)

    def forget(self, number: int) -> None:
        """Drops what is older than a round."""
        for said in self._said.values():
            self._tidy(said, number)

    @staticmethod
    def _tidy(said: dict[int, Message], number: int) -> None:
        newest = max(said, default=0)
        for other in [n for n in said if n < number or (newest > number + 1 and n < newest)]:
            del said[other]

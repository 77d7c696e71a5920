"""Asynchronous push gossip with sum-weights (GoSGD; Blot et al. 2016; paper 002, section 2.1).

After each local phase a device sends its network, with half of its weight, to one peer drawn at random, and
takes in what has come in the meantime, each version counting by its weight. Nobody waits for anybody. What
is said about weights, and why none is ever lost or counted twice, is in `exchange.sum_weights`; here are
the messages: ``push`` (a network and units), ``receipt`` (whether a number was credited), ``ask`` (what
became of it) and ``leave``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from manyhands.blocks import Weights
from manyhands.exchange.coordination import ExchangeSection, accept_updates
from manyhands.exchange.member import Member, looks, updated_blocks
from manyhands.exchange.merge import Tensors, merge
from manyhands.exchange.pace import Pace, Pacing, local_phase
from manyhands.exchange.sum_weights import Book, answer, close, floor_for, give, overdue, take
from manyhands.hand import Hand, Message, Outcome, Work
from manyhands.replica import Blocks, Replica
from manyhands.seeds import numpy_generator

__all__ = ["PushPlace", "PushStanding", "push_to_peers"]

KINDS = ("push", "receipt", "ask", "leave")


@dataclass(frozen=True)
class PushPlace:
    """What one device is given to push.

    Attributes:
        section: The job's settings.
        seed: Of the job, for whom it pushes to.
        blocks: Its blocks before the first round.
        neighbours: Whom it may push to.
        most_units: What all devices have together; no message can bring more.
        expected_s: How long a local phase and an exchange should take the slowest: a receiver reads its mail
            between local phases. Without a word for `section.slack` times this, a sender asks.
        evaluate_every: Look at its network every so many local phases (0: only at the end).
        pace: How it keeps pace with the others, if it does.
        company: All whom it talks to.
    """

    section: ExchangeSection
    seed: int
    blocks: Blocks
    neighbours: tuple[str, ...]
    most_units: int
    expected_s: float
    evaluate_every: int = 1
    pace: Pace | None = None
    company: tuple[str, ...] = ()

    @property
    def peers(self) -> tuple[str, ...]:
        """All whom it talks to."""
        return tuple(dict.fromkeys((*self.neighbours, *self.company)))

    @property
    def ask_after_s(self) -> float:
        """How long a sender waits for a receipt before it asks."""
        return self.section.deadline_s or self.section.slack * self.expected_s


@dataclass(frozen=True)
class PushStanding:
    """What a device saves: network and book together, so that a unit and what it weighs are never apart."""

    replica: Replica
    blocks: Blocks
    book: Book = field(default_factory=Book)
    round: int = 0
    left: frozenset[str] = frozenset()


async def push_to_peers(hand: Hand, member: Member, place: PushPlace) -> Replica:
    """Trains and pushes until the job's rounds are done; gives the network it ends with."""
    standing: PushStanding = hand.saved or PushStanding(member.replica, place.blocks)
    pacing = None if place.pace is None else Pacing(place.pace)
    while standing.round < place.section.rounds:
        standing = await _train(hand, member, pacing, standing)
        standing = await _take_in(hand, place, standing)
        standing = await _push(hand, place, standing)
        await _ask(hand, standing, place.ask_after_s)
        _report_round(hand, member, place, standing)
    standing = await _leave(hand, place, standing)
    settled = await hand.compute(member.settle(standing.replica, standing.blocks))
    replica = standing.replica.settled(settled)
    hand.save(replace(standing, replica=replica, blocks={}))
    hand.report("evaluated", observe=member.evaluate(replica, {}), round=standing.round)
    in_flight = sum(flight.units for flight in standing.book.in_flight.values())
    hand.report("weighed", units=standing.book.own, in_flight=in_flight)
    hand.report("finished", round=replica.num_rounds)
    return replica


async def _train(hand: Hand, member: Member, pacing: Pacing | None, standing: PushStanding) -> PushStanding:
    trained = await local_phase(hand, member, pacing, standing.replica, standing.blocks, standing.round)
    after = replace(
        standing,
        replica=standing.replica.after(trained),
        blocks=updated_blocks(trained),
        round=standing.round + 1,
    )
    hand.save(after)
    return after


async def _take_in(hand: Hand, place: PushPlace, standing: PushStanding) -> PushStanding:
    """Reads the mail: credits and merges what came, saves, and only then says so."""
    book, left = standing.book, set(standing.left)
    news: list[tuple[int, Message]] = []
    replies: list[tuple[str, Message]] = []
    while (message := await hand.receive(*KINDS, "joined", "lost", timeout_s=0)) is not None:
        if message.kind in ("joined", "lost"):
            left.discard(message.sender)  # one that comes back takes part again
        elif message.kind == "leave":
            left.add(message.sender)
        elif (read := _read(place, message)) is None:
            hand.report("refused", peer=message.sender, round=message.round, reason="not a message of push")
        elif message.kind == "push":
            book, fresh = take(book, message.sender, *read)
            news += [(read[1], message)] if fresh else []
            book, credited = answer(book, message.sender, read[0], read[2])
            replies.append((message.sender, _receipt(message, read[0], credited)))
        else:
            book, replies = _settle(book, message, read, replies)
    # In what is averaged a version counts by its units, one's own by those it had before.
    blocks = await _merge(hand, place, standing, news)
    after = replace(standing, blocks={**standing.blocks, **blocks}, book=book, left=frozenset(left))
    hand.save(after)
    for peer, reply in replies:
        await hand.send(peer, reply)
    return after


def _settle(
    book: Book, message: Message, read: tuple[int, int, int], replies: list[tuple[str, Message]]
) -> tuple[Book, list[tuple[str, Message]]]:
    """The book after a question or a receipt, and what is to be said."""
    number, value, floor = read
    if message.kind == "receipt":
        return close(book, message.sender, number, bool(value)), replies
    book, credited = answer(book, message.sender, number, floor)
    return book, [*replies, (message.sender, _receipt(message, number, credited))]


def _receipt(message: Message, number: int, credited: bool) -> Message:
    return Message("receipt", message.round, {"number": number, "credited": credited})


def _read(place: PushPlace, message: Message) -> tuple[int, int, int] | None:
    """Number, units (of a receipt: whether credited) and floor; None if that is not what it says."""
    facts = message.facts
    number, floor = facts.get("number"), facts.get("floor", 0)
    value = facts.get({"push": "units", "receipt": "credited"}.get(message.kind, ""), 0)
    if not (isinstance(number, int) and isinstance(value, int) and isinstance(floor, int)):
        return None
    if min(number, value, floor) < 0 or message.sender not in place.neighbours:
        return None
    if message.kind == "push" and not (0 < value <= place.most_units and floor <= number):
        return None
    return number, int(value), floor


async def _merge(
    hand: Hand, place: PushPlace, standing: PushStanding, news: Sequence[tuple[int, Message]]
) -> Mapping[str, Weights]:
    if not news:
        return {}
    outcome = await hand.compute(_merge_work(place, standing, news))
    for peer, reason in outcome.facts["refused"].items():
        hand.report("refused", peer=peer, round=standing.round, reason=reason)
    return outcome.weights


def _merge_work(place: PushPlace, standing: PushStanding, news: Sequence[tuple[int, Message]]) -> Work:
    """Averages one's own version with those that came and fit; a refused one leaves its units, not itself."""
    blocks, section = standing.blocks, place.section

    def run() -> Outcome:
        merged, refused = dict[str, Weights](), dict[str, str]()
        said: dict[str, list[tuple[float, Tensors]]] = {name: [] for name in blocks}
        for units, message in news:
            sender = message.sender
            kept, wrong = accept_updates(section, blocks, {sender: message}, {sender: tuple(blocks)})
            refused |= wrong
            for name, tensors in kept.get(sender, {}).items():
                said[name].append((float(units), tensors))
        for name, versions in said.items():
            if versions:
                own = (float(standing.book.own), blocks[name])
                merged[name] = Weights(merge(section.merge, [own, *versions]))
        return Outcome({"refused": refused}, merged)

    flops = 2 * sum(w.nbytes / 4 for _, message in news for w in message.blocks.values())
    return Work("merge", run, flops, {"round": standing.round})


async def _push(hand: Hand, place: PushPlace, standing: PushStanding) -> PushStanding:
    """Sends the network and half of the units to a peer drawn at random, if anybody is there."""
    there = [peer for peer in hand.peers if peer in place.neighbours and peer not in standing.left]
    if not there or standing.round >= place.section.rounds:
        return standing
    rng = numpy_generator(place.seed, hand.name, standing.round, "push")
    peer = there[int(rng.integers(len(there)))]
    given = give(standing.book, peer, hand.seconds)
    if given is None:
        return standing
    book, number = given
    after = replace(standing, book=book)
    hand.save(after)
    facts = {"number": number, "units": book.in_flight[number].units, "floor": floor_for(book, peer)}
    await hand.send(peer, Message("push", standing.round, facts, standing.blocks))
    return after


async def _ask(hand: Hand, standing: PushStanding, after_s: float) -> None:
    """Asks what became of messages on which there is no word for long."""
    for number, peer in overdue(standing.book, hand.seconds, after_s):
        if peer in hand.peers:
            facts = {"number": number, "floor": floor_for(standing.book, peer)}
            await hand.send(peer, Message("ask", standing.round, facts))


async def _leave(hand: Hand, place: PushPlace, standing: PushStanding) -> PushStanding:
    """Says good-bye, and stays until the fate of all it sent is known, or no more can be learned."""
    for peer in hand.peers:
        if peer in place.neighbours:
            await hand.send(peer, Message("leave", standing.round))
    for _ in range(3):
        standing = await _take_in(hand, place, standing)
        flights = standing.book.in_flight
        if not any(flight.peer in hand.peers for flight in flights.values()):
            break
        await _ask(hand, standing, 0.0)
        await hand.sleep(place.ask_after_s / 3)
    return await _take_in(hand, place, standing)


def _report_round(hand: Hand, member: Member, place: PushPlace, standing: PushStanding) -> None:
    last, num_phases = place.section.rounds, standing.replica.num_rounds
    if standing.round < last and looks(num_phases, place.evaluate_every, last):
        hand.report("evaluated", observe=member.evaluate(standing.replica, standing.blocks), round=num_phases)
    if (together := member.together(standing.round, standing.blocks)) is not None:
        number, observe = together
        hand.report("together", observe=observe, round=number)
    hand.report("round", round=num_phases)

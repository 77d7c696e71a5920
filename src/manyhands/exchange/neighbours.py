"""The exchange without a coordinator: every device averages its blocks with its neighbours.

A round of a device: train, send each neighbour the blocks that both hold, wait for theirs, average. That is
decentralised averaging with local phases; papers 000 and 002 exchange in this way over rings and meshes. Who
is whose neighbour, and with what weight, is planned beforehand (`exchange.neighbourhood`).

Neighbours wait for each other, so two of them are at most one round apart as long as nobody is cut off. A
device that lost touch, because it was down, too slow or apart, goes on with the newest that it hears: it
takes over its neighbours' round number and skips the local phases in between.

Blocks that every device holds can be brought to consensus in every round: by averaging them again and again
(gossip), or on a ring (`exchange.consensus`). Time is therefore counted in *steps*: a round has as many as it
has averagings, and that is one where nothing is repeated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from manyhands.blocks import Weights
from manyhands.exchange.consensus import all_reduce
from manyhands.exchange.coordination import accept_updates, skip_news
from manyhands.exchange.member import Member, looks, updated_blocks
from manyhands.exchange.merge import merge
from manyhands.exchange.neighbourhood import Neighbourhood
from manyhands.exchange.pace import Pacing, local_phase
from manyhands.exchange.words import Words
from manyhands.hand import Hand, Message, Outcome, Work
from manyhands.replica import Blocks, Replica

__all__ = ["Standing", "exchange_with_neighbours"]


@dataclass(frozen=True)
class Standing:
    """What a device saves: enough to go on after a crash.

    Attributes:
        replica: What is its own.
        blocks: What it shares, as merged last or, when it has just `trained`, as trained.
        round: The round it is in.
        trained: Whether this round's local phase is done.
        seen: The examples that it went through in its last local phase.
    """

    replica: Replica
    blocks: Blocks
    round: int = 0
    trained: bool = False
    seen: int = 0


async def exchange_with_neighbours(hand: Hand, member: Member, place: Neighbourhood) -> Replica:
    """Trains and averages until the job's rounds are done; gives the network it ends with."""
    standing: Standing = hand.saved or Standing(member.replica, place.blocks)
    known = place.neighbours if place.meet is None else place.company
    words = Words(known, place.section.rounds, place.repetitions, place.ring)
    pacing = None if place.pace is None else Pacing(place.pace)
    while standing.round < place.section.rounds:
        began_s, words.waited_s = hand.seconds, 0.0
        if not standing.trained:
            standing = await _train(hand, member, standing, pacing)
        wait_s = place.wait_s if pacing is None else pacing.wait_s
        standing = await _average(hand, place.at(standing.round), standing, words, wait_s)
        _report_round(hand, member, place, standing)
        if pacing is not None:
            pacing.round_took(hand.seconds - began_s, words.waited_s)
        if len(hand.peers) < len(place.peers):
            # Some are gone. A fast device that did not wait for them would be many rounds ahead when they are
            # back, and they would skip theirs to catch up.
            expected_s = place.expected_s if pacing is None else pacing.epoch_s
            await hand.sleep(max(began_s + expected_s - hand.seconds, 0.0))
    settled = await hand.compute(member.settle(standing.replica, standing.blocks))
    replica = standing.replica.settled(settled)
    hand.save(replace(standing, replica=replica, blocks={}))
    hand.report("evaluated", observe=member.evaluate(replica, {}), round=standing.round)
    hand.report("finished", round=replica.num_rounds)
    return replica


async def _train(hand: Hand, member: Member, standing: Standing, pacing: Pacing | None) -> Standing:
    trained = await local_phase(hand, member, pacing, standing.replica, standing.blocks, standing.round)
    after = replace(
        standing,
        replica=standing.replica.after(trained),
        blocks=updated_blocks(trained),
        trained=True,
        seen=int(trained.facts.get("examples", 0)),
    )
    hand.save(after)
    return after


def _report_round(hand: Hand, member: Member, place: Neighbourhood, standing: Standing) -> None:
    last, num_phases = place.section.rounds, standing.replica.num_rounds
    if standing.round < last and looks(num_phases, place.evaluate_every, last):
        observe = member.evaluate(standing.replica, standing.blocks)
        hand.report("evaluated", observe=observe, round=standing.round)
    if (together := member.together(standing.round, standing.blocks)) is not None:
        number, observe = together
        hand.report("together", observe=observe, round=number)
    hand.report("round", round=num_phases)


@dataclass(frozen=True)
class _Turn:
    """One averaging with the neighbours.

    Attributes:
        step: When: the round times how many averagings a round has, and which of them.
        names: The blocks that are averaged.
        awaited: The neighbours that are worth waiting for.
        deadline_s: Until when.
        hurried: Whether to go on without them as soon as anybody is known to be at a later step.
        seen: Where versions count by the examples behind them, those of this device.
    """

    step: int
    names: tuple[str, ...]
    awaited: frozenset[str]
    deadline_s: float
    hurried: bool = False
    seen: int | None = None


async def _average(
    hand: Hand, place: Neighbourhood, standing: Standing, words: Words, wait_s: float
) -> Standing:
    """Exchanges what was trained in a round, and goes on to the next one or to where the others are."""
    number = standing.round
    agreed = await _go_round(hand, place, standing, words, wait_s)
    blocks = {**standing.blocks, **agreed}
    turn = _Turn(
        number * place.repetitions,
        tuple(block for block in place.weights if block not in agreed),
        frozenset(place.neighbours),
        hand.seconds + wait_s,
        # Where the ring broke, those who had the mean by then have nothing to say in this round.
        hurried=place.ring is not None and not agreed,
        seen=standing.seen if place.pace is not None and place.pace.section.weigh == "seen" else None,
    )
    while turn.step // place.repetitions == number and turn.awaited:
        answered = await _exchange(hand, place, turn, blocks, words)
        blocks = {**blocks, **await _merge(hand, place, turn, blocks, words)}
        # Where peers are drawn, others may be rounds ahead that have not given this device up.
        ahead = words.newest if place.meet is None else words.newest_of(answered)
        step = max(turn.step + 1, ahead)
        turn = replace(turn, step=step, names=place.consensus_blocks, awaited=answered)
        words.forget(turn.step)
    after = Standing(standing.replica, blocks, max(number + 1, turn.step // place.repetitions))
    words.forget(after.round * place.repetitions)
    hand.save(after)
    return after


async def _go_round(
    hand: Hand, place: Neighbourhood, standing: Standing, words: Words, wait_s: float
) -> Blocks:
    """The blocks that a ring has brought to their mean in this round; none where there is no whole ring."""
    if place.ring is None or words.belt is None:
        return {}
    shared = {block: standing.blocks[block] for block in place.consensus_blocks}
    began_s = hand.seconds
    agreed = await all_reduce(hand, place.ring, words.belt, shared, standing.round, wait_s)
    words.waited_s += hand.seconds - began_s
    return agreed


async def _exchange(
    hand: Hand, place: Neighbourhood, turn: _Turn, blocks: Blocks, words: Words
) -> frozenset[str]:
    """Sends the blocks to those who are there, and waits until all of them have answered or time is up.

    Returns:
        Who of those that it waited for has answered.
    """
    number, stage = divmod(turn.step, place.repetitions)
    await skip_news(hand)
    averaged = {block: blocks[block] for block in turn.names}
    there = [peer for peer in hand.peers if place.shared_with(peer, averaged)]
    kind, facts = ("consensus", {"stage": stage}) if stage else ("blocks", {})
    if turn.seen is not None:
        facts = {**facts, "seen": turn.seen}
    for peer in there:
        await hand.send(peer, Message(kind, number, facts, place.shared_with(peer, averaged)))
    told = set(there)
    awaited = [peer for peer in there if peer in turn.awaited]
    missing = {peer for peer in awaited if not words.has(peer, turn.step)}
    while True:
        if turn.hurried and words.newest > turn.step:
            missing.clear()
        # When nobody is missing, what is in the mailbox is still read: it may say that others are far ahead.
        left_s = max(turn.deadline_s - hand.seconds, 0.0) if missing else 0.0
        began_s = hand.seconds
        message = await hand.receive(*words.kinds, "lost", "joined", timeout_s=left_s)
        words.waited_s += hand.seconds - began_s
        if message is None:
            break
        behind = message.kind in words.kinds and words.take(hand, message, turn.step)
        if behind and (late := message.sender) in hand.peers and late not in told:
            # One that was away may wait for this device's word, while this device waits for another that
            # waits for the one that was away.
            told.add(late)
            await hand.send(late, Message(kind, number, facts, place.shared_with(late, averaged)))
        if message.kind not in words.kinds or words.has(message.sender, turn.step):
            # Said what was to be said; or lost, or back without what it was sent: not worth waiting for.
            missing.discard(message.sender)
    absent = [peer for peer in awaited if not words.has(peer, turn.step)]
    if absent:
        hand.report("missed", round=number, peers=absent)
    return frozenset(awaited).difference(absent)


async def _merge(hand: Hand, place: Neighbourhood, turn: _Turn, blocks: Blocks, words: Words) -> Blocks:
    """The blocks that change when this device's versions are averaged with what its neighbours have said."""
    said = {peer: words.word(peer) for peer in place.neighbours if words.has(peer, turn.step)}
    if not said or not turn.names:
        return {}
    number = turn.step // place.repetitions
    outcome = await hand.compute(_merge_work(place, turn, blocks, said, number))
    for peer, reason in outcome.facts["refused"].items():
        hand.report("refused", peer=peer, round=number, reason=reason)
    return outcome.weights


def _merge_work(
    place: Neighbourhood, turn: _Turn, blocks: Blocks, said: Mapping[str, Message], number: int
) -> Work:
    """Averages this device's version of each named block with those that came and fit.

    What others do not say, or say in vain, leaves their weight to the device's own version; unless versions
    count by the examples behind them, and then the mean is over those that are there.
    """
    section = place.section

    def run() -> Outcome:
        kept, refused = accept_updates(section, blocks, said, {peer: place.blocks_of(peer) for peer in said})
        merged = {}
        for block in turn.names:
            row = place.weights[block]
            if turn.seen is not None:
                row = {peer: _seen(said[peer]) for peer in row if peer in kept}
            theirs = [(row[p], kept[p][block]) for p in row if p in kept and block in kept[p]]
            if theirs:
                own = 1 - sum(weight for weight, _ in theirs) if turn.seen is None else float(turn.seen)
                merged[block] = Weights(merge(section.merge, [(own, blocks[block]), *theirs]))
        return Outcome({"refused": refused}, merged)

    flops = 2 * sum(w.nbytes / 4 for m in said.values() for w in m.blocks.values())
    return Work("merge", run, flops, {"round": number})


def _seen(message: Message) -> float:
    """The examples behind a version; one that does not say counts as trained on one."""
    seen = message.facts.get("seen")
    return float(seen) if isinstance(seen, int) and seen > 0 else 1.0

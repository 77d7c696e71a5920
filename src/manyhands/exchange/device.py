"""What a device does: work alone, or take part in rounds that a coordinator calls.

`work_alone` is the isolated baseline. `take_part` is algorithm 1 of paper 001 for any split: the blocks of
a member are what is exchanged, everything else stays its own. The same program serves the synchronous and
the asynchronous coordinator, because a device only answers.
"""

from __future__ import annotations

from dataclasses import replace

from manyhands.exchange.member import Member, looks, updated_blocks
from manyhands.exchange.packing import Packing, pack_work, packed_blocks, residual_blocks
from manyhands.hand import Hand, Message
from manyhands.replica import Blocks, Replica

__all__ = ["take_part", "work_alone"]


async def work_alone(hand: Hand, member: Member, num_rounds: int, evaluate_every: int) -> Replica:
    """Trains on the device's own data and exchanges nothing."""
    replica: Replica = hand.saved or member.replica
    while (number := replica.num_rounds) < num_rounds:
        replica = replica.after(await hand.compute(member.train(replica, {}, number)))
        hand.save(replica)
        if looks(replica.num_rounds, evaluate_every, num_rounds):
            hand.report("evaluated", observe=member.evaluate(replica, {}), round=number + 1)
        hand.report("round", round=number + 1)
    replica = replace(replica, memory=())  # nothing is learned from it any more
    hand.save(replica)
    hand.report("finished", round=replica.num_rounds)
    return replica


async def take_part(
    hand: Hand, member: Member, num_rounds: int, evaluate_every: int, packing: Packing | None = None
) -> Replica:
    """Answers each round with an update of the blocks, packed if asked, until the coordinator says stop."""
    replica: Replica = hand.saved or member.replica
    answered = (-1, -1)
    left_over: Blocks = {}  # a crash loses it, which costs no more than it would to have packed without it
    while (message := await _newest(hand, answered)).kind == "round":
        answered = _call(message)
        if looks(replica.num_rounds, evaluate_every, num_rounds):
            hand.report("evaluated", observe=member.evaluate(replica, message.blocks), round=message.round)
        replica, update = await _train(hand, member, replica, message)
        if packing is not None and packing.how != "none":
            packed = await hand.compute(pack_work(packing, update, left_over))
            update, left_over = packed_blocks(packed), residual_blocks(packed)
            del packed
        facts = {"examples": member.num_examples, "call": message.facts["call"]}
        await hand.send(message.sender, Message("update", message.round, facts, update))
        # The update is the coordinator's now; keeping what it came from until the next round would cost an
        # idle device of a simulation a network's worth of memory.
        del message, update
        hand.report("round", round=replica.num_rounds)
    settled = await hand.compute(member.settle(replica, message.blocks))
    replica = replica.settled(settled)
    hand.save(replica)
    hand.report("evaluated", observe=member.evaluate(replica, {}), round=message.round)
    await hand.send(message.sender, Message("stopped", message.round))
    hand.report("finished", round=replica.num_rounds)
    return replica


async def _train(hand: Hand, member: Member, replica: Replica, message: Message) -> tuple[Replica, Blocks]:
    """Trains on the blocks of a call; also gives what became of them."""
    trained = await hand.compute(member.train(replica, message.blocks, message.round))
    replica = replica.after(trained)
    hand.save(replica)
    return replica, updated_blocks(trained)


async def _newest(hand: Hand, answered: tuple[int, int]) -> Message:
    """Waits for the coordinator's word; of several that wait, the newest, for the others are out of date.

    Calls that were answered before, doubled or overtaken on their way, are passed over.
    """
    newest: Message | None = None
    while True:
        message = await hand.receive("round", "stop", timeout_s=None if newest is None else 0)
        if message is None or message.kind == "stop":
            return message or newest  # type: ignore[return-value]  # without a timeout there is a message
        if _call(message) > (_call(newest) if newest else answered):
            newest = message


def _call(message: Message) -> tuple[int, int]:
    """What orders the coordinator's calls: how often it began anew, then the version of its blocks."""
    attempt, version = message.facts["call"]
    return attempt, version

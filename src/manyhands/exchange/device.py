"""What a device does: work alone, or take part in rounds that a coordinator calls.

`work_alone` is the isolated baseline. `take_part` is algorithm 1 of paper 001 for any split: the blocks of
a member are what is exchanged, everything else stays its own. The same program serves the synchronous and
the asynchronous coordinator, because a device only answers.
"""

from __future__ import annotations

from dataclasses import replace

from manyhands.exchange.member import Member, looks, updated_blocks
from manyhands.hand import Hand, Message
from manyhands.replica import Replica

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


async def take_part(hand: Hand, member: Member, num_rounds: int, evaluate_every: int) -> Replica:
    """Answers each round with an update of the blocks, until the coordinator says stop."""
    replica: Replica = hand.saved or member.replica
    answered = (-1, -1)
    while (message := await _newest(hand, answered)).kind == "round":
        answered = _call(message)
        if looks(replica.num_rounds, evaluate_every, num_rounds):
            hand.report("evaluated", observe=member.evaluate(replica, message.blocks), round=message.round)
        replica = await _answer(hand, member, replica, message)
        # The update is the coordinator's now; keeping what it came from until the next round would cost an
        # idle device of a simulation a network's worth of memory.
        del message
        hand.report("round", round=replica.num_rounds)
    settled = await hand.compute(member.settle(replica, message.blocks))
    replica = replica.settled(settled)
    hand.save(replica)
    hand.report("evaluated", observe=member.evaluate(replica, {}), round=message.round)
    await hand.send(message.sender, Message("stopped", message.round))
    hand.report("finished", round=replica.num_rounds)
    return replica


async def _answer(hand: Hand, member: Member, replica: Replica, message: Message) -> Replica:
    """Trains on the blocks of a call and sends back what became of them."""
    trained = await hand.compute(member.train(replica, message.blocks, message.round))
    replica = replica.after(trained)
    hand.save(replica)
    facts = {"examples": member.num_examples, "call": message.facts["call"]}
    await hand.send(message.sender, Message("update", message.round, facts, updated_blocks(trained)))
    return replica


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

"""The synchronous coordinator: paper 001, algorithm 2 (FedAvg).

Send the blocks to some devices, wait for their updates, merge each block over those who hold it, weighted by
how much data they trained on (appendix A). A device that is lost, too slow for the deadline, or sends
something that does not fit costs the round nothing but its own update.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from manyhands.blocks import Weights
from manyhands.exchange.coordination import Coordination, Progress, accept_updates, report_merge, skip_news
from manyhands.exchange.merge import merge
from manyhands.hand import Hand, Message, Outcome, Work
from manyhands.replica import Blocks
from manyhands.seeds import numpy_generator

__all__ = ["call_rounds"]


async def call_rounds(hand: Hand, job: Coordination, progress: Progress) -> Progress:
    """Calls round after round until the job's are done."""
    while progress.round < job.section.rounds:
        chosen = await _choose(hand, job, progress.round)
        for peer in chosen:
            await hand.send(peer, _call(job, progress, peer))
        progress = await _merge_round(hand, job, progress, await _collect(hand, job, progress, chosen))
        hand.save(progress)
    return progress


async def _choose(hand: Hand, job: Coordination, number: int) -> list[str]:
    """The devices of this round, in fleet order; waits if nobody is there."""
    await skip_news(hand)
    while not (peers := hand.peers):
        hand.report("waiting", reason="no device is there")
        await hand.receive("joined")
    count = max(1, round(job.section.fraction * len(job.holds)))
    if count >= len(peers):
        return list(peers)
    picked = numpy_generator(job.seed, "coordinator", number, "choice").choice(
        len(peers), count, replace=False
    )
    return [peers[i] for i in sorted(picked)]


def _call(job: Coordination, progress: Progress, peer: str) -> Message:
    blocks = job.blocks_of(peer, progress.blocks)
    return Message("round", progress.round, {"call": [progress.attempt, progress.round]}, blocks)


async def _collect(
    hand: Hand, job: Coordination, progress: Progress, chosen: Sequence[str]
) -> dict[str, Message]:
    """The updates of one round, until all that can come have come or the deadline has passed."""
    limit_s = job.section.deadline_s or job.section.slack * max(job.expected_s[peer] for peer in chosen)
    deadline_s = hand.seconds + limit_s
    updates: dict[str, Message] = {}
    missing = set(chosen)
    while missing and (left_s := deadline_s - hand.seconds) > 0:
        message = await hand.receive("update", "lost", "joined", timeout_s=left_s)
        if message is None:
            break
        sender = message.sender
        if message.kind != "update":
            # Lost, or back without the work it had been given: either way it will not answer this call.
            missing.discard(sender)
        elif message.facts.get("call") != [progress.attempt, progress.round]:
            hand.report("late", peer=sender, round=message.round)
        elif sender in updates:
            continue  # doubled on its way
        else:
            missing.discard(sender)
            updates[sender] = message
    absent = [peer for peer in chosen if peer not in updates]
    if absent:
        hand.report("missed", round=progress.round, peers=absent)
    return {peer: updates[peer] for peer in chosen if peer in updates}


async def _merge_round(
    hand: Hand, job: Coordination, progress: Progress, updates: Mapping[str, Message]
) -> Progress:
    blocks, refused, said = progress.blocks, {}, list(updates)
    if updates:
        outcome = await hand.compute(_merge_work(job, progress.blocks, updates, progress.round))
        refused = outcome.facts["refused"]
        blocks = {**progress.blocks, **outcome.weights}
    del updates  # merged; a checkpoint taken at the report below need not hold them
    for peer, reason in refused.items():
        hand.report("refused", peer=peer, round=progress.round, reason=reason)
    merged = [peer for peer in said if peer not in refused]
    done = replace(
        progress, blocks=blocks, round=progress.round + 1, num_merged=progress.num_merged + len(merged)
    )
    report_merge(hand, job, done, merged)
    return done


def _merge_work(job: Coordination, blocks: Blocks, updates: Mapping[str, Message], number: int) -> Work:
    """Merges what came from several devices, block by block."""
    section = job.section

    def run() -> Outcome:
        kept, refused = accept_updates(section, blocks, updates, job.holds)
        merged = {}
        for block in blocks:
            said = [
                (float(job.num_examples[p]), update[block]) for p, update in kept.items() if block in update
            ]
            if said:
                merged[block] = Weights(merge(section.merge, said))
        return Outcome({"refused": refused}, merged)

    flops = 2 * sum(w.nbytes / 4 for m in updates.values() for w in m.blocks.values())
    return Work("merge", run, flops, {"round": number})

"""The coordinator's program: rounds until the job's are done, then the final blocks to everybody."""

from __future__ import annotations

from dataclasses import replace

from manyhands.exchange.asynchronous import answer_each
from manyhands.exchange.coordination import Coordination, Progress
from manyhands.exchange.synchronous import call_rounds
from manyhands.hand import Hand, Message

__all__ = ["coordinate"]

STOP_TRIES = 5
"""How often a device is told that the job is over if it does not answer."""


async def coordinate(hand: Hand, job: Coordination) -> Progress:
    """Runs the job's rounds, hands out the final blocks, and returns how far it came."""
    saved: Progress | None = hand.saved
    progress = replace(saved, attempt=saved.attempt + 1) if saved else Progress(job.blocks)
    hand.save(progress)  # so that a second restart is not taken for the first
    run = call_rounds if job.section.mode == "synchronous" else answer_each
    progress = await run(hand, job, progress)
    await _dismiss(hand, job, progress)
    hand.report("finished", round=progress.round)
    return progress


async def _dismiss(hand: Hand, job: Coordination, progress: Progress) -> None:
    """Gives everybody who is there the final blocks, again if the message or its answer was lost."""
    there = set(hand.peers)
    for _ in range(STOP_TRIES):
        for peer in [peer for peer in hand.peers if peer in there]:
            await hand.send(
                peer, Message("stop", progress.round, blocks=job.blocks_of(peer, progress.blocks))
            )
        limit_s = job.section.slack * max((job.expected_s[peer] for peer in there), default=0.0)
        until_s = hand.seconds + limit_s
        while there and (left_s := until_s - hand.seconds) > 0:
            message = await hand.receive("stopped", "lost", "joined", timeout_s=left_s)
            if message is not None and message.kind == "joined":
                there.add(message.sender)
                blocks = job.blocks_of(message.sender, progress.blocks)
                await hand.send(message.sender, Message("stop", progress.round, blocks=blocks))
            elif message is not None:
                there.discard(message.sender)
        if not there:
            return

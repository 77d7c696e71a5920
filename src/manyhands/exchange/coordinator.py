"""The coordinator's program: rounds until the job's are done, then the final blocks to everybody."""

from __future__ import annotations

from dataclasses import replace

from manyhands.exchange.asynchronous import answer_each
from manyhands.exchange.coordination import Coordination, Progress
from manyhands.exchange.member import Blocks
from manyhands.exchange.synchronous import call_rounds
from manyhands.hand import Hand, Message

__all__ = ["coordinate"]


async def coordinate(hand: Hand, job: Coordination) -> Blocks:
    """Runs the job's rounds and returns the final blocks."""
    saved: Progress | None = hand.saved
    progress = replace(saved, attempt=saved.attempt + 1) if saved else Progress(job.blocks)
    run = call_rounds if job.section.mode == "synchronous" else answer_each
    progress = await run(hand, job, progress)
    for peer in hand.peers:
        final = Message(
            "stop",
            progress.round,
            {"call": [progress.attempt, progress.round]},
            job.blocks_of(peer, progress.blocks),
        )
        await hand.send(peer, final)
    hand.report("finished", round=progress.round)
    return progress.blocks

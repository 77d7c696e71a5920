"""The asynchronous coordinator: paper 001, algorithm 3.

Each update is merged as it comes and its sender answered at once, so nobody waits for anybody. An update that
started from an old version may count for less (`staleness`).
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from manyhands.blocks import Weights
from manyhands.exchange.coordination import Coordination, Progress, accept_updates, report_merge
from manyhands.hand import Hand, Message, Outcome, Work

__all__ = ["answer_each"]


async def answer_each(hand: Hand, job: Coordination, progress: Progress) -> Progress:
    """Merges as many updates as the synchronous coordinator would at most, in the order in which they come.

    A device whose call or answer was lost is called again when its answer is overdue.
    """
    goal = job.section.rounds * len(job.holds)
    due_s: dict[str, float] = {}
    versions = dict(progress.versions)

    async def call(peer: str) -> None:
        versions[peer] = progress.num_merged
        due_s[peer] = hand.seconds + (job.section.deadline_s or job.section.slack * job.expected_s[peer])
        facts = {"attempt": progress.attempt}
        await hand.send(
            peer, Message("round", progress.num_merged, facts, job.blocks_of(peer, progress.blocks))
        )

    for peer in hand.peers:
        await call(peer)
    while progress.num_merged < goal:
        timeout_s = max(min(due_s.values()) - hand.seconds, 0.0) if due_s else None
        message = await hand.receive("update", "lost", "joined", timeout_s=timeout_s)
        if message is None:
            for peer in [peer for peer, at_s in due_s.items() if at_s <= hand.seconds]:
                hand.report("missed", round=progress.round, peers=[peer])
                # The same version again would look like a doubled message to the device.
                progress = replace(progress, attempt=progress.attempt + 1)
                await call(peer)
        elif message.kind == "lost":
            due_s.pop(message.sender, None)
        elif message.kind == "joined":
            await call(message.sender)
        elif message.round == versions.get(message.sender):
            progress = await _merge_one(hand, job, replace(progress, versions=dict(versions)), message)
            hand.save(progress)
            await call(message.sender)
        else:
            hand.report("late", peer=message.sender, round=message.round)
    return progress


async def _merge_one(hand: Hand, job: Coordination, progress: Progress, message: Message) -> Progress:
    """Moves the blocks towards one device's update."""
    peer, age = message.sender, progress.num_merged - message.round
    outcome = await hand.compute(_mix_work(job, progress, message, age))
    if outcome.facts["refused"]:
        hand.report("refused", peer=peer, round=message.round, reason=outcome.facts["refused"][peer])
    before = progress.round
    num_merged = progress.num_merged + 1
    done = replace(
        progress,
        blocks={**progress.blocks, **outcome.weights},
        num_merged=num_merged,
        round=num_merged // len(job.holds),
    )
    if done.round > before:
        report_merge(hand, job, done, [peer])
    return done


def _mix_work(job: Coordination, progress: Progress, message: Message, age: int) -> Work:
    """One step towards one update: ``theta + s * (update - theta)``, or ``theta + s * change``.

    The step is `mix`, more for a device with more data than the average and less for an old update.
    """
    section, blocks, peer = job.section, progress.blocks, message.sender
    average = sum(job.num_examples.values()) / len(job.num_examples)
    step = min(1.0, section.mix * job.num_examples[peer] / average) * math.pow(1 + age, -section.staleness)

    def run() -> Outcome:
        kept, refused = accept_updates(section, blocks, {peer: message})
        moved = {}
        for block, update in kept.get(peer, {}).items():
            moved[block] = Weights({n: _lerp(blocks[block][n], tensor, step) for n, tensor in update.items()})
        return Outcome({"refused": refused, "age": age, "step": step}, moved)

    flops = 3 * sum(w.nbytes / 4 for w in message.blocks.values())
    return Work("merge", run, flops, {"round": progress.round, "peer": peer})


def _lerp(a: torch.Tensor, b: torch.Tensor, step: float) -> torch.Tensor:
    if a.is_floating_point():
        return torch.lerp(a, b, step)
    return torch.lerp(a.double(), b.double(), step).round().to(a.dtype)

"""The asynchronous coordinator: paper 001, algorithm 3.

Each update is merged as it comes and its sender answered at once, so nobody waits for anybody. An update that
started from an old version may count for less (`staleness`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch

from manyhands.blocks import Weights
from manyhands.exchange.coordination import Coordination, Progress, accept_updates, report_merge
from manyhands.hand import Hand, Message, Outcome, Work

__all__ = ["answer_each"]


@dataclass(frozen=True)
class _Asked:
    """A call that a device has not answered yet: its number, the version it was given, when it is overdue."""

    call: list[int]
    version: int
    due_s: float


async def answer_each(hand: Hand, job: Coordination, progress: Progress) -> Progress:
    """Merges as many updates as the synchronous coordinator would at most, in the order in which they come.

    A device whose call or answer was lost is called again when its answer is overdue.
    """
    goal = job.section.rounds * len(job.holds)
    asked: dict[str, _Asked] = {}
    num_calls = 0

    async def call(peer: str) -> None:
        nonlocal num_calls
        num_calls += 1
        limit_s = job.section.deadline_s or job.section.slack * job.expected_s[peer]
        asked[peer] = _Asked([progress.attempt, num_calls], progress.num_merged, hand.seconds + limit_s)
        blocks = job.blocks_of(peer, progress.blocks)
        await hand.send(peer, Message("round", progress.round, {"call": asked[peer].call}, blocks))

    for peer in hand.peers:
        await call(peer)
    while progress.num_merged < goal:
        timeout_s = max(min(a.due_s for a in asked.values()) - hand.seconds, 0.0) if asked else None
        message = await hand.receive("update", "lost", "joined", timeout_s=timeout_s)
        if message is None:
            for peer in [peer for peer, a in asked.items() if a.due_s <= hand.seconds]:
                hand.report("missed", round=progress.round, peers=[peer])
                await call(peer)
        elif message.kind == "lost":
            asked.pop(message.sender, None)
        elif message.kind == "joined":
            await call(message.sender)
        elif message.sender in asked and message.facts.get("call") == asked[message.sender].call:
            age = progress.num_merged - asked.pop(message.sender).version
            progress = await _merge_one(hand, job, progress, message, age)
            hand.save(progress)
            await call(message.sender)
        else:
            hand.report("late", peer=message.sender, round=message.round)
    return progress


async def _merge_one(
    hand: Hand, job: Coordination, progress: Progress, message: Message, age: int
) -> Progress:
    """Moves the blocks towards one device's update."""
    outcome = await hand.compute(_mix_work(job, progress, message, age))
    for peer, reason in outcome.facts["refused"].items():
        hand.report("refused", peer=peer, round=message.round, reason=reason)
    num_merged = progress.num_merged + 1
    blocks = {**progress.blocks, **outcome.weights}
    done = replace(progress, blocks=blocks, num_merged=num_merged, round=num_merged // len(job.holds))
    if done.round > progress.round:
        report_merge(hand, job, done, [message.sender])
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

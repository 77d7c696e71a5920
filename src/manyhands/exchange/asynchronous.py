"""The asynchronous coordinator: paper 001, algorithm 3.

Each update is merged as it comes and its sender answered at once, so nobody waits for anybody. An update that
started from an old version may count for less (`staleness`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import torch

from manyhands.blocks import Weights
from manyhands.exchange.coordination import Coordination, Progress, accept_updates, report_merge
from manyhands.hand import Hand, Message, Outcome, Work

__all__ = ["answer_each"]


@dataclass
class _Asked:
    """What a device has been asked and has not answered yet.

    A call that seems lost is repeated, with a new number, because the device passes over numbers it has
    seen. An answer to an older call is as good as one to the newest: it may have been on its way.
    """

    versions: dict[int, int] = field(default_factory=dict)
    """Number of the call -> how many updates had been merged then."""
    due_s: float = math.inf
    patience: float = 1.0

    def answered(self, number: int) -> int:
        """Takes note of an answer and gives the version it started from."""
        version = self.versions.pop(number)
        for older in [n for n in self.versions if n < number]:
            del self.versions[older]
        self.patience = 1.0
        return version


async def answer_each(hand: Hand, job: Coordination, progress: Progress) -> Progress:
    """Merges as many updates as the synchronous coordinator would at most, in the order in which they come.

    A device whose answer is overdue is called again, each time after twice the time.
    """
    goal = job.section.rounds * len(job.holds)
    asked = {peer: _Asked() for peer in job.holds}
    num_calls = 0

    async def call(peer: str) -> None:
        nonlocal num_calls
        num_calls += 1
        limit_s = job.section.deadline_s or job.section.slack * job.expected_s[peer]
        asked[peer].versions[num_calls] = progress.num_merged
        asked[peer].due_s = hand.seconds + limit_s * asked[peer].patience
        facts = {"call": [progress.attempt, num_calls]}
        await hand.send(peer, Message("round", progress.round, facts, job.blocks_of(peer, progress.blocks)))

    for peer in hand.peers:
        await call(peer)
    while progress.num_merged < goal:
        due_s = min(state.due_s for state in asked.values())
        timeout_s = None if due_s == math.inf else max(due_s - hand.seconds, 0.0)
        message = await hand.receive("update", "lost", "joined", timeout_s=timeout_s)
        if message is None:
            for peer in [peer for peer, state in asked.items() if state.due_s <= hand.seconds]:
                hand.report("missed", round=progress.round, peers=[peer])
                asked[peer].patience *= 2
                await call(peer)
        elif message.kind == "lost":
            asked[message.sender] = _Asked()
        elif message.kind == "joined":
            asked[message.sender] = _Asked()
            await call(message.sender)
        elif _number(message, progress.attempt) in asked[message.sender].versions:
            age = progress.num_merged - asked[message.sender].answered(_number(message, progress.attempt))
            progress = await _merge_one(hand, job, progress, message, age)
            hand.save(progress)
            if not asked[message.sender].versions:
                await call(message.sender)
        else:
            hand.report("late", peer=message.sender, round=message.round)
    return progress


def _number(message: Message, attempt: int) -> int:
    """The number of the call that a message answers; -1 if it was another coordinator's."""
    asked_in, number = message.facts["call"]
    return number if asked_in == attempt else -1


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

    The step is `mix`, more for a device with more data than the average of those who hold the block, and less
    for an old update.
    """
    section, blocks, peer = job.section, progress.blocks, message.sender
    freshness = math.pow(1 + age, -section.staleness)
    steps = {block: freshness * _reach(job, peer, block) for block in job.holds[peer]}

    def run() -> Outcome:
        kept, refused = accept_updates(section, blocks, {peer: message}, job.holds)
        moved = {}
        for block, update in kept.get(peer, {}).items():
            moved[block] = Weights(
                {n: _lerp(blocks[block][n], tensor, steps[block]) for n, tensor in update.items()}
            )
        return Outcome({"refused": refused, "age": age, "steps": steps}, moved)

    flops = 3 * sum(w.nbytes / 4 for w in message.blocks.values())
    return Work("merge", run, flops, {"round": progress.round, "peer": peer})


def _reach(job: Coordination, peer: str, block: str) -> float:
    """How far a fresh update of a device moves a block."""
    data = [job.num_examples[name] for name, held in job.holds.items() if block in held]
    return min(1.0, job.section.mix * job.num_examples[peer] * len(data) / sum(data))


def _lerp(a: torch.Tensor, b: torch.Tensor, step: float) -> torch.Tensor:
    a = a.to(b.device)
    if a.is_floating_point():
        return torch.lerp(a, b, step)
    return torch.lerp(a.double(), b.double(), step).round().to(a.dtype)

"""Keeping pace: before an epoch devices say how fast they are, and each trains on what it has time for.

The parts of paper 002 that happen between devices: what is announced (section 3.3), what follows from it
(algorithm 1, in `exchange.balance`), and who takes up the data of those who failed. There is no
coordinator: every device announces to all, and computes the ratios from what it has heard. Of one whose
announcement is late the last one counts, because nobody is waited for longer than a part of an epoch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from statistics import median

from manyhands.exchange.balance import Announced, Balance, balance, heirs, with_inheritance
from manyhands.exchange.member import Member
from manyhands.hand import Hand, Message, Outcome, Work
from manyhands.replica import Blocks, Replica
from manyhands.splits import DataSplitSection

__all__ = ["Pace", "Pacing", "Portion", "local_phase"]

MEMORY = 5
"""Epochs whose speed is remembered."""

TRIED = 0.05
"""The part of its data on which a device tries how fast it is."""


@dataclass(frozen=True)
class Portion:
    """What a device trains on in one epoch: this part of its data and of what it has taken up from others."""

    ratio: float = 1.0
    taken: tuple[str, ...] = ()


@dataclass(frozen=True)
class Pace:
    """What one device is given to keep pace with the others.

    Attributes:
        section: The job's settings.
        num_examples: Device -> how much data it holds; of all devices, in fleet order.
        holders: Device -> those who hold a copy of its data.
        seconds_per_example: t₀, how long an example takes this device if nothing else runs on it.
        slowdown: (from_s, until_s) -> how many times slower co-running work has made it in that time; what
            the performance predictor makes of what the monitor saw.
        prepare: What is done once, before the first epoch.
        train: (replica, blocks, round, portion) -> the work of an epoch.
        exchange_s: How long sending the network to all who want it should take.
        waits: Whether devices go from epoch to epoch together; otherwise only those are waited for of whom
            nothing was ever heard.
        patience_s: How long nobody who is there is given up, at the least.
        tries: Whether t₀ is not known beforehand, and is found by trying before the first epoch.
    """

    section: DataSplitSection
    num_examples: Mapping[str, int]
    holders: Mapping[str, tuple[str, ...]]
    seconds_per_example: float
    slowdown: Callable[[float, float], float]
    prepare: Callable[[], Work]
    train: Callable[[Replica, Blocks, int, Portion], Work]
    flops_per_example: float
    exchange_s: float = 0.0
    waits: bool = True
    patience_s: float = 0.0
    tries: bool = False

    def others(self, name: str) -> tuple[str, ...]:
        """All devices but this one."""
        return tuple(other for other in self.num_examples if other != name)


@dataclass
class Pacing:
    """What a device knows of everybody's speed while its program runs; after a crash it hears it anew.

    Attributes:
        pace: What it was given.
        heard: Device -> round and announcement.
        epoch_s: How long the last epoch was to take.
    """

    pace: Pace
    heard: dict[str, tuple[int, Announced]] = field(default_factory=dict)
    epoch_s: float = 0.0
    _basic_s: deque[float] = field(default_factory=lambda: deque(maxlen=MEMORY))
    _fixed_s: deque[float] = field(default_factory=lambda: deque(maxlen=MEMORY))
    _apart_s: float = 0.0
    _prepared: bool = False
    _gone: tuple[str, ...] = ()

    @property
    def knows_itself(self) -> bool:
        """Whether it has seen how fast it is."""
        return bool(self._basic_s)

    @property
    def wait_s(self) -> float:
        """How long others are waited for in an exchange after one's own part is done."""
        foreseen_s = self.pace.section.patience * self.epoch_s + 2 * self.pace.exchange_s
        return max(foreseen_s, self.pace.patience_s)

    def throughput(self, now_s: float) -> float:
        """The examples a second that this device expects to train on: 1 / (t₀ · RG(U)).

        t₀ is the median of what the last epochs took without co-running work, so that it follows slow-downs
        that no monitor sees.
        """
        basic_s = median(self._basic_s) if self._basic_s else self.pace.seconds_per_example
        return 1.0 / (basic_s * self.pace.slowdown(max(now_s - self.pace.section.window_s, 0.0), now_s))

    def measured(self, began_s: float, ended_s: float, flops: float) -> None:
        """Takes note of how long an epoch took."""
        examples = flops / self.pace.flops_per_example
        if ended_s > began_s and examples > 0:
            slowdown = self.pace.slowdown(began_s, ended_s)
            self._basic_s.append((ended_s - began_s) / examples / slowdown)

    @property
    def fixed_s(self) -> float:
        """What a round takes this device besides training and waiting: the median of the last ones."""
        return median(self._fixed_s) if self._fixed_s else 0.0

    def round_took(self, seconds: float, waited_s: float) -> None:
        """Takes note of a round: what was neither work that is planned nor waiting goes with every epoch."""
        self._fixed_s.append(max(seconds - waited_s - self._apart_s, 0.0))
        self._apart_s = 0.0

    async def compute(self, hand: Hand, work: Work) -> Outcome:
        """A work that is planned, or done once; it does not go with every epoch."""
        began_s = hand.seconds
        outcome = await hand.compute(work)
        self._apart_s += hand.seconds - began_s
        return outcome

    async def plan(self, hand: Hand, number: int) -> Portion:
        """Announces, listens, and gives what this device trains on in this epoch."""
        examples = self.pace.num_examples[hand.name]
        own = Announced(self.throughput(hand.seconds), examples, self.fixed_s)
        self.heard[hand.name] = (number, own)
        facts = {"throughput": own.throughput, "examples": own.num_examples, "fixed_s": own.fixed_s}
        for peer in self._there(hand):
            await hand.send(peer, Message("announce", number, facts))
        await self._listen(hand, number)
        announced = self._known(hand)
        section = self.pace.section
        thresholds = (section.least_throughput, section.failure_threshold, section.epoch_part)
        balanced = balance(announced, *thresholds)
        found: dict[str, str] = {}
        if balanced.halted:
            found = heirs(balanced.failed, self.pace.holders, announced)
            balanced = balance(with_inheritance(announced, found), *thresholds)
        portion = Portion(
            balanced.ratios.get(hand.name, section.epoch_part) if section.balance else section.epoch_part,
            tuple(name for name, heir in found.items() if heir == hand.name),
        )
        # One that does not balance is done when the slowest is.
        slowest_s = section.epoch_part * _slowest_s(announced, balanced)
        self.epoch_s = balanced.epoch_s if section.balance else slowest_s
        self._report(hand, number, portion, own, balanced, found)
        return portion

    def _there(self, hand: Hand) -> list[str]:
        return [peer for peer in hand.peers if peer in self.pace.num_examples]

    async def _listen(self, hand: Hand, number: int) -> None:
        """Hears all who are there, or those who speak in time."""
        known_s = [said.num_examples / max(said.throughput, 1e-9) for _, said in self.heard.values()]
        # An announcement may have to wait until the networks of the last exchange are through.
        patience_s = max(self.pace.section.patience * min(known_s), self.pace.patience_s)
        until_s = hand.seconds + max(patience_s, self.pace.exchange_s)
        awaited = number if self.pace.waits else 0
        while True:
            waits = any(self.heard.get(peer, (-1,))[0] < awaited for peer in self._there(hand))
            left_s = max(until_s - hand.seconds, 0.0) if waits else 0.0
            began_s = hand.seconds
            message = await hand.receive("announce", "lost", timeout_s=left_s)
            self._apart_s += hand.seconds - began_s
            if message is None:
                return
            if message.kind == "announce":
                self._hear(hand, message)

    def _hear(self, hand: Hand, message: Message) -> None:
        throughput, examples = message.facts.get("throughput"), message.facts.get("examples")
        fixed_s = message.facts.get("fixed_s", 0.0)
        if (
            message.sender not in self.pace.num_examples
            or not isinstance(throughput, int | float)
            or not isinstance(fixed_s, int | float)
            or not isinstance(examples, int)
            or not (0 <= throughput < float("inf") and 0 <= fixed_s < float("inf") and examples >= 0)
        ):
            hand.report("refused", peer=message.sender, round=message.round, reason="no announcement")
            return
        if message.round >= self.heard.get(message.sender, (-1,))[0]:
            self.heard[message.sender] = (
                message.round,
                Announced(float(throughput), examples, float(fixed_s)),
            )

    def _known(self, hand: Hand) -> dict[str, Announced]:
        """What is known of everybody; one that is gone has no throughput, one never heard of is left out."""
        there = {hand.name, *self._there(hand)}
        return {
            name: self.heard[name][1] if name in there else Announced(0.0, examples)
            for name, examples in self.pace.num_examples.items()
            if name not in there or name in self.heard
        }

    def _report(
        self,
        hand: Hand,
        number: int,
        portion: Portion,
        own: Announced,
        balanced: Balance,
        found: Mapping[str, str],
    ) -> None:
        hand.report(
            "balanced",
            round=number,
            ratio=portion.ratio,
            throughput=own.throughput,
            epoch_s=self.epoch_s,
            failed=list(balanced.failed),
        )
        if balanced.failed != self._gone:
            self._gone = balanced.failed
            if portion.taken:
                hand.report("taken_up", round=number, peers=list(portion.taken))
            without = [name for name in balanced.failed if name not in found]
            if without:
                hand.report("gone_without", round=number, peers=without)

    async def prepare(self, hand: Hand) -> None:
        """Does once what comes before the first epoch."""
        if not self._prepared:
            self._prepared = True
            await self.compute(hand, self.pace.prepare())


def _slowest_s(announced: Mapping[str, Announced], balanced: Balance) -> float:
    return max((announced[n].num_examples / announced[n].throughput for n in balanced.ratios), default=0.0)


async def _try(hand: Hand, pacing: Pacing, replica: Replica, blocks: Blocks, number: int) -> None:
    """Trains a little, to see how fast this device is, and forgets what came of it."""
    if not (pacing.pace.tries and pacing.pace.section.balance) or pacing.knows_itself:
        return
    await pacing.prepare(hand)
    work = pacing.pace.train(replica, blocks, number, Portion(TRIED))
    began_s = hand.seconds
    await pacing.compute(hand, replace(work, name="try"))
    pacing.measured(began_s, hand.seconds, work.flops)


async def local_phase(
    hand: Hand, member: Member, pacing: Pacing | None, replica: Replica, blocks: Blocks, number: int
) -> Outcome:
    """One local phase: on all of the data or, where devices keep pace, on what there is time for."""
    if pacing is None:
        return await hand.compute(member.train(replica, blocks, number))
    await _try(hand, pacing, replica, blocks, number)
    portion = await pacing.plan(hand, number)
    await pacing.prepare(hand)
    work = pacing.pace.train(replica, blocks, number, portion)
    began_s = hand.seconds
    outcome = await pacing.compute(hand, work)
    pacing.measured(began_s, hand.seconds, work.flops)
    return outcome

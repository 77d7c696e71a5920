"""Accuracy-aware training: a device goes through what there is time for, the most useful first.

Paper 002, section 3.4: before an epoch the loss of each aggregated point under the current network
estimates what its set is worth (algorithm 2, line 1); `learn.ranking` has the order. What estimating costs
is charged, and taken out of the epoch's time: a device that goes through little of its data may not spend
most of that time on ranking it, so it computes only as many losses anew as a given part of the epoch pays
for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from manyhands.data import Examples
from manyhands.hand import Outcome, Work
from manyhands.learn.effects import Notes, effects_of, losses_of
from manyhands.learn.holding import Share, members_of
from manyhands.learn.ledger import Ledger, Numbers
from manyhands.learn.phases import Trained, train_work
from manyhands.learn.ranking import (
    Indices,
    Order,
    draw,
    iterations,
    needs_effects,
    rank,
    recalled_weights,
    shuffled,
    to_renew,
    uses_points,
)
from manyhands.learn.supervised import LocalPhase, whole_batches
from manyhands.learn.transfer import moved, settled_on
from manyhands.learn.workspace import Architecture, Tensors, layout_in_memory
from manyhands.replica import Blocks, Replica
from manyhands.seeds import numpy_generator

__all__ = ["Plan", "SelectivePhase"]


@dataclass(frozen=True)
class Plan:
    """What an epoch goes through.

    Attributes:
        renewed: How many points' effects are computed anew.
        examples: How many examples are trained on.
        flops: What both cost.
    """

    renewed: int
    examples: int
    flops: float


@dataclass(frozen=True)
class SelectivePhase:
    """One device's way of learning from a part of its data.

    Attributes:
        plain: How it learns from all of it.
        shares: Owner -> data: its own, and what it holds copies of.
        order: Of its sets.
        renew: The part of an epoch's time that computing effects may take.
        gather_flops: What making the points of its own data costs.
    """

    plain: LocalPhase
    shares: Mapping[str, Share]
    order: Order
    renew: float = 1.0
    gather_flops: float = 0.0
    _settled: dict[str, tuple[Examples, Examples]] = field(default_factory=dict, compare=False)

    @property
    def device(self) -> str:
        """Its name."""
        return self.plain.device

    @property
    def architecture(self) -> Architecture:
        """The network it trains."""
        return self.plain.architecture

    @property
    def torch_device(self) -> str:
        """Where it computes."""
        return self.plain.torch_device

    @property
    def num_examples(self) -> int:
        """How many examples there are."""
        return self.plain.num_examples

    @property
    def flops(self) -> float:
        """What going through all of them costs."""
        return self.plain.flops

    def settle(self, replica: Replica, blocks: Blocks) -> Work:
        """Takes over the blocks without training."""
        return self.plain.settle(replica, blocks)

    def work(self, replica: Replica, blocks: Blocks, number: int) -> Work:
        """An epoch on all of its own data."""
        return self.part(replica, blocks, number, 1.0)

    def prepare(self) -> Work:
        """Makes the aggregated points of its own data, once."""

        def run() -> Outcome:
            if not uses_points(self.order):
                return Outcome({"points": 0})
            return Outcome({"points": len(self.shares[self.device].gathered.points)})

        return Work("aggregate", run, self.gather_flops)

    def plan(self, ratio: float, taken: Sequence[str] = ()) -> Plan:
        """How much of its data, and of what it has taken up, an epoch of this ratio goes through.

        The time of an epoch is that of |X| · r examples and, where effects are needed, r of what all of them
        cost.
        """
        shares = self._of(taken)
        available = sum(len(share.examples) for share in shares)
        cost = self.architecture.cost
        per_point = cost.forward_flops / cost.train_flops
        renewed, budget = 0, ratio * available
        if needs_effects(self.order, ratio):
            points = sum(len(share.gathered.points) for share in shares)
            budget = ratio * (available + per_point * points)
            renewed = min(points, int(self.renew * budget / per_point))
        wanted = min(max(round(budget - renewed * per_point), min(2, available)), available)
        size = self.plain.section.batch_size
        examples = wanted if self.order == "effect" else whole_batches(wanted, size)
        return Plan(renewed, examples, renewed * cost.forward_flops + examples * cost.train_flops)

    def part(
        self, replica: Replica, blocks: Blocks, number: int, ratio: float, taken: Sequence[str] = ()
    ) -> Work:
        """An epoch on a part of its data, and of what it has taken up (algorithm 2)."""
        plan, shares = self.plan(ratio, taken), self._of(taken)

        def train(start: Tensors) -> Trained:
            return self._train(start, replica, shares, ratio, plan)

        plain = self.plain
        return train_work(train, plain.layout, plain.send, replica, blocks, flops=plan.flops, number=number)

    def _of(self, taken: Sequence[str]) -> list[Share]:
        return [self.shares[self.device], *(self.shares[owner] for owner in taken)]

    def _train(
        self, start: Tensors, replica: Replica, shares: Sequence[Share], ratio: float, plan: Plan
    ) -> Trained:
        rng = numpy_generator(self.plain.seed, self.device, replica.num_rounds, "batches")
        if not uses_points(self.order):
            return self._train_on_drawn(start, replica, shares, plan, rng)
        notes = Notes(shares, replica)
        members = members_of(shares)
        if plan.renewed:
            chosen = to_renew(notes.renewed, notes.last, plan.renewed)
            notes.renew(chosen, self._effects(start, shares, chosen), replica.num_rounds)
        ranked = rank(self.order, notes.effects, notes.last, replica.num_rounds, rng)
        if self.order == "effect":
            batches, used = iterations(ranked, members, self.plain.section.batch_size, plan.examples)
        else:
            picked, used = shuffled(ranked, members, plan.examples, rng)
            batches = self._even(picked)
        notes.last[ranked[:used]] = replica.num_rounds
        trained = self.plain.trained(start, replica, self._batches(shares, batches))
        facts = trained.facts | {"points": plan.renewed, "remembered": 1}
        return Trained(trained.state, trained.slots, facts, notes.kept())

    def _train_on_drawn(
        self,
        start: Tensors,
        replica: Replica,
        shares: Sequence[Share],
        plan: Plan,
        rng: np.random.Generator,
    ) -> Trained:
        """Training on single examples, drawn without looking or by the losses that they had."""
        sizes = {share.owner: len(share.examples) for share in shares}
        if self.order == "random":
            picked = rng.permutation(sum(sizes.values()))[: plan.examples].astype(np.int64)
            trained = self.plain.trained(start, replica, self._batches(shares, self._even(picked)))
            return Trained(trained.state, trained.slots, trained.facts | {"points": 0})
        first = {"loss": np.float32(np.nan), "last": np.int32(-1)}
        ledger = Ledger(sizes, replica, first)
        losses, last = (ledger.columns[what] for what in first)
        picked = rng.permutation(draw(recalled_weights(losses, last), plan.examples, rng))
        seen: list[torch.Tensor] = []

        def note(loss: torch.Tensor, outputs: object, y: torch.Tensor) -> None:
            seen.append(losses_of(loss, outputs, y))

        trained = self.plain.trained(start, replica, self._batches(shares, self._even(picked)), note)
        losses[picked], last[picked] = torch.cat(seen).cpu().numpy(), replica.num_rounds
        facts = trained.facts | {"points": 0, "remembered": 1}
        return Trained(trained.state, trained.slots, facts, ledger.kept())

    def _even(self, picked: Indices) -> list[Indices]:
        size = self.plain.section.batch_size
        return [picked[first : first + size] for first in range(0, len(picked), size)]

    def _batches(
        self, shares: Sequence[Share], batches: Sequence[Indices]
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """The batches where the network computes; an epoch's examples are gathered at once."""
        if not batches:
            return
        index = torch.from_numpy(np.concatenate(batches))
        parts = [self._on_device(share)[0] for share in shares]
        whole = (
            parts[0]
            if len(parts) == 1
            else Examples(torch.cat([part.x for part in parts]), torch.cat([part.y for part in parts]))
        )
        here = index.to(whole.x.device)
        sizes = [len(batch) for batch in batches]
        xs = torch.split(moved(whole.x[here], self.torch_device), sizes)
        ys = torch.split(moved(whole.y[here], self.torch_device), sizes)
        yield from zip(xs, ys, strict=True)

    def _on_device(self, share: Share) -> tuple[Examples, Examples]:
        """A share's examples and points where the network computes, if they fit there."""
        if share.owner not in self._settled:
            points = Examples(share.examples.x[:0], share.examples.y[:0])
            if uses_points(self.order):
                points = share.gathered.points
            self._settled[share.owner] = (
                settled_on(share.examples, self.torch_device),
                settled_on(points, self.torch_device),
            )
        return self._settled[share.owner]

    def _effects(self, start: Tensors, shares: Sequence[Share], chosen: Indices) -> Numbers:
        points = [self._on_device(share)[1] for share in shares]
        x, y = torch.cat([p.x for p in points]), torch.cat([p.y for p in points])
        index = torch.from_numpy(chosen).to(x.device)
        layout = layout_in_memory(self.plain.section.memory_format)
        return effects_of(self.architecture, start, Examples(x[index], y[index]), self.torch_device, layout)

"""Supervised learning: what a device does with its own labelled data in one round.

A `LocalPhase` is one device's way of learning. Its works are pure: weights in, weights out, the batches and
the dropout masks drawn from (seed, device, round), so they may run on any thread at any time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import PositiveInt

from manyhands.blocks import Layout
from manyhands.data import Examples
from manyhands.hand import Work
from manyhands.learn.gradients import as_input
from manyhands.learn.optimizers import (
    OptimizerSection,
    first_slots,
    restored_slots,
    saved_slots,
    step,
)
from manyhands.learn.phases import Send, Trained, settle_work, train_work
from manyhands.learn.transfer import moved, own_copies, settled_on
from manyhands.learn.workspace import Architecture, Tensors, layout_in_memory, load, only_own_draws, workspace
from manyhands.replica import Blocks, Replica
from manyhands.seeds import derive, numpy_generator

__all__ = ["Architecture", "LearnSection", "LocalPhase", "accuracy_of", "whole_batches"]

Note = Callable[[torch.Tensor, object, torch.Tensor], None]
"""Told of each batch: its loss, what the network made of it, its labels; valid for the time of the call."""


class LearnSection(OptimizerSection):
    """How a device trains (``[learn]``)."""

    batch_size: PositiveInt = 32
    epochs: PositiveInt = 1
    examples: PositiveInt | None = None
    keep_optimizer: bool | None = None
    memory_format: Literal["auto", "contiguous", "channels_last"] = "auto"

    def num_used(self, available: int) -> int:
        """How many examples one local phase goes through, of so many that a device has."""
        if self.examples is not None:
            return whole_batches(min(self.examples, available), self.batch_size)
        return self.epochs * whole_batches(available, self.batch_size)


@dataclass(frozen=True)
class LocalPhase:
    """One device's way of learning.

    Attributes:
        device: Its name, for its random draws.
        architecture: The network it trains.
        layout: The blocks it shares.
        train: Its training examples.
        section: The job's settings.
        seed: The job's seed.
        torch_device: Where it computes.
        send: Whether updates carry parameters or the change since the round began.
        keep_optimizer: Whether the optimizer's memory goes on from round to round.
    """

    device: str
    architecture: Architecture
    layout: Layout
    train: Examples
    section: LearnSection
    seed: int
    torch_device: str = "cpu"
    send: Send = "parameters"
    keep_optimizer: bool = True

    @cached_property
    def _examples(self) -> Examples:
        return settled_on(self.train, self.torch_device)

    @property
    def num_examples(self) -> int:
        """How many examples there are."""
        return len(self.train)

    @property
    def num_used(self) -> int:
        """How many examples one phase goes through."""
        return self.section.num_used(len(self.train))

    @property
    def flops(self) -> float:
        """What one phase costs."""
        return float(self.num_used * self.architecture.cost.train_flops)

    def work(self, replica: Replica, blocks: Blocks, number: int) -> Work:
        """One local phase, after taking over the blocks."""

        def train(start: Tensors) -> Trained:
            return self.trained(start, replica, self.batches(replica.num_rounds))

        return train_work(train, self.layout, self.send, replica, blocks, flops=self.flops, number=number)

    def settle(self, replica: Replica, blocks: Blocks) -> Work:
        """Takes over the blocks without training."""
        return settle_work(self.layout, replica, blocks)

    def trained(
        self,
        start: Tensors,
        replica: Replica,
        batches: Iterable[tuple[torch.Tensor, torch.Tensor]],
        note: Note = lambda _loss, _outputs, _labels: None,
    ) -> Trained:
        """What training on some batches, as bytes where the network computes, makes of the network."""
        kept, num_steps = replica.optimizer, replica.num_steps
        memory_format = layout_in_memory(self.section.memory_format)
        gradients = workspace(self.architecture, self.torch_device, memory_format)
        module = gradients.module
        module.train()
        gradients.prepare(self.train.x[: self.section.batch_size].shape)
        load(module, start)
        parameters = [p for p in module.parameters() if p.requires_grad]
        slots = (
            restored_slots(self.section, parameters, kept) if kept else first_slots(self.section, parameters)
        )
        losses, seen = torch.zeros((), device=self.torch_device), 0
        gradients.generator.manual_seed(derive(self.seed, self.device, replica.num_rounds, "dropout"))
        with only_own_draws():
            for x, y in batches:
                loss = gradients(x, y)
                step(self.section, parameters, slots, num_steps)
                note(loss, gradients.outputs, y)
                losses.add_(loss, alpha=len(x))
                seen += len(x)
                num_steps += 1
        mean = float(losses) / max(seen, 1)
        facts = {"examples": seen, "num_steps": num_steps, "loss": mean if math.isfinite(mean) else None}
        saved = saved_slots(slots) if self.keep_optimizer else {}
        return Trained(own_copies(module.state_dict()), saved, facts)

    def batches(self, number: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """The phase's batches, as bytes.

        An epoch's examples are gathered once, as bytes; cutting batches out of them costs next to nothing.
        A GPU has all examples of a device, or is sent an epoch's at a time.
        """
        rng = numpy_generator(self.seed, self.device, number, "batches")
        size = self.section.batch_size
        for _ in range(1 if self.section.examples is not None else self.section.epochs):
            order = rng.permutation(len(self.train))[: self.section.examples].astype(np.int64)
            picked = torch.from_numpy(order[: whole_batches(len(order), size)])
            here = self._examples.x.device
            xs = moved(self._examples.x[picked.to(here)], self.torch_device)
            ys = moved(self._examples.y[picked.to(here)], self.torch_device)
            yield from zip(torch.split(xs, size), torch.split(ys, size), strict=True)


def whole_batches(count: int, batch_size: int) -> int:
    """How many of `count` examples are used: a last batch of one, on which BatchNorm cannot train, is not."""
    return count - 1 if count > batch_size and count % batch_size == 1 else count


def accuracy_of(
    architecture: Architecture, weights: Tensors, examples: Examples, torch_device: str = "cpu"
) -> dict[str, float | None]:
    """Accuracy and mean loss of a network on examples; None of none."""
    if not len(examples):
        return {"accuracy": None, "loss": None}
    module = workspace(architecture, torch_device, torch.contiguous_format).module
    load(module, weights)
    module.eval()
    size = 256 if torch_device == "cpu" else 2048
    right: list[torch.Tensor] = []
    losses: list[torch.Tensor] = []
    with torch.no_grad():
        for first in range(0, len(examples), size):
            x = as_input(moved(examples.x[first : first + size], torch_device), torch.contiguous_format)
            y = moved(examples.y[first : first + size], torch_device)
            scores = module(x)
            right.append((scores.argmax(1) == y).sum())
            losses.append(F.cross_entropy(scores, y, reduction="sum"))
    loss = sum(torch.stack(losses).tolist()) / len(examples)
    accuracy = int(torch.stack(right).sum()) / len(examples)
    return {"accuracy": accuracy, "loss": loss if math.isfinite(loss) else None}

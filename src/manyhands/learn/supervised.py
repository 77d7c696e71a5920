"""Supervised learning: what a device does with its own labelled data in one round.

A `LocalPhase` is one device's way of learning. Its works are pure: weights in, weights out, the batches and
the dropout masks drawn from (seed, device, round), so they may run on any thread at any time. Networks to
compute in are kept per thread and reused, because building one costs as much as a step.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import PositiveInt
from torch import nn

from manyhands.blocks import Layout, Weights, absorb, extract, private_names
from manyhands.data import Examples
from manyhands.errors import RunError
from manyhands.hand import Outcome, Work
from manyhands.learn.gradients import Gradients, as_input
from manyhands.learn.optimizers import (
    OptimizerSection,
    first_slots,
    restored_slots,
    saved_slots,
    step,
)
from manyhands.learn.transfer import copy_into, moved, own_copies, settled_on
from manyhands.models import Cost
from manyhands.replica import Blocks, Replica
from manyhands.seeds import derive, numpy_generator

__all__ = ["Architecture", "LearnSection", "LocalPhase", "accuracy_of"]

Tensors = Mapping[str, torch.Tensor]


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
            return _whole_batches(min(self.examples, available), self.batch_size)
        return self.epochs * _whole_batches(available, self.batch_size)


@dataclass(frozen=True)
class Architecture:
    """A network without weights: how to build it, and what one example costs.

    Architectures with equal keys are the same, so that devices can share the network they compute in.
    """

    key: Hashable
    build: Callable[[], nn.Module]
    cost: Cost


_workspaces = threading.local()


def _workspace(
    architecture: Architecture, torch_device: str, memory_format: torch.memory_format
) -> Gradients:
    """This thread's network of an architecture; its weights are whatever was last loaded."""
    networks: dict[Hashable, Gradients] = _workspaces.__dict__.setdefault("networks", {})
    key = (architecture.key, torch_device, memory_format)
    if key not in networks:
        if torch_device.startswith("cuda"):
            _make_gpu_repeatable()
        module = architecture.build().to(torch_device)
        module = module.to(memory_format=memory_format)  # type: ignore[call-overload]
        networks[key] = Gradients(module, torch_device, memory_format)
    return networks[key]


def _make_gpu_repeatable() -> None:
    """Has the GPU's libraries take kernels that add up in a fixed order, as those of the CPU do."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when the first product is computed
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    torch.use_deterministic_algorithms(True, warn_only=True)


def _load(module: nn.Module, state: Tensors) -> None:
    own = module.state_dict()
    copy_into(list(own.values()), [state[name] for name in own])


def _memory_format(section: LearnSection) -> torch.memory_format:
    """How to lay out images and filters in memory.

    The choice follows from the job alone, never from a timing, because it decides the last bits of a
    result. Convolutions run faster channels-last, on a CPU and on a GPU (measured in docs/results.md).
    """
    return torch.contiguous_format if section.memory_format == "contiguous" else torch.channels_last


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
    send: Literal["parameters", "gradients"] = "parameters"
    keep_optimizer: bool = True

    @cached_property
    def _examples(self) -> Examples:
        return settled_on(self.train, self.torch_device)

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

        def run() -> Outcome:
            start = absorb(replica.weights, self.layout, blocks)
            trained, slots, facts = self._train(start, replica, number)
            return Outcome(facts, self._results(start, trained, slots))

        return Work("train", run, self.flops, {"round": number})

    def settle(self, replica: Replica, blocks: Blocks) -> Work:
        """Takes over the blocks without training."""
        return Work(
            "settle", lambda: Outcome({}, {"replica": Weights(absorb(replica.weights, self.layout, blocks))})
        )

    def _train(
        self, start: Tensors, replica: Replica, number: int
    ) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor], dict[str, Any]]:
        kept, num_steps = replica.optimizer, replica.num_steps
        memory_format = _memory_format(self.section)
        gradients = _workspace(self.architecture, self.torch_device, memory_format)
        module = gradients.module
        module.train()
        gradients.prepare(self.train.x[: self.section.batch_size].shape)
        _load(module, start)
        parameters = [p for p in module.parameters() if p.requires_grad]
        slots = (
            restored_slots(self.section, parameters, kept) if kept else first_slots(self.section, parameters)
        )
        losses, seen = torch.zeros((), device=self.torch_device), 0
        gradients.generator.manual_seed(derive(self.seed, self.device, number, "dropout"))
        untouched = torch.random.get_rng_state()
        for x, y in self._batches(number):
            loss = gradients(x, y)
            step(self.section, parameters, slots, num_steps)
            losses.add_(loss, alpha=len(x))
            seen += len(x)
            num_steps += 1
        if not torch.equal(torch.random.get_rng_state(), untouched):
            raise RunError(
                "the network draws random numbers in a way that cannot be repeated; use nn.Dropout"
            )
        trained = own_copies(module.state_dict())
        mean = float(losses) / max(seen, 1)
        facts = {"examples": seen, "num_steps": num_steps, "loss": mean if math.isfinite(mean) else None}
        return trained, saved_slots(slots) if self.keep_optimizer else {}, facts

    def _results(self, start: Tensors, trained: Tensors, slots: Tensors) -> dict[str, Weights]:
        results = {"replica": Weights({n: trained[n] for n in private_names(trained, self.layout)})}
        if slots:
            results["optimizer"] = Weights(slots)
        updates = extract(trained, self.layout)
        if self.send == "gradients":
            before = extract(start, self.layout)
            updates = {
                b: {n: t - before[b][n].to(t.device) for n, t in tensors.items()}
                for b, tensors in updates.items()
            }
        return results | {f"update/{block}": Weights(tensors) for block, tensors in updates.items()}

    def _batches(self, number: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """The phase's batches, as bytes.

        An epoch's examples are gathered once, as bytes; cutting batches out of them costs next to nothing.
        A GPU has all examples of a device, or is sent an epoch's at a time.
        """
        rng = numpy_generator(self.seed, self.device, number, "batches")
        size = self.section.batch_size
        for _ in range(1 if self.section.examples is not None else self.section.epochs):
            order = rng.permutation(len(self.train))[: self.section.examples].astype(np.int64)
            picked = torch.from_numpy(order[: _whole_batches(len(order), size)])
            here = self._examples.x.device
            xs = moved(self._examples.x[picked.to(here)], self.torch_device)
            ys = moved(self._examples.y[picked.to(here)], self.torch_device)
            yield from zip(torch.split(xs, size), torch.split(ys, size), strict=True)


def _whole_batches(count: int, batch_size: int) -> int:
    """How many of `count` examples are used: a last batch of one, on which BatchNorm cannot train, is not."""
    return count - 1 if count > batch_size and count % batch_size == 1 else count


def accuracy_of(
    architecture: Architecture, weights: Tensors, examples: Examples, torch_device: str = "cpu"
) -> dict[str, float | None]:
    """Accuracy and mean loss of a network on examples."""
    module = _workspace(architecture, torch_device, torch.contiguous_format).module
    _load(module, weights)
    module.eval()
    right, total = 0, 0.0
    with torch.no_grad():
        for first in range(0, len(examples), 256):
            x = as_input(moved(examples.x[first : first + 256], torch_device), torch.contiguous_format)
            y = moved(examples.y[first : first + 256], torch_device)
            scores = module(x)
            right += int((scores.argmax(1) == y).sum())
            total += float(F.cross_entropy(scores, y, reduction="sum"))
    loss = total / len(examples)
    return {"accuracy": right / len(examples), "loss": loss if math.isfinite(loss) else None}

"""Lessons: how the devices of a job learn, and how well a network has learned.

A job learns from labelled examples, dealt out among its devices, or from a game that each of them plays. What
comes after this layer (sizes, team, run) is the same for both.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Literal, Protocol, cast

import numpy as np
import torch

from manyhands.blocks import Layout, Weights
from manyhands.data import Dataset, Examples, plan_class_shares, plan_shares, train_validation
from manyhands.data import Progress as ReadingProgress
from manyhands.data import load as load_data
from manyhands.data.aggregate import MethodName, aggregate, aggregation_flops
from manyhands.fleet import Device, Fleet
from manyhands.games import Game, load_game
from manyhands.hand import Facts, Work
from manyhands.job import Job
from manyhands.learn.holding import Gathered, Share
from manyhands.learn.optimizers import num_slots
from manyhands.learn.ranking import uses_points
from manyhands.learn.reinforcement import PracticePhase, score_of
from manyhands.learn.selective import SelectivePhase
from manyhands.learn.supervised import LocalPhase, accuracy_of
from manyhands.learn.transfer import settled_on
from manyhands.learn.workspace import Architecture
from manyhands.replica import Blocks, Replica
from manyhands.seeds import numpy_generator
from manyhands.splits import DataSplitSection, replica_holders

__all__ = ["Lessons", "Material", "MeasureName", "Phase", "give_lessons", "load_material", "share_out"]

Material = Dataset | Game
"""What a job learns from. Either has a name, the shape of an input, and a class for each output."""

Classes = tuple[int, ...] | None
"""Those that a network tells apart; None: all."""

MeasureName = Literal["accuracy", "score"]


class Phase(Protocol):
    """One device's way of learning, as the rest of a run sees it."""

    @property
    def device(self) -> str:
        """Its name."""
        ...

    @property
    def architecture(self) -> Architecture:
        """The network it trains."""
        ...

    @property
    def torch_device(self) -> str:
        """Where it computes."""
        ...

    @property
    def num_examples(self) -> int:
        """How much it learns from: the weight of its updates."""
        ...

    @property
    def flops(self) -> float:
        """What one phase costs."""
        ...

    def work(self, replica: Replica, blocks: Blocks, number: int) -> Work:
        """One local phase, after taking over the blocks."""
        ...

    def settle(self, replica: Replica, blocks: Blocks) -> Work:
        """Takes over the blocks without training."""
        ...


class Lessons(Protocol):
    """What the devices of one run learn from."""

    measure: MeasureName

    def phase(
        self, device: Device, size: str, architecture: Architecture, layout: Layout, keep_optimizer: bool
    ) -> Phase:
        """How a device learns with a network of a size."""
        ...

    def memory_bytes(self, device: Device, size: str, architecture: Architecture) -> int:
        """What learning with a network of this size takes the device."""
        ...

    def look(self, architecture: Architecture, weights: Weights, torch_device: str) -> Facts:
        """How good a network is: the fact that `measure` names, and ``loss``."""
        ...


def load_material(job: Job, progress: ReadingProgress | None = None) -> Material:
    """Reads what the job learns from.

    Raises:
        JobError: It is not there.
        RunError: It could not be fetched.
    """
    if job.game.name is not None:
        return load_game(job.game)
    return load_data(job.data, seed=job.seed, progress=progress)


def give_lessons(job: Job, material: Material, fleet: Fleet) -> Lessons:
    """Prepares what each device of the fleet learns from."""
    if isinstance(material, Game):
        return _Arcade(job, material)
    return _Classroom(job, share_out(job, material.train, fleet), material.test)


def share_out(job: Job, examples: Examples, fleet: Fleet) -> dict[str, Examples]:
    """Each device's training examples; its validation fifth stays with it, unused in training."""
    labels = examples.y.numpy()
    fractions = [device.share or 0.0 for device in fleet.devices]
    rng = numpy_generator(job.seed, "shares")
    if job.split.task is not None:
        held = [[int(c) for c in device.classes or ()] for device in fleet.devices]
        shares = plan_class_shares(labels, held, fractions, rng=rng, whole=job.split.task.data == "whole")
    elif job.data.shares == "own":
        shares = [np.arange(len(labels))] * len(fleet.devices)
    else:
        shares = plan_shares(
            labels,
            fractions,
            rng=rng,
            kind=job.data.shares,
            alpha=job.data.alpha,
            classes_per_device=job.data.classes_per_device,
        )
    parts = {}
    for device, share in zip(fleet.devices, shares, strict=True):
        rng = numpy_generator(job.seed, device.name, "validation")
        train, _ = train_validation(share, labels, rng, job.data.validation)
        parts[device.name] = examples.take(train)
    return parts


class _Classroom:
    """Labelled examples, some to each device; networks are measured on the test set."""

    measure: MeasureName = "accuracy"

    def __init__(self, job: Job, shares: Mapping[str, Examples], test: Examples) -> None:
        self._job, self._shares = job, shares
        limit = job.run.evaluate_examples
        self._test = test if limit is None else test.spread(limit)
        self._settled: dict[tuple[str, Classes], Examples] = {}

    def phase(
        self, device: Device, _size: str, architecture: Architecture, layout: Layout, keep_optimizer: bool
    ) -> Phase:
        job, own = self._job, self._shares[device.name]
        plain = LocalPhase(
            device.name,
            architecture,
            layout,
            own if architecture.classes is None else own.of_classes(architecture.classes),
            job.learn,
            job.seed,
            device.torch_device,
            job.exchange.send,
            keep_optimizer,
        )
        return self._selective(plain) if job.split.paces else plain

    def _selective(self, plain: LocalPhase) -> SelectivePhase:
        """A phase that goes through a part of the device's data, or of what it holds copies of."""
        section = self._job.split.data
        assert section is not None
        holders = replica_holders(tuple(self._shares), section.replicas)
        owners = [plain.device, *(owner for owner in self._shares if plain.device in holders[owner])]
        shares = {owner: Share(owner, self._shares[owner], partial(self._gather, owner)) for owner in owners}
        flops = 0.0
        if uses_points(section.order):
            features = plain.train.x[:1].numel()
            flops = aggregation_flops(len(plain.train), features, _method(section), section.aggregation_ratio)
        return SelectivePhase(plain, shares, section.order, section.renew, flops)

    def _gather(self, owner: str) -> Gathered:
        """A device's aggregated points; as all pictures are, they are kept as bytes."""
        section, examples = self._job.split.data, self._shares[owner]
        assert section is not None
        found = aggregate(examples.x, examples.y, _method(section), section.aggregation_ratio, self._job.seed)
        points = found.points.round().clamp(0, 255).to(torch.uint8)
        return Gathered(Examples(points, found.labels), tuple(own.numpy() for own in found.members))

    def memory_bytes(self, _device: Device, _size: str, architecture: Architecture) -> int:
        learn = self._job.learn
        return architecture.cost.memory_bytes(learn.batch_size, num_slots(learn))

    def look(self, architecture: Architecture, weights: Weights, torch_device: str) -> Facts:
        key = (torch_device, architecture.classes)
        if key not in self._settled:
            test = self._test if key[1] is None else self._test.of_classes(key[1])
            self._settled[key] = settled_on(test, torch_device)
        return dict(accuracy_of(architecture, weights, self._settled[key], torch_device))


def _method(section: DataSplitSection) -> MethodName:
    return cast(MethodName, section.aggregation.replace("_", "-"))


class _Arcade:
    """A game that every device plays by itself; networks are measured by test episodes."""

    measure: MeasureName = "score"

    def __init__(self, job: Job, game: Game) -> None:
        self._job, self._game = job, game

    def phase(
        self, device: Device, size: str, architecture: Architecture, layout: Layout, keep_optimizer: bool
    ) -> PracticePhase:
        job = self._job
        return PracticePhase(
            device.name,
            architecture,
            layout,
            self._game,
            job.play,
            job.learn,
            job.seed,
            job.play.replay_of(size),
            device.interaction_rate,
            device.torch_device,
            job.exchange.send,
            keep_optimizer,
        )

    def memory_bytes(self, device: Device, size: str, architecture: Architecture) -> int:
        learn = self._job.learn
        # The target network is one more copy of the weights.
        network = architecture.cost.memory_bytes(learn.batch_size, num_slots(learn) + 1)
        return network + self.phase(device, size, architecture, {}, False).memory_bytes

    def look(self, architecture: Architecture, weights: Weights, torch_device: str) -> Facts:
        job = self._job
        return dict(score_of(architecture, weights, self._game, job.play, job.seed, torch_device))

"""Which network each device trains: the one its job names, or (with size "auto") the largest that fits it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import pairwise

from torch import nn

from manyhands.blocks import Weights
from manyhands.data import Dataset, Progress
from manyhands.errors import JobError, did_you_mean
from manyhands.fleet import Device, Fleet
from manyhands.job import Job
from manyhands.learn.reinforcement import PlaySection
from manyhands.learn.workspace import Architecture
from manyhands.lessons import Lessons, Material
from manyhands.models import build_in_form, cost_of, sizes_of
from manyhands.models.families import tiers_of
from manyhands.prepared import Prepared
from manyhands.preparing import prepare
from manyhands.report.units import memory_text, seconds_text
from manyhands.seeds import derive
from manyhands.splits.classes import classes_text, read_classes

__all__ = ["AUTO", "Library", "Network", "Sizing", "choose_sizes"]

AUTO = "auto"
"""The size that asks for the largest that fits."""


@dataclass(frozen=True)
class Network:
    """One network of the job.

    Attributes:
        architecture: How to build it.
        first: Its first weights.
        buffers: Which of them are counted and not trained.
        by_class: Which of them have rows for each class by itself.
    """

    architecture: Architecture
    first: Weights
    buffers: frozenset[str]
    by_class: frozenset[str] = frozenset()


class Library:
    """The networks of a job in the form that its split asks for, each built once.

    Where the job is split by task, a network's size is the classes that it has structures for, as
    `classes_text` writes them.
    """

    def __init__(self, job: Job, material: Material, progress: Progress | None = None) -> None:
        self._job, self._material, self._progress = job, material, progress
        self._built: dict[str, Network] = {}
        self.classes = material.classes
        self.sizes = sizes_of(job.model)
        if job.split.decouples:
            self.sizes = (classes_text(range(len(material.classes))),)
        elif job.split.task is not None:
            self.sizes = (job.model.size or self.sizes[-1],)

    @cached_property
    def prepared(self) -> Prepared | None:
        """The network that was prepared for a split by task."""
        if self._job.split.task is None or not isinstance(self._material, Dataset):
            return None
        return prepare(self._job, self._material, self._progress)

    def __call__(self, size: str) -> Network:
        """The network of a size."""
        if size not in self._built:
            module, by_class = self._made(size)
            job, shape, num_classes = self._job, self._material.shape, len(self._material.classes)
            classes = read_classes(size) if job.split.decouples else None
            # Networks of as many classes are the same but for their weights.
            which = size if classes is None else len(classes)
            key = (repr(job.model), repr(job.split.task), shape, num_classes, which, job.split.network_form)
            # Copies of one network instead of new ones: building draws from torch's global generator.
            architecture = Architecture(key, partial(copy.deepcopy, module), cost_of(module, shape), classes)
            state = module.state_dict()
            weights = Weights({name: tensor.detach().clone() for name, tensor in state.items()})
            buffers = frozenset(dict(module.named_buffers()) & state.keys())
            self._built[size] = Network(architecture, weights, buffers, by_class)
        return self._built[size]

    def _made(self, size: str) -> tuple[nn.Module, frozenset[str]]:
        """A network with its first weights, and which of them have rows for each class."""
        job, prepared = self._job, self.prepared
        if prepared is None:
            seed, form = derive(job.seed, "first weights", size), job.split.network_form
            shape, num_classes = self._material.shape, len(self._material.classes)
            return build_in_form(job.model, shape, num_classes, seed=seed, size=size, form=form), frozenset()
        if not job.split.decouples:
            return prepared.original, frozenset()
        decoupled = prepared.network(read_classes(size))
        return decoupled.module, decoupled.by_class


@dataclass(frozen=True)
class Sizing:
    """The devices, each with the size of its network, and why those that were chosen were."""

    fleet: Fleet
    reasons: dict[str, str]

    def reason(self, device: str, size: str) -> str | None:
        """Why a device for which a size was to be chosen trains this one; None where the job named it."""
        if device in self.reasons and self.fleet[device].size != size:
            return "the smallest that any device has, which all train"
        return self.reasons.get(device)


def choose_sizes(job: Job, fleet: Fleet, library: Library, lessons: Lessons) -> Sizing:
    """Settles the size of every device.

    Args:
        job: The job.
        fleet: Its devices, with the sizes that it names.
        library: Its networks.
        lessons: What its devices learn from.

    Raises:
        JobError: There is no such size, or nobody can hold one that is offered.
    """
    if job.split.task is not None:
        return Sizing(fleet, {})  # their classes have settled it
    _check_names(job, library)
    _check_order(job, library)
    default = job.model.size or library.sizes[-1]
    named = [replace(device, size=device.size or default) for device in fleet.devices]
    if all(device.size != AUTO for device in named):
        return Sizing(replace(fleet, devices=tuple(named)), {})
    judge = partial(_obstacle, library, lessons)
    _check_everything_can_be_held(job, named, library, judge)
    reasons: dict[str, str] = {}
    settled = []
    for device in named:
        if device.size == AUTO:
            size, reasons[device.name] = _largest(device, library, judge)
            device = replace(device, size=size)  # noqa: PLW2901
        settled.append(device)
    return Sizing(replace(fleet, devices=tuple(settled)), reasons)


def _check_names(job: Job, library: Library) -> None:
    known = (*library.sizes, AUTO)
    named = {"model.size": job.model.size}
    named |= {f"fleet.device[{i}].size": entry.size for i, entry in enumerate(job.fleet.device)}
    for key, size in named.items():
        if size is not None and size not in known:
            expected = f"{job.model.name} has no such size{did_you_mean(size, known)}"
            raise JobError(key, size, f"{expected}; choose one of {', '.join(known)}")
    replay = job.play.replay
    if isinstance(replay, dict) and replay != PlaySection().replay:  # which is for the sizes of dqn
        for size in replay:
            if size not in library.sizes:
                expected = f"{job.model.name} has no size {size}{did_you_mean(size, library.sizes)}"
                raise JobError("play.replay", None, f"{expected}; its sizes are {', '.join(library.sizes)}")
    for index, entry in enumerate(job.fleet.device):
        if entry.time_budget_s is not None and (entry.size or job.model.size) != AUTO:
            expected = 'is read where size = "auto" alone, and this device has a size; leave one of them out'
            raise JobError(f"fleet.device[{index}].time_budget_s", entry.time_budget_s, expected)


def _check_order(job: Job, library: Library) -> None:
    """The names of sizes that a job brings itself say nothing of how large they are."""
    if ":" not in job.model.name:
        return
    counts = [(size, library(size).architecture.cost.parameters) for size in library.sizes]
    for (small, fewer), (large, more) in pairwise(counts):
        if fewer >= more:
            expected = f"the smallest comes first, and {small} has {fewer:,} parameters, {large} {more:,}"
            raise JobError("model.sizes", list(library.sizes), expected)


def _obstacle(library: Library, lessons: Lessons, device: Device, size: str) -> str | None:
    """Why a device cannot hold a network of this size; None if it can."""
    architecture = library(size).architecture
    needed = lessons.memory_bytes(device, size, architecture)
    if needed > device.memory_bytes:
        return (
            f"takes {memory_text(needed)} of memory and {device.name} has {memory_text(device.memory_bytes)}"
        )
    phase_s = lessons.phase(device, size, architecture, {}, keep_optimizer=False).flops / device.flops
    if device.time_budget_s is not None and phase_s > device.time_budget_s:
        budget = seconds_text(device.time_budget_s)
        return f"takes {seconds_text(phase_s)} a local phase and {device.name} has {budget}"
    return None


Judge = Callable[[Device, str], str | None]


def _check_everything_can_be_held(job: Job, devices: list[Device], library: Library, judge: Judge) -> None:
    """A size that fits nobody, and that nobody is told to hold, would be offered in vain."""
    strongest = max(devices, key=lambda device: (device.memory_bytes, device.flops))
    told = {device.size for device in devices}
    in_vain = [
        size for size in library.sizes if size not in told and all(judge(device, size) for device in devices)
    ]
    if in_vain:
        expected = f"nobody can hold {', '.join(in_vain)}: {in_vain[0]} {judge(strongest, in_vain[0])}"
        left = [tier for tier in tiers_of(job.model) if tier.name not in in_vain]
        if left:
            names = ", ".join(f'"{tier.name}"' for tier in left)
            widths = ", ".join(f"{tier.name} = {tier.width:g}" for tier in left)
            expected += f"; write sizes = {f'[{names}]' if left[0].drawn else f'{{ {widths} }}'}"
        raise JobError("model.sizes", None, expected)


def _largest(device: Device, library: Library, judge: Judge) -> tuple[str, str]:
    """The largest size that fits, and why none larger does."""
    reason = "the largest there is"
    for size in reversed(library.sizes):
        obstacle = judge(device, size)
        if obstacle is None:
            return size, reason
        reason = f"{size} {obstacle}"
    expected = f"no size of the network fits it: {reason}"
    raise JobError(f"fleet.device {device.name}: size", AUTO, expected)

"""Which network each device trains: the one its job names, or (with size "auto") the largest that fits it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from manyhands.blocks import Weights
from manyhands.data import Dataset
from manyhands.errors import JobError
from manyhands.fleet import Device, Fleet
from manyhands.job import Job
from manyhands.learn.optimizers import num_slots
from manyhands.learn.supervised import Architecture
from manyhands.models import build_in_form, cost_of, sizes_of
from manyhands.report.units import memory_text, seconds_text
from manyhands.seeds import derive

__all__ = ["AUTO", "Library", "Network", "Sizing", "choose_sizes"]

AUTO = "auto"
"""The size that asks for the largest that fits."""


@dataclass(frozen=True)
class Network:
    """One size of the job's network: how to build it, its first weights, and which of them are buffers."""

    architecture: Architecture
    first: Weights
    buffers: frozenset[str]


class Library:
    """The networks of a job in the form that its split asks for, each built once."""

    def __init__(self, job: Job, dataset: Dataset) -> None:
        self._job, self._dataset = job, dataset
        self._built: dict[str, Network] = {}
        self.sizes = sizes_of(job.model)

    def __call__(self, size: str) -> Network:
        """The network of a size."""
        if size not in self._built:
            job, shape, num_classes = self._job, self._dataset.shape, len(self._dataset.classes)
            form = job.split.network_form
            seed = derive(job.seed, "first weights", size)
            module = build_in_form(job.model, shape, num_classes, seed=seed, size=size, form=form)
            key = (repr(job.model), shape, num_classes, size, form)
            # Copies of one network instead of new ones: building draws from torch's global generator.
            architecture = Architecture(key, partial(copy.deepcopy, module), cost_of(module, shape))
            state = module.state_dict()
            weights = Weights({name: tensor.detach().clone() for name, tensor in state.items()})
            self._built[size] = Network(
                architecture, weights, frozenset(dict(module.named_buffers()) & state.keys())
            )
        return self._built[size]

    def memory_bytes(self, size: str) -> int:
        """What training a network of this size takes."""
        learn = self._job.learn
        return self(size).architecture.cost.memory_bytes(learn.batch_size, num_slots(learn))


@dataclass(frozen=True)
class Sizing:
    """The devices, each with the size of its network, and why those that were chosen were."""

    fleet: Fleet
    reasons: dict[str, str]

    def reason(self, device: str, size: str) -> str | None:
        """Why this size was chosen for a device; None where it was not, or the split gave it another."""
        return self.reasons.get(device) if self.fleet[device].size == size else None


def choose_sizes(job: Job, fleet: Fleet, library: Library, num_examples: int) -> Sizing:
    """Settles the size of every device.

    Args:
        job: The job.
        fleet: Its devices, with the sizes that it names.
        library: Its networks.
        num_examples: How many examples there are to share out.

    Raises:
        JobError: There is no such size, or nobody can hold one that is offered.
    """
    _check_names(job, library)
    default = job.model.size or library.sizes[-1]
    named = [replace(device, size=device.size or default) for device in fleet.devices]
    if all(device.size != AUTO for device in named):
        return Sizing(replace(fleet, devices=tuple(named)), {})
    judge = partial(_obstacle, job, library, num_examples)
    _check_everything_can_be_held(named, library, judge)
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
    expected = f"{job.model.name} has no such size; choose one of {', '.join(known)}"
    if job.model.size is not None and job.model.size not in known:
        raise JobError("model.size", job.model.size, expected)
    for index, entry in enumerate(job.fleet.device):
        if entry.size is not None and entry.size not in known:
            raise JobError(f"fleet.device[{index}].size", entry.size, expected)


def _obstacle(job: Job, library: Library, num_examples: int, device: Device, size: str) -> str | None:
    """Why a device cannot hold a network of this size; None if it can."""
    needed = library.memory_bytes(size)
    if needed > device.memory_bytes:
        return (
            f"takes {memory_text(needed)} of memory and {device.name} has {memory_text(device.memory_bytes)}"
        )
    own = round((device.share or 0.0) * num_examples * (1 - job.data.validation))
    phase_s = job.learn.num_used(own) * library(size).architecture.cost.train_flops / device.flops
    if device.time_budget_s is not None and phase_s > device.time_budget_s:
        budget = seconds_text(device.time_budget_s)
        return f"takes {seconds_text(phase_s)} a local phase and {device.name} has {budget}"
    return None


Judge = Callable[[Device, str], str | None]


def _check_everything_can_be_held(devices: list[Device], library: Library, judge: Judge) -> None:
    """A size that fits nobody, and that nobody is told to hold, would be offered in vain."""
    for size in library.sizes:
        obstacles = [None if device.size == size else judge(device, size) for device in devices]
        if all(obstacles):
            strongest = max(range(len(devices)), key=lambda i: (devices[i].memory_bytes, devices[i].flops))
            expected = f"nobody can hold it: it {obstacles[strongest]}; leave it out of model.sizes"
            raise JobError("model.sizes", size, expected)


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

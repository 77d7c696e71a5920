"""Who trains which classes, where a job is split by task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from manyhands.data import Dataset
from manyhands.errors import JobError, did_you_mean
from manyhands.fleet import Device, Fleet
from manyhands.job import Job
from manyhands.lessons import Material
from manyhands.models import cost_of
from manyhands.sizing import Library
from manyhands.splits.classes import ClassSet, by_speed, check_classes, classes_text, mesh, ring

__all__ = ["assign_classes"]


def assign_classes(job: Job, fleet: Fleet, material: Material, library: Library) -> Fleet:
    """The fleet with every device's classes settled; as it is, where the job has no tasks.

    Raises:
        JobError: A class is nobody's or does not exist, or devices have no class in common.
    """
    task = job.split.task
    if task is None:
        return fleet
    held = _listed(fleet, material.classes) or _assigned(job, fleet, material, library)
    check_classes(held, fleet.names, material.classes)
    whole = library.sizes[-1]
    return replace(
        fleet,
        devices=tuple(
            replace(device, classes=own, size=classes_text(own) if job.split.decouples else whole)
            for device, own in zip(fleet.devices, held, strict=True)
        ),
    )


def _listed(fleet: Fleet, classes: Sequence[str]) -> list[ClassSet] | None:
    """The classes that the job lists itself; None if it leaves the choice."""
    if all(device.classes is None for device in fleet.devices):
        return None
    lists = []
    for device in fleet.devices:
        if device.classes is None:
            expected = f"{device.name} has none but others have; give every device a list, or none"
            raise JobError("fleet.device.classes", None, expected)
        lists.append(tuple(sorted({_number(device, said, classes) for said in device.classes})))
    return lists


def _number(device: Device, said: int | str, classes: Sequence[str]) -> int:
    if isinstance(said, int) and 0 <= said < len(classes):
        return said
    if said in classes:
        return list(classes).index(str(said))
    hint = did_you_mean(str(said), classes)
    expected = f"there is no such class{hint}; write a name, or a number from 0 to {len(classes) - 1}"
    raise JobError(f"fleet.device {device.name}: classes", said, expected)


def _assigned(job: Job, fleet: Fleet, material: Material, library: Library) -> list[ClassSet]:
    task, num_devices, num_classes = job.split.task, len(fleet.devices), len(material.classes)
    assert task is not None
    if task.assign == "mesh":
        return mesh(num_devices, num_classes)
    if task.assign == "ring":
        return ring(num_devices, num_classes, task.overlap, task.classes_per_device)
    prepared = library.prepared
    assert prepared is not None
    assert isinstance(material, Dataset)
    one, all_of_them = (
        cost_of(prepared.network(range(count)).module, material.shape).train_flops
        for count in (1, num_classes)
    )
    own = (all_of_them - one) / max(num_classes - 1, 1)
    examples = material.train.y.bincount(minlength=num_classes).tolist()
    shares = None if task.data == "whole" else [device.share or 0.0 for device in fleet.devices]
    return by_speed([device.flops for device in fleet.devices], examples, one - own, own, shares)

"""Tile groups: which plan each follows, and what it costs the run that it is a member of.

A tile group is one participant whose devices compute one network together, exactly as one device would. So the
simulator trains the network itself, and charges the group what its plan says: the time of a step, the memory and
the traffic of each device. Where the group trains for real (`manyhands.crew`), the same plan is carried out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

from manyhands.fleet import Device, Fleet
from manyhands.job import Job
from manyhands.report.summary import Part
from manyhands.sizing import Library, Sizing
from manyhands.splits import Split

__all__ = ["GroupPlan", "linked", "parts_of", "plan_group", "plan_groups", "speaker"]


def plan_groups(
    job: Job, sizing: Sizing, split: Split, library: Library
) -> tuple[Sizing, dict[str, GroupPlan]]:
    """Plans every tile group for the network it trains.

    Returns:
        The devices, each group's rate such that a step takes as long as planned; and the plans.

    Raises:
        JobError: A network cannot be computed in tiles exactly, or no plan fits the devices' memory.
    """
    plans: dict[str, GroupPlan] = {}
    devices = []
    for device in sizing.fleet.devices:
        if device.executors:
            network = library(split.seats[device.name].size)
            plans[device.name] = plan = plan_group(job, device.name, device.executors, network.architecture)
            flops = job.learn.batch_size * network.architecture.cost.train_flops
            device = replace(device, flops=flops / plan.step_s)  # noqa: PLW2901
        devices.append(device)
    return replace(sizing, fleet=replace(sizing.fleet, devices=tuple(devices))), plans


def parts_of(plans: Mapping[str, GroupPlan]) -> dict[str, Part]:
    """Device of any group -> its part in each step."""
    return {name: part for plan in plans.values() for name, part in plan.parts.items()}


def speaker(device: Device) -> str:
    """The device that a participant speaks with others through: itself or, of a group, the best linked."""
    return max(device.executors or (device,), key=lambda part: part.bandwidth_bps).name


def linked(fleet: Fleet) -> list[list[str]]:
    """The pairs of devices that talk directly; those of a tile group all do."""
    between = [[speaker(fleet[link.a]), speaker(fleet[link.b])] for link in fleet.links]
    within = [[a.name, b.name] for device in fleet.devices for a, b in combinations(device.executors, 2)]
    return between + within

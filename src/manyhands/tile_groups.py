"""Tile groups: which plan each follows, and what it costs the run that it is a member of.

A tile group is one participant whose devices compute one network together, exactly as one device would. So
the simulator trains the network itself, and charges the group what its plan says: the time of a step, the
memory and the traffic of each device. Where the group trains for real (`manyhands.crew`), the same plan is
carried out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise
from typing import Any

from torch import nn

from manyhands.errors import JobError
from manyhands.fleet import Device, Fleet
from manyhands.job import Job
from manyhands.learn.optimizers import num_slots
from manyhands.report.summary import Part
from manyhands.report.units import memory_text
from manyhands.sizing import Library, Sizing
from manyhands.splits import SpaceSection, Split
from manyhands.tiles import TileGraph, read_graph, regions
from manyhands.tiles.planner import make_plan
from manyhands.tiles.pricing import Grid, Prediction, Setting, predict
from manyhands.tiles.profile import LinkProfile, Profile, predicted_profile
from manyhands.tiles.works import operation_works

__all__ = [
    "GroupPlan",
    "linked",
    "parts_of",
    "plan_group",
    "plan_groups",
    "ranked",
    "read_group_graph",
    "speaker",
]


@dataclass(frozen=True)
class GroupPlan:
    """How a tile group computes its network, and what is to be expected of it.

    Attributes:
        name: The group.
        devices: Its devices; the first has rank 0.
        prediction: The plan, with the predicted time of a step and the memory of each device.
        parts: Device -> its part in each step.
    """

    name: str
    devices: tuple[str, ...]
    prediction: Prediction
    parts: Mapping[str, Part]

    @property
    def step_s(self) -> float:
        """How long a step should take."""
        return self.prediction.step_s

    @property
    def facts(self) -> dict[str, Any]:
        """For result.json."""
        plan = self.prediction.plan
        return {
            "name": self.name,
            "devices": list(self.devices),
            "rows": list(plan.rows),
            "cols": list(plan.cols),
            "group_starts": list(plan.group_starts),
            "tail": plan.tail,
            "tail_mode": plan.tail_mode,
            "checkpoint": self.prediction.checkpoint,
            "measured_profile": not self.prediction.predicted_profile,
            "step_seconds": self.step_s,
            "parts": dict(self.prediction.parts),
            "measured_step_seconds": None,
        }


def plan_groups(
    job: Job, shape: tuple[int, int, int], sizing: Sizing, split: Split, library: Library
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
            architecture = library(split.seats[device.name].size).architecture
            graph = read_group_graph(job, architecture.build(), shape)
            plans[device.name] = plan = plan_group(job, device.name, ranked(device), graph)
            flops = job.learn.batch_size * architecture.cost.train_flops
            device = replace(device, flops=flops / plan.step_s)  # noqa: PLW2901
        devices.append(device)
    return replace(sizing, fleet=replace(sizing.fleet, devices=tuple(devices))), plans


def read_group_graph(job: Job, module: nn.Module, shape: tuple[int, int, int]) -> TileGraph:
    """The operations of a network that is to be computed in tiles.

    Raises:
        JobError: It cannot be read, or nothing of it can be computed in tiles exactly.
    """
    graph = read_graph(module, shape)
    if graph.end < 2:
        expected = f"cannot be computed in tiles: {graph.reason}"
        raise JobError("model.name", job.model.name, expected)
    return graph


def plan_group(
    job: Job,
    name: str,
    devices: Sequence[Device],
    graph: TileGraph,
    profiles: Sequence[Profile] | None = None,
    link: LinkProfile | None = None,
) -> GroupPlan:
    """The plan of one tile group, for the job's batch size.

    Args:
        job: The job; ``[split.space]`` says what is left open.
        name: The group.
        devices: Its devices, by rank.
        graph: Its network.
        profiles: What each device takes for each layer, where that was measured; else it follows from the
            devices' rates, as everything that a simulated device computes.
        link: What a message between two takes, where that was measured.

    Raises:
        JobError: No plan fits the network and the devices' memory.
    """
    section, batch_size = job.split.tiling, job.learn.batch_size
    if profiles is None:
        works = operation_works(graph, batch_size)
        profiles = [
            predicted_profile(d.name, works, batch_size, flops_per_s=d.flops, memory_bytes_per_s=math.inf)
            for d in devices
        ]
    setting = Setting(
        graph,
        tuple(profiles),
        link or _slowest_link(devices),
        batch_size,
        tuple(float(device.memory_bytes) for device in devices),
        wire_bytes=2 if section.wire_dtype == "bfloat16" else 4,
        optimizer_slots=num_slots(job.learn),
    )
    prediction = _planned(setting, section, devices)
    names = tuple(device.name for device in devices)
    return GroupPlan(name, names, prediction, _parts(setting, prediction, names))


def _slowest_link(devices: Sequence[Device]) -> LinkProfile:
    """Any two of a group are on one switch; a step waits for the slowest of them."""
    if len(devices) == 1:
        return LinkProfile(0.0, math.inf)
    late = sorted((device.latency_s for device in devices), reverse=True)
    return LinkProfile(late[0] + late[1], min(device.bandwidth_bps for device in devices) / 8)


def _planned(setting: Setting, section: SpaceSection, devices: Sequence[Device]) -> Prediction:
    if section.grid != "auto" and math.prod(section.grid) != setting.num_devices:
        expected = f"makes {math.prod(section.grid)} tiles, and the group has {setting.num_devices} devices"
        raise JobError("split.space.grid", list(section.grid), expected)
    best = make_plan(
        setting,
        tail_modes=("one", "data") if section.tail == "auto" else (section.tail,),
        shapes=() if section.grid == "auto" else (section.grid,),
        checkpoint={"auto": None, "never": False, "always": True}[section.checkpoint],
    )
    if section.grouping == "planned":
        return best
    end = setting.graph.index(best.plan.tail)
    starts = setting.graph.windowed(end) if section.grouping == "none" else ()
    found = predict(setting, replace(best.plan, group_starts=starts), best.checkpoint)
    for device, used in zip(devices, found.memory_bytes, strict=True):
        if used > device.memory_bytes:
            expected = f"takes {memory_text(used)} and {device.name} has {memory_text(device.memory_bytes)}"
            raise JobError("split.space.grouping", section.grouping, f'{expected}; take "planned"')
    return found


def _parts(setting: Setting, prediction: Prediction, names: Sequence[str]) -> dict[str, Part]:
    """What each device does of a step, by the boxes of its tile."""
    plan, graph = prediction.plan, setting.graph
    grid = Grid(setting, plan.rows, plan.cols, plan.devices)
    end = graph.index(plan.tail)
    starts = sorted({1, *(graph.index(start) for start in plan.group_starts)})
    busy_s = [0.0] * len(names)
    for tile, rank in enumerate(plan.devices):
        own = [grid.tile_part(first, stop, tile) for first, stop in pairwise([*starts, end])]
        busy_s[rank] = sum(part.seconds(setting, setting.profiles[rank]) for part in own)
        busy_s[rank] += prediction.parts["update"]
        if tile == 0 or plan.tail_mode != "one":
            busy_s[rank] += prediction.parts["tail"]
    moved = _moved_bytes(setting, prediction)
    step_s, total_s = prediction.step_s, sum(busy_s)
    return {
        name: Part(
            busy=min(busy_s[rank] / step_s, 1.0),
            flops=busy_s[rank] / total_s if total_s else 1 / len(names),
            memory_bytes=int(prediction.memory_bytes[rank]),
            sent_bytes=int(moved[rank]),
            received_bytes=int(moved[rank]),
        )
        for rank, name in enumerate(names)
    }


def _moved_bytes(setting: Setting, prediction: Prediction) -> list[float]:
    """What each rank sends in a step, and as much comes back: what goes forward has a gradient going back."""
    plan, graph, n = prediction.plan, setting.graph, setting.num_devices
    found = regions(graph, plan)
    numbers = [0.0] * n
    for send in (send for group in found.groups for send in group.sends):
        for tile in (send.source, send.target):
            numbers[plan.devices[tile]] += (
                send.box.area * graph.nodes[send.node].channels * setting.batch_size
            )
    for node in found.handoff:
        pieces = [box.area * graph.nodes[node].channels * setting.batch_size for box in found.owned[node]]
        for tile, piece in enumerate(pieces):
            if plan.tail_mode == "data":
                numbers[plan.devices[tile]] += (piece * (n - 1) + sum(pieces) - piece) / n
            else:
                numbers[plan.devices[tile]] += piece if tile else sum(pieces) - piece
    summed = len(graph.names) if plan.tail_mode == "data" else found.end
    weights = sum(setting.weights(number) for number in range(1, summed))
    summed_bytes = 2 * (n - 1) / n * weights * setting.wire_bytes
    return [own * setting.value_bytes + summed_bytes for own in numbers]


def parts_of(plans: Mapping[str, GroupPlan]) -> dict[str, Part]:
    """Device of any group -> its part in each step."""
    return {name: part for plan in plans.values() for name, part in plan.parts.items()}


def ranked(group: Device) -> tuple[Device, ...]:
    """The devices of a tile group by rank: the fastest first, which may have to compute the tail for all."""
    return tuple(sorted(group.executors, key=lambda device: -device.flops))


def speaker(device: Device) -> str:
    """The device that a participant speaks with others through: itself or, of a group, the best linked."""
    return max(device.executors or (device,), key=lambda part: part.bandwidth_bps).name


def linked(fleet: Fleet) -> list[list[str]]:
    """The pairs of devices that talk directly; those of a tile group all do."""
    between = [[speaker(fleet[link.a]), speaker(fleet[link.b])] for link in fleet.links]
    within = [[a.name, b.name] for device in fleet.devices for a, b in combinations(device.executors, 2)]
    return between + within

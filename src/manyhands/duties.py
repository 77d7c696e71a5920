"""From a job that is split by space to what each device of its tile group does.

Whoever brings them together (`crewing` on this machine, `crewmate` under torchrun, `mustering` over the
wire), what they are given to do is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch.distributed as dist

from manyhands.blocks import Weights
from manyhands.crew.member import Duty, Step
from manyhands.crew.profiling import Timings
from manyhands.crew.state import Learner
from manyhands.crew.stepping import make_step
from manyhands.data import Dataset
from manyhands.errors import JobError
from manyhands.fleet import Device, make_fleet
from manyhands.hand import Facts
from manyhands.job import Job
from manyhands.learn.supervised import LocalPhase
from manyhands.lessons import Material, give_lessons
from manyhands.report.folder import RunFolder
from manyhands.run import put_together
from manyhands.seeds import derive
from manyhands.sizing import Library
from manyhands.tile_groups import GroupPlan, plan_group, ranked, read_group_graph
from manyhands.tiles import TileGraph
from manyhands.tiles.profile import LinkProfile, Profile

__all__ = ["check_crew", "make_duty", "muster_roll"]

Form = Callable[[tuple[str, ...], dist.ProcessGroup], tuple[Step, Facts]]


def check_crew(job: Job) -> None:
    """Looks whether real processes can train a job.

    Raises:
        JobError: It is not split by space, or asks for something other than processors.
    """
    if job.split.by != "space":
        raise JobError("--engine", "live", f'trains jobs that are split by = "space", not "{job.split.by}"')
    for device in make_fleet(job.fleet, seed=job.seed, tiled=True).hardware:
        if device.torch_device != "cpu":
            key = f"fleet.device {device.name}: torch_device"
            raise JobError(key, device.torch_device, "a live tile group computes on processors; write cpu")


def muster_roll(job: Job) -> tuple[str, ...]:
    """The devices of a job's one tile group, by rank."""
    (group,) = make_fleet(job.fleet, seed=job.seed, tiled=True).devices
    return tuple(device.name for device in ranked(group))


def make_duty(
    job: Job, material: Material, library: Library, name: str, out: Path, *, keeps: bool = False
) -> Duty:
    """One device's part in the job's tile group.

    Args:
        job: The job.
        material: What it learns from.
        library: Its networks.
        name: The device.
        out: The run's folder or, with `keeps`, the device's own.
        keeps: Whether the device writes trace and state also when it does not lead.

    Raises:
        JobError: The job does not learn from data, or its network cannot be computed in tiles by its devices.
    """
    if not isinstance(material, Dataset):
        raise JobError("game.name", job.game.name, "a tile group learns from data")
    lineup = put_together(job, material, library)
    (hand,), team = lineup.fleet.devices, lineup.team
    size = lineup.split.seats[hand.name].size
    architecture = library(size).architecture
    phase = give_lessons(job, material, lineup.fleet).phase(hand, size, architecture, {}, True)
    assert isinstance(phase, LocalPhase)
    learner = Learner(architecture, library(size).first, job.learn)
    graph = read_group_graph(job, learner.module, material.shape)
    form, fits = _forming(job, name, hand, learner, graph)
    return Duty(
        job,
        hand.name,
        name,
        RunFolder(out),
        learner,
        phase.batches,
        phase.flops,
        form,
        lambda: team.looker.work(architecture, lambda: Weights(learner.weights), "cpu").run().facts,
        team.measure,
        fits,
        keeps,
    )


def _forming(
    job: Job, name: str, hand: Device, learner: Learner, graph: TileGraph
) -> tuple[Form, Callable[[tuple[str, ...]], None]]:
    """How a device forms a group with those that are here, and looks whether they can hold the network."""
    timed = Timings(graph, name, job.learn.batch_size)

    def planned(
        here: tuple[str, ...], profiles: Sequence[Profile] | None = None, link: LinkProfile | None = None
    ) -> GroupPlan:
        left = tuple(device for device in ranked(hand) if device.name in here)
        return plan_group(job, hand.name, left, graph, profiles, link)

    def form(here: tuple[str, ...], group: dist.ProcessGroup) -> tuple[Step, Facts]:
        plan = planned(here, *(timed(here, group) if job.split.tiling.profile == "measured" else ()))
        seed = derive(job.seed, hand.name, "dropout")
        return make_step(learner, graph, plan, job.split.tiling, group, seed), plan.facts

    def fits(here: tuple[str, ...]) -> None:
        planned(here)

    return form, fits

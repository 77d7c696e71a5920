"""One process of a tile group that trains for real: ``python -m manyhands.crewmate JOB --out DIR``.

`manyhands train --engine live` starts one for each device on this machine. On several hosts they are started
by ``torchrun``, whose environment says who each is, or by hand with ``--rank`` and ``--master``.
"""

from __future__ import annotations

import argparse
import os
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore  # torch.distributed has them, but not for type checkers

from manyhands.blocks import Weights
from manyhands.crew.meeting import Meeting
from manyhands.crew.member import Duty, Step, serve
from manyhands.crew.profiling import Timings
from manyhands.crew.state import Learner
from manyhands.crew.stepping import make_step
from manyhands.crewing import check_crew, conclude
from manyhands.data import Dataset
from manyhands.errors import JobError, ManyhandsError
from manyhands.hand import Facts
from manyhands.job import Job, load_job
from manyhands.learn.supervised import LocalPhase
from manyhands.lessons import give_lessons, load_material
from manyhands.report.folder import RunFolder
from manyhands.run import put_together
from manyhands.seeds import derive
from manyhands.sizing import Library
from manyhands.tile_groups import plan_group, ranked, read_group_graph

__all__ = ["main"]

JOIN_TIMEOUT = timedelta(minutes=5)


def main(arguments: list[str] | None = None) -> int:
    """Takes part in a crew; returns the exit status."""
    said = _parse(arguments)
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    try:
        job = load_job(said.job, said.set or ())
        check_crew(job)
        _take_part(job, said)
    except ManyhandsError as error:
        print(f"manyhands: {' '.join(str(error).split())}", file=sys.stderr, flush=True)
        return error.exit_status
    return 0


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m manyhands.crewmate", description=__doc__)
    parser.add_argument("job", type=Path, metavar="JOB", help="the job file")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="the run's folder")
    parser.add_argument("--set", action="append", metavar="KEY=VALUE", help="changes a key of the job")
    parser.add_argument("--rank", type=int, default=None, help="which device this is; without it, $RANK")
    parser.add_argument("--master", default=None, metavar="HOST:PORT", help="where devices meet")
    parser.add_argument("--hosted", action="store_true", help="somebody else serves the meeting point")
    parser.add_argument("--no-report", action="store_true", help="leave result.json to somebody else")
    return parser.parse_args(arguments)


def _take_part(job: Job, said: argparse.Namespace) -> None:
    material = load_material(job)
    if not isinstance(material, Dataset):
        raise JobError("game.name", job.game.name, "a tile group learns from data")
    library = Library(job, material)
    fleet, split, team, _ = put_together(job, material, library)
    (hand,) = fleet.devices
    devices = ranked(hand)
    rank = _rank(said, len(devices))
    folder = RunFolder(said.out)
    if rank == 0 and not said.no_report:
        folder.begin(job.to_toml())
    network = library(split.seats[hand.name].size)
    phase = give_lessons(job, material, fleet).phase(
        hand, split.seats[hand.name].size, network.architecture, {}, True
    )
    assert isinstance(phase, LocalPhase)
    learner = Learner(network.architecture, network.first, job.learn)
    graph = read_group_graph(job, learner.module, material.shape)

    timed = Timings(graph, devices[rank].name, job.learn.batch_size)

    def form(here: tuple[str, ...], group: dist.ProcessGroup) -> tuple[Step, Facts]:
        left = tuple(device for device in devices if device.name in here)
        profiles, link = timed(here, group) if job.split.tiling.profile == "measured" else (None, None)
        plan = plan_group(job, hand.name, left, graph, profiles, link)
        seed = derive(job.seed, hand.name, "dropout")
        return make_step(learner, graph, plan, job.split.tiling, group, seed), plan.facts

    looker, architecture = team.looker, network.architecture
    duty = Duty(
        job,
        hand.name,
        devices[rank].name,
        folder,
        learner,
        phase.batches,
        phase.flops,
        form,
        lambda: looker.work(architecture, lambda: Weights(learner.weights), "cpu").run().facts,
        team.measure,
    )
    everyone = tuple(device.name for device in devices)
    meeting = Meeting(_store(said, rank), devices[rank].name, everyone, job.split.tiling.patience_s)
    try:
        led = serve(duty, meeting, everyone)
    finally:
        meeting.close()
    if led and not said.no_report:
        conclude(job, material, library, folder)


def _rank(said: argparse.Namespace, num_devices: int) -> int:
    """Which device this is."""
    text = os.environ.get("RANK") if said.rank is None else str(said.rank)
    if text is None:
        raise JobError("--rank", None, "is missing: give it, or start this with torchrun")
    world = os.environ.get("WORLD_SIZE", str(num_devices)) if said.rank is None else str(num_devices)
    if int(world) != num_devices:
        raise JobError("WORLD_SIZE", world, f"the job has {num_devices} devices; start as many processes")
    if not 0 <= int(text) < num_devices:
        raise JobError("--rank", int(text), f"must be from 0 to {num_devices - 1}")
    return int(text)


def _store(said: argparse.Namespace, rank: int) -> TCPStore:
    """The meeting point: torchrun's, the one that is named, or, of several hosts, that of rank 0."""
    if said.master is not None:
        host, _, port = said.master.rpartition(":")
        hosted = said.hosted
    else:
        host, port = os.environ.get("MASTER_ADDR", ""), os.environ.get("MASTER_PORT", "")
        hosted = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    if not host or not port.isdecimal():
        raise JobError("--master", said.master, "must read HOST:PORT, for example 192.168.1.20:29400")
    serves = rank == 0 and not hosted
    try:
        return TCPStore(host, int(port), is_master=serves, timeout=JOIN_TIMEOUT, wait_for_workers=False)
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[0][:200]
        raise JobError("--master", f"{host}:{port}", f"cannot be reached: {reason}") from error


if __name__ == "__main__":
    sys.exit(main())

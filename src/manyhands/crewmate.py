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
from torch._C._distributed_c10d import TCPStore  # torch.distributed has them, but not for type checkers

from manyhands.concluding import conclude
from manyhands.crew.meeting import Meeting
from manyhands.crew.member import serve
from manyhands.duties import check_crew, make_duty, muster_roll
from manyhands.errors import JobError, ManyhandsError
from manyhands.job import Job, load_job
from manyhands.lessons import load_material
from manyhands.report.folder import RunFolder
from manyhands.sizing import Library

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
    library = Library(job, material)
    everyone = muster_roll(job)
    rank = _rank(said, len(everyone))
    folder = RunFolder(said.out)
    if rank == 0 and not said.no_report:
        folder.begin(job.to_toml())
    duty = make_duty(job, material, library, everyone[rank], said.out)
    meeting = Meeting(_store(said, rank), duty.name, everyone, job.split.tiling.patience_s)
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

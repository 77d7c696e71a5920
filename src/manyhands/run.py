"""A run, from a job to its result. Read this first: it is the whole system in one page.

    job -> fleet, data -> split -> team -> engine -> result

A run writes everything it does into its folder as it goes, so it can be killed at any moment and gone on
with: `train` starts, resumes or just returns what is there, whichever the folder needs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from manyhands.blocks import Weights
from manyhands.data import Progress, load
from manyhands.engine.checkpoint import read_checkpoint
from manyhands.engine.clock import wall_seconds
from manyhands.engine.cores import Cores
from manyhands.engine.faults import Faults, Partition, SlowDown
from manyhands.engine.simulate import Simulation
from manyhands.errors import JobError
from manyhands.exchange.member import Replica
from manyhands.fleet import Fleet, make_fleet
from manyhands.hand import Facts
from manyhands.job import Job, load_job
from manyhands.report.folder import RunFolder
from manyhands.report.page import write_page
from manyhands.report.plots import save_pngs
from manyhands.report.summary import SCHEMA, Tally
from manyhands.seeds import derive
from manyhands.splits import SPLITS
from manyhands.team import COORDINATOR, Team, make_team, offered_networks

__all__ = ["Watch", "compare", "resume", "train"]

Watch = Callable[[str, Job, Tally, Facts | None], None]
"""Told of every event: the run's split, its job, what was counted so far, the event (None at the start)."""


def train(
    job: Job, out: Path, watch: Watch | None = None, progress: Progress | None = None
) -> dict[str, Any]:
    """Runs a job in a folder, or goes on with it, and returns its result.

    `watch` is told of every event, `progress` how far reading the data is.

    With `run.alone` each device is also trained by itself, in ``OUT/alone``, so that the result says what
    taking part was worth to it.
    """
    folder = RunFolder(out)
    finished = folder.load_result()
    if finished is not None:
        return finished
    folder.begin(job.to_toml())
    alone = (
        train(_alone(job), out / "alone", watch, progress)
        if job.run.alone and job.split.by != "isolated"
        else None
    )
    result, models = _train(job, folder, watch, progress)
    if alone is not None:
        _set_beside(result, alone)
    if job.run.save_models:
        folder.save_models(models)
    if job.run.report:
        save_pngs(result, out)
        write_page(result, job.to_toml(), folder.page)
    folder.finish(result)
    return result


def resume(out: Path, watch: Watch | None = None, progress: Progress | None = None) -> dict[str, Any]:
    """Goes on with a run that was killed."""
    folder = RunFolder(out)
    if not folder.is_run:
        raise JobError("RUN", str(out), "is not a run folder: it has no job.toml")
    return train(load_job(folder.job), out, watch, progress)


def compare(
    job: Job, splits: list[str], out: Path, watch: Watch | None = None, progress: Progress | None = None
) -> dict[str, dict[str, Any]]:
    """Runs the same job under several splits, each in a folder of its own."""
    return {split: train(job.split_by(split), out / split, watch, progress) for split in splits}


def _train(
    job: Job, folder: RunFolder, watch: Watch | None, progress: Progress | None
) -> tuple[dict[str, Any], dict[str, Weights]]:
    """One run of the engine: the pipeline itself."""
    started = wall_seconds()
    dataset = load(job.data, seed=job.seed, progress=progress)
    fleet = make_fleet(job.fleet, seed=job.seed)
    networks, library = offered_networks(job, dataset)
    split = SPLITS[job.split.by](fleet, networks)
    team = make_team(job, dataset, fleet, split, library)
    tally = Tally(team.hosts)
    ends = _simulate(job, fleet, team, folder, tally, watch)
    result = _result(job, dataset.name, fleet, team, tally, wall_seconds() - started)
    return result, _models(team, ends)


def _simulate(
    job: Job, fleet: Fleet, team: Team, folder: RunFolder, tally: Tally, watch: Watch | None
) -> Mapping[str, Any]:
    """Drives the team on the virtual clock, from the last checkpoint if there is one."""
    _check_faults(job, team)
    checkpoint = read_checkpoint(folder.checkpoint)
    recorded = folder.recorded(checkpoint.num_events if checkpoint else 0)

    def told(event: Facts | None) -> None:
        if event is not None:
            tally.add(event)
        if watch is not None:
            watch(job.split.by, job, tally, event)

    told(None)
    for event in folder.events() if recorded else ():
        told(event)
    with folder.open_trace() as trace:

        def write(event: Facts, line: str) -> None:
            trace.write(line + "\n")
            told(event)

        simulation = Simulation(
            fleet,
            team.participants,
            write,
            faults=Faults(job.fault, derive(job.seed, "faults")),
            cores=Cores(job.run.workers, job.run.threads),
            recorded=recorded,
            checkpoint=checkpoint,
            checkpoint_folder=folder.checkpoint,
            checkpoint_every_s=job.run.checkpoint_every_s,
            before_checkpoint=trace.flush,
        )
        return simulation.run()


def _check_faults(job: Job, team: Team) -> None:
    """A fault must name who there is: a device or, for what meets single hands, the coordinator."""
    devices = sorted(set(team.hosts.values()))
    for index, fault in enumerate(job.fault):
        groups = getattr(fault, "groups", ())
        known = devices if isinstance(fault, Partition | SlowDown) else [*devices, *team.hosts]
        for name in (getattr(fault, "device", None), *(name for group in groups for name in group)):
            if name is not None and name not in known:
                key = f"fault[{index}].{'groups' if groups else 'device'}"
                raise JobError(key, name, f"there is no such device; choose one of {', '.join(devices[:10])}")


def _result(
    job: Job, dataset_name: str, fleet: Fleet, team: Team, tally: Tally, wall: float
) -> dict[str, Any]:
    """The contract of result.json."""
    last = tally.curve[-1] if tally.curve else None
    return {
        "schema": SCHEMA,
        "job": job.name,
        "hash": job.hash,
        "seed": job.seed,
        "engine": "simulate",
        "split": job.split.by,
        "model": job.model.name,
        "data": dataset_name,
        "seconds": tally.seconds,
        "wall_seconds": wall,
        "rounds": tally.round or max(d.rounds for d in tally.devices.values()),
        "merges": tally.merges,
        "accuracy": last["accuracy"] if last else None,
        "curve": tally.curve,
        "topology": {
            "nodes": [device.name for device in fleet.devices],
            "edges": [[link.a, link.b] for link in fleet.links],
            "coordinator": team.coordinator_host,
        },
        "num_notable": tally.num_notable,
        "events": tally.notable,
        "baseline": None,
        "devices": tally.device_figures(fleet, team.statics),
    }


def _models(team: Team, ends: Mapping[str, Any]) -> dict[str, Weights]:
    """Each device's network as the run left it, and the merged one."""
    models = {}
    for name, member in team.members.items():
        end = ends[name]
        models[name] = (end if isinstance(end, Replica) else member.replica).weights
    merged = ends.get(COORDINATOR)
    merged = getattr(merged, "blocks", merged)  # a coordinator that died left its progress
    if isinstance(merged, Mapping) and set(merged) == {"model"}:
        models["global"] = merged["model"]
    return models


def _alone(job: Job) -> Job:
    quiet = job.run.model_copy(update={"alone": False, "save_models": False, "report": False})
    return job.split_by("isolated").model_copy(update={"run": quiet, "fault": ()})


def _set_beside(result: dict[str, Any], alone: Mapping[str, Any]) -> None:
    by_name = {device["name"]: device for device in alone["devices"]}
    for device in result["devices"]:
        device["accuracy_alone"] = by_name[device["name"]]["accuracy"]
    result["baseline"] = {key: alone[key] for key in ("split", "seconds", "wall_seconds")}

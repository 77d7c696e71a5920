"""A run, from a job to its result. Read this first: it is the whole system in one page.

    job -> fleet, data -> sizes -> split -> team -> engine -> result

The engine is the simulator, or, for a rehearsal, a process for each device on this machine.

A run writes everything it does into its folder as it goes, so it can be killed at any moment and gone on
with: `train` starts, resumes or just returns what is there, whichever the folder needs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TextIO

from manyhands.assigning import assign_classes
from manyhands.blocks import Weights, extract
from manyhands.data import Progress as ReadingProgress
from manyhands.engine.checkpoint import read_checkpoint
from manyhands.engine.clock import wall_seconds
from manyhands.engine.cores import Cores
from manyhands.engine.faults import Faults, Partition, SlowDown
from manyhands.engine.simulate import Keeping, Simulation
from manyhands.errors import JobError
from manyhands.exchange.coordination import Progress
from manyhands.fleet import Contention, Fleet, make_fleet
from manyhands.fleet.outlook import Slowdown
from manyhands.hand import Facts
from manyhands.job import Job, load_job
from manyhands.lessons import Material, MeasureName, give_lessons, load_material
from manyhands.looking import averaged_network, merged_network
from manyhands.preparing import save_decoupling
from manyhands.rehearsal import Watch, check_live, collect, rehearse
from manyhands.replica import Replica
from manyhands.report.device_folder import DeviceFolder
from manyhands.report.folder import RunFolder
from manyhands.report.page import write_page
from manyhands.report.plots import save_pngs
from manyhands.report.summary import SCHEMA, Tally
from manyhands.seeds import derive
from manyhands.sizing import Library, choose_sizes
from manyhands.splits import SPLITS, Seat, Split
from manyhands.team import COORDINATOR, Team, check_fleet, make_team, offered_networks
from manyhands.tile_groups import GroupPlan, linked, parts_of, plan_groups, speaker

__all__ = [
    "EngineName",
    "Watch",
    "check",
    "check_same",
    "compare",
    "gather",
    "left_behind",
    "make_result",
    "put_together",
    "resume",
    "train",
]

EngineName = Literal["simulate", "live"]

Drive = Callable[[Job, Fleet, Team, RunFolder, Tally, Watch | None], Mapping[str, Any]]
"""What makes events of a team: counts them, and gives what each hand has left."""


def train(
    job: Job,
    out: Path,
    watch: Watch | None = None,
    progress: ReadingProgress | None = None,
    engine: EngineName = "simulate",
) -> dict[str, Any]:
    """Runs a job in a folder, or goes on with it, and returns its result.

    `watch` is told of every event, `progress` how far reading the data is. With the engine ``live`` each
    device is a process of its own on this machine, and time is real.
    """
    folder = RunFolder(out)
    if (finished := folder.load_result()) is not None:
        check_same(job, finished["hash"], out)
        folder.clear_checkpoint()
        return finished
    if folder.is_run:
        check_same(job, load_job(folder.job).hash, out)
        if folder.is_live != (engine == "live") and (folder.is_live or folder.trace.is_file()):
            raise JobError("--engine", engine, f"the run in {out} was begun with the other engine")
    if engine == "live":
        check_live(job)
    return _train(job, load_material(job, progress), folder, watch, progress, engine)


def resume(out: Path, watch: Watch | None = None, progress: ReadingProgress | None = None) -> dict[str, Any]:
    """Goes on with a run that was killed."""
    folder = RunFolder(out)
    if not folder.is_run:
        raise JobError("RUN", str(out), "is not a run folder: it has no job.toml")
    return train(load_job(folder.job), out, watch, progress, "live" if folder.is_live else "simulate")


def gather(out: Path, data: Path | None = None, progress: ReadingProgress | None = None) -> dict[str, Any]:
    """Makes one run of what devices on hosts of their own have left, brought to ``OUT/devices/NAME``.

    Args:
        out: The folder of the run.
        data: Where this machine has data of the same kind, to measure networks on.
        progress: Told how far reading it is.
    """
    job, _ = left_behind(out, data)
    return _train(job, load_material(job, progress), RunFolder(out), None, progress, "live", collect)


def left_behind(out: Path, data: Path | None = None) -> tuple[Job, list[DeviceFolder]]:
    """The job of which devices have left their folders under ``OUT/devices``, and these.

    Args:
        out: The folder of the run.
        data: Where this machine has the job's data.

    Raises:
        JobError: There are none, or they are of several jobs.
    """
    found = [DeviceFolder(path) for path in sorted(RunFolder(out).devices.glob("*")) if path.is_dir()]
    found = [device for device in found if device.is_there]
    if not found:
        raise JobError("RUN", str(out), "has no folder of a device: copy each to RUN/devices/NAME")
    job = load_job(found[0].job)
    for device in found:
        if (theirs := device.about()["job"]) != job.hash:
            raise JobError("RUN", str(device.path), f"is of another job: {theirs}, not {job.hash}")
    if data is not None:
        job = job.model_copy(update={"data": job.data.model_copy(update={"path": data.resolve()})})
    return job, found


def compare(
    job: Job,
    splits: list[str],
    out: Path,
    watch: Watch | None = None,
    progress: ReadingProgress | None = None,
) -> dict[str, dict[str, Any]]:
    """Runs the same job under several splits, each in a folder of its own; done ones are not run again."""
    return {split: train(job.split_by(split), out / split, watch, progress) for split in splits}


def check(job: Job, material: Material, progress: ReadingProgress | None = None) -> None:
    """Puts a run together without starting it, so that a mistake shows before anything is trained."""
    put_together(job, material, Library(job, material, progress))


def _train(
    job: Job,
    material: Material,
    folder: RunFolder,
    watch: Watch | None,
    progress: ReadingProgress | None = None,
    engine: EngineName = "simulate",
    drive: Drive | None = None,
) -> dict[str, Any]:
    """The pipeline itself.

    With `run.alone` each device is first trained by itself, in ``OUT/alone``, so that the result says what
    taking part was worth to it.
    """
    started = wall_seconds()
    library = Library(job, material, progress)
    live = engine == "live"
    here = () if drive is collect else None
    fleet, split, team, groups = put_together(job, material, library, live=live, here=here)
    folder.begin(job.to_toml())
    # What a device would have come to alone is a comparison on one clock, and live that is not to be had.
    alone = (
        _train_alone(job, material, folder, watch) if job.run.alone and split.exchanges and not live else None
    )
    tally = Tally(team.hosts, team.measure)
    drive = drive or (rehearse if live else _simulate)
    ends = drive(job, fleet, team, folder, tally, watch)
    models, lost = _models(team, split, library, ends, tally.finished)
    result = make_result(job, material, fleet, team, tally, groups) | {"engine": engine}
    result["lost_blocks"] = lost
    result["prepared"] = library.prepared.figures if library.prepared else None
    if split.merged is not None and "global" in models:
        result["merged_size"] = split.merged.size
        if team.coordinator_host is None:
            result[team.measure] = _measured(team, library, split.merged, models["global"])
    if alone is not None:
        _set_beside(result, alone, team.measure)
    result["wall_seconds"] = wall_seconds() - started
    if job.run.save_models:
        folder.save_models(models)
        if library.prepared is not None and job.split.decouples:
            save_decoupling(library.prepared, folder.path)
    if job.run.report:
        save_pngs(result, folder.path)
        write_page(result, job.to_toml(), folder.page)
    folder.finish(result)
    return result


def put_together(
    job: Job,
    material: Material,
    library: Library,
    *,
    live: bool = False,
    here: Collection[str] | None = None,
    slowdown: Slowdown | None = None,
) -> tuple[Fleet, Split, Team, dict[str, GroupPlan]]:
    """From a job to its devices, who trains what, the programs of all hands, and how tile groups compute.

    Args:
        job: The job.
        material: What it learns from.
        library: Its networks.
        live: Whether devices are on hosts of their own.
        here: Those that compute on this machine; the GPUs of others need not be there. None: all.
        slowdown: What co-running work costs this machine, where that is known.
    """
    fleet = make_fleet(job.fleet, seed=job.seed, tiled=job.split.by == "space")
    if here is not None:
        away = [d if d.name in here else replace(d, torch_device="cpu") for d in fleet.devices]
        fleet = replace(fleet, devices=tuple(away))
    check_fleet(job, fleet)
    Contention(job.contention, fleet)  # names devices and files that are there
    _check_faults(job, fleet.names, (COORDINATOR,))  # once more below, when it is known who takes part
    fleet = assign_classes(job, fleet, material, library)
    lessons = give_lessons(job, material, fleet)
    sizing = choose_sizes(job, fleet, library, lessons)
    split = SPLITS[job.split.by](sizing.fleet, offered_networks(library), job.split)
    sizing, groups = plan_groups(job, material.shape, sizing, split, library)
    team = make_team(job, sizing, split, library, lessons, live=live, slowdown=slowdown)
    _check_faults(job, fleet.names, tuple(team.hosts))
    return sizing.fleet, split, team, groups


def check_same(job: Job, other_hash: str, out: Path) -> None:
    """A folder that holds a run of another job is refused."""
    if other_hash != job.hash:
        raise JobError("--out", str(out), "holds a run of another job; take another folder")


def _simulate(
    job: Job, fleet: Fleet, team: Team, folder: RunFolder, tally: Tally, watch: Watch | None
) -> Mapping[str, Any]:
    """Drives the team on the virtual clock, from the last checkpoint if there is one."""
    checkpoint = read_checkpoint(folder.checkpoint)
    if checkpoint is not None:
        check_same(job, checkpoint.job_hash, folder.path)
    recorded = folder.recorded(checkpoint.num_events if checkpoint else 0)

    def told(event: Facts | None) -> None:
        if event is not None:
            tally.add(event)
        if watch is not None:
            watch(job.split.label, job, tally, event)

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
            contention=Contention(job.contention, fleet, job.seed),
            cores=Cores(job.run.workers, job.run.threads),
            recorded=recorded,
            checkpoint=checkpoint,
            keeping=Keeping(
                folder.checkpoint,
                job.hash,
                job.run.checkpoint_every_s,
                before=lambda: _to_disk(trace),
                at="merged" if team.coordinator_host else "round",
            ),
        )
        return simulation.run()


def _to_disk(file: TextIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _check_faults(job: Job, devices: Sequence[str], hands: Sequence[str]) -> None:
    """A fault must name who there is: a device or, for what meets single hands, the coordinator."""
    for index, fault in enumerate(job.fault):
        groups = getattr(fault, "groups", ())
        known = devices if isinstance(fault, Partition | SlowDown) else [*devices, *hands]
        for name in (getattr(fault, "device", None), *(name for group in groups for name in group)):
            if name is not None and name not in known:
                key = f"fault[{index}].{'groups' if groups else 'device'}"
                raise JobError(key, name, f"there is no such device; choose one of {', '.join(devices[:10])}")


def make_result(
    job: Job,
    material: Material,
    fleet: Fleet,
    team: Team,
    tally: Tally,
    groups: Mapping[str, GroupPlan],
) -> dict[str, Any]:
    """The contract of result.json, but for the time that the run took here."""
    # One group that has all the data is all there is to measure.
    curve = tally.devices[fleet.names[0]].curve if job.split.by == "space" else tally.curve
    last = curve[-1] if curve else None
    rounds = tally.round if team.coordinator_host else max(d.rounds for d in tally.devices.values())
    leading = {COORDINATOR} if team.coordinator_host else _not_lost(tally)
    return {
        "schema": SCHEMA,
        "job": job.name,
        "hash": job.hash,
        "seed": job.seed,
        "engine": "simulate",
        "split": job.split.by,
        "form": job.split.form if job.split.by == "capacity" else None,
        "model": job.model.name,
        "data": material.name,
        "input": list(material.shape),
        "classes": list(material.classes),
        "seconds": tally.seconds,
        "wall_seconds": 0.0,
        "complete": bool(leading) and leading <= tally.finished,
        "rounds": rounds,
        "merges": tally.merges,
        "measure": team.measure,
        "accuracy": last["accuracy"] if last else None,
        "score": last["score"] if last else None,
        "merged_size": None,
        "prepared": None,
        "lost_blocks": [],
        "curve": curve,
        "topology": {
            "nodes": [device.name for device in fleet.hardware],
            "edges": linked(fleet),
            "coordinator": team.coordinator_host and speaker(fleet[team.coordinator_host]),
        },
        "groups": [plan.facts for plan in groups.values()],
        "num_notable": tally.num_notable,
        "events": tally.notable,
        "baseline": None,
        "devices": tally.device_figures(fleet, team.statics, parts_of(groups)),
    }


def _not_lost(tally: Tally) -> set[str]:
    """The devices that did not crash for good."""
    return {name for name, device in tally.devices.items() if device.lost_at_seconds is None}


def _models(
    team: Team, split: Split, library: Library, ends: Mapping[str, Any], finished: set[str]
) -> tuple[dict[str, Weights], list[str]]:
    """The merged network, if there is one, and that of each device which came to the end; and lost blocks."""
    replicas: dict[str, Replica] = {name: ends[name] for name in team.members if name in finished}
    models = {name: replica.weights for name, replica in replicas.items()}
    merged: Progress | None = ends.get(COORDINATOR)
    lost: list[str] = []
    if merged is None:
        num_examples = {name: member.num_examples for name, member in team.members.items()}
        held = {name: extract(weights, split.seats[name].layout) for name, weights in models.items()}
        together, lost = averaged_network(split, library, held, num_examples)
    else:
        together = merged_network(split.merged, library, merged.blocks) if split.merged else None
    if split.name == "space":  # what the one group has is what there is
        together = next(iter(models.values()), None)
    return models if together is None else {**models, "global": together}, lost


def _measured(team: Team, library: Library, merged: Seat, weights: Weights) -> float:
    """Of the network that devices without a coordinator made together; nobody had it while they trained."""
    architecture = library(merged.size).architecture
    return float(team.looker.work(architecture, lambda: weights, "cpu").run().facts[team.measure])


def _train_alone(job: Job, material: Material, folder: RunFolder, watch: Watch | None) -> dict[str, Any]:
    quiet = job.run.model_copy(update={"alone": False, "save_models": False, "report": False})
    by_itself = job.split_by("isolated").model_copy(update={"run": quiet, "fault": ()})
    own = RunFolder(folder.path / "alone")
    return own.load_result() or _train(by_itself, material, own, watch)


def _set_beside(result: dict[str, Any], alone: Mapping[str, Any], measure: MeasureName) -> None:
    by_name = {device["name"]: device for device in alone["devices"]}
    for device in result["devices"]:
        device[f"{measure}_alone"] = by_name[device["name"]][measure]
    result["baseline"] = {key: alone[key] for key in ("split", "seconds")}

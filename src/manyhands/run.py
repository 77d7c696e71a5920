"""A run, from a job to its result. Read this first: it is the whole system in one page.

    job -> fleet, data -> sizes -> split -> team -> line-up -> driven -> networks, result

`put_together` settles who does what, up to the line-up; `_train` has it driven and keeps what comes out. What
drives it is the simulator or, for a rehearsal, a process for each device on this machine.

A run writes everything it does into its folder as it goes, so it can be killed at any moment and gone on
with: `train` starts, resumes or just returns what is there, whichever the folder needs.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from manyhands.assigning import assign_classes
from manyhands.collecting import collect, left_behind
from manyhands.coordinated import COORDINATOR
from manyhands.data import Progress as ReadingProgress
from manyhands.engine.clock import wall_seconds
from manyhands.engine.faults import check_names
from manyhands.errors import JobError
from manyhands.fleet import Contention, make_fleet
from manyhands.fleet.outlook import Slowdown
from manyhands.job import Job, load_job
from manyhands.lessons import Material, give_lessons, load_material
from manyhands.lineup import Drive, Lineup, Watch
from manyhands.prepared import save_decoupling
from manyhands.rehearsal import check_live, rehearse
from manyhands.report.folder import RunFolder
from manyhands.report.summary import Tally
from manyhands.result import figures_of_networks, make_result, networks_left, publish, set_beside
from manyhands.simulating import simulate
from manyhands.sizing import Library, choose_sizes
from manyhands.splits import SPLITS
from manyhands.team import check_fleet, make_team, offered_networks
from manyhands.tile_groups import plan_groups

__all__ = ["EngineName", "check", "compare", "gather", "put_together", "resume", "train"]

EngineName = Literal["simulate", "live"]


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
        folder.check_same(job.hash, finished["hash"])
        folder.clear_checkpoint()
        return finished
    if folder.is_run:
        folder.check_same(job.hash, load_job(folder.job).hash)
        if folder.is_live != (engine == "live") and (folder.is_live or folder.trace.is_file()):
            raise JobError("--engine", engine, f"the run in {out} was begun with the other engine")
    if engine == "live":
        check_live(job)
    drive = rehearse if engine == "live" else simulate
    return _train(job, load_material(job, progress), folder, drive, watch, progress)


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
    return _train(job, load_material(job, progress), RunFolder(out), collect, progress=progress)


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
    drive: Drive,
    watch: Watch | None = None,
    progress: ReadingProgress | None = None,
) -> dict[str, Any]:
    """The pipeline itself."""
    started = wall_seconds()
    live = drive is not simulate
    library = Library(job, material, progress)
    lineup = put_together(job, material, library, live=live, here=() if drive is collect else None)
    folder.begin(job.to_toml())
    # What a device would have come to alone is a comparison on one clock, and live that is not to be had.
    compares = job.run.alone and lineup.split.exchanges and not live
    alone = _train_alone(job, material, folder, watch) if compares else None
    tally = Tally(lineup.team.hosts, lineup.team.measure)
    ends = drive(lineup, folder, tally, watch)
    networks, lost = networks_left(lineup, ends, tally.finished)
    result = make_result(lineup, tally, "live" if live else "simulate")
    result |= figures_of_networks(lineup, networks) | {"lost_blocks": lost}
    if alone is not None:
        set_beside(result, alone, lineup.team.measure)
    result["wall_seconds"] = wall_seconds() - started
    if job.run.save_models:
        folder.save_models(networks)
        if library.prepared is not None and job.split.decouples:
            save_decoupling(library.prepared, folder.path)
    publish(job, result, folder)
    return result


def _train_alone(job: Job, material: Material, folder: RunFolder, watch: Watch | None) -> dict[str, Any]:
    """Each device by itself, in ``OUT/alone``, so that the result says what taking part was worth to it."""
    quiet = job.run.model_copy(update={"alone": False, "save_models": False, "report": False})
    by_itself = job.split_by("isolated").model_copy(update={"run": quiet, "fault": ()})
    own = RunFolder(folder.path / "alone")
    return own.load_result() or _train(by_itself, material, own, simulate, watch)


def put_together(
    job: Job,
    material: Material,
    library: Library,
    *,
    live: bool = False,
    here: Collection[str] | None = None,
    slowdown: Slowdown | None = None,
) -> Lineup:
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
    check_names(job.fault, fleet.names, (COORDINATOR,))  # once more below, when it is known who takes part
    fleet = assign_classes(job, fleet, material, library)
    lessons = give_lessons(job, material, fleet)
    sizing = choose_sizes(job, fleet, library, lessons)
    split = SPLITS[job.split.by](sizing.fleet, offered_networks(library), job.split)
    sizing, groups = plan_groups(job, material.shape, sizing, split, library)
    team = make_team(job, sizing, split, library, lessons, live=live, slowdown=slowdown)
    check_names(job.fault, fleet.names, tuple(team.hosts))
    return Lineup(job, material, library, sizing.fleet, split, team, groups)

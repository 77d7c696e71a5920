"""What the sections of a job say together: each may be right by itself, and said in vain beside another."""

from __future__ import annotations

from typing import get_args

from manyhands.data import DataSection
from manyhands.errors import JobError, did_you_mean
from manyhands.job.sections import Sections
from manyhands.models import FormName, sizes_of
from manyhands.splits import SPLITS, TaskSection

__all__ = ["check_combinations", "check_split"]


def check_combinations(job: Sections) -> None:
    """Looks at everything that hangs together.

    Raises:
        JobError: with the first thing that is wrong.
    """
    _check_material(job)
    check_split(job)
    _check_groups(job)
    _check_consensus(job)
    _check_split_name(job)


def check_split(job: Sections) -> None:
    """What a job says of its devices, its data and its exchange must be had under its split.

    Raises:
        JobError: It cannot.
    """
    _check_task(job)
    _check_data_split(job)


def _check_material(job: Sections) -> None:
    """A job learns from data or from a game, and what it says of the other would be said in vain."""
    default = Sections.model_fields
    if job.game.name is None:
        for section in ("game", "play"):
            if getattr(job, section) != default[section].default:
                expected = 'is read by a job that plays a game, and this one has none: write game.name = "…"'
                raise JobError(section, None, expected)
        for index, table in enumerate(job.fleet.device):
            if table.interaction_rate is not None:
                expected = "says how fast a device plays a game, and this job has none"
                raise JobError(f"fleet.device[{index}].interaction_rate", table.interaction_rate, expected)
        return
    if job.data != default["data"].default:
        raise JobError("data", None, "this job learns from a game; leave out either [data] or [game]")
    for index, table in enumerate(job.fleet.device):
        if table.share is not None:
            expected = "is a part of the data, and this job learns from a game; take interaction_rate"
            raise JobError(f"fleet.device[{index}].share", table.share, expected)
    if job.split.distillation:
        expected = "is between the scores of classes, and this job learns from a game"
        raise JobError("split.distillation", job.split.distillation, expected)
    if job.run.evaluate_examples is not None:
        expected = "is of a test set, and this job plays games; take play.test_episodes"
        raise JobError("run.evaluate_examples", job.run.evaluate_examples, expected)
    _refuse_amounts(job, "is read by a job that learns from data; what a phase of play is, [play] says")


def _refuse_amounts(job: Sections, expected: str) -> None:
    """How much a local phase goes through is said elsewhere."""
    for key in ("epochs", "examples"):
        if getattr(job.learn, key) != type(job.learn).model_fields[key].default:
            raise JobError(f"learn.{key}", getattr(job.learn, key), expected)


def _check_task(job: Sections) -> None:
    """Whose classes are whose decides over data and networks; what else a job says of these is in vain."""
    if job.split.task is None:
        for index, table in enumerate(job.fleet.device):
            if table.classes is not None:
                expected = 'is read by a split by task: write split.by = "task"'
                raise JobError(f"fleet.device[{index}].classes", None, expected)
        return
    if job.game.name is not None:
        raise JobError("split.task", None, "is of classes, and this job learns from a game; leave one out")
    default = DataSection()
    for key in ("shares", "alpha", "classes_per_device"):
        if getattr(job.data, key) != getattr(default, key):
            expected = "says who holds which data, and here their classes do; see split.task.data"
            raise JobError(f"data.{key}", getattr(job.data, key), expected)
    _check_task_devices(job, job.split.task)
    if job.run.alone and not job.split.decouples:
        expected = "devices would train other networks alone; compare with --splits isolated instead"
        raise JobError("run.alone", True, expected)
    if job.model.size is not None and job.model.size not in sizes_of(job.model):
        expected = f"{job.model.name} comes in {', '.join(sizes_of(job.model))}"
        raise JobError("model.size", job.model.size, expected)


def _check_task_devices(job: Sections, task: TaskSection) -> None:
    for index, table in enumerate(job.fleet.device):
        for key in ("size", "time_budget_s"):
            if getattr(table, key) is not None:
                expected = "leave it out: in a split by task a device's network follows from its classes"
                raise JobError(f"fleet.device[{index}].{key}", getattr(table, key), expected)
    listed = any(table.classes is not None for table in job.fleet.device)
    for key in ("assign", "overlap", "classes_per_device"):
        value = getattr(task, key)
        if listed and value != type(task).model_fields[key].default:
            expected = "leave it out: this job lists the classes of its devices"
            raise JobError(f"split.task.{key}", value, expected)


def _check_data_split(job: Sections) -> None:
    """Devices that keep pace do so without a coordinator, an epoch of their own data at a time."""
    if not job.split.paces:
        return
    if job.game.name is not None:
        raise JobError("split.by", "data", "goes through data, and this job learns from a game")
    if job.exchange.coordinated:
        expected = 'a split by data has no coordinator; take "neighbours", "epidemic" or "push"'
        raise JobError("exchange.mode", job.exchange.mode, expected)
    _refuse_amounts(job, "leave it out: in a split by data a round goes once through what there is time for")


def _check_groups(job: Sections) -> None:
    """What a job says of tile groups it must have, and they learn from data."""
    if job.split.by != "space" and not job.fleet.has_groups:
        if job.split.space is not None:
            expected = (
                'is read by tile groups, and this job has none: write by = "space", or give devices a group'
            )
            raise JobError("split.space", None, expected)
        return
    if job.game.name is not None:
        raise JobError(
            "game.name", job.game.name, "tile groups learn from data; leave the groups or this out"
        )


def _check_consensus(job: Sections) -> None:
    if job.data.shares == "own" and job.exchange.consensus == "ring":
        expected = (
            'needs to know beforehand how much data each device has; with data.shares = "own" take gossip'
        )
        raise JobError("exchange.consensus", "ring", expected)


def _check_split_name(job: Sections) -> None:
    if job.split.by in get_args(FormName):
        expected = f'is a form of the split by capacity: write by = "capacity", form = "{job.split.by}"'
        raise JobError("split.by", job.split.by, expected)
    if job.split.by not in SPLITS:
        hint = did_you_mean(job.split.by, SPLITS)
        expected = f"there is no such split{hint}; choose one of {', '.join(SPLITS)}"
        raise JobError("split.by", job.split.by, expected)

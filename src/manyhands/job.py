"""A job: what a TOML file says, validated, with a stable hash.

The sections are declared beside the code that reads them; here they are put together, and whatever is wrong
with a file is turned into one line that names the key, the value and what would be right.
"""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from importlib import resources
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import tomli_w
from pydantic import BaseModel, Field, NonNegativeInt, PositiveFloat, PositiveInt, ValidationError

from manyhands.data import DataSection
from manyhands.engine.faults import Fault
from manyhands.engine.live import LiveSection
from manyhands.errors import JobError, did_you_mean
from manyhands.exchange.coordination import ExchangeSection
from manyhands.fleet import CoRunning, FleetSection
from manyhands.fleet.contention import Recorded
from manyhands.games import GameSection
from manyhands.learn.reinforcement import PlaySection
from manyhands.learn.supervised import LearnSection
from manyhands.models import FormName, ModelSection, sizes_of
from manyhands.settings import Section
from manyhands.splits import SPLITS, SplitSection, TaskSection

__all__ = ["Job", "RunSection", "load_job", "place_of", "quick_start", "split_labels", "toml_value"]


class RunSection(Section):
    """How the run is carried out and observed (``[run]``); nothing here is known to the devices."""

    alone: bool = False
    evaluate_every: NonNegativeInt = 1
    evaluate_devices_every: NonNegativeInt | None = None
    evaluate_examples: PositiveInt | None = None
    checkpoint_every_s: PositiveFloat = 10.0
    workers: NonNegativeInt | None = None
    threads: PositiveInt = 1
    save_models: bool = True
    report: bool = True

    @property
    def devices_every(self) -> int:
        """Every how many of its rounds a device's own network is measured; 0: only at the end."""
        return self.evaluate_every if self.evaluate_devices_every is None else self.evaluate_devices_every


class Job(Section):
    """Everything a run needs to know."""

    name: str = Field(default="job", pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")
    seed: NonNegativeInt = 0
    data: DataSection = DataSection()
    game: GameSection = GameSection()
    play: PlaySection = PlaySection()
    model: ModelSection
    learn: LearnSection = LearnSection()
    split: SplitSection = SplitSection()
    exchange: ExchangeSection = ExchangeSection()
    fleet: FleetSection
    fault: tuple[Fault, ...] = ()
    contention: tuple[CoRunning, ...] = ()
    run: RunSection = RunSection()
    live: LiveSection = LiveSection()

    @property
    def hash(self) -> str:
        """Equal for jobs that must give equal results, wherever their data lies and on however many cores."""
        said = self.model_dump(mode="json")
        for section, key in [
            ("data", "path"),
            ("data", "download"),
            ("run", "workers"),
            ("run", "checkpoint_every_s"),
            ("run", "save_models"),
            ("run", "report"),
        ]:
            said[section].pop(key)
        for table, work in zip(said["contention"], self.contention, strict=True):
            if isinstance(work, Recorded):
                table["path"] = _content_hash(work.path)
        del said["live"]
        return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:16]

    def to_toml(self) -> str:
        """The job as a file that gives it again, with every default written out."""
        return tomli_w.dumps(_without_none(self.model_dump(mode="json")))

    def split_by(self, split: str) -> Job:
        """The same job under another split, by one of `split_labels`.

        Raises:
            JobError: What it says of its devices or its data cannot be had under that split.
        """
        section, fleet = self.split.under(split), self.fleet
        if section.by != "space" and not fleet.has_groups:
            section = section.model_copy(update={"space": None})
        if section.task is None:
            devices = tuple(table.model_copy(update={"classes": None}) for table in fleet.device)
            fleet = fleet.model_copy(update={"device": devices})
        job = self.model_copy(update={"split": section, "fleet": fleet})
        _check_task(job)
        _check_data_split(job)
        return job

    def changed(self, changes: Mapping[str, Any]) -> Job:
        """The same job with other values, under keys as ``--set`` writes them; checked when all are in.

        Raises:
            JobError: There is no such key, or the job is not valid with it.
        """
        said = _without_none(self.model_dump(mode="json"))
        for key, value in changes.items():
            try:
                _put(said, key, value)
            except LookupError as error:
                raise JobError(key, value, str(error.args[0])) from None
        return _checked(said)


def split_labels() -> tuple[str, ...]:
    """What a comparison may name: every split, and every form of the split by capacity."""
    return (*SPLITS, *get_args(FormName))


def load_job(path: Path, changes: Sequence[str] = (), seed: int | None = None) -> Job:
    """Reads a job file.

    Args:
        path: The TOML file. A relative `data.path` in it is relative to the file, one of `changes` to the
            current folder.
        changes: ``section.key=value`` from the command line, the value as TOML or, failing that, a string.
        seed: Takes the place of the file's seed.

    Raises:
        JobError: with the first thing that is wrong.
    """
    try:
        said = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise JobError("job file", str(path), "there is no such file") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise JobError("job file", str(path), f"cannot be read as TOML: {error}") from error
    places = (
        (said.get("data"), "path"),
        (_table(said, "split", "task"), "pretrained"),
        (said.get("live"), "profile"),
    )
    for table, key in places:
        if isinstance(table, dict) and isinstance(table.get(key), str):
            table[key] = str((path.parent / Path(table[key]).expanduser()).resolve())
    recorded = [table for table in said.get("contention", ()) if isinstance(table, dict)]
    for table in recorded:
        if isinstance(table.get("path"), str):
            table["path"] = str((path.parent / Path(table["path"]).expanduser()).resolve())
    said.setdefault("name", re.sub(r"[^A-Za-z0-9_.-]+", "-", path.stem).strip("-") or "job")
    return _validated(said, changes, seed)


def quick_start(changes: Sequence[str] = (), seed: int | None = None) -> Job:
    """The built-in job: handwritten digits on five unlike devices."""
    text = resources.files("manyhands").joinpath("quickstart.toml").read_text(encoding="utf-8")
    return _validated(tomllib.loads(text), changes, seed)


def _content_hash(path: Path) -> str:
    """Of what a file holds; of its name where it cannot be read, with which no run can start."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return str(path)


def _at_home(work: CoRunning) -> CoRunning:
    """A co-running work whose file is named from the root, so that the job runs from any folder."""
    if not isinstance(work, Recorded):
        return work
    return work.model_copy(update={"path": work.path.expanduser().resolve()})


def _table(said: Mapping[str, Any], *names: str) -> Any:
    """A table in tables; None if there is none."""
    here: Any = said
    for name in names:
        here = here.get(name) if isinstance(here, dict) else None
    return here


def _validated(said: dict[str, Any], changes: Sequence[str], seed: int | None) -> Job:
    for change in changes:
        _apply(said, change)
    if seed is not None:
        said["seed"] = seed
    return _checked(said)


def _checked(said: dict[str, Any]) -> Job:
    try:
        job = Job.model_validate(said)
    except ValidationError as error:
        raise _explained(error) from None
    _check_material(job)
    _check_task(job)
    _check_data_split(job)
    _check_groups(job)
    if job.data.shares == "own" and job.exchange.consensus == "ring":
        expected = (
            'needs to know beforehand how much data each device has; with data.shares = "own" take gossip'
        )
        raise JobError("exchange.consensus", "ring", expected)
    if job.split.by in get_args(FormName):
        expected = f'is a form of the split by capacity: write by = "capacity", form = "{job.split.by}"'
        raise JobError("split.by", job.split.by, expected)
    if job.split.by not in SPLITS:
        hint = did_you_mean(job.split.by, SPLITS)
        expected = f"there is no such split{hint}; choose one of {', '.join(SPLITS)}"
        raise JobError("split.by", job.split.by, expected)
    if job.split.task is not None and job.split.task.pretrained is not None:
        at = job.split.task.pretrained.expanduser().resolve()
        task = job.split.task.model_copy(update={"pretrained": at})
        job = job.model_copy(update={"split": job.split.model_copy(update={"task": task})})
    if any(isinstance(work, Recorded) for work in job.contention):
        job = job.model_copy(update={"contention": tuple(map(_at_home, job.contention))})
    if job.live.profile is not None:
        at = job.live.profile.expanduser().resolve()
        job = job.model_copy(update={"live": job.live.model_copy(update={"profile": at})})
    if job.data.path is not None:
        at = job.data.path.expanduser().resolve()
        job = job.model_copy(update={"data": job.data.model_copy(update={"path": at})})
    return job


def _check_material(job: Job) -> None:
    """A job learns from data or from a game, and what it says of the other would be said in vain."""
    default = Job.model_fields
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
    for key in ("epochs", "examples"):
        if getattr(job.learn, key) != type(job.learn).model_fields[key].default:
            expected = "is read by a job that learns from data; what a phase of play is, [play] says"
            raise JobError(f"learn.{key}", getattr(job.learn, key), expected)


def _check_task(job: Job) -> None:
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


def _check_task_devices(job: Job, task: TaskSection) -> None:
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


def _check_data_split(job: Job) -> None:
    """Devices that keep pace do so without a coordinator, an epoch of their own data at a time."""
    if not job.split.paces:
        return
    if job.game.name is not None:
        raise JobError("split.by", "data", "goes through data, and this job learns from a game")
    if job.exchange.coordinated:
        expected = 'a split by data has no coordinator; take "neighbours", "epidemic" or "push"'
        raise JobError("exchange.mode", job.exchange.mode, expected)
    for key in ("epochs", "examples"):
        if getattr(job.learn, key) != type(job.learn).model_fields[key].default:
            expected = "leave it out: in a split by data a round goes once through what there is time for"
            raise JobError(f"learn.{key}", getattr(job.learn, key), expected)


def _check_groups(job: Job) -> None:
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


def _apply(said: dict[str, Any], change: str) -> None:
    """Carries out one ``--set section.key=value``."""
    key, equals, text = change.partition("=")
    if not equals or not key.strip(" .[]"):
        raise JobError("--set", change, "must read section.key=value, for example learn.batch_size=32")
    try:
        _put(said, key, toml_value(text))
    except LookupError as error:
        raise JobError("--set", change, str(error.args[0])) from None


def toml_value(text: str) -> Any:
    """A value from the command line: as TOML or, failing that, a string."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _put(said: dict[str, Any], key: str, value: Any) -> None:
    """Sets the value under ``section.key``, ``list[0].key`` or ``list[NAME].key``.

    Raises:
        LookupError: There is no such place; says so in the user's words.
    """
    steps = re.findall(r"[^.\[\]]+|\[[^\[\]]+\]", key.strip())
    here: Any = said
    try:
        for step, following in pairwise(steps):
            if step.startswith("["):
                here = here[place_of(step[1:-1], here)]
            else:
                here = here.setdefault(step, [] if following.startswith("[") else {})
        last = steps[-1]
        here[place_of(last[1:-1], here) if last.startswith("[") else last] = value
    except (IndexError, KeyError, TypeError, AttributeError):
        raise LookupError(f"the job has no {key}") from None


def place_of(name: str, tables: Sequence[Mapping[str, Any]]) -> int:
    """Which of the tables is meant by its number, or by its name (without one, a device has its kind's).

    Raises:
        LookupError: None is, or more than one.
    """
    names = [table.get("name") or table.get("kind") for table in tables]
    if name.isdecimal() and int(name) < len(names):
        return int(name)
    if names.count(name) == 1:
        return names.index(name)
    known = ", ".join(dict.fromkeys(str(name) for name in names[:10]))
    wrong = f'several are called "{name}"' if name in names else f'nothing here is called "{name}"'
    raise LookupError(f"{wrong}; choose one of {known}, or a number from 0")


def _explained(error: ValidationError) -> JobError:
    """The first thing pydantic found wrong, in the user's words."""
    first = error.errors()[0]
    # Not of the user's making: a fault's kind, which chose its table's type, and the type that a value was
    # tried as where it may be of several.
    where = [step for step in first["loc"] if not (isinstance(step, str) and _is_type(step))]
    key = re.sub(
        r"\.\[", "[", ".".join(f"[{step}]" if isinstance(step, int) else str(step) for step in where)
    )
    message = re.sub(r"^Value error, ", "", first["msg"])
    value = first["input"]
    if first["type"] == "missing":
        return JobError(key, None, "is missing")
    if first["type"] == "extra_forbidden":
        keys = _keys_beside(tuple(first["loc"]))
        hint = did_you_mean(str(where[-1]), keys)
        return JobError(key, value, f"there is no such key{hint} (there are {', '.join(keys)})")
    if first["type"] == "union_tag_not_found":
        return JobError(f"{key}.kind", None, f"is missing; choose one of {', '.join(_KINDS[where[0]])}")
    if first["type"] == "union_tag_invalid":
        expected = f"there is no such kind of {where[0]}; choose one of {', '.join(_KINDS[where[0]])}"
        return JobError(f"{key}.kind", first["ctx"]["tag"], expected)
    if first["type"] == "too_short":
        message = f"must have at least {first['ctx']['min_length']} entries"
    elif first["type"] in ("model_type", "model_attributes_type", "dict_type"):
        message = "must be a table"
    elif first["type"] in ("tuple_type", "list_type"):
        message = "must be a list"
    elif first["type"] in ("int_parsing", "int_type", "int_from_float"):
        message = "must be an integer"
    elif first["type"] == "literal_error":
        known = re.findall(r"'([^']*)'", first["ctx"]["expected"])
        message = (
            f"there is no such choice{did_you_mean(str(value), known)}; choose one of {', '.join(known)}"
        )
    elif first["type"] == "string_pattern_mismatch":
        message = "may have letters, digits, '.', '_' and '-', and begins with a letter or a digit"
    if isinstance(value, dict):
        value = None
    return JobError(key or "job", value, message[0].lower() + message[1:])


def _is_type(step: str) -> bool:
    return step in (*_TABLE_KINDS, "int", "str") or step.startswith(("constrained-", "dict["))


_KINDS: dict[Any, dict[str, type[BaseModel]]] = {
    key: {get_args(kind.model_fields["kind"].annotation)[0]: kind for kind in get_args(get_args(union)[0])}
    for key, union in (("fault", Fault), ("contention", CoRunning))
}
_TABLE_KINDS = {name: kind for kinds in _KINDS.values() for name, kind in kinds.items()}


def _keys_beside(location: tuple[str | int, ...]) -> list[str]:
    """The keys of the table in which an unknown one was found."""
    table: type[BaseModel] = Job
    for step in location[:-1]:
        if isinstance(step, int):
            continue
        if step in _TABLE_KINDS:
            table = _TABLE_KINDS[step]
        elif step in table.model_fields:
            table = next((t for t in _tables_in(table.model_fields[step].annotation)), table)
    return list(table.model_fields)


def _tables_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [table for part in get_args(annotation) for table in _tables_in(part)]


def _without_none(value: Any) -> Any:
    """TOML has no null: what is None is left out."""
    if isinstance(value, dict):
        return {k: _without_none(v) for k, v in value.items() if v is not None}
    if isinstance(value, list):
        return [_without_none(v) for v in value]
    return value

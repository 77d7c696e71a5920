"""A job that has been checked: everything a run needs to know, and how to make another job of it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self, get_args

import tomli_w
from pydantic import ValidationError

from manyhands.errors import JobError
from manyhands.fleet.contention import Recorded
from manyhands.job.combinations import check_combinations, check_split
from manyhands.job.explaining import explained
from manyhands.job.keys import put
from manyhands.job.paths import root_paths
from manyhands.job.sections import Sections
from manyhands.models import FormName
from manyhands.splits import SPLITS

__all__ = ["Job", "split_labels"]

_NOT_IN_HASH = (
    ("data", "path"),
    ("data", "download"),
    ("run", "workers"),
    ("run", "checkpoint_every_s"),
    ("run", "save_models"),
    ("run", "report"),
)


def split_labels() -> tuple[str, ...]:
    """What a comparison may name: every split, and every form of the split by capacity."""
    return (*SPLITS, *get_args(FormName))


class Job(Sections):
    """Everything a run needs to know."""

    @classmethod
    def checked(cls, said: dict[str, Any]) -> Self:
        """A job from the tables of a file; the paths in them are rooted in place.

        Raises:
            JobError: with the first thing that is wrong.
        """
        root_paths(said, Path.cwd())
        try:
            job = cls.model_validate(said)
        except ValidationError as error:
            raise explained(error) from None
        check_combinations(job)
        return job

    @property
    def hash(self) -> str:
        """Equal for jobs that must give equal results, wherever their data lies and on however many cores."""
        said = self.model_dump(mode="json")
        for section, key in _NOT_IN_HASH:
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
        check_split(job)
        return job

    def changed(self, changes: Mapping[str, Any]) -> Job:
        """The same job with other values, under keys as ``--set`` writes them; checked when all are in.

        Raises:
            JobError: There is no such key, or the job is not valid with it.
        """
        said = _without_none(self.model_dump(mode="json"))
        for key, value in changes.items():
            try:
                put(said, key, value)
            except LookupError as error:
                raise JobError(key, value, str(error.args[0])) from None
        return Job.checked(said)


def _content_hash(path: Path) -> str:
    """Of what a file holds; of its name where it cannot be read, with which no run can start."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return str(path)


def _without_none(value: Any) -> Any:
    """TOML has no null: what is None is left out."""
    if isinstance(value, dict):
        return {k: _without_none(v) for k, v in value.items() if v is not None}
    if isinstance(value, list):
        return [_without_none(v) for v in value]
    return value

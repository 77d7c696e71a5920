"""Reading a job: from a file, or the one that is built in, with what the command line changes."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from manyhands.errors import JobError
from manyhands.job.job import Job
from manyhands.job.keys import apply
from manyhands.job.paths import root_paths

__all__ = ["load_job", "quick_start"]


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
    root_paths(said, path.parent)
    said.setdefault("name", re.sub(r"[^A-Za-z0-9_.-]+", "-", path.stem).strip("-") or "job")
    return _with_changes(said, changes, seed)


def quick_start(changes: Sequence[str] = (), seed: int | None = None) -> Job:
    """The built-in job: handwritten digits on five unlike devices."""
    text = resources.files("manyhands").joinpath("quickstart.toml").read_text(encoding="utf-8")
    return _with_changes(tomllib.loads(text), changes, seed)


def _with_changes(said: dict[str, Any], changes: Sequence[str], seed: int | None) -> Job:
    for change in changes:
        apply(said, change)
    if seed is not None:
        said["seed"] = seed
    return Job.checked(said)

"""Which runs a sweep is made of: one for each split, each value of the varied key and each seed.

Planning only: nothing here reads data, writes a file or trains.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from manyhands.errors import JobError
from manyhands.fleet import make_fleet
from manyhands.job import Job, place_of, split_labels, toml_value
from manyhands.report.spread import value_text

__all__ = ["Cell", "Vary", "check_splits", "naming", "plan"]

SHARE = re.compile(r"fleet\.device\[([^\[\]]+)\]\.share")
LONGEST_NAME = 120


@dataclass(frozen=True)
class Vary:
    """A key of the job, as ``--set`` writes it, and the values that it takes."""

    key: str
    values: tuple[Any, ...]

    @classmethod
    def read(cls, text: str) -> Vary:
        """From ``KEY=V1,V2,...``: each value as TOML or, failing that, a string."""
        key, _, listed = (part.strip() for part in text.partition("="))
        values = toml_value(f"[{listed}]")
        if not isinstance(values, list):
            values = [toml_value(part.strip()) for part in listed.split(",")]
        if not key or not values or "" in values:
            raise JobError("--vary", text, "must read KEY=V1,V2,... as in learn.batch_size=16,32")
        return cls(key, tuple(values))


@dataclass(frozen=True)
class Cell:
    """One run of a sweep: planned, finished (then it has a `result`) or failed (then it has an `error`)."""

    split: str
    value: Any
    """Of the varied key; None where nothing is varied."""
    seed: int
    title: str
    """For people: ``cascade, share 0.1, seed 2``."""
    folder: Path
    job: Job
    result: dict[str, Any] | None = None
    error: str | None = None


def plan(
    job: Job, splits: Sequence[str], out: Path, vary: Vary | None = None, seeds: Sequence[int] = ()
) -> list[Cell]:
    """Every run of a sweep, in the order of splits, values, seeds.

    Raises:
        JobError: One of the jobs is not valid, or something is asked for twice.
    """
    check_splits(splits)
    _check_different("--seeds", seeds)
    if vary is not None:
        _check_key(vary, seeds)
    cells = []
    for value, changed in _varied(job, vary):
        for seed in seeds or (changed.seed,):
            chosen = changed.model_copy(update={"seed": seed})
            with naming(vary, value):
                make_fleet(chosen.fleet, seed=seed)
            for split in splits:
                steps = _steps(split, vary, value, seed if seeds else None)
                title = ", ".join(said for said, _ in steps)
                folder = out.joinpath(*(name for _, name in steps))
                with naming(vary, value, split):
                    cells.append(Cell(split, value, seed, title, folder, chosen.split_by(split)))
    return sorted(cells, key=lambda cell: splits.index(cell.split))


@contextmanager
def naming(vary: Vary | None, value: Any, split: str | None = None) -> Iterator[None]:
    """What is wrong with one run of many is said with what tells it from the others."""
    try:
        yield
    except JobError as error:
        known = vary is None or error.key == vary.key
        where = [] if vary is None or known else [f"{vary.key} = {value_text(value)}"]
        where += [f"split {split}"] if split else []
        if not where:
            raise
        raise JobError(f"with {', '.join(where)}: {error.key}", error.value, error.expected) from error


def _steps(split: str, vary: Vary | None, value: Any, seed: int | None) -> list[tuple[str, str]]:
    """What tells a run from the others: for people, and as the name of a folder."""
    steps = [(split, split)]
    if vary is not None:
        text = value_text(value)
        steps.append((f"{vary.key.rpartition('.')[2]} {text}", _folder_name(f"{vary.key}={text}")))
    if seed is not None:
        steps.append((f"seed {seed}", f"seed-{seed}"))
    return steps


def _folder_name(text: str) -> str:
    name = quote(text, safe="[]=,+")
    if len(name) <= LONGEST_NAME:
        return name
    return f"{name[:LONGEST_NAME]}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def _varied(job: Job, vary: Vary | None) -> Iterator[tuple[Any, Job]]:
    if vary is None:
        yield None, job
        return
    for value in vary.values:
        with naming(vary, value):
            changed = job.changed(_changes(job, vary.key, value))
        yield value, changed


def _changes(job: Job, key: str, value: Any) -> dict[str, Any]:
    """The varied key; and, where that is a share of the data, the shares that the other devices then have."""
    found = SHARE.fullmatch(key)
    if found is None:
        return {key: value}
    tables = job.fleet.device
    if any(table.share is None for table in tables):
        raise JobError(key, value, "can be varied only where every device has a share")
    try:
        place = place_of(found[1], [table.model_dump() for table in tables])
        all_of_it = tables[place].count * float(value)
    except LookupError as error:
        raise JobError(key, value, str(error.args[0])) from None
    except (TypeError, ValueError):
        raise JobError(key, value, "must be a number") from None
    others = {i: (table.share or 0.0) for i, table in enumerate(tables) if i != place}
    if not others or not 0 < all_of_it < 1:
        raise JobError(key, value, "must be above 0 and leave something to other devices")
    scale = (1 - all_of_it) / sum(tables[i].count * share for i, share in others.items())
    return {key: value} | {
        f"fleet.device[{i}].share": round(scale * share, 12) for i, share in others.items()
    }


def check_splits(splits: Sequence[str]) -> None:
    """A comparison is of splits that there are, each once."""
    known = ", ".join(split_labels())
    if not splits:
        raise JobError("--splits", "", f"must name at least one split of {known}")
    for split in splits:
        if split not in split_labels():
            raise JobError("--splits", split, f"there is no such split; choose from {known}")
    _check_different("--splits", splits)


def _check_key(vary: Vary, seeds: Sequence[int]) -> None:
    if not vary.values:
        raise JobError("--vary", vary.key, "must have at least one value")
    _check_different(f"--vary {vary.key}", vary.values)
    if vary.key in ("split.by", "split.form"):
        raise JobError("--vary", vary.key, "is what --splits is for")
    if vary.key == "seed" and seeds:
        raise JobError("--vary", vary.key, "is what --seeds gives already")


def _check_different(option: str, values: Sequence[Any]) -> None:
    texts = [value_text(value) for value in values]  # which also name folders
    for i, value in enumerate(values):
        if texts[i] in texts[:i]:
            raise JobError(option, value, "is there twice")

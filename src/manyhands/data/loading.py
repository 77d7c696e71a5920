"""Loads the data set of a job, and fetches it first where the user asked for that."""

from __future__ import annotations

from pathlib import Path

from manyhands.data import cache
from manyhands.data.download import fetch
from manyhands.data.examples import Dataset, Progress, silent
from manyhands.data.lookup import Reading, Source, places
from manyhands.data.section import DataSection
from manyhands.data.sources import SOURCES
from manyhands.errors import JobError, RunError
from manyhands.seeds import numpy_generator

__all__ = ["get", "load"]


def load(section: DataSection, *, seed: int, progress: Progress | None = None) -> Dataset:
    """Reads the data set that a job names.

    Args:
        section: The ``[data]`` table.
        seed: Of the job; decides what `limit` keeps and what is kept for testing where the data does
            not say.
        progress: Told of downloads and of long reading.

    Raises:
        JobError: It is not there, or damaged.
        RunError: It could not be fetched.
    """
    source, tell = SOURCES[section.name], progress or silent
    spot = source.found(section.path)
    if spot is None and not source.built_in:
        if not section.download:
            raise _missing(source, section.path)
        spot = get(source.name, path=section.path, progress=tell)
    dataset = source.read(spot or Path(), Reading(section, seed, tell))
    if section.limit is not None and section.limit < len(dataset.train):
        order = numpy_generator(seed, "data", "limit").permutation(len(dataset.train))
        train = dataset.train.take(order[: section.limit])
        return Dataset(dataset.name, train, dataset.test, dataset.classes)
    return dataset


def get(name: str, *, path: Path | None = None, progress: Progress = silent) -> Path:
    """Fetches a data set, unless it is there; returns where it is.

    Args:
        name: One of `SOURCES`.
        path: The folder to put it into; without it, one in the cache folder.
        progress: Told the bytes of each file.
    """
    if name not in SOURCES:
        raise JobError("data.name", name, f"must be one of {', '.join(SOURCES)}")
    source = SOURCES[name]
    if (spot := source.found(path)) is not None:
        return spot
    if not source.downloads or (path is not None and path.suffix in (".npz", ".gz")):
        raise _missing(source, path)
    folder = path.expanduser() if path is not None else cache.cache_folder() / name
    if folder.is_file():
        raise JobError("data.path", str(path), "must be a folder to download into")
    for download in source.downloads:
        fetch(download, folder, progress)
    if (spot := source.found(path)) is None:
        raise RunError(f"{name} was fetched into {folder} but is not found there")
    return spot


def _missing(source: Source, path: Path | None) -> JobError:
    looked = ", ".join(str(place) for place in places(path))
    if source.downloads:
        remedy = (
            f"download = true (or: manyhands data get {source.name}) fetches it, "
            f"{source.size_bytes / 1e6:,.0f} MB, from {source.address}"
        )
    else:
        remedy = f"set data.path to {source.files}"
    return JobError(
        "data.path", None, f"{source.name} is not in {looked} (looked for {source.files}); {remedy}"
    )

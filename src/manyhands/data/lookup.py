"""A data set as a job can name it, and where on this machine it is looked for.

A `Source` is data and two functions: `find`, which says what in a folder it could read, and `read`. The
functions here make the `find` of each.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from manyhands.data import cache, idx
from manyhands.data.cifar import Binary
from manyhands.data.download import Download
from manyhands.data.examples import Dataset, Progress
from manyhands.data.section import DataSection

__all__ = [
    "Reading",
    "Source",
    "find_any",
    "find_cifar",
    "find_folder",
    "find_idx_set",
    "find_npz",
    "has_words",
    "places",
]


@dataclass(frozen=True)
class Reading:
    """What a reader is given: the settings, the job's seed and whom to tell."""

    section: DataSection
    seed: int
    progress: Progress


@dataclass(frozen=True)
class Source:
    """One data set, as ``manyhands data`` lists it.

    Attributes:
        name: As a job names it.
        about: One line.
        licence: What its authors allow.
        files: What is looked for, in words.
        find: What in a folder (or which file) can be read, or None.
        read: Reads what was found.
        size_bytes: Of the download.
        downloads: Empty where there is nothing to fetch.
        built_in: Needs no file.
    """

    name: str
    about: str
    licence: str
    files: str
    find: Callable[[Path], Path | None]
    read: Callable[[Path, Reading], Dataset]
    size_bytes: int = 0
    downloads: tuple[Download, ...] = ()
    built_in: bool = False

    @property
    def address(self) -> str | None:
        """Where it is fetched from first, as people would say it."""
        return self.downloads[0].addresses[0].rpartition("/")[0] if self.downloads else None

    def found(self, path: Path | None = None) -> Path | None:
        """Where it is on this machine, or None; a built-in one is in no place.

        One's own data is only where the user says: any folder would pass for pictures, the cache among them.
        """
        if path is None and not self.downloads:
            return None
        spots = (self.find(place) for place in places(path) if place.exists())
        return next((spot for spot in spots if spot is not None), None)

    @property
    def present(self) -> bool:
        """Whether a job can use it without a path and without a download."""
        return self.built_in or self.found() is not None


def places(path: Path | None = None) -> tuple[Path, ...]:
    """Where data is looked for: only in `path` if there is one, else in the usual places."""
    if path is not None:
        return (path.expanduser(),)
    set_by_user = os.environ.get("MANYHANDS_DATA")
    first = (Path(set_by_user).expanduser(),) if set_by_user else ()
    return (*first, cache.cache_folder(), Path("/usr/share/datasets"))


def find_idx_set(*folders: str, npz: str) -> Callable[[Path], Path | None]:
    """The first of some folders that has the four idx files, or the ``.npz``."""

    def find(place: Path) -> Path | None:
        if place.is_file():
            return place if place.suffix == ".npz" else None
        for folder in (place / name for name in folders):
            if folder.is_dir() and idx.find_idx(folder):
                return folder
        return place / npz if (place / npz).is_file() else None

    return find


def find_any(directory: Callable[[Path], bool], spots: tuple[str, ...]) -> Callable[[Path], Path | None]:
    """The first of some places below a folder that is a file, or a directory that will do."""

    def find(place: Path) -> Path | None:
        if place.is_file():
            return place if place.name.endswith((".npz", ".tar.gz", ".tgz", ".tar")) else None
        for spot in (place / name for name in spots):
            if spot.is_file() or (spot.is_dir() and directory(spot)):
                return spot
        return None

    return find


def find_cifar(kind: Binary, *npz: str) -> Callable[[Path], Path | None]:
    """The binary distribution, unpacked or not, or one of some ``.npz``."""

    def begun(folder: Path) -> bool:
        return any((folder / name).is_file() for name in kind.train)

    inside = (".", kind.folder, kind.archive)
    below = tuple(f"{kind.name}/{spot}" for spot in inside)
    return find_any(begun, (*inside, *below, *npz))


def has_words(folder: Path) -> bool:
    """Whether there are sub-folders of WAVs."""
    return any(True for _ in folder.glob("*/*.wav"))


def find_npz(place: Path) -> Path | None:
    """Whatever file the user named."""
    return place if place.is_file() else None


def find_folder(place: Path) -> Path | None:
    """Whatever folder the user named."""
    return place if place.is_dir() else None

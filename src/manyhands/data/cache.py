"""The cache folder: downloads, and arrays that took long to make.

Remembered arrays are plain ``.npy`` files, mapped into memory when they are used again, so that a data
set costs the pages that are touched and not a copy of its own. Nothing here is precious: the folder may
be deleted at any time.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import numpy as np

from manyhands.data.examples import Array

__all__ = ["cache_folder", "fingerprint", "forget", "recalled", "remembered"]


def cache_folder() -> Path:
    """``$XDG_CACHE_HOME/manyhands``, or ``~/.cache/manyhands``."""
    set_by_user = os.environ.get("XDG_CACHE_HOME", "")
    base = set_by_user if os.path.isabs(set_by_user) else os.path.expanduser("~/.cache")
    return Path(base) / "manyhands"


def fingerprint(files: Iterable[Path], *more: object) -> str:
    """Changes when a file is added, removed, resized or written to; does not read them."""
    sha = hashlib.sha256(repr(more).encode())
    for file in files:
        stat = file.stat()
        sha.update(f"{file}\0{stat.st_size}\0{stat.st_mtime_ns}\n".encode())
    return sha.hexdigest()[:24]


def remembered(key: str, build: Callable[[], Mapping[str, Array]]) -> dict[str, Array]:
    """The arrays kept under a key; made by `build` when there are none or they cannot be read.

    They are mapped copy-on-write: writing to them changes neither the file nor what others see. Where
    the cache folder cannot be written to, the arrays are simply made again the next time.
    """
    folder = _arrays() / key
    with contextlib.suppress(OSError, ValueError, EOFError):
        return _read(folder)
    arrays = build()
    with contextlib.suppress(OSError, ValueError, EOFError):
        _write(folder, arrays)
        return _read(folder)  # the mapped files in place of the arrays, which are freed
    return dict(arrays)


def recalled(key: str) -> dict[str, Array] | None:
    """The arrays kept under a key, if there are any."""
    try:
        return _read(_arrays() / key)
    except (OSError, ValueError, EOFError):
        return None


def forget(key: str) -> None:
    """Removes what is kept under a key."""
    shutil.rmtree(_arrays() / key, ignore_errors=True)


def _arrays() -> Path:
    return cache_folder() / "arrays"


def _read(folder: Path) -> dict[str, Array]:
    files = sorted(folder.glob("*.npy"))
    if not files:
        raise FileNotFoundError(folder)
    return {file.stem: np.load(file, mmap_mode="c", allow_pickle=False) for file in files}


def _write(folder: Path, arrays: Mapping[str, Array]) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        for name, array in arrays.items():
            np.save(draft / f"{name}.npy", array, allow_pickle=False)
        shutil.rmtree(folder, ignore_errors=True)  # only ever a damaged one: `remembered` could not read it
        # A folder takes its name in one step, so nobody sees half of it; another process may have been
        # faster, whose folder is as good.
        with contextlib.suppress(FileExistsError, OSError):
            draft.rename(folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)

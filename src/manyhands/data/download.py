"""Fetches a published file: resumable, checked before it takes its name, one process at a time.

What has arrived is kept in ``NAME.part``; a cut connection, and a later run, go on from there. Only a
file whose checksum is right is renamed to ``NAME``, so a file of that name is always whole.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import http.client
import os
import sys
import time  # noqa: TID251 - to pause between attempts, not to read the clock
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from manyhands.data.examples import Progress, silent
from manyhands.errors import RunError

__all__ = ["Download", "fetch"]

CHUNK_BYTES = 1 << 18
OUR_OWN_TROUBLE = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS)


@dataclass(frozen=True)
class Download:
    """One published file.

    Attributes:
        file: Its name.
        addresses: Where it is published; the later ones are tried when the earlier ones fail.
        checksum: ``md5:…`` or ``sha256:…``, as its authors or the usual loaders give it.
    """

    file: str
    addresses: tuple[str, ...]
    checksum: str


class _FetchError(Exception):
    """One address did not deliver the file."""


def fetch(
    download: Download,
    folder: Path,
    progress: Progress = silent,
    *,
    attempts: int = 3,
    pause_s: float = 1.0,
    timeout_s: float = 30.0,
) -> Path:
    """Brings a file into a folder, unless it is there.

    Args:
        download: What to fetch.
        folder: Where to put it; made if need be.
        progress: Told bytes done and, if the server says, of how many.
        attempts: How often in a row an address may fail without sending a byte.
        pause_s: Wait before trying again.
        timeout_s: Longest silence of a server.

    Raises:
        RunError: It could not be fetched, or what came has a wrong checksum.
    """
    target = folder / download.file
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _alone(folder / f".{download.file}.lock"):
            if target.exists():  # perhaps another process fetched it while we waited
                return target
            reasons = []
            for address in download.addresses:
                try:
                    _transfer(address, target, download.checksum, progress, (attempts, pause_s, timeout_s))
                except _FetchError as failure:
                    reasons.append(f"{address}: {failure}")
                else:
                    return target
    except OSError as error:
        raise RunError(f"cannot store {target}: {error.strerror or error}") from error
    raise RunError(
        f"could not fetch {download.file} ({'; '.join(reasons)}): "
        f"check the connection and run again, or put the file into {folder} yourself"
    )


def _transfer(
    address: str, target: Path, checksum: str, progress: Progress, patience: tuple[int, float, float]
) -> None:
    """Fetches from one address, going on after each cut, and gives the file its name."""
    part = target.with_name(target.name + ".part")
    attempts, pause_s, timeout_s = patience
    failures = 0
    while True:
        before = _size(part)
        try:
            _receive(address, part, progress, timeout_s)
            break
        except urllib.error.HTTPError as error:
            if error.code < 500:
                raise _FetchError(f"the server answers {error.code} {error.reason}") from error
            trouble = f"the server answers {error.code} {error.reason}"
        except (_FetchError, OSError, http.client.HTTPException) as error:
            if isinstance(error, OSError) and error.errno in OUR_OWN_TROUBLE:
                raise
            trouble = str(getattr(error, "reason", error)) or type(error).__name__
        failures = 1 if _size(part) > before else failures + 1
        if failures >= attempts:
            raise _FetchError(trouble)
        time.sleep(pause_s)
    kind, _, expected = checksum.partition(":")
    with part.open("rb") as stream:
        found = hashlib.file_digest(stream, lambda: hashlib.new(kind, usedforsecurity=False)).hexdigest()
    if found != expected:
        part.unlink()
        raise _FetchError(f"what it sent has the {kind} checksum {found} instead of {expected}")
    part.replace(target)


def _receive(address: str, part: Path, progress: Progress, timeout_s: float) -> None:
    """One connection: appends what the server sends; returns when the file is whole."""
    what = f"fetching {part.name.removesuffix('.part')}"
    start = _size(part)
    request = urllib.request.Request(address, headers={"User-Agent": "manyhands"})
    if start:
        request.add_header("Range", f"bytes={start}-")
    try:
        response = urllib.request.urlopen(request, timeout=timeout_s)
    except urllib.error.HTTPError as error:
        with error:
            if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and start:
                return  # all of it is there already; the checksum will tell
        raise
    with response:
        goes_on = response.status == http.HTTPStatus.PARTIAL_CONTENT
        if not goes_on or not response.headers.get("Content-Range", "").startswith(f"bytes {start}-"):
            if goes_on:
                part.unlink(missing_ok=True)
                raise _FetchError("the server sent another part than the one asked for")
            start = 0
        length = response.headers.get("Content-Length")
        total = start + int(length) if length else None
        done = start
        with part.open("ab" if start else "wb") as stream:
            progress(what, done, total)
            while chunk := response.read(CHUNK_BYTES):
                stream.write(chunk)
                done += len(chunk)
                progress(what, done, total)
            stream.flush()
            os.fsync(stream.fileno())
    if total is not None and done < total:
        raise _FetchError(f"the connection was cut after {done} of {total} bytes")


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


@contextlib.contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """Waits until no other process of this machine is inside with the same lock file."""
    if sys.platform == "win32":  # no such lock there: two processes at once would spoil the checksum
        yield
        return
    import fcntl  # noqa: PLC0415  (does not exist on Windows)

    with lock.open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield

"""Checkpoints: the tensors of a run that are alive at one event of its trace.

A simulated run is deterministic, so its control flow need not be saved: it is repeated from the trace
(see `engine.journal`) up to the event at which the checkpoint was taken, and only the tensors that are
alive there are read back. They lie in one folder:

    000000001234.safetensors  what is alive after so many events, but for what is lasting; and the names of
    17%2Fmemory.piece         the files of its pieces: each holds one lasting `Weights`, and is written once

A file holds each tensor once, however many hold it, with the owners in its header, and takes its name when
it is complete on disk: pieces first, then the file that refers to them, and only then is anything removed.
So whenever a run is killed, the newest checkpoint has all its pieces. What they are called by, the work and
the name under which the run holds them, is the same in a resumed run, which thus goes on with the pieces it
finds. It takes only those that its checkpoint refers to: one that was written just before a kill is from
events that will be computed again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from manyhands.blocks import Weights
from manyhands.errors import RunError

__all__ = ["Checkpoint", "read_checkpoint", "write_checkpoint"]

ONLY = "piece"
"""The one owner in the file of a piece."""


@dataclass(frozen=True)
class Checkpoint:
    """What a checkpoint holds, by who held it; and a note of whoever wrote it."""

    job_hash: str
    num_events: int
    holdings: Mapping[str, Weights]
    note: str = ""


def write_checkpoint(
    folder: Path, job_hash: str, num_events: int, held: Mapping[str, Weights], note: str = ""
) -> Path:
    """Writes the checkpoint of the first `num_events` events of a job and removes older ones."""
    folder.mkdir(parents=True, exist_ok=True)
    pieces = _write_pieces(folder, {holder: weights for holder, weights in held.items() if weights.lasting})
    path = folder / f"{num_events:012d}.safetensors"
    facts = {"job": job_hash, "num_events": str(num_events), "pieces": json.dumps(pieces), "note": note}
    _write(path, {holder: weights for holder, weights in held.items() if not weights.lasting}, facts)
    kept = {path.name, *pieces.values()}
    for old in folder.iterdir():
        if old.name not in kept:
            old.unlink(missing_ok=True)
    return path


def read_checkpoint(folder: Path) -> Checkpoint | None:
    """The newest checkpoint of a folder, None if there is none."""
    path = _newest(folder)
    if path is None:
        return None
    with _whole(path):
        facts, holdings = _read(path)
        job_hash, num_events, pieces = facts["job"], int(facts["num_events"]), _pieces(facts)
        note = facts.get("note", "")
    held = {holder: Weights(tensors) for holder, tensors in holdings.items()}
    stored = {name: _read_piece(folder / name) for name in sorted(set(pieces.values()))}
    held |= {holder: stored[name] for holder, name in pieces.items()}
    return Checkpoint(job_hash, num_events, held, note)


def _newest(folder: Path) -> Path | None:
    return max(folder.glob("*.safetensors"), default=None)


# Pieces.


def _write_pieces(folder: Path, lasting: Mapping[str, Weights]) -> dict[str, str]:
    """Writes the pieces that the last checkpoint does not have; returns the file of each holder's piece."""
    there = _pieces_there(folder)
    files = {weights: there[holder] for holder, weights in lasting.items() if holder in there}
    for holder, weights in lasting.items():
        if weights not in files:
            files[weights] = f"{quote(holder, safe='')}.piece"
            _write(folder / files[weights], {ONLY: weights}, {})
    return {holder: files[weights] for holder, weights in lasting.items()}


def _pieces_there(folder: Path) -> dict[str, str]:
    path = _newest(folder)
    if path is None:
        return {}
    with _whole(path), safe_open(path, framework="pt") as file:
        pieces = _pieces(file.metadata())
    return {holder: name for holder, name in pieces.items() if (folder / name).is_file()}


def _pieces(facts: Mapping[str, str]) -> dict[str, str]:
    """The file of each holder's piece; a checkpoint of an older version has none."""
    pieces: dict[str, str] = json.loads(facts.get("pieces", "{}"))
    return pieces


def _read_piece(path: Path) -> Weights:
    with _whole(path):
        return Weights(_read(path)[1][ONLY], lasting=True)


# Files.


def _write(path: Path, held: Mapping[str, Weights], facts: Mapping[str, str]) -> None:
    """Writes each tensor once, with who holds it and further facts in the header."""
    tensors: dict[str, torch.Tensor] = {}
    names: dict[int, str] = {}
    owners: dict[str, dict[str, str]] = {}
    for holder, weights in held.items():
        owners[holder] = {}
        for name, tensor in weights.items():
            key = names.setdefault(id(tensor), f"t{len(names)}")
            owners[holder][name] = key
            if key not in tensors:
                tensors[key] = tensor.detach().cpu().contiguous()
    partial = path.with_suffix(".partial")
    try:
        save_file(tensors, partial, metadata={**facts, "owners": json.dumps(owners)})
    except SafetensorError as error:
        raise RunError(f"{path}: cannot be written ({error}); make room and resume") from error
    with partial.open("rb") as file:
        os.fsync(file.fileno())
    partial.replace(path)


def _read(path: Path) -> tuple[dict[str, str], dict[str, dict[str, torch.Tensor]]]:
    """The header of a file, and what each holder in it holds."""
    with safe_open(path, framework="pt") as file:
        facts: dict[str, str] = file.metadata()
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - not a dict
    owners: dict[str, dict[str, str]] = json.loads(facts["owners"])
    return facts, {holder: {n: tensors[k] for n, k in names.items()} for holder, names in owners.items()}


@contextmanager
def _whole(path: Path) -> Iterator[None]:
    """Says which file it is that is missing or damaged."""
    try:
        yield
    except (SafetensorError, OSError, KeyError, ValueError, TypeError) as error:
        raise RunError(
            f"{path}: not a whole checkpoint ({error}); delete {path.parent} to start from the beginning"
        ) from error

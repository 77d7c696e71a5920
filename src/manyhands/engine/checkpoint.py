"""Checkpoints: the tensors of a run that are alive at one event of its trace, in one file.

A simulated run is deterministic, so its control flow need not be saved: it is repeated from the trace
(see `engine.journal`) up to the event at which the checkpoint was taken, and only the tensors that are
alive there are read back. One safetensors file holds them, each tensor once however many hold it, with
the number of events and the owners in its header. It takes its name when it is complete on disk.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from manyhands.blocks import Weights
from manyhands.errors import RunError

__all__ = ["Checkpoint", "read_checkpoint", "write_checkpoint"]


@dataclass(frozen=True)
class Checkpoint:
    """What a checkpoint file holds."""

    job_hash: str
    num_events: int
    holdings: Mapping[str, Mapping[str, torch.Tensor]]


def write_checkpoint(folder: Path, job_hash: str, num_events: int, held: Mapping[str, Weights]) -> Path:
    """Writes the checkpoint of the first `num_events` events of a job and removes older ones."""
    folder.mkdir(parents=True, exist_ok=True)
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
    path = folder / f"{num_events:012d}.safetensors"
    partial = path.with_suffix(".partial")
    metadata = {"job": job_hash, "num_events": str(num_events), "owners": json.dumps(owners)}
    try:
        save_file(tensors, partial, metadata=metadata)
    except SafetensorError as error:
        raise RunError(f"{path}: cannot be written ({error}); make room and resume") from error
    with partial.open("rb") as file:
        os.fsync(file.fileno())
    partial.replace(path)
    for old in folder.iterdir():
        if old != path:
            old.unlink(missing_ok=True)
    return path


def read_checkpoint(folder: Path) -> Checkpoint | None:
    """The newest checkpoint of a folder, None if there is none."""
    files = sorted(folder.glob("*.safetensors")) if folder.is_dir() else []
    if not files:
        return None
    path = files[-1]
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata()
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - not a dict
        owners = json.loads(metadata["owners"])
        holdings = {holder: {n: tensors[k] for n, k in names.items()} for holder, names in owners.items()}
        return Checkpoint(metadata["job"], int(metadata["num_events"]), holdings)
    except (SafetensorError, OSError, KeyError, ValueError, TypeError) as error:
        raise RunError(
            f"{path}: not a whole checkpoint ({error}); delete it to start from the beginning"
        ) from error

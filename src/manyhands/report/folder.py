"""The run folder: everything a run leaves behind, and all that is needed to go on with it.

    OUT/job.toml            the job, every default written out
    OUT/trace.jsonl         every event, one JSON object a line
    OUT/checkpoint/         the tensors to go on from, while the run is not finished
    OUT/devices/NAME/       of a live run: what each device has done and needs to go on
    OUT/models/*.safetensors  each device's network, and the merged one as `global`
    OUT/result.json         the figures (docs/result.md says what each means)
    OUT/report.html, *.png  the same to look at

A file takes its name when it is complete, so a run that is killed leaves whole files only.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

import torch
from safetensors.torch import save_file

from manyhands.errors import JobError, RunError
from manyhands.hand import Facts
from manyhands.report.atomic import write_atomically

__all__ = ["RunFolder"]


class RunFolder:
    """The files of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.job = path / "job.toml"
        self.trace = path / "trace.jsonl"
        self.checkpoint = path / "checkpoint"
        self.models = path / "models"
        self.devices = path / "devices"
        self.result = path / "result.json"
        self.page = path / "report.html"

    def begin(self, job_toml: str) -> None:
        """Makes the folder for a new run."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            write_atomically(self.job, job_toml)
        except OSError as error:
            raise JobError("--out", str(self.path), f"cannot be written: {error.strerror}") from error

    @property
    def is_run(self) -> bool:
        """Whether a run began here."""
        return self.job.is_file()

    @property
    def is_live(self) -> bool:
        """Whether each device has a folder of its own here."""
        return self.devices.is_dir()

    def check_same(self, job_hash: str, other_hash: str) -> None:
        """A folder that holds a run of another job is refused."""
        if other_hash != job_hash:
            raise JobError("--out", str(self.path), "holds a run of another job; take another folder")

    def recorded(self, num_events: int) -> list[str]:
        """The first lines of the trace; the rest, written after the checkpoint, is cut off."""
        if num_events == 0:
            self.trace.unlink(missing_ok=True)
            return []
        try:
            with self.trace.open(encoding="utf-8") as file:
                lines = [line.rstrip("\n") for line in islice(file, num_events)]
        except (OSError, UnicodeDecodeError) as error:
            raise RunError(f"{self.trace}: cannot be read ({error}); train the job anew") from error
        if len(lines) < num_events:
            raise RunError(f"{self.trace}: ends before its checkpoint ({len(lines)} of {num_events} events)")
        with self.trace.open("r+b") as cut:
            cut.truncate(sum(len(line.encode()) + 1 for line in lines))
        return lines

    def events(self) -> Iterator[Facts]:
        """Every event of the trace."""
        with self.trace.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                try:
                    yield json.loads(line)
                except ValueError as error:
                    raise RunError(f"{self.trace}: line {number} is damaged; train the job anew") from error

    def open_trace(self) -> TextIO:
        """The trace, to append to."""
        return self.trace.open("a", encoding="utf-8")

    def save_models(self, models: Mapping[str, Mapping[str, torch.Tensor]]) -> None:
        """Writes each network; equal ones are written once and linked."""
        self.models.mkdir(exist_ok=True)
        written: dict[tuple[int, ...], Path] = {}
        for name, state in models.items():
            path = self.models / f"{name}.safetensors"
            partial = path.with_suffix(".partial")
            partial.unlink(missing_ok=True)
            same = written.setdefault(tuple(id(tensor) for tensor in state.values()), path)
            if same is path:
                save_file({n: t.cpu().contiguous() for n, t in state.items()}, partial)
            else:
                _link(same, partial)
            partial.replace(path)

    def load_result(self) -> dict[str, Any] | None:
        """The figures, None while the run is not finished."""
        if not self.result.is_file():
            return None
        try:
            loaded: dict[str, Any] = json.loads(self.result.read_text(encoding="utf-8"))
        except ValueError as error:
            raise JobError("result", str(self.result), f"is damaged: {error}") from error
        if not isinstance(loaded, dict) or not {"schema", "job", "split", "devices", "hash"} <= loaded.keys():
            raise JobError("result", str(self.result), "is not the result of a run")
        return loaded

    def finish(self, result: Mapping[str, Any]) -> None:
        """Writes the figures; with them the run is finished."""
        write_atomically(self.result, json.dumps(result, indent=1, allow_nan=False) + "\n")
        self.clear_checkpoint()

    def clear_checkpoint(self) -> None:
        """Removes what is of no use once there is a result."""
        if self.checkpoint.is_dir():
            for file in self.checkpoint.iterdir():
                file.unlink()
            self.checkpoint.rmdir()


def _link(existing: Path, new: Path) -> None:
    try:
        os.link(existing, new)
    except OSError:  # a file system without hard links
        new.write_bytes(existing.read_bytes())

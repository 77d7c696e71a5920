"""The folder of one device of a live run: what it has done, and all it needs to go on after it was killed.

device.json         which job, when it first began, how often it has, and which of its hands are done
job.toml            the job as this device was given it
trace.jsonl         its events, one JSON object a line, in the order in which they were complete
state/HAND/         what each of its hands has saved
models/             its network, and the merged one where it has that
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

from manyhands.engine.clock import epoch_seconds
from manyhands.engine.life import Past
from manyhands.engine.state import StateFolder
from manyhands.errors import JobError, RunError
from manyhands.hand import Facts
from manyhands.report.atomic import write_atomically

__all__ = ["DeviceFolder", "merged_events"]


class DeviceFolder:
    """The files of one device."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.job = path / "job.toml"
        self.trace = path / "trace.jsonl"
        self.models = path / "models"
        self._about = path / "device.json"

    @property
    def is_there(self) -> bool:
        """Whether a device began here."""
        return self._about.is_file()

    def begin(self, device: str, job_hash: str, job_toml: str) -> Past:
        """Begins, or goes on with what is here.

        Raises:
            JobError: Another device or another job has used the folder, or it cannot be written.
        """
        said: dict[str, Any] = {"device": device, "job": job_hash, "origin_s": epoch_seconds()}
        said |= {"incarnation": 0, "done": []}
        if self.is_there:
            said = self.about()
            for key, wanted in (("device", device), ("job", job_hash)):
                if said[key] != wanted:
                    expected = f"holds {key} {said[key]}, and this is {wanted}; take another folder"
                    raise JobError("--out", str(self.path), expected)
        said["incarnation"] += 1
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            write_atomically(self.job, job_toml)
            self._write(said)
            self._cut_trace()
        except OSError as error:
            raise JobError("--out", str(self.path), f"cannot be written: {error.strerror}") from error
        return Past(said["origin_s"], said["incarnation"], frozenset(said["done"]))

    def finish(self, hand: str) -> None:
        """Takes note that a hand is done."""
        said = self.about()
        if hand not in said["done"]:
            self._write({**said, "done": [*said["done"], hand]})

    def about(self) -> dict[str, Any]:
        """What is known of the device."""
        try:
            said: dict[str, Any] = json.loads(self._about.read_text(encoding="utf-8"))
            missing = {"device", "job", "origin_s", "incarnation", "done"} - said.keys()
        except (OSError, ValueError, AttributeError) as error:
            raise RunError(f"{self._about}: cannot be read ({error}); take another folder") from error
        if missing:
            raise RunError(f"{self._about}: does not say {', '.join(sorted(missing))}; take another folder")
        return said

    def state(self, hand: str, job_hash: str) -> StateFolder:
        """What a hand has saved."""
        return StateFolder(self.path / "state" / hand, job_hash)

    def open_trace(self) -> TextIO:
        """The trace, to append to."""
        return self.trace.open("a", encoding="utf-8")

    def events(self) -> Iterator[Facts]:
        """Every event of the trace; a last line that was cut off by a kill is left out."""
        if not self.trace.is_file():
            return
        with self.trace.open("rb") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    return
                try:
                    yield json.loads(line)
                except ValueError as error:
                    raise RunError(f"{self.trace}: line {number} is damaged") from error

    def _write(self, said: Mapping[str, Any]) -> None:
        write_atomically(self._about, json.dumps(said, indent=1) + "\n")

    def _cut_trace(self) -> None:
        """Cuts off half a line that a kill may have left."""
        if not self.trace.is_file():
            return
        with self.trace.open("r+b") as file:
            content = file.read()
            file.truncate(content.rfind(b"\n") + 1)
            os.fsync(file.fileno())


def merged_events(folders: Mapping[str, DeviceFolder]) -> list[Facts]:
    """The events of all devices on one clock, which begins when the first of them did.

    A device that was killed could not say so: where it was started again, or its trace ends, without its
    having left or come to its end, it has crashed when it was last heard of.
    """
    there = {name: folder for name, folder in folders.items() if folder.is_there}
    origins = {name: float(folder.about()["origin_s"]) for name, folder in there.items()}
    first = min(origins.values(), default=0.0)
    events = []
    for name, folder in there.items():
        own = sorted(folder.events(), key=lambda event: float(event["seconds"]))
        done = name in folder.about()["done"]
        later_s = origins[name] - first
        events += [_shifted(event, later_s) for event in _with_crashes(name, own, done=done)]
    return sorted(events, key=lambda event: float(event["seconds"]))


def _shifted(event: Facts, later_s: float) -> Facts:
    return event | {key: event[key] + later_s for key in ("seconds", "started") if key in event}


def _with_crashes(name: str, events: list[Facts], *, done: bool) -> Iterator[Facts]:
    last: Facts | None = None
    over = False  # in this life of the device
    for event in events:
        if event["event"] == "restarted":
            if last is not None and not over:
                yield {"seconds": last["seconds"], "device": name, "event": "crashed"}
            over = False
        yield event
        over = over or event["event"] == "left" or (event["event"] == "finished" and event["device"] == name)
        last = event
    if last is not None and not over and not done:
        yield {"seconds": last["seconds"], "device": name, "event": "crashed"}

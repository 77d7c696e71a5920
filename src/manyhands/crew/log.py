"""What a crew leaves behind: the trace of its run, written by whoever leads.

Every device keeps all events, so that another can write the trace when the leader is gone.
"""

from __future__ import annotations

import json
import os
from typing import Any, TextIO

from manyhands.engine.clock import wall_seconds
from manyhands.hand import Facts
from manyhands.report.atomic import write_atomically
from manyhands.report.folder import RunFolder

__all__ = ["Log"]


class Log:
    """The events of a crew, and its clock.

    Args:
        folder: Where the trace goes.
        group: Whose events they are.
        num_events: How many of the events that are in the folder count; the rest is cut off.
        seconds: What the run's clock says.
    """

    def __init__(self, folder: RunFolder, group: str, num_events: int = 0, seconds: float = 0.0) -> None:
        self._folder, self._group = folder, group
        self._lines: list[str] = []
        if num_events and folder.trace.is_file():
            self._lines = folder.trace.read_text(encoding="utf-8").splitlines()[:num_events]
        self._file: TextIO | None = None
        self._origin = wall_seconds() - seconds

    @property
    def seconds(self) -> float:
        """The run's clock."""
        return wall_seconds() - self._origin

    def set_clock(self, seconds: float) -> None:
        """Puts the run's clock back or forward."""
        self._origin = wall_seconds() - seconds

    @property
    def num_events(self) -> int:
        """How many events there are."""
        return len(self._lines)

    def lead(self, leads: bool) -> None:
        """Whether this device writes the trace from now on."""
        if not leads:
            self.close()
        elif self._file is None:
            write_atomically(self._folder.trace, "".join(f"{line}\n" for line in self._lines))
            self._file = self._folder.open_trace()

    def report(self, event: str, **facts: Any) -> None:
        """Puts an event into the trace."""
        record: Facts = {"seconds": self.seconds, "device": self._group, "event": event, **facts}
        line = json.dumps(record, allow_nan=False)
        self._lines.append(line)
        if self._file is not None:
            self._file.write(line + "\n")
            self._file.flush()

    def to_disk(self) -> None:
        """Returns when the events so far cannot be lost any more."""
        if self._file is not None:
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Ends the writing."""
        if self._file is not None:
            self._file.close()
            self._file = None

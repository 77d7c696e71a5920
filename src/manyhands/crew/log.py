"""What a crew leaves behind: the trace of its run, written by whoever leads.

Every device keeps all events, so that another can write the trace when the leader is gone. Where each has a
folder of its own, each writes what it has seen.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
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
        told: Hears of every event.
    """

    def __init__(
        self,
        folder: RunFolder,
        group: str,
        num_events: int = 0,
        seconds: float = 0.0,
        told: Callable[[Facts], None] = lambda _event: None,
    ) -> None:
        self._folder, self._group, self._told = folder, group, told
        self._lock = threading.Lock()
        self._lines: list[str] = []
        if num_events and folder.trace.is_file():
            self._lines = folder.trace.read_text(encoding="utf-8").splitlines()[:num_events]
        self._file: TextIO | None = None
        self._start_s = seconds
        self._origin: float | None = None

    @property
    def seconds(self) -> float:
        """The run's clock, which stands until it is first set."""
        return self._start_s if self._origin is None else wall_seconds() - self._origin

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
        """Puts an event of the group into the trace."""
        self.emit(self._group, event, facts)

    def emit(self, device: str, event: str, facts: Facts) -> None:
        """Puts an event of the group, or of one device, into the trace; from any thread."""
        record: Facts = {"seconds": self.seconds, "device": device, "event": event, **facts}
        line = json.dumps(record, allow_nan=False)
        with self._lock:
            self._lines.append(line)
            if self._file is not None:
                self._file.write(line + "\n")
                self._file.flush()
        self._told(record)

    def to_disk(self) -> None:
        """Returns when the events so far cannot be lost any more."""
        if self._file is not None:
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Ends the writing."""
        if self._file is not None:
            self._file.close()
            self._file = None

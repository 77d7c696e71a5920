"""The journal: a run's events in order, and the way back into a run that was killed.

Live, an event is written as soon as it and everything before it is complete (an observed accuracy may
still be computing on another core). Resumed, the run repeats its control flow: each event it gives is
compared with the recorded line, and what took arithmetic the first time, the facts of works and
observations, is read from there. When the recorded events are used up, the run goes on live.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from pydantic_core import to_json

from manyhands.errors import ReplayDiverged
from manyhands.hand import Facts, Outcome

__all__ = ["Journal"]


class Journal:
    """Orders, writes and replays events.

    Args:
        write: Takes each complete event and its line of JSON, in order. Not called for replayed events.
        recorded: The lines of an earlier run to repeat first.
    """

    def __init__(self, write: Callable[[Facts, str], None], recorded: Sequence[str] = ()) -> None:
        self._write = write
        self._recorded = deque(recorded)
        self._waiting: deque[tuple[Facts, Future[Outcome] | None]] = deque()
        self.num_events = 0

    @property
    def replaying(self) -> bool:
        """Whether the next event is one that was recorded."""
        return bool(self._recorded)

    def upcoming(self) -> Facts:
        """The next recorded event."""
        event: Facts = json.loads(self._recorded[0])
        return event

    def repeat(self, event: Facts, *, observed: bool) -> None:
        """Takes an event while replaying: it must be the recorded one.

        What an observation added to the recorded event is not compared, for it is not computed again.
        """
        line = self._recorded.popleft()
        self.num_events += 1
        if observed:
            recorded = json.loads(line)
            same = {key: recorded.get(key) for key in event} == json.loads(_line(event))
        else:
            same = line == _line(event)
        if not same:
            raise ReplayDiverged(
                f"the trace's event {self.num_events} was {line} and is now {_line(event)}: "
                "the run was made by another version or its trace was edited; train the job anew"
            )

    def append(self, event: Facts, observation: Future[Outcome] | None = None) -> None:
        """Takes a new event; it is written when its observation and all before it are done."""
        self.num_events += 1
        self._waiting.append((event, observation))
        self.flush(wait=False)

    def flush(self, *, wait: bool) -> None:
        """Writes what is complete; with `wait`, everything."""
        while self._waiting:
            event, observation = self._waiting[0]
            if observation is not None:
                if not (wait or observation.done()):
                    return
                event.update(observation.result().facts)
            self._waiting.popleft()
            self._write(event, _line(event))


def _line(event: dict[str, Any]) -> str:
    return to_json(event, inf_nan_mode="null").decode()

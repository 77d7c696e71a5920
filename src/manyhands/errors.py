"""Every error that manyhands raises on purpose.

    ManyhandsError
    ├── JobError       the job file or the command line is wrong    (exit status 2)
    ├── Stopped        somebody pressed Ctrl-C                      (exit status 130)
    └── RunError       the run failed although the job was right    (exit status 1)
        ├── UpdateRefused    a received update does not fit or is not finite
        ├── MessageDamaged   bytes from a peer or a file that are not a message
        └── ReplayDiverged   a resumed run does not repeat its own trace

An error says in one line what is wrong, where, and what would be right.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

__all__ = [
    "JobError",
    "ManyhandsError",
    "MessageDamaged",
    "ReplayDiverged",
    "RunError",
    "Stopped",
    "UpdateRefused",
    "did_you_mean",
    "placed",
]


class ManyhandsError(Exception):
    """Root of the tree; the command line turns it into one line and an exit status."""

    exit_status = 1


class JobError(ManyhandsError):
    """The user's job or command line is wrong.

    Args:
        key: The dotted key as the user writes it, for example ``fleet.device[2].kind``.
        value: What the user wrote (``None`` where something is missing).
        expected: What would be right, as the end of the sentence.
    """

    exit_status = 2

    def __init__(self, key: str, value: Any, expected: str) -> None:
        self.key, self.value, self.expected = key, value, expected
        shown = "" if value is None else f" = {_shown(value)}"
        super().__init__(f"{key}{shown}: {expected}")


class Stopped(ManyhandsError):
    """Somebody stopped the run."""

    exit_status = 130


class RunError(ManyhandsError):
    """The run failed although the job was right."""


class UpdateRefused(RunError):
    """A received update has a wrong name, shape or dtype, or holds a NaN or an infinity."""


class MessageDamaged(RunError):
    """Bytes that claim to be a message and are not."""


class ReplayDiverged(RunError):
    """A resumed run does not repeat the events its trace recorded."""


def did_you_mean(said: str, known: Iterable[str]) -> str:
    """A hint for the middle of a sentence, if something of that sort is known; else nothing."""
    by_folded = {name.casefold(): name for name in known}
    close = get_close_matches(said.casefold(), by_folded, n=1)
    return f"; did you mean {by_folded[close[0]]}?" if close else ""


def placed(error: BaseException, place: str) -> RunError:
    """An error with the device and stage in which it arose."""
    return RunError(f"{place}: {type(error).__name__}: {' '.join(str(error).split())}")


def _shown(value: Any) -> str:
    """The value as TOML would have it, on one line, shortened to fit."""
    if isinstance(value, bool):
        text = str(value).lower()
    elif isinstance(value, str):
        text = json.dumps(value, ensure_ascii=False)
    else:
        text = " ".join(str(value).split())
    return text if len(text) <= 80 else text[:77] + "..."

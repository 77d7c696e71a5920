"""A device that joins a live job: what whoever starts it says of it, and how it is told to leave."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from manyhands.errors import RunError
from manyhands.wire.diagnosis import why_unreachable

__all__ = ["Joiner", "Line", "reasons", "stoppable"]

Ends = TypeVar("Ends")


@dataclass(frozen=True)
class Line:
    """How this device reaches the others; what is empty, the job's ``[live]`` says.

    Attributes:
        listen: Where others reach it, ``HOST:PORT`` each.
        connect: Whom it calls.
        keys: The folder with its certificate.
    """

    listen: tuple[str, ...] = ()
    connect: tuple[str, ...] = ()
    keys: Path | None = None


@dataclass(frozen=True)
class Joiner:
    """What a device says when it joins.

    Attributes:
        name: Which of the job's devices this is.
        out: Its folder; what is there is gone on with.
        line: How it reaches the others.
        tethered: Leave when standard input ends, because whoever started this process is gone.
    """

    name: str
    out: Path
    line: Line = Line()
    tethered: bool = False


def reasons(connect: Sequence[str], keys: Path | None) -> list[str]:
    """Why those whom it calls will not have it."""
    return [reason for where in connect if (reason := why_unreachable(where, keys)) is not None]


async def stoppable(live: Coroutine[Any, Any, Ends], joiner: Joiner) -> Ends | None:
    """Runs a device until it is done; None if it was told to leave.

    Args:
        live: What the device does, and gives in the end.
        joiner: The device.
    """
    loop = asyncio.get_running_loop()
    task = loop.create_task(live)
    failed: list[str] = []

    def fail(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        failed.append(str(context.get("exception") or context.get("message")))
        task.cancel()

    loop.set_exception_handler(fail)
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, task.cancel)
    if joiner.tethered:
        loop.add_reader(sys.stdin.fileno(), task.cancel)
    try:
        return await task
    except asyncio.CancelledError:
        if failed:
            raise RunError(f"{joiner.name}: {failed[0]}") from None
        return None

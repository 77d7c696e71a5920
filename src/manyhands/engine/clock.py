"""Time: the virtual clock that the simulator runs on, and the only wall clock it ever reads.

`VirtualLoop` is an asyncio event loop in which nobody waits. Everything scheduled lies in one heap
keyed by (time, sequence), so order is total: two things due at the same instant happen in the order in
which they were scheduled, on every machine, in every run. When nothing is ready, the clock jumps to the
next entry. ``asyncio.sleep``, timeouts, tasks and task groups work as usual; sockets and threads do not,
on purpose.
"""

from __future__ import annotations

import asyncio
import heapq
import time
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any

__all__ = ["Interval", "RunClock", "VirtualLoop", "epoch_seconds", "wall_seconds"]


def wall_seconds() -> float:
    """Seconds of real time, from an arbitrary origin."""
    return time.monotonic()


def epoch_seconds() -> float:
    """Seconds since 1970, by which devices that share no clock agree on when things happened."""
    return time.time()


class RunClock:
    """Real seconds since a run began, steady while the process lives even if somebody sets the clock.

    Args:
        origin_s: When the run began, in seconds since 1970.
    """

    def __init__(self, origin_s: float) -> None:
        self.origin_s = origin_s
        self._ahead_s = epoch_seconds() - origin_s - wall_seconds()

    @property
    def seconds(self) -> float:
        """How long the run has been going on."""
        return wall_seconds() + self._ahead_s


class Interval:
    """True at most once in so many seconds of real time."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._last = wall_seconds()

    def due(self) -> bool:
        """Whether the interval has passed since it last was due."""
        now = wall_seconds()
        if now - self._last < self.seconds:
            return False
        self._last = now
        return True


class VirtualLoop(asyncio.AbstractEventLoop):
    """An asyncio loop on a virtual clock: what tasks, futures and timeouts ask of a loop, and no more."""

    def __init__(self) -> None:
        self._now = 0.0
        self._sequence = 0
        self._heap: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._ready: deque[asyncio.Handle] = deque()
        self._failure: BaseException | None = None
        self._stopped = False

    def time(self) -> float:
        """The virtual time in seconds."""
        return self._now

    def run_until_idle(self) -> None:
        """Runs until nothing is scheduled any more; raises what a callback could not handle."""
        previous = asyncio._get_running_loop()
        asyncio._set_running_loop(self)
        self._stopped = False
        try:
            while (self._ready or self._heap) and not self._stopped:
                if not self._ready:
                    self._advance()
                for _ in range(len(self._ready)):
                    handle = self._ready.popleft()
                    if not handle.cancelled():
                        handle._run()
                    if self._failure is not None:
                        failure, self._failure = self._failure, None
                        raise failure
        finally:
            asyncio._set_running_loop(previous)

    def stop(self) -> None:
        """Ends `run_until_idle` although something may still be scheduled."""
        self._stopped = True

    def clear(self) -> None:
        """Forgets everything that is scheduled."""
        self._ready.clear()
        self._heap.clear()

    def _advance(self) -> None:
        """Moves the clock to the next entry that still counts and makes that one entry ready."""
        while self._heap:
            when, _, timer = heapq.heappop(self._heap)
            if not timer.cancelled():
                self._now = max(self._now, when)
                self._ready.append(timer)
                return

    # What asyncio's tasks, futures and timeouts ask of a loop.

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        self._sequence += 1
        heapq.heappush(self._heap, (when, self._sequence, timer))
        return timer

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, Any], *, name: str | None = None, context: Context | None = None
    ) -> asyncio.Task[Any]:
        return asyncio.Task(coro, loop=self, name=name, context=context)

    def fail(self, error: BaseException) -> None:
        """Ends `run_until_idle` with this error."""
        self._failure = self._failure or error

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self.fail(error if isinstance(error, BaseException) else RuntimeError(str(context.get("message"))))

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return asyncio._get_running_loop() is self

    def is_closed(self) -> bool:
        return False

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """A cancelled timer stays in the heap until its time and is then passed over."""

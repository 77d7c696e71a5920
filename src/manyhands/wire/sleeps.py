"""Notices that the whole process has slept: it was stopped, or its machine was.

A busy event loop is no sleep, so a thread of its own looks at the clock.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

__all__ = ["Sleeps"]


class Sleeps:
    """Calls for something to be done on a loop after every sleep longer than some seconds."""

    def __init__(
        self,
        longest_s: float,
        loop: asyncio.AbstractEventLoop,
        after: Callable[[], Coroutine[Any, Any, None]],
    ) -> None:
        self._longest_s, self._loop, self._after = longest_s, loop, after
        self._stopped = threading.Event()
        threading.Thread(target=self._watch, name="sleeps", daemon=True).start()

    def stop(self) -> None:
        """Looks no longer."""
        self._stopped.set()

    def _watch(self) -> None:
        nap_s = self._longest_s / 8
        before_s = self._loop.time()
        while not self._stopped.wait(nap_s):
            now_s = self._loop.time()
            if now_s - before_s > self._longest_s:
                with suppress(RuntimeError):  # the loop is closed
                    asyncio.run_coroutine_threadsafe(self._after(), self._loop)
            before_s = self._loop.time()

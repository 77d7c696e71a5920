"""A mailbox: what has come for a hand and was not asked for yet."""

from __future__ import annotations

import asyncio
from collections import deque

from manyhands.hand import Message

__all__ = ["Mailbox"]


class Mailbox:
    """Messages in the order in which they came; one reader at a time."""

    def __init__(self) -> None:
        self._messages: deque[Message] = deque()
        self._waiting: tuple[tuple[str, ...], asyncio.Future[Message]] | None = None

    def deliver(self, message: Message) -> None:
        """Puts a message in, or straight into the hand that waits for it."""
        if self._waiting is not None:
            kinds, future = self._waiting
            if not future.done() and (not kinds or message.kind in kinds):
                future.set_result(message)
                return
        self._messages.append(message)

    async def receive(self, *kinds: str, timeout_s: float | None = None) -> Message | None:
        """The first message of one of these kinds (of any, if none is named); None when time is up."""
        for message in self._messages:
            if not kinds or message.kind in kinds:
                self._messages.remove(message)
                return message
        if timeout_s is not None and timeout_s <= 0:
            return None
        future: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._waiting = (kinds, future)
        try:
            if timeout_s is None:
                return await future
            async with asyncio.timeout(timeout_s):
                return await future
        except TimeoutError:
            # It may have come in the very moment in which time was up.
            return future.result() if future.done() and not future.cancelled() else None
        finally:
            self._waiting = None

    def clear(self) -> None:
        """Forgets everything."""
        self._messages.clear()
        self._waiting = None

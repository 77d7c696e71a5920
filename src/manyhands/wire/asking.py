"""Asking over the wire: for a part of a body, of one holder; and who has a body at all.

Answers come in on the network's own threads and are handed to the loop. Only the first answer to a question
is looked at, so that one who answers without end costs a callback each time and nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import zenoh

from manyhands.wire import topics
from manyhands.wire.shelf import ASK_WHO, BUSY, GONE

__all__ = ["Asker", "Busy", "Gone", "Lied", "Silent"]

MAX_HOLDERS = 64
MAX_ERROR_BYTES = 64
WHO_HAS_S = 3.0
"""How long to wait for those who say that they have a body."""


class Silent(Exception):
    """No answer, or that it has nothing now."""


class Busy(Silent):
    """The holder has not yet sent all that it was asked for before."""


class Gone(Silent):
    """The holder has it no longer."""


class Lied(Exception):
    """An answer that cannot be."""


class Asker:
    """Asks for one hand.

    Args:
        session: Over which; another may take its place.
        job: The job's hash.
        name: The hand.
        part_s: How long an answer may take.
    """

    def __init__(self, session: zenoh.Session, job: str, name: str, part_s: float) -> None:
        self.session = session
        self._job, self._name, self._part_s = job, name, part_s

    async def part(
        self, holder: str, digest: str, start: int, stop: int, found_out: Callable[[str], None]
    ) -> zenoh.ZBytes:
        """What a holder gives for the bytes of a body from `start` to `stop`: so many, but maybe others.

        `found_out` is told of a lie, even when it comes after the answer.

        Raises:
            Silent: They did not come.
            Lied: Something else came.
        """
        reply = _Reply(stop - start, found_out)
        where = topics.body(self._job, holder, self._name, digest)
        self._ask(where, f"{start}-{stop}".encode(), reply.take, reply.end, reply.cancel)
        try:
            async with asyncio.timeout(self._part_s + 1):
                return await reply.first
        except TimeoutError:
            raise Silent("no answer in time") from None
        finally:
            if not reply.first.done() or reply.first.cancelled():
                reply.cancel.cancel()

    async def who_has(self, digest: str) -> list[str]:
        """The names of those who say that they have a body."""
        loop = asyncio.get_running_loop()
        found: list[str] = []
        over: asyncio.Future[None] = loop.create_future()
        cancel = zenoh.CancellationToken()

        def take(reply: zenoh.Reply) -> None:
            if reply.ok is not None and len(found) < MAX_HOLDERS:
                found.append(topics.name_in(str(reply.ok.key_expr)))

        def end() -> None:
            try:
                loop.call_soon_threadsafe(_finish, over)
            except RuntimeError:
                return

        self._ask(topics.any_holder(self._job, self._name, digest), ASK_WHO, take, end, cancel)
        try:
            async with asyncio.timeout(min(self._part_s, WHO_HAS_S)):
                await over
        except TimeoutError:
            pass  # some may never answer; whoever has is enough
        finally:
            if not over.done() or over.cancelled():
                cancel.cancel()
        return [name for name in dict.fromkeys(found) if name != self._name]

    def _ask(
        self,
        where: str,
        what: bytes,
        take: Callable[[zenoh.Reply], None],
        end: Callable[[], None],
        cancel: zenoh.CancellationToken,
    ) -> None:
        try:
            self.session.get(
                where,
                zenoh.handlers.Callback(take, end, indirect=False),
                payload=what,
                target=zenoh.QueryTarget.ALL,
                consolidation=zenoh.ConsolidationMode.NONE,
                congestion_control=zenoh.CongestionControl.BLOCK,
                priority=zenoh.Priority.DATA_LOW,
                timeout=self._part_s,
                cancellation_token=cancel,
            )
        except zenoh.ZError:  # the session is being left: nobody answers
            end()


class _Reply:
    """What comes back for one query, handed from the network's thread to the loop."""

    def __init__(self, nbytes: int, found_out: Callable[[str], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._nbytes = nbytes
        self._found_out = found_out
        self.first: asyncio.Future[zenoh.ZBytes] = self._loop.create_future()
        self.cancel = zenoh.CancellationToken()
        self._num = 0

    def take(self, reply: zenoh.Reply) -> None:
        if reply.ok is None:  # from the holder, or from Zenoh when time is up
            said = b"" if reply.err is None else reply.err.payload
            self._say(_excuse(bytes(said) if len(said) <= MAX_ERROR_BYTES else b""))
            return
        self._num += 1
        if self._num > 2:  # known to be one too many
            return
        if self._num == 2:
            self._say(Lied("more answers than questions"))
        elif len(reply.ok.payload) != self._nbytes:
            self._say(Lied(f"{len(reply.ok.payload)} bytes instead of {self._nbytes}"))
        else:
            self._say(reply.ok.payload)

    def end(self) -> None:
        self._say(Silent("no answer"))

    def _say(self, what: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(self._settle, what)
        except RuntimeError:  # the loop is closed: nobody waits any more
            return

    def _settle(self, what: Any) -> None:
        if isinstance(what, Lied):
            self._found_out(str(what))
            self.cancel.cancel()
        if self.first.done():
            return
        if isinstance(what, Exception):
            self.first.set_exception(what)
        else:
            self.first.set_result(what)


def _excuse(said: bytes) -> Silent:
    """Why there is no answer, from what was said instead."""
    if said == GONE:
        return Gone("has it no longer")
    return Busy("is busy") if said == BUSY else Silent("is busy or too slow")


def _finish(over: asyncio.Future[None]) -> None:
    if not over.done():
        over.set_result(None)

"""Pulling a body: a few parts at a time, each checked, each asked for again until it comes.

A part that does not come is asked for again after a while, in smaller parts, and of another holder where
there is one. A holder that gives wrong bytes, a wrong number of them or more than was asked for is not asked
again. Nothing that a holder does costs more memory than the body and the parts under way.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any

import numpy
import zenoh

from manyhands.errors import RunError
from manyhands.wire import topics
from manyhands.wire.announcement import Announcement
from manyhands.wire.body import DIGEST_BYTES, leaf_bytes_of
from manyhands.wire.shelf import ASK_WHO, GONE, MAX_OUTSTANDING_BYTES

__all__ = ["HolderLied", "NotPulled", "Pace", "Puller"]

MAX_HOLDERS = 64
MAX_ERROR_BYTES = 64


class NotPulled(RunError):
    """A body did not come."""


class HolderLied(NotPulled):
    """A body did not come because whoever had it gave something else."""


@dataclass(frozen=True)
class Pace:
    """How a body is pulled.

    Attributes:
        part_bytes: How much is asked for at once; less on a slow link.
        num_parts: How many parts are under way.
        part_s: How long a part may take.
        give_up_s: How long nothing at all may come.
        pause_s: How long to wait before asking again; twice as long each time, up to `part_s`.
    """

    part_bytes: int = 1 << 20
    num_parts: int = 4
    part_s: float = 10.0
    give_up_s: float = 60.0
    pause_s: float = 0.1


class _Silent(Exception):
    """No answer, or that it has nothing now."""


class _Gone(_Silent):
    """The holder has it no longer."""


class _Lied(Exception):
    """An answer that cannot be."""


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
            short = len(said) <= MAX_ERROR_BYTES and bytes(said) == GONE
            self._say(_Gone("has it no longer") if short else _Silent("is busy or too slow"))
            return
        self._num += 1
        if self._num > 2:  # known to be one too many
            return
        if self._num == 2:
            self._say(_Lied("more answers than questions"))
        elif len(reply.ok.payload) != self._nbytes:
            self._say(_Lied(f"{len(reply.ok.payload)} bytes instead of {self._nbytes}"))
        else:
            self._say(reply.ok.payload)

    def end(self) -> None:
        self._say(_Silent("no answer"))

    def _say(self, what: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(self._settle, what)
        except RuntimeError:  # the loop is closed: nobody waits any more
            return

    def _settle(self, what: Any) -> None:
        if isinstance(what, _Lied):
            self._found_out(str(what))
            self.cancel.cancel()
        if self.first.done():
            return
        if isinstance(what, Exception):
            self.first.set_exception(what)
        else:
            self.first.set_result(what)


@dataclass
class _Pull:
    """How far one pull has come."""

    wanted: Announcement
    data: memoryview
    holders: list[str]
    leaf_bytes: int
    span: int
    todo: deque[tuple[int, int]]
    came_s: float
    liars: dict[str, str] = field(default_factory=dict)
    num_done: int = 0
    num_silent: int = 0


class Puller:
    """Pulls bodies for one hand.

    Args:
        session: Over which.
        job: The job's hash.
        name: The hand.
        executor: Checks what came, so that the loop does not wait for it.
        pace: How.
        lied: Is told of a holder that gave something else, and what.
        there: Whether a holder is known to be there; one that is gone is not waited for.
    """

    def __init__(
        self,
        session: zenoh.Session,
        job: str,
        name: str,
        executor: Executor,
        pace: Pace,
        lied: Callable[[str, str], None],
        there: Callable[[str], bool] = lambda _holder: True,
    ) -> None:
        self._session, self._job, self._name = session, job, name
        self._executor, self._pace, self._lied, self._there = executor, pace, lied, there

    async def pull(
        self,
        wanted: Announcement,
        sender: str,
        progress: Callable[[int, int], None] = lambda _done, _all: None,
    ) -> memoryview:
        """The bytes that an announcement is about.

        Raises:
            HolderLied: All who had them gave something else.
            NotPulled: They did not come, or are there no longer.
        """
        leaf_bytes = leaf_bytes_of(wanted.nbytes)
        span = max(self._pace.part_bytes // leaf_bytes, 1)
        num_leaves = len(wanted.digests) // DIGEST_BYTES
        todo = deque((at, min(at + span, num_leaves)) for at in range(0, num_leaves, span))
        now = asyncio.get_running_loop().time()
        state = _Pull(wanted, numpy.empty(wanted.nbytes, numpy.uint8).data, [sender], leaf_bytes, span, todo, now)
        num_workers = max(1, min(self._pace.num_parts, MAX_OUTSTANDING_BYTES // (span * leaf_bytes)))
        try:
            async with asyncio.TaskGroup() as group:
                for number in range(min(num_workers, len(todo))):
                    group.create_task(self._work(state, number, progress))
        except ExceptionGroup as failures:
            known, others = failures.split(NotPulled)
            if known is None or others is not None:
                raise
            raise known.exceptions[0] from None
        return state.data

    async def _work(self, state: _Pull, number: int, progress: Callable[[int, int], None]) -> None:
        """Pulls part after part until none is left."""
        loop, pause_s = asyncio.get_running_loop(), self._pace.pause_s
        while state.todo:
            first, last = part = state.todo.popleft()
            if last - first > state.span:
                state.todo.appendleft((first + state.span, last))
                part = first, first + state.span
            holder = state.holders[0]
            began_s = loop.time()
            try:
                if holder in state.liars:
                    raise _Lied(state.liars[holder])  # noqa: TRY301 (found out after its last answer was taken)
                await self._part(state, part, holder)
            except _Silent as error:
                state.todo.appendleft(part)
                state.num_silent += 1
                if number and not isinstance(error, _Gone):
                    await asyncio.sleep(pause_s)  # fewer under way may do better
                await self._elsewhere(state, holder, error)
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, self._pace.part_s)
                state.span = max(state.span // 2, 1)
            except _Lied as error:
                state.todo.appendleft(part)
                self._found_out(state, holder, str(error))
                await self._elsewhere(state, holder, error)
            else:
                state.came_s, pause_s = loop.time(), self._pace.pause_s
                if state.came_s - began_s > self._pace.part_s / 4:
                    state.span = max(state.span // 2, 1)
                state.num_done += part[1] - part[0]
                progress(min(state.num_done * state.leaf_bytes, len(state.data)), len(state.data))

    async def _part(self, state: _Pull, part: tuple[int, int], holder: str) -> None:
        """Asks a holder for some leaves and puts them in their place.

        Raises:
            _Silent: They did not come.
            _Lied: Something else came.
        """
        start, stop = part[0] * state.leaf_bytes, min(part[1] * state.leaf_bytes, len(state.data))
        reply = _Reply(stop - start, lambda lie: self._found_out(state, holder, lie))
        where = topics.body(self._job, holder, self._name, state.wanted.name)
        self._ask(where, f"{start}-{stop}".encode(), reply.take, reply.end, reply.cancel)
        try:
            async with asyncio.timeout(self._pace.part_s + 1):
                payload = await reply.first
        except TimeoutError:
            raise _Silent("no answer in time") from None
        finally:
            if not reply.first.done() or reply.first.cancelled():
                reply.cancel.cancel()
        fits = await asyncio.get_running_loop().run_in_executor(
            self._executor, _put, state, part, start, payload
        )
        if not fits:
            raise _Lied("wrong bytes")

    def _found_out(self, state: _Pull, holder: str, lie: str) -> None:
        if holder not in state.liars:
            state.liars[holder] = lie
            self._lied(holder, lie)

    def _ask(
        self,
        where: str,
        what: bytes,
        take: Callable[[zenoh.Reply], None],
        end: Callable[[], None],
        cancel: zenoh.CancellationToken,
    ) -> None:
        self._session.get(
            where,
            zenoh.handlers.Callback(take, end, indirect=False),
            payload=what,
            target=zenoh.QueryTarget.ALL,
            consolidation=zenoh.ConsolidationMode.NONE,
            congestion_control=zenoh.CongestionControl.BLOCK,
            priority=zenoh.Priority.DATA_LOW,
            timeout=self._pace.part_s,
            cancellation_token=cancel,
        )

    async def _elsewhere(self, state: _Pull, holder: str, error: Exception) -> None:
        """Turns to another holder, if there is one that has not lied.

        Raises:
            NotPulled: There is no use in going on.
        """
        now = asyncio.get_running_loop().time()
        if now - state.came_s > self._pace.give_up_s:
            raise NotPulled(f"{holder}: {error}; nothing has come for {self._pace.give_up_s:g} s")
        if state.holders[0] == holder:
            others = [name for name in await self._who_has(state.wanted.name) if name not in state.liars]
            if state.holders[0] == holder:  # nobody else has turned elsewhere in the meantime
                next_ones = [name for name in others if name != holder]
                if next_ones:
                    state.holders = next_ones
                elif holder in state.liars:
                    raise HolderLied(f"{holder}: {state.liars[holder]}")
                elif not others and (isinstance(error, _Gone) or not self._there(holder)):
                    raise NotPulled(f"{holder}: {error}")

    async def _who_has(self, digest: str) -> list[str]:
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
            async with asyncio.timeout(min(self._pace.part_s, 3.0)):
                await over
        except TimeoutError:
            pass  # some may never answer; whoever has is enough
        finally:
            if not over.done() or over.cancelled():
                cancel.cancel()
        return [name for name in dict.fromkeys(found) if name != self._name]


def _finish(over: asyncio.Future[None]) -> None:
    if not over.done():
        over.set_result(None)


def _put(state: _Pull, part: tuple[int, int], start: int, payload: zenoh.ZBytes) -> bool:
    """Checks leaves against their digests and puts them in their place; False if one is wrong."""
    came = memoryview(payload.to_bytes())
    for leaf in range(*part):
        at = (leaf - part[0]) * state.leaf_bytes
        digest = state.wanted.digests[leaf * DIGEST_BYTES : (leaf + 1) * DIGEST_BYTES]
        if hashlib.sha256(came[at : at + state.leaf_bytes]).digest() != digest:
            return False
    state.data[start : start + len(came)] = came
    return True

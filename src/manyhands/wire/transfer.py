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

import numpy
import zenoh
from numpy.typing import NDArray

from manyhands.errors import RunError
from manyhands.wire.announcement import Announcement
from manyhands.wire.asking import Asker, Busy, Gone, Lied, Silent
from manyhands.wire.body import DIGEST_BYTES, leaf_bytes_of
from manyhands.wire.shelf import MAX_OUTSTANDING_BYTES

__all__ = ["HolderLied", "NotPulled", "Pace", "Puller"]

BUSY_S = 0.002
"""How long to wait for a holder that is busy, twice as long each time, until it is taken for a silent one. It
takes note of what it has sent a moment after that has arrived, so there is rarely more to it."""


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


@dataclass
class _Pull:
    """How far one pull has come."""

    wanted: Announcement
    data: NDArray[numpy.uint8]
    holders: list[str]
    leaf_bytes: int
    span: int
    todo: deque[tuple[int, int]]
    came_s: float
    liars: dict[str, str] = field(default_factory=dict)
    num_done: int = 0


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
        self.asker = Asker(session, job, name, pace.part_s)
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
        # Not zeroed, which would be one more pass over it; every byte is written before it is given out.
        data = numpy.empty(wanted.nbytes, numpy.uint8)
        state = _Pull(wanted, data, [sender], leaf_bytes, span, todo, now)
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
        return state.data.data

    async def _work(self, state: _Pull, number: int, progress: Callable[[int, int], None]) -> None:
        """Pulls part after part until none is left."""
        loop, pause_s, busy_s = asyncio.get_running_loop(), self._pace.pause_s, BUSY_S
        while state.todo:
            first, last = part = state.todo.popleft()
            if last - first > state.span:
                state.todo.appendleft((first + state.span, last))
                part = first, first + state.span
            holder = state.holders[0]
            began_s = loop.time()
            try:
                if holder in state.liars:
                    raise Lied(state.liars[holder])  # noqa: TRY301 (found out after its last answer was taken)
                await self._part(state, part, holder)
            except Silent as error:
                state.todo.appendleft(part)
                if isinstance(error, Busy) and busy_s < self._pace.pause_s:
                    await asyncio.sleep(busy_s)
                    busy_s *= 2
                    continue
                if number and not isinstance(error, Gone):
                    await asyncio.sleep(pause_s)  # fewer under way may do better
                await self._elsewhere(state, holder, error)
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, self._pace.part_s)
                state.span = max(state.span // 2, 1)
            except Lied as error:
                state.todo.appendleft(part)
                self._found_out(state, holder, str(error))
                await self._elsewhere(state, holder, error)
            else:
                state.came_s, pause_s, busy_s = loop.time(), self._pace.pause_s, BUSY_S
                if state.came_s - began_s > self._pace.part_s / 4:
                    state.span = max(state.span // 2, 1)
                state.num_done += part[1] - part[0]
                progress(min(state.num_done * state.leaf_bytes, len(state.data)), len(state.data))

    async def _part(self, state: _Pull, part: tuple[int, int], holder: str) -> None:
        """Asks a holder for some leaves and puts them in their place.

        Raises:
            Silent: They did not come.
            Lied: Something else came.
        """
        start, stop = part[0] * state.leaf_bytes, min(part[1] * state.leaf_bytes, len(state.data))
        payload = await self.asker.part(
            holder, state.wanted.name, start, stop, lambda lie: self._found_out(state, holder, lie)
        )
        fits = await asyncio.get_running_loop().run_in_executor(
            self._executor, _put, state, part, start, payload
        )
        if not fits:
            raise Lied("wrong bytes")

    def _found_out(self, state: _Pull, holder: str, lie: str) -> None:
        if holder not in state.liars:
            state.liars[holder] = lie
            self._lied(holder, lie)

    async def _elsewhere(self, state: _Pull, holder: str, error: Exception) -> None:
        """Turns to another holder, if there is one that has not lied.

        Raises:
            NotPulled: There is no use in going on.
        """
        now = asyncio.get_running_loop().time()
        if now - state.came_s > self._pace.give_up_s:
            raise NotPulled(f"{holder}: {error}; nothing has come for {self._pace.give_up_s:g} s")
        if state.holders[0] == holder:
            having = await self.asker.who_has(state.wanted.name)
            others = [name for name in having if name not in state.liars]
            if state.holders[0] == holder:  # nobody else has turned elsewhere in the meantime
                next_ones = [name for name in others if name != holder]
                if next_ones:
                    state.holders = next_ones
                elif holder in state.liars:
                    raise HolderLied(f"{holder}: {state.liars[holder]}")
                elif not others and (isinstance(error, Gone) or not self._there(holder)):
                    raise NotPulled(f"{holder}: {error}")


def _put(state: _Pull, part: tuple[int, int], start: int, payload: zenoh.ZBytes) -> bool:
    """Checks leaves against their digests and puts them in their place; False if one is wrong."""
    came = memoryview(payload.to_bytes())
    for leaf in range(*part):
        at = (leaf - part[0]) * state.leaf_bytes
        digest = state.wanted.digests[leaf * DIGEST_BYTES : (leaf + 1) * DIGEST_BYTES]
        if hashlib.sha256(came[at : at + state.leaf_bytes]).digest() != digest:
            return False
    # By numpy, which lets other threads go on: to write to new memory can take longer than all the rest.
    state.data[start : start + len(came)] = numpy.frombuffer(came, numpy.uint8)
    return True

"""One device of a tile group on a host of its own: finds the others, trains with them, and forms anew.

The wire carries only who is there, how each stands, and calls (`crew.muster`). The training itself is the
crew's (`crew.member`), in a thread of its own (`crew.formation`).
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import torch

from manyhands.crew.formation import Formation, Place, Unreached
from manyhands.crew.log import Log
from manyhands.crew.meeting import Broken, Over
from manyhands.crew.member import Duty, finish
from manyhands.crew.muster import MAX_NUMBER, Call, Muster, read_call
from manyhands.crew.state import write_checkpoint
from manyhands.engine.clock import wall_seconds
from manyhands.engine.life import Past
from manyhands.engine.live import DIAGNOSE_AFTER_S, LiveSection
from manyhands.engine.live_hand import HELLO
from manyhands.errors import JobError, MessageDamaged, RunError
from manyhands.hand import Facts, Message
from manyhands.wire.expected import Expected, expect
from manyhands.wire.post import ZenohPost

__all__ = ["EXPECTED", "Mate"]

CALL = "call"
EXPECTED: Expected = replace(expect({}, MAX_NUMBER), kinds=frozenset({HELLO, CALL}))
"""What the devices of a tile group say to each other over the wire: no tensors."""

TICK_S = 0.5
GREET_EVERY_S = 2.0
HEAR_S = 1.0
LEAVE_S = 5.0
MAX_FUTILE = 5
"""How often a group may break at the same step although all its devices are there."""


class Mate:
    """A device of a tile group.

    Args:
        duty: Its part; with `keeps`.
        muster: Its view of the others.
        post: Its mail.
        log: Its trace.
        section: How long to wait.
        past: Its earlier lives.
        finished: Called when what it leaves is on disk.
        diagnose: Says why others cannot be reached, in a line each; asked once, when nobody comes.
    """

    def __init__(
        self,
        duty: Duty,
        muster: Muster,
        post: ZenohPost,
        log: Log,
        section: LiveSection,
        past: Past,
        finished: Callable[[], None],
        diagnose: Callable[[], list[str]] = list,
    ) -> None:
        self._duty = replace(duty, regroups=self._regroups)
        self._muster, self._post, self._log = muster, post, log
        self._section, self._past = section, past
        self._finished, self._diagnose = finished, diagnose
        self._name, self._position = duty.name, duty.learner.position
        self._place = Place(post)
        self._latest: Facts = {}
        self._news = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._executor = ThreadPoolExecutor(
            1, "crew", initializer=torch.set_num_threads, initargs=(duty.job.run.threads,)
        )
        self._work: Future[None] | None = None
        self._incarnations: dict[str, int] = {}
        self._formation: Formation | None = None
        self._before: tuple[str, ...] = muster.ranked if past.incarnation == 1 else ()
        self._num_futile = 0
        self._hindrance = ""

    # Its life.

    async def run(self) -> bool:
        """Lives until the job is done and nobody needs it any more.

        Raises:
            RunError: The group breaks again and again for no reason that the wire knows of.
        """
        if self._past.incarnation > 1:
            self._log.emit(self._name, "restarted", {"incarnation": self._past.incarnation})
        self._muster.done = self._is_done()
        self._post.open(self._deliver, self._presence)
        self._post.answer_status(self._status)
        diagnosing = asyncio.get_running_loop().call_later(
            DIAGNOSE_AFTER_S, lambda: self._spawn(self._say_why())
        )
        try:
            while await self._called():
                await self._take_part()
        except asyncio.CancelledError:
            await self._leave()
            raise
        finally:
            diagnosing.cancel()
            await self._post.close()
            self._executor.shutdown(wait=False)
        return True

    def _is_done(self) -> bool:
        return self._position.closed >= self._duty.job.exchange.rounds

    async def _called(self) -> bool:
        """Waits for a call, or calls; False if there is nothing left to do."""
        began_s = alone_since_s = greeted_s = wall_seconds()
        if self._muster.missing and not self._muster.number:
            self._log.emit(self._name, "gathering", {"missing": list(self._muster.missing)})
        while not self._muster.busy:
            now_s = wall_seconds()
            if roster := self._muster.whom_to_call(now_s, waited=now_s - began_s >= self._section.wait_s):
                if self._fits(roster):
                    await self._summon(roster)
                    break
            elif self._muster.done:
                unfinished = self._muster.unfinished
                if set(unfinished) & set(self._muster.here):
                    alone_since_s = now_s
                elif not unfinished or now_s - alone_since_s >= self._section.linger_s:
                    return False
            if now_s - greeted_s >= GREET_EVERY_S:
                await self._greet_all()
                greeted_s = now_s
            try:
                async with asyncio.timeout(TICK_S):
                    await self._news.wait()
            except TimeoutError:
                continue
            self._news.clear()
        return True

    def _fits(self, roster: tuple[str, ...]) -> bool:
        """Whether the network fits these devices; if not, says so once and has it wait for more."""
        try:
            self._duty.fits(roster)
        except JobError as error:
            if str(error) != self._hindrance:
                self._hindrance = str(error)
                self._log.emit(self._name, "waiting", {"reason": f"for more devices: {error}"})
            return False
        return True

    async def _leave(self) -> None:
        """Goes politely: with what it has on disk."""
        self._log.emit(self._name, "left", {})
        if self._formation is not None:
            self._formation.break_off()
        until_s = wall_seconds() + LEAVE_S
        while self._work is not None and not self._work.done() and wall_seconds() < until_s:
            await asyncio.sleep(TICK_S / 10)
        if self._work is None or self._work.done():
            write_checkpoint(self._duty.folder.checkpoint, self._duty.job.hash, self._duty.learner)

    # Forming a group.

    async def _summon(self, roster: tuple[str, ...]) -> None:
        """Calls others to a store that is served here."""
        served = self._place.listen()
        host, port = served.getsockname()[:2]
        call = Call(self._muster.next_number(), roster, host, port)
        self._begin(Formation(call, self._duty, self._log, self._place, served))
        for peer in roster[1:]:
            await self._post.send(peer, Message(CALL, call.number, call.facts))

    def _begin(self, formation: Formation) -> None:
        self._formation = formation
        self._muster.busy, self._muster.number = True, formation.call.number
        self._spawn(self._greet_all())
        self._news.set()

    async def _take_part(self) -> None:
        """Forms the group that was called for and trains in it until that ends."""
        formation, steps_before = self._formation, self._position.num_steps
        assert formation is not None
        error: RunError | None = None
        self._work = self._executor.submit(formation.run, self._before)
        try:
            await asyncio.wrap_future(self._work)
        except (Broken, Over) as broken:
            error = broken
            await self._hear_who(formation)
        self._note_absent(formation, error)
        if self._is_done() and not self._muster.done:
            await asyncio.wrap_future(self._executor.submit(self._finish))
        self._muster.busy, self._muster.done = False, self._is_done()
        await self._greet_all()
        if error is not None:
            self._judge(formation, str(error), progress=self._position.num_steps > steps_before)

    async def _hear_who(self, formation: Formation) -> None:
        """Gives the wire a moment to say who is gone: a connection's end is often known before."""
        until_s = wall_seconds() + HEAR_S
        while not formation.lost and wall_seconds() < until_s:
            await asyncio.sleep(TICK_S / 10)

    def _judge(self, formation: Formation, cause: str, *, progress: bool) -> None:
        """Says why a group broke, and whether there is a point in another."""
        gone = ", ".join(sorted(formation.lost))
        why = f"{gone} {'are' if len(formation.lost) > 1 else 'is'} gone" if gone else cause
        _say(f"{self._name}: step {self._position.num_steps + 1} was broken off: {why}")
        self._num_futile = 0 if progress or gone else self._num_futile + 1
        if self._num_futile >= MAX_FUTILE:
            raise RunError(f"{self._name}: {cause}; {MAX_FUTILE} groups in a row have ended so")

    def _note_absent(self, formation: Formation, error: RunError | None) -> None:
        """Leaves out for a while those who were called in vain, or whose call led nowhere."""
        caller = formation.call.roster[0]
        reasons: dict[str, str] = {}
        if caller == self._name:
            reasons = {peer: f"{peer} did not come to the group's store" for peer in formation.absent()}
        elif isinstance(error, Unreached) and caller not in formation.lost:
            reasons = {caller: str(error)}
        for peer, reason in reasons.items():
            self._muster.rest(peer, wall_seconds())
            self._log.emit(self._name, "unreachable", {"reason": reason})

    def _regroups(self) -> bool:
        assert self._formation is not None
        return self._muster.waits_for(self._formation.roster, wall_seconds())

    def _finish(self) -> None:
        """Leaves the network behind, once."""
        finish(self._duty, self._log)
        write_checkpoint(self._duty.folder.checkpoint, self._duty.job.hash, self._duty.learner)
        self._finished()

    # The wire.

    def _presence(self, peer: str, incarnation: int | None) -> None:
        if self._incarnations.get(peer) == incarnation:
            return
        formation = self._formation if self._muster.busy and peer in self._incarnations else None
        if formation is not None and peer in formation.call.roster:
            formation.lose(peer)
        if incarnation is None:
            del self._incarnations[peer]
        else:
            self._incarnations[peer] = incarnation
            self._spawn(self._greet(peer))
        self._muster.presence(peer, incarnation is not None)
        self._news.set()

    def _deliver(self, message: Message) -> None:
        try:
            if message.kind == HELLO:
                reason = self._muster.hear(message.sender, message.facts)
                if reason:
                    refused = {"peer": message.sender, "round": None, "reason": reason}
                    self._log.emit(self._name, "refused", refused)
            elif message.kind == CALL:
                call = read_call(message.facts, message.sender, self._muster.ranked)
                if self._muster.takes(call):
                    self._begin(Formation(call, self._duty, self._log, self._place))
        except MessageDamaged as error:
            self._post.refusals.add(message.sender, str(error))
        self._news.set()

    async def _greet(self, peer: str) -> None:
        facts = self._muster.greeting()
        await self._post.send(peer, Message(HELLO, min(facts["said"], MAX_NUMBER), facts))

    async def _greet_all(self) -> None:
        for peer in list(self._incarnations):
            await self._greet(peer)

    async def _say_why(self) -> None:
        if not self._incarnations:
            for reason in await asyncio.to_thread(self._diagnose):
                self._log.emit(self._name, "unreachable", {"reason": reason})

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # What it tells.

    def take(self, event: Facts) -> None:
        """Takes note of an event of its own trace."""
        if event["event"] == "formed":
            self._before = tuple(event["peers"])
        elif event["event"] == "evaluated":
            self._latest |= {key: event[key] for key in ("accuracy", "score") if key in event}

    def _status(self) -> Facts:
        return {
            **self._latest,
            "round": self._position.closed,
            "seconds": self._log.seconds,
            "begun": self._muster.number > 0,
            "done": self._muster.done,
            "incarnation": self._past.incarnation,
            "here": list(self._muster.here),
            "lost": list(self._muster.lost),
            "hands": [self._duty.group],
        }


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)

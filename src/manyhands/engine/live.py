"""The live engine: one device of a job, as a process of its own, on the wall clock.

The programs are those of the simulator, unchanged. Their works run in a thread and are measured instead of
charged; their messages go through a post (`exchange.post`); what they save goes to disk, so that a device
that is killed at any moment is started again and goes on from there. The events are those of the simulator
too, each device's in a trace of its own; they are merged by time when all is over (`report.device_folder`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt
from pydantic_core import to_json

from manyhands.engine.clock import RunClock
from manyhands.engine.cores import Cores
from manyhands.engine.life import Diary, Manners
from manyhands.engine.live_hand import LiveHand, Place
from manyhands.errors import placed
from manyhands.hand import Facts, Outcome, Work
from manyhands.settings import Section

__all__ = ["LiveDevice", "LiveSection", "Place"]


DIAGNOSE_AFTER_S = 5.0
"""How long others may take to come before somebody looks why they do not."""


SETTLE_S = 3.0
"""How long links to those who are there may take to come up."""


class LiveSection(Section):
    """How devices of their own find and wait for each other (``[live]``); no part of the job's hash."""

    quorum: PositiveInt | None = None
    wait_s: NonNegativeFloat = 60.0
    patience_s: PositiveFloat = 30.0
    linger_s: NonNegativeFloat = 30.0
    restart_s: NonNegativeFloat | None = None
    listen: tuple[str, ...] = Field(default=("0.0.0.0:7447",), min_length=1)
    connect: tuple[str, ...] = ()
    multicast: bool = False
    profile: Path | None = None


class LiveDevice:
    """The hands of one device: its own, and the coordinator's where that lives here.

    Args:
        name: The device.
        places: Hand -> what it is given.
        devices: All devices of the job.
        section: How long to wait, and for whom.
        diary: What it has written down, and where it goes on.
        manners: How it meets others.
        threads: Of torch, for each work.
    """

    def __init__(
        self,
        name: str,
        places: Mapping[str, Place],
        devices: Collection[str],
        section: LiveSection,
        diary: Diary,
        manners: Manners | None = None,
        *,
        threads: int = 1,
    ) -> None:
        past = diary.past
        self.name, self.section = name, section
        self.clock = RunClock(past.origin_s)
        self.begun = False
        self.finish = diary.finished
        self.manners = manners or Manners()
        self._past, self._write = past, diary.write
        self._latest: Facts = {"round": 0}
        self._devices = set(devices)
        self._here = {name}
        self._lost: set[str] = set()
        self._others_began = self._left = False
        self._news = asyncio.Event()
        self._group = asyncio.TaskGroup()
        # One thing after the other, as on a small device; what the experimenter measures is beside it and
        # gives way, so that it slows a device as little as can be.
        self._cores, self._observers = Cores(1, threads), Cores(1, threads, beside=True)
        self.hands = dict[str, LiveHand]()
        for hand, place in places.items():
            self.hands[hand] = LiveHand(self, hand, place, done=hand in past.done)

    @property
    def here(self) -> tuple[str, ...]:
        """The devices that it believes to be there, itself included."""
        return tuple(sorted(self._here))

    @property
    def lost(self) -> tuple[str, ...]:
        """The devices that were there and are not."""
        return tuple(sorted(self._lost))

    def status(self) -> Facts:
        """How it stands, for whoever asks."""
        return {
            **self._latest,
            "seconds": self.clock.seconds,
            "begun": self.begun,
            "done": all(hand.done for hand in self.hands.values()),
            "incarnation": self._past.incarnation,
            "here": list(self.here),
            "lost": list(self.lost),
            "hands": list(self.hands),
        }

    async def run(self, opened: Callable[[], None] = lambda: None) -> dict[str, Any]:
        """Lives until all its hands are done and nobody needs them; gives what each has left.

        Args:
            opened: Called when its posts are open.

        Raises:
            RunError: A program or its work failed; says where.
        """
        try:
            async with self._group:
                if self._past.incarnation > 1:
                    self.emit(self.name, "restarted", {"incarnation": self._past.incarnation})
                for hand in self.hands.values():
                    await hand.open()
                opened()
                await self._gather()
                for hand in self.hands.values():
                    self.spawn(hand.live())
        except BaseExceptionGroup as group:
            raise _first(group) from None
        except asyncio.CancelledError:
            self.emit(self.name, "left", {})
            self._left = True
            raise
        finally:
            for hand in self.hands.values():
                await hand.close()
        return {name: hand.result for name, hand in self.hands.items()}

    def shut(self) -> None:
        """Gives the threads back; what still computes is waited for."""
        self._cores.close()
        self._observers.close()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Does something beside everything else; what it raises ends the device."""
        try:
            self._group.create_task(work)
        except RuntimeError:  # the device is leaving, and nothing matters any more
            work.close()

    # Beginning together.

    async def _gather(self) -> None:
        """Waits for the others: for all of them, and after a while for a quorum."""
        quorum = min(self.section.quorum or len(self._devices), len(self._devices))
        deadline_s = self.clock.seconds + self.section.wait_s
        said = False
        diagnosing = asyncio.get_running_loop().call_later(
            DIAGNOSE_AFTER_S, lambda: self.spawn(self._say_why())
        )
        while missing := self._missing():
            if self._others_began:
                # They do not wait; but a coordinator that begins before its links are up calls nobody.
                deadline_s = min(deadline_s, self.clock.seconds + SETTLE_S)
                self._others_began = False
                quorum = 1
            left_s = deadline_s - self.clock.seconds
            # One that is started again, when others have gone on without it, needs no quorum.
            if left_s <= 0 and (len(self._here) >= quorum or self._past.incarnation > 1):
                break
            if not said:
                self.emit(self.name, "gathering", {"missing": missing})
                said = True
            try:
                async with asyncio.timeout(left_s if left_s > 0 else None):
                    await self._news.wait()
            except TimeoutError:
                continue
            self._news.clear()
        diagnosing.cancel()

    def _missing(self) -> list[str]:
        """The devices that have not come, and the hands that one of its own has not met."""
        met = [set(hand.all_peers) - hand.met for hand in self.hands.values()]
        return sorted((self._devices - self._here).union(*met))

    async def _say_why(self) -> None:
        for reason in await asyncio.to_thread(self.manners.diagnose):
            self.emit(self.name, "unreachable", {"reason": reason})

    def begin(self) -> None:
        """The first of its hands begins."""
        self.begun = True

    def note(self, peer: str, *, here: bool) -> None:
        """Takes note of who is there."""
        if peer in self._devices and peer != self.name:
            (self._here.add if here else self._here.discard)(peer)
            (self._lost.discard if here else self._lost.add)(peer)
        self._news.set()

    def hear(self, peer: str, facts: Facts) -> str:
        """Takes what another tells of itself; says why nothing can be learned together, if so."""
        if reason := self.manners.heard(peer, facts):
            return reason
        if facts.get("begun") is True:
            self._others_began = True
            self._news.set()
        return ""

    # Events and works.

    def emit(
        self,
        hand: str,
        event: str,
        facts: Mapping[str, Any],
        observe: Work | None = None,
        at_s: float | None = None,
    ) -> None:
        """Writes an event of now, or of when it was; with an observation, as soon as that is made."""
        if self._left:  # who goes after it is none of its business
            return
        seconds = self.clock.seconds if at_s is None else at_s
        record: Facts = {"seconds": seconds, "device": hand, "event": event, **facts}
        if observe is None:
            self._put_down(record)
        else:
            self.spawn(self._observe(record, observe))

    async def _observe(self, record: Facts, observe: Work) -> None:
        try:
            outcome = await asyncio.wrap_future(self._observers.submit(observe))
        except Exception as error:
            raise placed(error, f"{record['device']}: {record['event']}") from error
        record.update(outcome.facts)
        self._put_down(record)

    def _put_down(self, record: Facts) -> None:
        if record["event"] in ("round", "evaluated"):
            told: Facts = {key: record[key] for key in ("round", "accuracy", "score") if key in record}
            self._latest |= told if record["event"] == "round" else told | {"round": self._latest["round"]}
        self._write(record, to_json(record, inf_nan_mode="null").decode())

    async def compute(self, hand: LiveHand, work: Work) -> Outcome:
        """Does a work, and measures it."""
        started = self.clock.seconds

        def run() -> Outcome:
            nonlocal started
            started = self.clock.seconds
            return work.run()

        try:
            outcome = await asyncio.wrap_future(self._cores.submit(replace(work, run=run)))
        except asyncio.CancelledError:
            self.emit(hand.name, "interrupted", {"work": work.name, "started": started, **work.facts})
            raise
        except Exception as error:
            where = ", ".join(f"{key} {value}" for key, value in work.facts.items())
            raise placed(error, f"{hand.name}: {work.name}{f' ({where})' if where else ''}") from error
        sizes = {name: weights.nbytes for name, weights in outcome.weights.items()}
        facts = {"work": work.name, "started": started, "flops": work.flops, **work.facts}
        self.emit(hand.name, "computed", facts | {"facts": outcome.facts, "bytes": sizes})
        return outcome


def _first(error: BaseException) -> BaseException:
    """Of errors that came together, the one that came first."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error

"""The simulator: every hand in one process, on a virtual clock.

The training arithmetic is real; time is not waited for but charged, from the profile of the device that
a hand lives on. The same programs, fleet, faults and seed give the same events to the byte, whatever the
number of cores: a work starts on a real core when its hand starts it, and its result is asked for only
when the virtual clock has reached its end, so works that overlap in virtual time overlap on the cores.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from manyhands.blocks import Weights
from manyhands.engine.carrier import Carrier
from manyhands.engine.checkpoint import Checkpoint
from manyhands.engine.clock import VirtualLoop
from manyhands.engine.cores import Cores
from manyhands.engine.faults import Faults, finish_time
from manyhands.engine.holdings import Holdings, Keeping
from manyhands.engine.journal import Journal
from manyhands.engine.network import Network
from manyhands.engine.outages import Outages
from manyhands.engine.participant import Participant
from manyhands.engine.simulated_hand import SimulatedHand
from manyhands.errors import ManyhandsError, placed
from manyhands.fleet import Contention, Fleet
from manyhands.hand import Facts, Outcome, Work

__all__ = ["Simulation", "Until"]


@dataclass(frozen=True)
class Until:
    """How far a run that was killed had come.

    Attributes:
        lines: Its trace, exactly the lines that the checkpoint counts.
        checkpoint: The tensors to go on with when these are used up.
    """

    lines: tuple[str, ...] = ()
    checkpoint: Checkpoint | None = None


class Simulation:
    """Drives the hands of one run.

    Args:
        fleet: The devices and links that time is charged for.
        participants: The hands, by name, in a fixed order.
        write: Takes each event and its JSON line, in order.
        faults: What goes wrong.
        contention: What else the devices do.
        cores: Where works run.
        until: From where to go on.
        keeping: How to keep checkpoints; None for none.
    """

    def __init__(
        self,
        fleet: Fleet,
        participants: Mapping[str, Participant],
        write: Callable[[Facts, str], None],
        *,
        faults: Faults | None = None,
        contention: Contention | None = None,
        cores: Cores | None = None,
        until: Until | None = None,
        keeping: Keeping | None = None,
    ) -> None:
        until = until or Until()
        self.loop = VirtualLoop()  # type: ignore[abstract]  # it leaves out sockets and processes on purpose
        self.fleet = fleet
        self.faults = faults or Faults()
        self.cores = cores or Cores()
        self.journal = Journal(write, until.lines)
        self.holdings = Holdings(keeping, until.checkpoint)
        self.hands = {name: SimulatedHand(self, name, p) for name, p in participants.items()}
        self.carrier = Carrier(self, Network(fleet, contention))
        self._outages = Outages(self)
        self._busy_until = dict.fromkeys((device.name for device in fleet.devices), 0.0)
        self._over = False
        self._num_works = 0
        self._running: dict[int, Future[Outcome]] = {}
        self._owed: dict[int, Work] = {}
        self._slow = {d.name: self.faults.slow_downs(d.name) for d in fleet.devices}
        self._loads = contention.loads if contention is not None else {}

    def run(self) -> dict[str, Any]:
        """Runs until all is quiet and returns what each program returned, or last saved if it did not end."""
        for hand in self.hands.values():
            self.start(hand)
        self._outages.schedule()
        thresholds = gc.get_threshold()
        # Many small objects and next to no cycles: looking for those took a fifth of the time.
        gc.set_threshold(100_000, 20, 20)
        try:
            self.loop.run_until_idle()
            for hand in self.hands.values():
                if hand.alive and not hand.finished:
                    self.emit(hand.name, "stranded", {})
            self.journal.flush(wait=True)
        finally:
            self._stop_tasks()
            self.cores.close()
            gc.set_threshold(*thresholds)
        return {name: hand.result if hand.finished else hand.saved for name, hand in self.hands.items()}

    def _stop_tasks(self) -> None:
        self.loop.clear()
        self._over = True
        for hand in self.hands.values():
            if hand.task is not None and not hand.task.done():
                hand.task.cancel()
        self.loop.run_until_idle()

    # Programs.

    def start(self, hand: SimulatedHand) -> None:
        """Has a hand begin its program, for the first time or anew."""
        hand.alive, hand.finished = True, False
        hand.incarnation += 1
        hand.task = self.loop.create_task(self._live(hand), name=hand.name)

    async def _live(self, hand: SimulatedHand) -> None:
        try:
            hand.result = await hand.program(hand)
            hand.finished = True
            if not any(self._matters(other) for other in self.hands.values()):
                self.loop.stop()
        except asyncio.CancelledError:
            raise
        except (ManyhandsError, OSError) as error:
            self.loop.fail(error)
        except Exception as error:  # any failure of a program ends the run, with its place
            self.loop.fail(placed(error, f"{hand.name} at {self.loop.time():.3f} s"))

    def _matters(self, hand: SimulatedHand) -> bool:
        """Whether the run goes on for this hand's sake.

        One that will be restarted counts only while somebody it talks to is still at work.
        """
        if hand.alive or hand.finished:
            return not hand.finished
        peers = [self.hands[peer] for peer in hand.all_peers]
        return self._outages.will_restart(hand) and (not peers or any(not peer.finished for peer in peers))

    # Events.

    def emit(self, device: str, event: str, facts: Mapping[str, Any], observe: Work | None = None) -> None:
        """Puts an event into the journal, or compares it with the recorded one while replaying."""
        record: Facts = {"seconds": self.loop.time(), "device": device, "event": event, **facts}
        if self.journal.replaying:
            self.journal.repeat(record, observed=observe is not None)
            if not self.journal.replaying:
                self._go_on_live()
            return
        self.journal.append(record, self.cores.submit(observe) if observe is not None else None)
        self.holdings.keep(event, self.journal)

    def _go_on_live(self) -> None:
        """The end of a replay: brings the tensors back and starts the works that were under way."""
        self.holdings.bring_back()
        self._running = {number: self.cores.submit(work) for number, work in self._owed.items()}
        self._owed.clear()

    # Works.

    async def compute(self, hand: SimulatedHand, work: Work) -> Outcome:
        """Charges a work to the hand's device and returns its outcome at its virtual end."""
        self._num_works += 1
        number = self._num_works
        # A device that also hosts the coordinator does one thing after the other.
        started = max(self.loop.time(), self._busy_until[hand.host])
        work_s = work.flops / self.fleet[hand.host].flops
        end = finish_time(started, work_s, self._slow[hand.host], self._loads.get(hand.host))
        self._busy_until[hand.host] = end
        if self.journal.replaying:
            self._owed[number] = work
        else:
            self._running[number] = self.cores.submit(work)
        try:
            await asyncio.sleep(end - self.loop.time())
        except asyncio.CancelledError:
            self._owed.pop(number, None)
            if (future := self._running.pop(number, None)) is not None:
                future.cancel()
            if not self._over:
                self._busy_until[hand.host] = self.loop.time()
                self.emit(hand.name, "interrupted", {"work": work.name, "started": started, **work.facts})
            raise
        outcome = self._outcome(hand, number, work)
        sizes = {name: weights.nbytes for name, weights in outcome.weights.items()}
        self.emit(
            hand.name,
            "computed",
            {"work": work.name, "started": started, "flops": work.flops, **work.facts}
            | _slowed(end - started, work_s)
            | {"facts": outcome.facts, "bytes": sizes},
        )
        return outcome

    def _outcome(self, hand: SimulatedHand, number: int, work: Work) -> Outcome:
        if self.journal.replaying:
            del self._owed[number]
            recorded = self.journal.upcoming()
            sizes: dict[str, int] = recorded.get("bytes", {})
            outcome = Outcome(
                recorded.get("facts", {}), {n: Weights.absent(size) for n, size in sizes.items()}
            )
        else:
            try:
                outcome = self._running.pop(number).result()
            except Exception as error:
                where = ", ".join(f"{key} {value}" for key, value in work.facts.items())
                raise placed(error, f"{hand.name}: {work.name}{f' ({where})' if where else ''}") from error
        for name, weights in outcome.weights.items():
            self.holdings.add(f"{number}/{name}", weights)
        return outcome


def _slowed(took_s: float, work_s: float) -> Facts:
    """What co-running work and slow-downs cost, if more than rounding did."""
    return {"slowed_seconds": took_s - work_s} if took_s - work_s > 1e-9 * took_s else {}

"""The simulator: every hand in one process, on a virtual clock.

The training arithmetic is real; time is not waited for but charged, from the profile of the device that
a hand lives on. The same programs, fleet, faults and seed give the same events to the byte, whatever the
number of cores: a work starts on a real core when its hand starts it, and its result is asked for only
when the virtual clock has reached its end, so works that overlap in virtual time overlap on the cores.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import torch

from manyhands.blocks import Weights
from manyhands.engine.checkpoint import Checkpoint, write_checkpoint
from manyhands.engine.clock import Interval, VirtualLoop
from manyhands.engine.cores import Cores
from manyhands.engine.faults import (
    Corrupt,
    Crash,
    Delay,
    Duplicate,
    Faults,
    Loss,
    Partition,
    Reorder,
    finish_time,
)
from manyhands.engine.journal import Journal
from manyhands.engine.network import Network
from manyhands.engine.participant import Participant
from manyhands.engine.simulated_hand import SimulatedHand
from manyhands.errors import ManyhandsError, RunError, placed
from manyhands.fleet import Contention, Fleet
from manyhands.hand import Facts, Message, Outcome, Work

__all__ = ["Keeping", "Participant", "Simulation"]

LEASE_S = 2.0
"""How long a silent peer is believed to be there (a live liveliness lease is of this order)."""


@dataclass(frozen=True)
class Keeping:
    """How a simulation keeps checkpoints.

    Attributes:
        folder: Where they go.
        job_hash: Which job they are of.
        every_s: Real seconds between them.
        before: Makes sure that the events written so far are on disk.
        at: The event at which they are taken: one after which few tensors are alive, so that they are small.
            After a merge the updates are gone; in the middle of a coordinator's round they are on their way.
    """

    folder: Path
    job_hash: str
    every_s: float
    before: Callable[[], None]
    at: str = "merged"


class Simulation:
    """Drives the hands of one run.

    Args:
        fleet: The devices and links that time is charged for.
        participants: The hands, by name, in a fixed order.
        write: Takes each event and its JSON line, in order.
        faults: What goes wrong.
        contention: What else the devices do.
        cores: Where works run.
        recorded: The trace lines of a run to go on from, exactly those the checkpoint counts.
        checkpoint: The tensors to go on with when the recorded lines are used up.
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
        recorded: Sequence[str] = (),
        checkpoint: Checkpoint | None = None,
        keeping: Keeping | None = None,
    ) -> None:
        self.loop = VirtualLoop()  # type: ignore[abstract]  # it leaves out sockets and processes on purpose
        self.fleet = fleet
        self.faults = faults or Faults()
        self.cores = cores or Cores()
        self.journal = Journal(write, recorded)
        self.network = Network(fleet, contention)
        self.hands = {name: SimulatedHand(self, name, p) for name, p in participants.items()}
        self._checkpoint = checkpoint
        self._keeping = keeping
        self._checkpoint_due = Interval(keeping.every_s if keeping else 0.0)
        self._to_restart: set[str] = set()
        self._busy_until = dict.fromkeys((device.name for device in fleet.devices), 0.0)
        self._over = False
        self._num_works = 0
        self._num_messages = 0
        self._running: dict[int, Future[Outcome]] = {}
        self._owed: dict[int, Work] = {}
        self._held: WeakValueDictionary[str, Weights] = WeakValueDictionary()
        self._slow = {d.name: self.faults.slow_downs(d.name) for d in fleet.devices}
        self._loads = contention.loads if contention is not None else {}

    def run(self) -> dict[str, Any]:
        """Runs until all is quiet and returns what each program returned, or last saved if it did not end."""
        for hand in self.hands.values():
            self._start(hand)
        for crash in self.faults.crashes:
            self._schedule_crash(crash)
        for partition in self.faults.partitions:
            self._schedule_partition(partition)
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

    def _start(self, hand: SimulatedHand) -> None:
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
        return hand.name in self._to_restart and (not peers or any(not peer.finished for peer in peers))

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
        if self._keeping is not None and event == self._keeping.at and self._checkpoint_due.due():
            self._keep(self._keeping)

    def _keep(self, keeping: Keeping) -> None:
        """Writes a checkpoint of this moment."""
        self.journal.flush(wait=True)
        keeping.before()
        held = {key: weights for key, weights in self._held.items() if not weights.is_absent}
        write_checkpoint(keeping.folder, keeping.job_hash, self.journal.num_events, held)

    def _go_on_live(self) -> None:
        """The end of a replay: brings the tensors back and starts the works that were under way."""
        holdings = self._checkpoint.holdings if self._checkpoint else {}
        for key, weights in self._held.items():
            if key in holdings:
                weights.fill(holdings[key])
        self._checkpoint = None
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
            self._held[f"{number}/{name}"] = weights
        return outcome

    # Messages.

    def send(self, hand: SimulatedHand, peer: str, message: Message) -> None:
        """Puts a message on its way, through the faults that meet it."""
        if peer not in self.hands:
            raise RunError(f"{hand.name} sends a message to {peer!r}, who takes no part in this job")
        message = Message(message.kind, message.round, message.facts, message.blocks, hand.name)
        now, receiver = self.loop.time(), self.hands[peer]
        self._num_messages += 1
        local = hand.host == receiver.host
        nbytes = 0 if local else message.nbytes
        facts = {"to": peer, "kind": message.kind, "round": message.round, "bytes": nbytes}
        self.emit(hand.name, "sent", facts)
        safe = local or not self.faults.script
        faults = () if safe else self.faults.on_message(now, (hand.host, receiver.host, hand.name, peer))
        if not safe and (
            not self._passes(hand.host, receiver.host) or any(isinstance(f, Loss) for f in faults)
        ):
            self.emit(hand.name, "message_lost", facts)
            return
        arrival = self.network.transfer(now, hand.host, receiver.host, nbytes)
        copies = 1
        for fault in faults:
            if isinstance(fault, Delay):
                arrival += fault.delay_s
            elif isinstance(fault, Reorder):
                arrival += self.faults.hold_back(fault)
            elif isinstance(fault, Duplicate):
                copies += 1
            elif isinstance(fault, Corrupt) and fault.device in (hand.name, hand.host):
                message = self._corrupted(message, fault)
        for _ in range(copies):
            self.loop.call_at(arrival, self._arrive, receiver, receiver.incarnation, message, nbytes)

    def _passes(self, a: str, b: str) -> bool:
        """Whether a message gets through: no partition on its way, and everybody who passes it on is up."""
        route = self.fleet.path(a, b)
        if any(self.faults.cut(self.loop.time(), *ends) for ends in [(a, b), *pairwise(route)]):
            return False
        return all(self.hands[relay].alive for relay in route[1:-1] if relay in self.hands)

    def _arrive(self, receiver: SimulatedHand, incarnation: int, message: Message, nbytes: int) -> None:
        facts = {"from": message.sender, "kind": message.kind, "round": message.round, "bytes": nbytes}
        if not receiver.alive or receiver.incarnation != incarnation:
            self.emit(receiver.name, "message_missed", facts)
            return
        self.emit(receiver.name, "received", facts)
        receiver.deliver(message)

    def _corrupted(self, message: Message, fault: Corrupt) -> Message:
        spoil: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
            "nan": lambda t: torch.full_like(t, float("nan")) if t.is_floating_point() else t,
            "flip": lambda t: -t,
            "scale": lambda t: t * 100,
        }
        blocks = {}
        for block, weights in message.blocks.items():
            if self.journal.replaying:
                spoilt = Weights.absent(weights.nbytes)
            else:
                spoilt = Weights({name: spoil[fault.how](tensor) for name, tensor in weights.items()})
            self._held[f"spoilt {self._num_messages}/{block}"] = blocks[block] = spoilt
        return replace(message, blocks=blocks)

    # Crashes, partitions, and who notices.

    def _schedule_crash(self, crash: Crash) -> None:
        named = [self.hands[crash.device]] if crash.device in self.hands else []
        hosted = [hand for hand in self.hands.values() if hand.host == crash.device]
        for hand in dict.fromkeys([*named, *hosted]):
            self.loop.call_at(crash.at_s, self._crash, hand)
            if crash.restart_at_s is not None:
                self._to_restart.add(hand.name)
                self.loop.call_at(crash.restart_at_s, self._restart, hand)

    def _crash(self, hand: SimulatedHand) -> None:
        if not hand.alive or hand.finished:
            return
        hand.alive = False
        hand.forget()
        if hand.task is not None:
            hand.task.cancel()
        self.emit(hand.name, "crashed", {})
        for observer in self.hands.values():
            if hand.name in observer.all_peers:
                self.loop.call_later(LEASE_S, self._notice, observer, hand, hand.incarnation)

    def _restart(self, hand: SimulatedHand) -> None:
        self._to_restart.discard(hand.name)
        if hand.alive:
            return
        self._start(hand)
        hand.believed = {p for p in hand.all_peers if self.hands[p].alive}
        self.emit(hand.name, "restarted", {})
        for observer in self.hands.values():
            if hand.name in observer.all_peers and observer.alive:
                observer.believed.add(hand.name)
                observer.deliver(Message("joined", sender=hand.name))

    def _notice(self, observer: SimulatedHand, peer: SimulatedHand, incarnation: int) -> None:
        """An observer's lease on a silent peer runs out, unless the peer is back by now."""
        silent = not peer.alive or self.faults.cut(self.loop.time(), observer.host, peer.host)
        if silent and peer.incarnation == incarnation and observer.alive and peer.name in observer.believed:
            observer.believed.discard(peer.name)
            self.emit(observer.name, "peer_lost", {"peer": peer.name})
            observer.deliver(Message("lost", sender=peer.name))

    def _schedule_partition(self, partition: Partition) -> None:
        pairs = [
            (observer, self.hands[peer])
            for observer in self.hands.values()
            for peer in observer.all_peers
            if partition.cuts(observer.host, self.hands[peer].host)
        ]
        for observer, peer in pairs:
            self.loop.call_at(partition.from_s + LEASE_S, self._notice_cut, observer, peer)
            if partition.until_s is not None:
                self.loop.call_at(partition.until_s, self._heal, observer, peer)

    def _notice_cut(self, observer: SimulatedHand, peer: SimulatedHand) -> None:
        self._notice(observer, peer, peer.incarnation)

    def _heal(self, observer: SimulatedHand, peer: SimulatedHand) -> None:
        if observer.alive and peer.alive and peer.name not in observer.believed:
            observer.believed.add(peer.name)
            self.emit(observer.name, "peer_back", {"peer": peer.name})
            observer.deliver(Message("joined", sender=peer.name))


def _slowed(took_s: float, work_s: float) -> Facts:
    """What co-running work and slow-downs cost, if more than rounding did."""
    return {"slowed_seconds": took_s - work_s} if took_s - work_s > 1e-9 * took_s else {}

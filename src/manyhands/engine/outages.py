"""Crashes and partitions of the fault script as hands meet them: who dies, comes back, and notices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from manyhands.engine.faults import Crash, Partition
from manyhands.engine.simulated_hand import SimulatedHand
from manyhands.hand import Message

if TYPE_CHECKING:
    from manyhands.engine.simulate import Simulation

__all__ = ["LEASE_S", "Outages"]

LEASE_S = 2.0
"""How long a silent peer is believed to be there (a live liveliness lease is of this order)."""


class Outages:
    """Has hands of a simulation crash, come back, and lose sight of each other."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._loop, self._hands, self._faults = simulation.loop, simulation.hands, simulation.faults
        self._to_restart: set[str] = set()

    def schedule(self) -> None:
        """Puts all that the script says on the clock."""
        for crash in self._faults.crashes:
            self._schedule_crash(crash)
        for partition in self._faults.partitions:
            self._schedule_partition(partition)

    def will_restart(self, hand: SimulatedHand) -> bool:
        """Whether one that is dead comes back."""
        return hand.name in self._to_restart

    def _schedule_crash(self, crash: Crash) -> None:
        named = [self._hands[crash.device]] if crash.device in self._hands else []
        hosted = [hand for hand in self._hands.values() if hand.host == crash.device]
        for hand in dict.fromkeys([*named, *hosted]):
            self._loop.call_at(crash.at_s, self._crash, hand)
            if crash.restart_at_s is not None:
                self._to_restart.add(hand.name)
                self._loop.call_at(crash.restart_at_s, self._restart, hand)

    def _crash(self, hand: SimulatedHand) -> None:
        if not hand.alive or hand.finished:
            return
        hand.alive = False
        hand.forget()
        if hand.task is not None:
            hand.task.cancel()
        self._simulation.emit(hand.name, "crashed", {})
        for observer in self._hands.values():
            if hand.name in observer.all_peers:
                self._loop.call_later(LEASE_S, self._notice, observer, hand, hand.incarnation)

    def _restart(self, hand: SimulatedHand) -> None:
        self._to_restart.discard(hand.name)
        if hand.alive:
            return
        self._simulation.start(hand)
        hand.believed = {p for p in hand.all_peers if self._hands[p].alive}
        self._simulation.emit(hand.name, "restarted", {})
        for observer in self._hands.values():
            if hand.name in observer.all_peers and observer.alive:
                observer.believed.add(hand.name)
                observer.deliver(Message("joined", sender=hand.name))

    def _notice(self, observer: SimulatedHand, peer: SimulatedHand, incarnation: int) -> None:
        """An observer's lease on a silent peer runs out, unless the peer is back by now."""
        silent = not peer.alive or self._faults.cut(self._loop.time(), observer.host, peer.host)
        if silent and peer.incarnation == incarnation and observer.alive and peer.name in observer.believed:
            observer.believed.discard(peer.name)
            self._simulation.emit(observer.name, "peer_lost", {"peer": peer.name})
            observer.deliver(Message("lost", sender=peer.name))

    def _schedule_partition(self, partition: Partition) -> None:
        pairs = [
            (observer, self._hands[peer])
            for observer in self._hands.values()
            for peer in observer.all_peers
            if partition.cuts(observer.host, self._hands[peer].host)
        ]
        for observer, peer in pairs:
            self._loop.call_at(partition.from_s + LEASE_S, self._notice_cut, observer, peer)
            if partition.until_s is not None:
                self._loop.call_at(partition.until_s, self._heal, observer, peer)

    def _notice_cut(self, observer: SimulatedHand, peer: SimulatedHand) -> None:
        self._notice(observer, peer, peer.incarnation)

    def _heal(self, observer: SimulatedHand, peer: SimulatedHand) -> None:
        if observer.alive and peer.alive and peer.name not in observer.believed:
            observer.believed.add(peer.name)
            self._simulation.emit(observer.name, "peer_back", {"peer": peer.name})
            observer.deliver(Message("joined", sender=peer.name))

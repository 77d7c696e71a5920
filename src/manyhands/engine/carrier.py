"""Messages between simulated hands: how long each takes, and the faults that meet it on its way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import torch

from manyhands.blocks import Weights
from manyhands.engine.faults import Corrupt, Delay, Duplicate, Loss, Reorder
from manyhands.engine.network import Network
from manyhands.engine.simulated_hand import SimulatedHand
from manyhands.errors import RunError
from manyhands.hand import Message

if TYPE_CHECKING:
    from manyhands.engine.simulate import Simulation

__all__ = ["Carrier"]

_SPOILT: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "nan": lambda t: torch.full_like(t, float("nan")) if t.is_floating_point() else t,
    "flip": lambda t: -t,
    "scale": lambda t: t * 100,
}


class Carrier:
    """Carries the messages of a simulation through its network."""

    def __init__(self, simulation: Simulation, network: Network) -> None:
        self._simulation, self._network = simulation, network
        self._loop, self._hands, self._faults = simulation.loop, simulation.hands, simulation.faults
        self._num_messages = 0

    def send(self, hand: SimulatedHand, peer: str, message: Message) -> None:
        """Puts a message on its way, through the faults that meet it."""
        if peer not in self._hands:
            raise RunError(f"{hand.name} sends a message to {peer!r}, who takes no part in this job")
        message = Message(message.kind, message.round, message.facts, message.blocks, hand.name)
        now, receiver = self._loop.time(), self._hands[peer]
        self._num_messages += 1
        local = hand.host == receiver.host
        nbytes = 0 if local else message.nbytes
        facts = {"to": peer, "kind": message.kind, "round": message.round, "bytes": nbytes}
        self._simulation.emit(hand.name, "sent", facts)
        safe = local or not self._faults.script
        faults = () if safe else self._faults.on_message(now, (hand.host, receiver.host, hand.name, peer))
        if not safe and (
            not self._passes(hand.host, receiver.host) or any(isinstance(f, Loss) for f in faults)
        ):
            self._simulation.emit(hand.name, "message_lost", facts)
            return
        arrival = self._network.transfer(now, hand.host, receiver.host, nbytes)
        copies = 1
        for fault in faults:
            if isinstance(fault, Delay):
                arrival += fault.delay_s
            elif isinstance(fault, Reorder):
                arrival += self._faults.hold_back(fault)
            elif isinstance(fault, Duplicate):
                copies += 1
            elif isinstance(fault, Corrupt) and fault.device in (hand.name, hand.host):
                message = self._corrupted(message, fault)
        for _ in range(copies):
            self._loop.call_at(arrival, self._arrive, receiver, receiver.incarnation, message, nbytes)

    def _passes(self, a: str, b: str) -> bool:
        """Whether a message gets through: no partition on its way, and everybody who passes it on is up."""
        route = self._simulation.fleet.path(a, b)
        if any(self._faults.cut(self._loop.time(), *ends) for ends in [(a, b), *pairwise(route)]):
            return False
        return all(self._hands[relay].alive for relay in route[1:-1] if relay in self._hands)

    def _arrive(self, receiver: SimulatedHand, incarnation: int, message: Message, nbytes: int) -> None:
        facts = {"from": message.sender, "kind": message.kind, "round": message.round, "bytes": nbytes}
        if not receiver.alive or receiver.incarnation != incarnation:
            self._simulation.emit(receiver.name, "message_missed", facts)
            return
        self._simulation.emit(receiver.name, "received", facts)
        receiver.deliver(message)

    def _corrupted(self, message: Message, fault: Corrupt) -> Message:
        blocks = {}
        for block, weights in message.blocks.items():
            if self._simulation.journal.replaying:
                spoilt = Weights.absent(weights.nbytes)
            else:
                spoil = _SPOILT[fault.how]
                spoilt = Weights({name: spoil(tensor) for name, tensor in weights.items()})
            self._simulation.holdings.add(f"spoilt {self._num_messages}/{block}", spoilt)
            blocks[block] = spoilt
        return replace(message, blocks=blocks)

"""A hand on the virtual clock: the verbs of `Hand`, a mailbox, and what its device remembers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from manyhands.engine.mailbox import Mailbox
from manyhands.engine.participant import Participant
from manyhands.hand import Message, Outcome, Work

if TYPE_CHECKING:
    from manyhands.engine.simulate import Simulation

__all__ = ["SimulatedHand"]


class SimulatedHand:
    """The verbs of `Hand` on the virtual clock."""

    def __init__(self, simulation: Simulation, name: str, participant: Participant) -> None:
        self._simulation = simulation
        self._name = name
        self.host = participant.host
        self.program = participant.program
        self.all_peers = participant.peers
        self.believed = set(participant.peers)
        self.alive = False
        self.incarnation = 0
        self.task: asyncio.Task[Any] | None = None
        self.result: Any = None
        self.finished = False
        self._saved: Any = None
        self._mailbox = Mailbox()

    @property
    def name(self) -> str:
        return self._name

    @property
    def seconds(self) -> float:
        return self._simulation.loop.time()

    @property
    def peers(self) -> tuple[str, ...]:
        return tuple(peer for peer in self.all_peers if peer in self.believed)

    @property
    def saved(self) -> Any:
        return self._saved

    def save(self, state: Any) -> None:
        self._saved = state

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def compute(self, work: Work) -> Outcome:
        return await self._simulation.compute(self, work)

    async def send(self, peer: str, message: Message) -> None:
        self._simulation.carrier.send(self, peer, message)

    async def receive(self, *kinds: str, timeout_s: float | None = None) -> Message | None:
        return await self._mailbox.receive(*kinds, timeout_s=timeout_s)

    def report(self, event: str, *, observe: Work | None = None, **facts: Any) -> None:
        self._simulation.emit(self._name, event, facts, observe)

    def deliver(self, message: Message) -> None:
        """Puts a message into the mailbox, or straight into the hand that waits for it."""
        self._mailbox.deliver(message)

    def forget(self) -> None:
        """What a crash takes away: everything but what was saved."""
        self._mailbox.clear()

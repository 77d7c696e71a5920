"""A hand on the wall clock: the verbs of `Hand` over a post, with what it saved on disk.

What others have heard of a hand is on disk before they hear it: `send` waits for what was saved before. So a
device that is killed at any moment and started again never contradicts itself; and a round that it reported
is not done again.

Beside the messages of programs, hands tell each other with ``hello`` how they stand: whether they have begun,
whether they are done, and how many messages they have sent to whom they tell it. A peer that is done says
nothing more; when all that it sent has come, the program is told that it is lost, and need not wait for it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from manyhands.engine.mailbox import Mailbox
from manyhands.engine.participant import Participant
from manyhands.engine.state import StateFolder
from manyhands.errors import ManyhandsError, RunError, placed
from manyhands.exchange.post import Post
from manyhands.exchange.speech import what_is_wrong
from manyhands.hand import Facts, Message, Outcome, Work

if TYPE_CHECKING:
    from manyhands.engine.live import LiveDevice

__all__ = ["HELLO", "LiveHand", "Place"]

HELLO = "hello"
"""The kind of the message by which hands tell each other how they stand; programs never see it."""

COMPLETIONS = frozenset({"round", "merged"})
"""Events that say that something is done for good: they wait until it is on disk."""

HELLO_EVERY_S = 3.0
"""How often one that is done says so again: the first time may have been lost."""


@dataclass(frozen=True)
class Place:
    """What one hand of a device is given.

    Attributes:
        participant: What it does, and with whom.
        post: How its messages travel.
        state: Where it keeps what it saves.
    """

    participant: Participant
    post: Post
    state: StateFolder


class LiveHand:
    """The verbs of `Hand` on the wall clock."""

    def __init__(self, device: LiveDevice, name: str, place: Place, *, done: bool) -> None:
        self._device, self._name = device, name
        self.program, self.all_peers = place.participant.program, place.participant.peers
        self.serves = place.participant.serves
        self.believed: set[str] = set()
        self.done = done
        self.result: Any = None
        self._post, self._state = place.post, place.state
        self._saved: Any = place.state.read()
        self._unsaved: Any = None
        self._writer: asyncio.Task[None] | None = None
        self._mailbox = Mailbox()
        self._running = self._back = self._opened = False
        self._incarnations: dict[str, int] = {}
        self.met: set[str] = set()
        self._done_peers: set[str] = set()
        self._misfits: set[str] = set()  # with whom nothing can be learned together
        self._num_sent: Counter[str] = Counter()
        self._num_received: Counter[str] = Counter()
        self._due: dict[str, int] = {}  # of peers that are done: how many messages they sent
        self._news = asyncio.Event()

    # The verbs.

    @property
    def name(self) -> str:
        return self._name

    @property
    def seconds(self) -> float:
        return self._device.clock.seconds

    @property
    def peers(self) -> tuple[str, ...]:
        return tuple(peer for peer in self.all_peers if peer in self.believed)

    @property
    def saved(self) -> Any:
        return self._saved

    def save(self, state: Any) -> None:
        self._saved = self._unsaved = state
        if self._writer is None or self._writer.done():
            self._writer = asyncio.get_running_loop().create_task(self._write())

    async def compute(self, work: Work) -> Outcome:
        return await self._device.compute(self, work)

    async def send(self, peer: str, message: Message) -> None:
        if peer not in self.all_peers:
            raise RunError(f"{self._name} sends a message to {peer!r}, whom it does not talk to")
        await self.on_disk()
        sibling = self._device.hands.get(peer)
        nbytes = 0 if sibling else message.nbytes
        facts = {"to": peer, "kind": message.kind, "round": message.round, "bytes": nbytes}
        self._device.emit(self._name, "sent", facts)
        self._num_sent[peer] += 1
        message = replace(message, sender=self._name)
        if sibling:
            asyncio.get_running_loop().call_soon(sibling.deliver, message)
        else:
            await self._post.send(peer, message)

    async def receive(self, *kinds: str, timeout_s: float | None = None) -> Message | None:
        return await self._mailbox.receive(*kinds, timeout_s=timeout_s)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def report(self, event: str, *, observe: Work | None = None, **facts: Any) -> None:
        if event in COMPLETIONS:
            self._device.spawn(self._report_saved(event, facts, observe, self.seconds))
        else:
            self._device.emit(self._name, event, facts, observe)

    async def _report_saved(self, event: str, facts: Facts, observe: Work | None, at_s: float) -> None:
        """Reports what is done for good; programs save it before they report it or right after."""
        try:
            await self.on_disk()
        finally:  # one that is told to leave still waits for its disk
            self._device.emit(self._name, event, facts, observe, at_s)

    # Its life.

    async def live(self) -> None:
        """Runs the program to its end, and stays for those who still need what it said."""
        if self.done:
            self.result = self._saved
        if not self.done or (self.serves and self._unfinished()):
            await self._run()
        await self._linger()

    async def _run(self) -> None:
        self._running, self._back = True, False  # whoever comes from now on, the program is told of
        self._device.begin()
        for peer in self.peers:
            await self.greet(peer)
        try:
            self.result = await self.program(self)
        except (ManyhandsError, OSError, asyncio.CancelledError):
            raise
        except Exception as error:
            raise placed(error, f"{self._name} at {self.seconds:.1f} s") from error
        finally:
            self._running = False
        await self.on_disk()
        self.done = True
        self._device.finish(self._name)
        for peer in list(self._incarnations):
            await self.greet(peer)

    async def _linger(self) -> None:
        """Returns when every peer is done, or those that are not have been gone for long."""
        loop = asyncio.get_running_loop()
        alone_since = loop.time()
        while self._unfinished():
            if self.serves and self._back:
                await self._run()  # one that was away is back and does not know that all is over
                continue
            here = [peer for peer in self._unfinished() if peer in self._incarnations]
            if here:
                alone_since = loop.time()
            elif loop.time() - alone_since > self._device.section.linger_s:
                return
            try:
                async with asyncio.timeout(HELLO_EVERY_S):
                    await self._news.wait()
            except TimeoutError:
                for peer in here:
                    await self.greet(peer)
            self._news.clear()

    def _unfinished(self) -> list[str]:
        """The peers that may still need something."""
        return [peer for peer in self.all_peers if peer not in self._done_peers | self._misfits]

    async def on_disk(self) -> None:
        """Waits until what was saved last is on disk."""
        if self._writer is not None:
            await asyncio.shield(self._writer)

    async def _write(self) -> None:
        while self._unsaved is not None:
            state, self._unsaved = self._unsaved, None
            await asyncio.to_thread(self._state.write, state)

    # Others.

    async def open(self) -> None:
        """Begins to take mail. Those on the same device are there from the start."""
        for sibling in self._device.hands:
            if sibling in self.all_peers:
                self.presence(sibling, 0)
        self._post.open(self.deliver, self._presence_elsewhere)
        self._opened = True

    async def close(self) -> None:
        """Leaves."""
        await self.on_disk()
        if self._opened:
            await self._post.close()

    async def greet(self, peer: str) -> None:
        """Tells a peer how it stands."""
        facts = {"begun": self._device.begun, "done": self.done, "sent": self._num_sent[peer]}
        message = Message(HELLO, 0, {**self._device.manners.greeting, **facts}, sender=self._name)
        sibling = self._device.hands.get(peer)
        if sibling:
            asyncio.get_running_loop().call_soon(sibling.deliver, message)
        else:
            await self._post.send(peer, message)

    def deliver(self, message: Message) -> None:
        """Takes a message in."""
        if message.kind == HELLO:
            self._hear(message.sender, message.facts)
            return
        if message.sender in self._misfits:
            return
        reason = "a stranger" if message.sender not in self.all_peers else what_is_wrong(message)
        if reason:
            refused = {"peer": message.sender, "round": message.round, "reason": reason}
            self._device.emit(self._name, "refused", refused)
            return
        nbytes = 0 if message.sender in self._device.hands else message.nbytes
        facts = {"from": message.sender, "kind": message.kind, "round": message.round, "bytes": nbytes}
        self._device.emit(self._name, "received", facts)
        self._mailbox.deliver(message)
        self._num_received[message.sender] += 1
        self._let_go(message.sender)

    def _presence_elsewhere(self, peer: str, incarnation: int | None) -> None:
        """What the post tells; those on the same device it need not."""
        if peer not in self._device.hands:
            self.presence(peer, incarnation)

    def presence(self, peer: str, incarnation: int | None) -> None:
        """Takes note of who is there; the same incarnation twice is no news."""
        self._device.note(peer, here=incarnation is not None)
        if peer not in self.all_peers or self._incarnations.get(peer) == incarnation:
            return
        if incarnation is None:
            del self._incarnations[peer]
            self._lose(peer, told=True)
        else:
            self._incarnations[peer] = incarnation
            self._num_sent[peer] = self._num_received[peer] = 0
            self._device.spawn(self.greet(peer))
            if peer not in self._done_peers and peer not in self._misfits:
                self._welcome(peer)
            self.met.add(peer)
        self._news.set()

    def _welcome(self, peer: str) -> None:
        self.believed.add(peer)
        if self._running:
            if peer in self.met:
                self._device.emit(self._name, "peer_back", {"peer": peer})
            else:
                self._device.emit(self._name, "peer_joined", {"peer": peer})
            self._mailbox.deliver(Message("joined", sender=peer))
        self._back = not self._running

    def _lose(self, peer: str, *, told: bool) -> None:
        if peer not in self.believed:
            return
        self.believed.discard(peer)
        if told:
            self._device.emit(self._name, "peer_lost", {"peer": peer})
        self._mailbox.deliver(Message("lost", sender=peer))

    def _hear(self, peer: str, facts: Facts) -> None:
        if peer not in self.all_peers or peer in self._misfits:
            return
        if reason := self._device.hear(peer, facts):
            self._misfits.add(peer)
            self._device.emit(self._name, "refused", {"peer": peer, "round": 0, "reason": reason})
            self._lose(peer, told=False)
            self._news.set()
            return
        if facts.get("done") is True and peer not in self._due:
            self._due[peer] = sent if type(sent := facts.get("sent")) is int else 0
            self._done_peers.add(peer)
            self._let_go(peer)
            # Some of it may be lost for good.
            loop = asyncio.get_running_loop()
            loop.call_later(self._device.section.patience_s, partial(self._lose, peer, told=False))
        self._news.set()

    def _let_go(self, peer: str) -> None:
        """One that is done has nothing more to say once all that it sent has come."""
        if peer in self._due and self._num_received[peer] >= self._due[peer]:
            self._lose(peer, told=False)

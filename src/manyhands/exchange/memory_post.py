"""Post inside one process: for tests, and to try a protocol on the wall clock without a network.

Every hand has a post of the same `Exchange`. Links can be cut and mended, and the order in which messages
reach a hand can be given beforehand.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from manyhands.exchange.codec import decode, encode
from manyhands.hand import Message

__all__ = ["Exchange", "MemoryPost"]

Arrival = tuple[str, str, int]
"""Sender, kind and round of a message."""

NUM_TURNS = 20
"""Of the event loop, after which a hand has begun to do what the last message asks for."""


class Exchange:
    """What joins the posts of one process.

    Args:
        order: Hand -> the order in which messages must reach it; one that comes early waits, and none comes
            before the hand has taken up the last. What is not in the list comes as it comes.
    """

    def __init__(self, order: Mapping[str, Sequence[Arrival]] | None = None) -> None:
        self._order = {name: deque(arrivals) for name, arrivals in (order or {}).items()}
        self._early: dict[str, list[Message]] = {}
        self._busy: set[str] = set()
        self._open: dict[str, MemoryPost] = {}
        self._cut: set[frozenset[str]] = set()

    def post(self, name: str, incarnation: int = 1) -> MemoryPost:
        """The post of a hand."""
        return MemoryPost(self, name, incarnation)

    def cut(self, a: str, b: str) -> None:
        """Nothing gets through between two hands, and both notice."""
        self._cut.add(frozenset((a, b)))
        self._tell(a, b, here=False)

    def mend(self, a: str, b: str) -> None:
        """Ends a cut."""
        self._cut.discard(frozenset((a, b)))
        self._tell(a, b, here=True)

    def _tell(self, a: str, b: str, *, here: bool) -> None:
        if a in self._open and b in self._open:
            for one, other in ((a, b), (b, a)):
                self._open[one].told(other, self._open[other].incarnation if here else None)

    def opened(self, post: MemoryPost) -> None:
        """Makes a hand known to the others, and them to it."""
        self._open[post.name] = post
        for other in list(self._open):
            if other != post.name and frozenset((other, post.name)) not in self._cut:
                self._tell(post.name, other, here=True)

    def closed(self, post: MemoryPost) -> None:
        """A hand is gone, or killed: nothing reaches it any more."""
        if self._open.get(post.name) is post:
            del self._open[post.name]
            for other in self._open.values():
                other.told(post.name, None)

    def carry(self, peer: str, message: Message) -> None:
        """Takes a message to its receiver, if there is a way."""
        if peer not in self._open or frozenset((peer, message.sender)) in self._cut:
            return
        if _arrival(message) not in self._order.get(peer, ()):
            self._open[peer].take(message)
            return
        self._early.setdefault(peer, []).append(message)
        if peer not in self._busy:
            self._give_next(peer)

    def _give_next(self, peer: str, turns: int = 0) -> None:
        """Gives a hand the message whose turn it is, and the next one a while later."""
        self._busy.discard(peer)
        if turns:
            self._busy.add(peer)
            asyncio.get_running_loop().call_soon(self._give_next, peer, turns - 1)
            return
        order, waiting = self._order[peer], self._early[peer]
        ready = next((message for message in waiting if order and _arrival(message) == order[0]), None)
        if ready is not None and peer in self._open:
            order.popleft()
            waiting.remove(ready)
            self._open[peer].take(ready)
            self._give_next(peer, NUM_TURNS)


def _arrival(message: Message) -> Arrival:
    return message.sender, message.kind, message.round


class MemoryPost:
    """The post of one hand; messages pass the codec, so that nobody shares tensors."""

    def __init__(self, exchange: Exchange, name: str, incarnation: int) -> None:
        self.name, self.incarnation = name, incarnation
        self._exchange = exchange
        self._deliver: Callable[[Message], None] | None = None
        self._presence: Callable[[str, int | None], None] | None = None

    async def send(self, peer: str, message: Message) -> None:
        """Hands a message over."""
        said = Message(message.kind, message.round, message.facts, message.blocks, self.name)
        self._exchange.carry(peer, decode(encode(said)))

    def open(self, deliver: Callable[[Message], None], presence: Callable[[str, int | None], None]) -> None:
        """Begins to carry."""
        self._deliver, self._presence = deliver, presence
        self._exchange.opened(self)

    async def close(self) -> None:
        """Leaves."""
        self._deliver = self._presence = None
        self._exchange.closed(self)

    def take(self, message: Message) -> None:
        """Gives a message to the hand, when the loop comes to it."""
        asyncio.get_running_loop().call_soon(self._give, message)

    def told(self, peer: str, incarnation: int | None) -> None:
        """Tells the hand who is there."""
        if self._presence is not None:
            asyncio.get_running_loop().call_soon(self._tell, peer, incarnation)

    def _give(self, message: Message) -> None:
        if self._deliver is not None:
            self._deliver(message)

    def _tell(self, peer: str, incarnation: int | None) -> None:
        if self._presence is not None:
            self._presence(peer, incarnation)

"""The inbox: what peers announce, checked, fetched one after the other, acknowledged and delivered once."""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field

from manyhands.errors import MessageDamaged
from manyhands.hand import Message
from manyhands.wire.announcement import Announcement, read_announcement
from manyhands.wire.expected import Expected
from manyhands.wire.refusals import Refusals
from manyhands.wire.transfer import HolderLied, NotPulled

__all__ = ["Inbox"]

MAX_QUEUE = 64
MAX_MEMORY = 4096
"""How many messages of a sender are remembered as dealt with."""


@dataclass
class _Sender:
    """What has come from one peer."""

    incarnation: int = -1
    queue: deque[Announcement] = field(default_factory=deque)
    taken: set[int] = field(default_factory=set)
    done: dict[int, None] = field(default_factory=dict)
    task: asyncio.Task[None] | None = None

    def begin(self, incarnation: int) -> None:
        """Forgets what was said before the peer was started again."""
        self.incarnation = incarnation
        self.queue.clear()
        self.taken.clear()
        self.done.clear()

    def finish(self, number: int) -> None:
        """Remembers that a message was dealt with, and forgets the oldest such memory."""
        self.taken.discard(number)
        self.done[number] = None
        while len(self.done) > MAX_MEMORY:
            del self.done[next(iter(self.done))]


class Inbox:
    """What has come to one hand. Messages of one sender are delivered in the order of their announcements.

    Args:
        peers: Who may announce.
        expected: What messages may hold.
        refusals: Counts what is refused.
        fetch: Makes an announcement into its message; raises NotPulled or MessageDamaged where it cannot.
        acknowledge: Tells a sender that an announcement has been dealt with.
        deliver: Takes each message.
    """

    def __init__(
        self,
        peers: Collection[str],
        expected: Expected,
        refusals: Refusals,
        fetch: Callable[[str, Announcement], Awaitable[Message]],
        acknowledge: Callable[[str, Announcement], None],
        deliver: Callable[[Message], None],
    ) -> None:
        self._peers, self._expected, self._refusals = frozenset(peers), expected, refusals
        self._fetch, self._acknowledge, self._deliver = fetch, acknowledge, deliver
        self._senders: defaultdict[str, _Sender] = defaultdict(_Sender)
        self._closed = False

    def take(self, sender: str, text: bytes, digests: bytes) -> None:
        """Takes an announcement, if it is one and is new."""
        if self._closed:
            return
        if sender not in self._peers:
            self._refusals.add(sender, "nobody of this job")
            return
        if self._refusals.ignores(sender):
            self._refusals.add(sender, "ignored")
            return
        try:
            news = read_announcement(text, digests, self._expected)
        except MessageDamaged as error:
            self._refusals.add(sender, str(error))
            return
        state = self._senders[sender]
        if news.incarnation > state.incarnation:
            state.begin(news.incarnation)
        if news.incarnation < state.incarnation or news.number in state.taken:
            return
        if news.number in state.done:
            self._acknowledge(sender, news)
        elif len(state.queue) < MAX_QUEUE:
            state.taken.add(news.number)
            state.queue.append(news)
            if state.task is None or state.task.done():
                state.task = asyncio.get_running_loop().create_task(self._receive(sender, state))

    async def close(self) -> None:
        """Takes nothing more, and leaves what is under way."""
        self._closed = True
        tasks = [sender.task for sender in self._senders.values() if sender.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _receive(self, sender: str, state: _Sender) -> None:
        """Deals with what a peer has announced, one after the other."""
        while state.queue:
            news = state.queue.popleft()
            try:
                message = await self._fetch(sender, news)
            except HolderLied:
                message = None  # counted where it was seen
            except MessageDamaged as error:
                self._refusals.add(sender, str(error), news.round)
                message = None
            except NotPulled:
                # Neither delivered nor refused: if it still waits over there, it is announced again.
                state.taken.discard(news.number)
                continue
            if news.incarnation != state.incarnation:
                continue  # started again in the meantime
            state.finish(news.number)
            self._acknowledge(sender, news)
            if message is not None:
                self._deliver(message)

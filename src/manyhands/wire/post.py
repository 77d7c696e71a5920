"""The post over Zenoh: announcements are published, tensors pulled, and nothing is lost without notice.

A message goes in four steps: its sender puts the tensors on its shelf and announces it, again and again; the
receiver checks the announcement, pulls the tensors, checks them, and delivers; it acknowledges; the sender
takes the tensors down. Messages of one sender are delivered in the order in which they were announced.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Any

import zenoh

from manyhands.blocks import Weights
from manyhands.errors import RunError
from manyhands.hand import Facts, Message
from manyhands.wire import topics
from manyhands.wire.announcement import Announcement, announce
from manyhands.wire.expected import Expected, read_body
from manyhands.wire.inbox import Inbox
from manyhands.wire.linger import close_at_once
from manyhands.wire.news import MAX_HEAD_REPLIES, ask_head, called, on_loop, publish, read_sample, reply_head
from manyhands.wire.outbox import Outbox
from manyhands.wire.presence import Presence
from manyhands.wire.refusals import Refusals, Tell
from manyhands.wire.session import Wiring, open_session
from manyhands.wire.shelf import Shelf
from manyhands.wire.sleeps import Sleeps
from manyhands.wire.status import answer_status
from manyhands.wire.transfer import Pace, Puller

__all__ = ["ZenohPost"]

TICK_S = 0.1
LINK_TICKS = 5
"""After how many ticks it sees to new links."""

LINGER_S = 5.0
"""How long a hand that leaves waits for its last words to be heard."""

NUM_THREADS = 8

Progress = Callable[[str, int, int], None]
"""Is told how far a transfer is: from whom, how many bytes came, of how many."""


class ZenohPost:
    """One hand's mail over Zenoh; see `exchange.post.Post`.

    Args:
        wiring: How it is connected.
        peers: The hands that it may hear and be heard by.
        expected: What messages may hold.
        tell: Is told of events: ``refused``, ``ignored``, ``mismatch``.
        progress: Is told how far transfers are.
        pace: How tensors are pulled.
    """

    def __init__(
        self,
        wiring: Wiring,
        peers: Collection[str],
        expected: Expected,
        tell: Tell = lambda _event, _facts: None,
        progress: Progress | None = None,
        pace: Pace | None = None,
    ) -> None:
        self.wiring = wiring
        self.refusals = Refusals(tell)
        self._peers = frozenset(peers) - {wiring.name}
        self._expected = expected
        self._tell, self._progress = tell, progress
        self._pace = pace or Pace()
        self._executor = ThreadPoolExecutor(NUM_THREADS, f"wire-{wiring.name}")
        self._shelf = Shelf(wiring.job_hash, wiring.name, self._peers, self._executor)
        self._outbox = Outbox(self._take_down)
        self._presence = Presence(wiring.job_hash, self._peers, self._changed, self._mismatch)
        self._seen: dict[str, int] = {}
        self._num_sent = 0
        self._declared: list[Any] = []
        self._puller: Puller | None = None
        self._status: Callable[[], Facts] | None = None
        self._repeating: asyncio.Task[None] | None = None
        self._changing = asyncio.Lock()
        self._closed = False

    def open(self, deliver: Callable[[Message], None], presence: Callable[[str, int | None], None]) -> None:
        """Begins to carry; see `exchange.post.Post`."""
        self._loop = asyncio.get_running_loop()
        self._told = presence
        self._inbox = Inbox(
            self._peers, self._expected, self.refusals, self._fetch, self._acknowledge, deliver
        )
        self._connect()
        self._repeating = self._loop.create_task(self._repeat())
        self._sleeps = Sleeps(self.wiring.lease_s, self._loop, self._begin_anew)

    def _connect(self) -> None:
        """Opens a session, in which it says that it is there, hears others and answers them."""
        self._session = session = open_session(self.wiring)
        job, name = self.wiring.job_hash, self.wiring.name
        if self._puller is None:
            self._puller = Puller(
                session, job, name, self._executor, self._pace, self.refusals.add, self._is_there
            )
        self._puller.asker.session = session  # what is being pulled goes on over the new one
        listen = session.declare_subscriber
        answer = session.declare_queryable
        self._declared = [
            listen(topics.news(job, "*", name), on_loop(self._loop, self._on_news)),
            listen(topics.ack(job, "*", name), on_loop(self._loop, self._on_ack)),
            answer(topics.body(job, name, "*", "*"), called(self._shelf.answer), complete=True),
            answer(topics.head(job, name, "*"), called(self._answer_head), complete=True),
            session.liveliness().declare_subscriber(
                topics.tokens(), on_loop(self._loop, self._on_token), history=True
            ),
            session.liveliness().declare_token(topics.token(job, name, self.wiring.incarnation)),
        ]
        if self._status is not None:
            self._declared.append(answer_status(session, job, name, self._executor, self._status))

    async def _begin_anew(self) -> None:
        """A new session, after this process has slept for so long that others took it for gone.

        Without it, in about one of three runs one side never heard of the other again, although both were
        there. Traces fit this guess: they have closed their ends of its links, one of them calls again before
        this end is closed too, and Zenoh takes the call for a second link of a connection that still stands.
        """
        async with self._changing:
            if self._closed:
                return
            await self._loop.run_in_executor(None, self._leave)
            self._presence.clear()
            while not self._closed:
                with suppress(RunError):  # its port may not be free at once
                    self._connect()
                    return
                await asyncio.sleep(TICK_S)

    async def send(self, peer: str, message: Message) -> None:
        """Announces a message and offers its tensors; see `exchange.post.Post`."""
        if self._closed:
            return
        body, digests = None, b""
        if message.blocks:
            body, digests = await self._shelf.offer(message.blocks)
        self._num_sent += 1
        announcement = announce(message, self.wiring.incarnation, self._num_sent, body, digests)
        self._outbox.add(peer, announcement, self._loop.time())
        self._publish(peer, announcement)

    async def close(self) -> None:
        """Waits a little for the last words to be heard, and leaves."""
        deadline_s = self._loop.time() + LINGER_S
        while any(self._outbox.waiting(p) for p in self._peers if self._is_there(p)):
            if self._loop.time() > deadline_s:
                break
            await asyncio.sleep(TICK_S / 2)
        self._closed = True
        self._sleeps.stop()
        await self._inbox.close()
        if self._repeating is not None:
            self._repeating.cancel()
            await asyncio.gather(self._repeating, return_exceptions=True)
        async with self._changing:
            await self._loop.run_in_executor(None, self._leave)
        await self._loop.run_in_executor(None, partial(self._executor.shutdown, cancel_futures=True))

    def _leave(self) -> None:
        for declared in reversed(self._declared):
            with suppress(zenoh.ZError):
                declared.undeclare()
        with suppress(zenoh.ZError):
            self._session.close()

    @property
    def num_waiting(self) -> int:
        """How many messages have not been acknowledged."""
        return len(self._outbox)

    def links(self) -> list[tuple[str, int, int]]:
        """Of each of its connections: address and port of this end, and the port of the other."""
        ends = []
        with suppress(zenoh.ZError):
            for link in self._session.info.links():
                host, _, port = link.src.rpartition("/")[2].rpartition(":")
                ends.append((host.strip("[]"), int(port), int(link.dst.rpartition(":")[2])))
        return ends

    def answer_status(self, status: Callable[[], Facts]) -> None:
        """Tells whoever asks how this hand stands, from now on."""
        self._status = status
        job, name = self.wiring.job_hash, self.wiring.name
        self._declared.append(answer_status(self._session, job, name, self._executor, status))

    # Sending.

    def _take_down(self, announcement: Announcement) -> None:
        if announcement.nbytes:
            self._shelf.take_down(announcement.name)
        if not len(self._outbox):
            self._shelf.forget()  # what nobody waits for is not kept either

    def _publish(self, peer: str, announcement: Announcement) -> None:
        publish(
            self._session,
            topics.news(self.wiring.job_hash, self.wiring.name, peer),
            announcement.text(),
            announcement.digests,
        )

    async def _repeat(self) -> None:
        for tick in count():
            await asyncio.sleep(TICK_S)
            if tick % LINK_TICKS == 0:  # links come and go
                close_at_once()
            for peer, announcement in list(self._outbox.due(self._loop.time())):
                if self._is_there(peer):
                    self._publish(peer, announcement)

    def _answer_head(self, query: zenoh.Query) -> None:
        """Says again, to who asks, all that waits for it."""
        try:
            self._loop.call_soon_threadsafe(self._reply_head, query)
        except RuntimeError:
            query.drop()

    def _reply_head(self, query: zenoh.Query) -> None:
        asker = topics.name_in(str(query.key_expr), 4)
        waiting = self._outbox.waiting(asker)[-MAX_HEAD_REPLIES:] if asker in self._peers else []
        where = topics.head(self.wiring.job_hash, self.wiring.name, asker)

        with suppress(RuntimeError):
            self._executor.submit(reply_head, query, where, waiting)

    # Hearing. What Zenoh calls on its own threads is handed to the loop at once.

    def _on_token(self, sample: zenoh.Sample) -> Callable[[], None]:
        key, up = str(sample.key_expr), sample.kind == zenoh.SampleKind.PUT
        return lambda: self._presence.token(key, up)

    def _on_ack(self, sample: zenoh.Sample) -> Callable[[], None] | None:
        sender = topics.name_in(str(sample.key_expr))
        if len(sample.payload) > 64:
            return lambda: self.refusals.add(sender, "an acknowledgement that is too long")
        text = bytes(sample.payload)
        return lambda: self._take_ack(sender, text)

    def _on_news(self, sample: zenoh.Sample) -> Callable[[], None] | None:
        sender = topics.name_in(str(sample.key_expr))
        if self.refusals.ignores(sender):
            return lambda: self.refusals.add(sender, "ignored")
        text, digests = read_sample(sample)
        return lambda: self._inbox.take(sender, text, digests)

    def _take_ack(self, sender: str, text: bytes) -> None:
        try:
            incarnation, number = json.loads(text)
            if incarnation == self.wiring.incarnation:
                self._outbox.acknowledge(sender, int(number))
        except (ValueError, TypeError, OverflowError, RecursionError):
            self.refusals.add(sender, "not an acknowledgement")

    async def _fetch(self, sender: str, news: Announcement) -> Message:
        """The message of an announcement.

        Raises:
            NotPulled: Its tensors did not come.
            MessageDamaged: They are not what this job can have.
        """
        blocks: dict[str, Weights] = {}
        if news.blocks:
            assert self._puller is not None
            data = await self._puller.pull(news, sender, lambda done, of: self._show(sender, done, of))
            blocks = await self._loop.run_in_executor(
                self._executor, read_body, data, news.kind, news.blocks, self._expected
            )
            self._shelf.keep(news.name, blocks)
        return Message(news.kind, news.round, news.facts, blocks, sender)

    def _acknowledge(self, sender: str, news: Announcement) -> None:
        text = json.dumps([news.incarnation, news.number]).encode()
        publish(self._session, topics.ack(self.wiring.job_hash, self.wiring.name, sender), text)

    def _show(self, sender: str, done: int, total: int) -> None:
        if self._progress is not None:
            self._progress(sender, done, total)

    # Who is there.

    def _is_there(self, peer: str) -> bool:
        return self._presence.incarnation(peer) is not None

    def _changed(self, peer: str, incarnation: int | None) -> None:
        if self._closed:
            return
        before = self._seen.get(peer)
        if incarnation is None or (before is not None and before != incarnation):
            self._outbox.clear(peer)  # it has lost what it was told, or will
        if incarnation is not None:
            self._seen[peer] = incarnation
        self._told(peer, incarnation)
        if incarnation is not None:
            self._ask_head(peer)

    def _ask_head(self, peer: str) -> None:
        def take(text: bytes, digests: bytes) -> None:
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._inbox.take, peer, text, digests)

        where = topics.head(self.wiring.job_hash, peer, self.wiring.name)
        ask_head(self._session, where, peer, take, self._pace.part_s)

    def _mismatch(self, peer: str, job_hash: str) -> None:
        facts: Facts = {"peer": peer, "theirs": job_hash, "ours": self.wiring.job_hash}
        self._tell("mismatch", facts)

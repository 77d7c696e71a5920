"""The post over Zenoh: announcements are published, tensors pulled, and nothing is lost without notice.

A message goes in four steps: its sender puts the tensors on its shelf and announces it, again and again; the
receiver checks the announcement, pulls the tensors, checks them, and delivers; it acknowledges; the sender
takes the tensors down. Messages of one sender are delivered in the order in which they were announced.
"""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import zenoh

from manyhands.blocks import Weights
from manyhands.errors import MessageDamaged
from manyhands.hand import Facts, Message
from manyhands.wire import topics
from manyhands.wire.announcement import MAX_NEWS_BYTES, Announcement, announce, read_announcement
from manyhands.wire.body import Body, make_body, name_of
from manyhands.wire.expected import Expected, read_body
from manyhands.wire.linger import close_at_once
from manyhands.wire.outbox import Outbox
from manyhands.wire.presence import Presence
from manyhands.wire.refusals import Refusals, Tell
from manyhands.wire.session import Wiring, open_session
from manyhands.wire.shelf import Shelf
from manyhands.wire.transfer import HolderLied, NotPulled, Pace, Puller

__all__ = ["ZenohPost"]

TICK_S = 0.1
LINK_TICKS = 5
"""After how many ticks it sees to new links."""

LINGER_S = 5.0
"""How long a hand that leaves waits for its last words to be heard."""

MAX_QUEUE = 64
MAX_HEAD_REPLIES = 16
NUM_THREADS = 8

Progress = Callable[[str, int, int], None]
"""Is told how far a transfer is: from whom, how many bytes came, of how many."""


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
        while len(self.done) > 4096:
            del self.done[next(iter(self.done))]


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
        self._senders: defaultdict[str, _Sender] = defaultdict(_Sender)
        self._made: tuple[Mapping[str, Weights], Body, bytes] | None = None
        self._seen: dict[str, int] = {}
        self._num_sent = 0
        self._declared: list[Any] = []
        self._repeating: asyncio.Task[None] | None = None
        self._closed = False

    def open(self, deliver: Callable[[Message], None], presence: Callable[[str, int | None], None]) -> None:
        """Begins to carry; see `exchange.post.Post`."""
        self._loop = asyncio.get_running_loop()
        self._deliver, self._told = deliver, presence
        self._session = session = open_session(self.wiring)
        job, name = self.wiring.job_hash, self.wiring.name
        self._puller = Puller(
            session, job, name, self._executor, self._pace, self.refusals.add, self._is_there
        )
        listen = session.declare_subscriber
        answer = session.declare_queryable
        self._declared = [
            listen(topics.news(job, "*", name), self._direct(self._on_news)),
            listen(topics.ack(job, "*", name), self._direct(self._on_ack)),
            answer(topics.body(job, name, "*", "*"), _callback(self._shelf.answer), complete=True),
            answer(topics.head(job, name, "*"), _callback(self._answer_head), complete=True),
            session.liveliness().declare_subscriber(
                topics.tokens(), self._direct(self._on_token), history=True
            ),
            session.liveliness().declare_token(topics.token(job, name, self.wiring.incarnation)),
        ]
        self._repeating = self._loop.create_task(self._repeat())

    async def send(self, peer: str, message: Message) -> None:
        """Announces a message and offers its tensors; see `exchange.post.Post`."""
        if self._closed:
            return
        body, digests = None, b""
        if message.blocks:
            body, digests = await self._body_of(message.blocks)
            self._shelf.put(name_of(digests), body)
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
        tasks = [self._repeating, *(sender.task for sender in self._senders.values())]
        for task in tasks:
            if task is not None:
                task.cancel()
        await asyncio.gather(*(task for task in tasks if task is not None), return_exceptions=True)
        await self._loop.run_in_executor(None, self._close_session)

    def _close_session(self) -> None:
        for declared in reversed(self._declared):
            with suppress(zenoh.ZError):
                declared.undeclare()
        self._session.close()
        self._executor.shutdown(wait=True, cancel_futures=True)

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

        def answer(query: zenoh.Query) -> None:
            asker = topics.name_in(str(query.key_expr), 4)
            where = topics.status(self.wiring.job_hash, self.wiring.name, asker)
            with query:
                query.reply(where, json.dumps(status(), allow_nan=False).encode())

        def submit(query: zenoh.Query) -> None:
            with suppress(RuntimeError):
                self._executor.submit(answer, query)

        key = topics.status(self.wiring.job_hash, self.wiring.name, "*")
        self._declared.append(self._session.declare_queryable(key, _callback(submit), complete=True))

    # Sending.

    async def _body_of(self, blocks: Mapping[str, Weights]) -> tuple[Body, bytes]:
        """The bytes of some blocks; made once where the same blocks go to several peers in a row."""
        if self._made is not None:
            known, body, digests = self._made
            if known.keys() == blocks.keys() and all(known[name] is blocks[name] for name in blocks):
                return body, digests
        body = await asyncio.to_thread(make_body, blocks)
        digests = await asyncio.to_thread(body.digests, self._executor)
        self._made = dict(blocks), body, digests
        return body, digests

    def _take_down(self, announcement: Announcement) -> None:
        if announcement.nbytes:
            self._shelf.take_down(announcement.name)
        if not len(self._outbox):
            self._made = None  # what nobody waits for is not kept either

    def _publish(self, peer: str, announcement: Announcement) -> None:
        self._put(
            topics.news(self.wiring.job_hash, self.wiring.name, peer),
            announcement.text(),
            announcement.digests,
        )

    def _put(self, key: str, text: bytes, attachment: bytes = b"") -> None:
        # To drop is right here: what matters is said again, and nobody waits for a peer that does not read.
        with suppress(zenoh.ZError):
            self._session.put(
                key,
                text,
                attachment=attachment or None,
                congestion_control=zenoh.CongestionControl.DROP,
                priority=zenoh.Priority.INTERACTIVE_HIGH,
                express=True,
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

        def reply() -> None:
            with query:
                for announcement in waiting:
                    query.reply(where, announcement.text(), attachment=announcement.digests or None)

        with suppress(RuntimeError):
            self._executor.submit(reply)

    # Hearing. What Zenoh calls on its own threads is handed to the loop at once.

    def _direct(self, take: Callable[[zenoh.Sample], Callable[[], None] | None]) -> Any:
        """A callback that reads a sample where it comes in and goes on with it on the loop."""

        def called(sample: zenoh.Sample) -> None:
            then = take(sample)
            if then is not None:
                with suppress(RuntimeError):  # the loop is closed: nobody listens any more
                    self._loop.call_soon_threadsafe(then)

        return _callback(called)

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
        text, digests = _read(sample)
        return lambda: self._take_news(sender, text, digests)

    def _take_ack(self, sender: str, text: bytes) -> None:
        try:
            incarnation, number = json.loads(text)
            if incarnation == self.wiring.incarnation:
                self._outbox.acknowledge(sender, int(number))
        except (ValueError, TypeError, OverflowError, RecursionError):
            self.refusals.add(sender, "not an acknowledgement")

    def _take_news(self, sender: str, text: bytes, digests: bytes) -> None:
        if self._closed:
            return
        if sender not in self._peers:
            self.refusals.add(sender, "nobody of this job")
            return
        if self.refusals.ignores(sender):
            self.refusals.add(sender, "ignored")
            return
        try:
            news = read_announcement(text, digests, self._expected)
        except MessageDamaged as error:
            self.refusals.add(sender, str(error))
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
                state.task = self._loop.create_task(self._receive(sender, state))

    async def _receive(self, sender: str, state: _Sender) -> None:
        """Deals with what a peer has announced, one after the other."""
        while state.queue:
            news = state.queue.popleft()
            try:
                message = await self._fetch(sender, news)
            except HolderLied:
                message = None  # counted where it was seen
            except MessageDamaged as error:
                self.refusals.add(sender, str(error), news.round)
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

    async def _fetch(self, sender: str, news: Announcement) -> Message:
        """The message of an announcement.

        Raises:
            NotPulled: Its tensors did not come.
            MessageDamaged: They are not what this job can have.
        """
        blocks: dict[str, Weights] = {}
        if news.blocks:
            data = await self._puller.pull(news, sender, lambda done, of: self._show(sender, done, of))
            blocks = await self._loop.run_in_executor(
                self._executor, read_body, data, news.kind, news.blocks, self._expected
            )
            self._shelf.keep(news.name, blocks)
        return Message(news.kind, news.round, news.facts, blocks, sender)

    def _acknowledge(self, sender: str, news: Announcement) -> None:
        text = json.dumps([news.incarnation, news.number]).encode()
        self._put(topics.ack(self.wiring.job_hash, self.wiring.name, sender), text)

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
        """Asks a peer that has come what it has to say; its announcements may have come before us."""
        left = [MAX_HEAD_REPLIES]

        def take(reply: zenoh.Reply) -> None:
            left[0] -= 1
            if left[0] < 0 or reply.ok is None:
                return
            if topics.name_in(str(reply.ok.key_expr)) != peer:
                return
            text, digests = _read(reply.ok)
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._take_news, peer, text, digests)

        with suppress(zenoh.ZError):
            self._session.get(
                topics.head(self.wiring.job_hash, peer, self.wiring.name),
                zenoh.handlers.Callback(take, indirect=False),
                consolidation=zenoh.ConsolidationMode.NONE,
                timeout=self._pace.part_s,
            )

    def _mismatch(self, peer: str, job_hash: str) -> None:
        facts: Facts = {"peer": peer, "theirs": job_hash, "ours": self.wiring.job_hash}
        self._tell("mismatch", facts)


def _callback(function: Callable[[Any], None]) -> Any:
    """Called on the network's own thread, so it must hand over and return."""
    return zenoh.handlers.Callback(function, indirect=False)


def _read(sample: zenoh.Sample) -> tuple[bytes, bytes]:
    """What a sample holds, or what is sure to be refused if it holds too much."""
    attachment = sample.attachment
    if len(sample.payload) > MAX_NEWS_BYTES or (attachment is not None and len(attachment) > MAX_NEWS_BYTES):
        return b" " * (MAX_NEWS_BYTES + 1), b""
    return bytes(sample.payload), b"" if attachment is None else bytes(attachment)

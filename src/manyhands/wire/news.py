"""Small words on the wire: announcements and acknowledgements published, read, and asked for again.

What Zenoh calls on its own threads reads what has come in and hands it to the loop at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import zenoh

from manyhands.wire import topics
from manyhands.wire.announcement import MAX_NEWS_BYTES, Announcement

__all__ = ["MAX_HEAD_REPLIES", "ask_head", "called", "on_loop", "publish", "read_sample", "reply_head"]

MAX_HEAD_REPLIES = 16

Read = Callable[[zenoh.Sample], Callable[[], None] | None]
"""Reads a sample where it comes in, and says how to go on with it on the loop, if at all."""


def called(function: Callable[[Any], None]) -> Any:
    """Has Zenoh call a function on the network's own thread, so it must hand over and return."""
    return zenoh.handlers.Callback(function, indirect=False)


def on_loop(loop: asyncio.AbstractEventLoop, read: Read) -> Any:
    """Has Zenoh read a sample where it comes in and go on with it on the loop."""

    def take(sample: zenoh.Sample) -> None:
        then = read(sample)
        if then is not None:
            with suppress(RuntimeError):  # the loop is closed: nobody listens any more
                loop.call_soon_threadsafe(then)

    return called(take)


def publish(session: zenoh.Session, key: str, text: bytes, attachment: bytes = b"") -> None:
    """Says something once; it may be lost."""
    # To drop is right here: what matters is said again, and nobody waits for a peer that does not read.
    with suppress(zenoh.ZError):
        session.put(
            key,
            text,
            attachment=attachment or None,
            congestion_control=zenoh.CongestionControl.DROP,
            priority=zenoh.Priority.INTERACTIVE_HIGH,
            express=True,
        )


def read_sample(sample: zenoh.Sample) -> tuple[bytes, bytes]:
    """What a sample holds, or what is sure to be refused if it holds too much."""
    attachment = sample.attachment
    if len(sample.payload) > MAX_NEWS_BYTES or (attachment is not None and len(attachment) > MAX_NEWS_BYTES):
        return b" " * (MAX_NEWS_BYTES + 1), b""
    return bytes(sample.payload), b"" if attachment is None else bytes(attachment)


def ask_head(
    session: zenoh.Session, where: str, peer: str, take: Callable[[bytes, bytes], None], timeout_s: float
) -> None:
    """Asks a peer that has come what it has to say; its announcements may have come before us.

    `take` is given the text and the digests of each announcement, on the network's thread.
    """
    left = [MAX_HEAD_REPLIES]

    def took(reply: zenoh.Reply) -> None:
        left[0] -= 1
        if left[0] < 0 or reply.ok is None:
            return
        if topics.name_in(str(reply.ok.key_expr)) == peer:
            take(*read_sample(reply.ok))

    with suppress(zenoh.ZError):
        session.get(where, called(took), consolidation=zenoh.ConsolidationMode.NONE, timeout=timeout_s)


def reply_head(query: zenoh.Query, where: str, waiting: Sequence[Announcement]) -> None:
    """Says again, to who asks, what waits for it."""
    with query:
        for announcement in waiting:
            query.reply(where, announcement.text(), attachment=announcement.digests or None)

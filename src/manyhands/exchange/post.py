"""The post: how one hand's messages travel when every device is a process of its own.

A transport is this one narrow interface. `exchange.memory_post` carries messages inside one process, and the
wire carries them between hosts; the live engine knows neither.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from manyhands.hand import Message

__all__ = ["Deliver", "Post", "Presence"]

Deliver = Callable[[Message], None]
"""Takes a message with its sender filled in."""

Presence = Callable[[str, int | None], None]
"""Told that a peer is there, with its incarnation, or gone (None)."""


class Post(Protocol):
    """One hand's mail: carries messages to peers, or loses them; tells who is there."""

    async def send(self, peer: str, message: Message) -> None:
        """Hands a message over; returns when it is on its way. Never raises for a lost peer."""
        ...

    def open(self, deliver: Deliver, presence: Presence) -> None:
        """Begins to take mail; both functions are called on the thread of the running asyncio loop."""
        ...

    async def close(self) -> None:
        """Leaves politely: the others are told at once."""
        ...

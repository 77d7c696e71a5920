"""Post: how one hand's messages reach its peers on real hosts. The engine knows no more of the network."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from manyhands.hand import Message

__all__ = ["Post"]


class Post(Protocol):
    """One hand's mail: carries messages to peers, or loses them; tells who is there."""

    async def send(self, peer: str, message: Message) -> None:
        """Returns when the message is handed over (tensors are offered for pull); a lost peer is no error."""
        ...

    def open(self, deliver: Callable[[Message], None], presence: Callable[[str, int | None], None]) -> None:
        """Begins to carry. Both functions are called on the thread of the running asyncio loop.

        Args:
            deliver: Is given each message that came, its sender filled in.
            presence: Is told of a peer and its incarnation, or None when it is gone.
        """
        ...

    async def close(self) -> None:
        """Leaves politely."""
        ...

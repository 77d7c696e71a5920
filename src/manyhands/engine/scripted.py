"""A hand for tests: it gives a program the messages you wrote down and remembers what the program did.

hand = ScriptedHand("pi", inbox=[Message("round", blocks=...), Message("stop")])
result = asyncio.run(program(hand))
assert [message.kind for _, message in hand.sent] == ["update"]
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from manyhands.hand import Message, Outcome, Work

__all__ = ["ScriptedHand"]


class ScriptedHand:
    """Does works at once, takes messages from a list, and counts a second for each work it does.

    A message comes when the program waits for it. With `queued` all are there from the start, so that a
    program that only looks (``timeout_s=0``) sees them too.
    """

    def __init__(
        self, name: str, inbox: Iterable[Message] = (), peers: Iterable[str] = (), *, queued: bool = False
    ) -> None:
        self.name = name
        self.inbox = list(inbox)
        self._queued = queued
        self.peers = tuple(peers)
        self.seconds = 0.0
        self.saved: Any = None
        self.sent: list[tuple[str, Message]] = []
        self.events: list[dict[str, Any]] = []
        self.works: list[str] = []

    def save(self, state: Any) -> None:
        """Remembers the state."""
        self.saved = state

    async def compute(self, work: Work) -> Outcome:
        """Does the work now."""
        self.seconds += 1
        self.works.append(work.name)
        return work.run()

    async def send(self, peer: str, message: Message) -> None:
        """Remembers the message."""
        self.sent.append((peer, message))

    async def receive(self, *kinds: str, timeout_s: float | None = None) -> Message | None:
        """The next scripted message of these kinds; None, as if time were up, when the script has none."""
        if timeout_s == 0 and not self._queued:
            return None
        for position, message in enumerate(self.inbox):
            if not kinds or message.kind in kinds:
                return self.inbox.pop(position)
        if timeout_s is None:
            raise AssertionError(
                f"{self.name} waits for {kinds or 'anything'} and the script has no more of it"
            )
        self.seconds += timeout_s
        return None

    async def sleep(self, seconds: float) -> None:
        """Moves the clock."""
        self.seconds += seconds

    def report(self, event: str, *, observe: Work | None = None, **facts: Any) -> None:
        """Remembers the event, with what was observed."""
        observed = observe.run().facts if observe is not None else {}
        self.events.append({"event": event, **facts, **observed})

"""What was refused, from whom and why; and who is not listened to any more because of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from manyhands.hand import Facts

__all__ = ["PATIENCE", "Refusals", "Tell"]

Tell = Callable[[str, Facts], None]
"""Is told of an event by its name and facts, as `Hand.report` is."""

PATIENCE = 20
"""How much rubbish is taken from one sender before it is ignored."""

MAX_SENDERS = 1000


class Refusals:
    """Counts what was refused, by sender and reason."""

    def __init__(self, tell: Tell, patience: int = PATIENCE) -> None:
        self._tell = tell
        self._patience = patience
        self.counts: Counter[tuple[str, str]] = Counter()
        self._by_sender: Counter[str] = Counter()

    def ignores(self, sender: str) -> bool:
        """Whether a sender has said too much that was no use."""
        return self._by_sender[sender] >= self._patience

    def add(self, sender: str, reason: str, number: int | None = None) -> None:
        """Counts something that was refused, and says so: each time until the sender is ignored."""
        if sender not in self._by_sender and len(self._by_sender) >= MAX_SENDERS:
            sender = "others"
        ignored = self.ignores(sender)
        self.counts[sender, reason.partition(":")[0]] += 1
        self._by_sender[sender] += 1
        if ignored:
            return
        self._tell("refused", {"peer": sender, "round": number, "reason": reason})
        if self.ignores(sender):
            self._tell("ignored", {"peer": sender, "count": self._by_sender[sender], "reason": reason})

    @property
    def total(self) -> int:
        """How much was refused."""
        return self._by_sender.total()

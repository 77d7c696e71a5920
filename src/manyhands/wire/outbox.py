"""The outbox: what has been said and not yet been acknowledged, and when it is said again.

An announcement may be lost, so it is repeated, each time after twice the time, until its peer has
acknowledged it, is gone, or something newer has taken its place.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from manyhands.wire.announcement import Announcement

__all__ = ["Outbox"]

FIRST_REPEAT_S, MAX_REPEAT_S = 0.3, 4.0
MAX_WAITING = 16
"""How many messages wait for one peer."""


@dataclass
class _Entry:
    announcement: Announcement
    due_s: float
    repeat_s: float = FIRST_REPEAT_S


class Outbox:
    """Announcements that wait to be acknowledged, by peer.

    Args:
        dropped: Is told of each announcement that waits no longer.
    """

    def __init__(self, dropped: Callable[[Announcement], None]) -> None:
        self._dropped = dropped
        self._waiting: defaultdict[str, dict[int, _Entry]] = defaultdict(dict)

    def add(self, peer: str, announcement: Announcement, now_s: float) -> None:
        """Puts an announcement in; older ones of its kind that it makes useless fall out."""
        waiting = self._waiting[peer]
        for number, entry in list(waiting.items()):
            old = entry.announcement
            # Two rounds are kept because two hands may be one apart; small words cost nothing to keep.
            if old.nbytes and old.kind == announcement.kind and old.round < announcement.round - 1:
                self._drop(peer, number)
        while len(waiting) >= MAX_WAITING:
            self._drop(peer, min(waiting))
        waiting[announcement.number] = _Entry(announcement, now_s + FIRST_REPEAT_S)

    def acknowledge(self, peer: str, number: int) -> None:
        """Takes out what a peer has; a number that is not there is passed over."""
        if number in self._waiting[peer]:
            self._drop(peer, number)

    def clear(self, peer: str) -> None:
        """Forgets all that waits for a peer."""
        for number in list(self._waiting[peer]):
            self._drop(peer, number)

    def waiting(self, peer: str) -> list[Announcement]:
        """What waits for a peer, oldest first."""
        return [entry.announcement for entry in self._waiting[peer].values()]

    def due(self, now_s: float) -> Iterator[tuple[str, Announcement]]:
        """What is to be said again now."""
        for peer, waiting in self._waiting.items():
            for entry in waiting.values():
                if entry.due_s <= now_s:
                    entry.repeat_s = min(2 * entry.repeat_s, MAX_REPEAT_S)
                    entry.due_s = now_s + entry.repeat_s
                    yield peer, entry.announcement

    def __len__(self) -> int:
        return sum(len(waiting) for waiting in self._waiting.values())

    def _drop(self, peer: str, number: int) -> None:
        self._dropped(self._waiting[peer].pop(number).announcement)

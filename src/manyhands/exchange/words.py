"""What neighbours have said to a device and is still of use to it."""

from __future__ import annotations

from collections.abc import Iterable

from manyhands.exchange.consensus import RING_KINDS, Belt, Ring
from manyhands.hand import Hand, Message

__all__ = ["Words"]


class Words:
    """What others have said and is still of use.

    Of a neighbour at most one step ahead, which is as far as those get who wait for each other, the word of
    each step counts in that step: it then averaged with this device's word of the same step, and the mean
    over the data stays what it was. One that is further ahead has gone on without this device; its newest
    word counts, and no other is kept.

    Attributes:
        belt: What came along the ring, if there is one.
        kinds: The messages that it takes.
        waited_s: How long the device has waited for them in this round.
    """

    def __init__(
        self, neighbours: Iterable[str], num_rounds: int, num_stages: int, ring: Ring | None = None
    ) -> None:
        self.belt = None if ring is None else Belt(ring, num_rounds)
        self.kinds = ("blocks", "consensus", *(RING_KINDS if ring else ()))
        self.waited_s = 0.0
        self._num_rounds, self._num_stages = num_rounds, num_stages
        self._said: dict[str, dict[int, Message]] = {peer: {} for peer in neighbours}

    def newest_of(self, peers: Iterable[str]) -> int:
        """The newest step that any of these is known to be at."""
        return max((step for peer in peers for step in self._said.get(peer, ())), default=0)

    @property
    def newest(self) -> int:
        """The newest step that anybody is known to be at."""
        along_the_ring = 0 if self.belt is None else self.belt.newest * self._num_stages
        return max(along_the_ring, self.newest_of(self._said))

    def has(self, peer: str, step: int) -> bool:
        """Whether a neighbour's word is there for a step."""
        return any(said >= step for said in self._said.get(peer, ()))

    def word(self, peer: str) -> Message:
        """What of a neighbour counts now."""
        said = self._said[peer]
        return said[min(said)]

    def take(self, hand: Hand, message: Message, step: int) -> bool:
        """Puts a message away that came at a step, or says why not; whether its sender is behind."""
        if self.belt is not None and message.kind in RING_KINDS:
            self.belt.take(hand, message, step // self._num_stages)
            return False
        said, stage = self._said.get(message.sender), message.facts.get("stage", 0)
        if said is None or not self._exists(message.round, stage):
            reason = "no neighbour" if said is None else "there is no such round"
            hand.report("refused", peer=message.sender, round=message.round, reason=reason)
        elif (spoken := message.round * self._num_stages + stage) < step:
            hand.report("late", peer=message.sender, round=message.round)
            return True
        else:
            said[spoken] = message
            self._tidy(said, step)
        return False

    def forget(self, step: int) -> None:
        """Drops what is older than a step."""
        for said in self._said.values():
            self._tidy(said, step)

    def _exists(self, number: int, stage: object) -> bool:
        return 0 <= number < self._num_rounds and isinstance(stage, int) and 0 <= stage < self._num_stages

    @staticmethod
    def _tidy(said: dict[int, Message], step: int) -> None:
        newest = max(said, default=0)
        for other in [n for n in said if n < step or (newest > step + 1 and n < newest)]:
            del said[other]

"""Who is there: each hand keeps a token up, which falls when it goes, is killed, or is silent for too long.

A token says how often its hand has been started and which job it runs. What is seen is each observer's own
view, not a consensus.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection

from manyhands.wire import topics

__all__ = ["Presence"]


class Presence:
    """The peers that are there, from the tokens that come and go.

    Args:
        job_hash: Tokens of other jobs do not count.
        peers: The hands that there can be.
        changed: Is told of a peer and its incarnation, or None when it is gone.
        mismatch: Is told once of each peer that runs another job, and that job's hash.
    """

    def __init__(
        self,
        job_hash: str,
        peers: Collection[str],
        changed: Callable[[str, int | None], None],
        mismatch: Callable[[str, str], None],
    ) -> None:
        self._job_hash = job_hash
        self._peers = frozenset(peers)
        self._changed = changed
        self._mismatch = mismatch
        self._up: defaultdict[str, set[int]] = defaultdict(set)
        self._known: dict[str, int] = {}
        self._odd: set[tuple[str, str]] = set()

    def incarnation(self, peer: str) -> int | None:
        """Of a peer that is there; else None."""
        return self._known.get(peer)

    def clear(self) -> None:
        """Nobody is there, as far as is known; whoever is will be heard of again."""
        self._up.clear()
        for peer in list(self._known):
            del self._known[peer]
            self._changed(peer, None)

    def token(self, key: str, up: bool) -> None:
        """Takes note of a token that has come up or fallen."""
        parts = key.split("/")
        peer, incarnation = topics.name_in(key), parts[-1]
        if peer not in self._peers or not (incarnation.isascii() and incarnation.isdigit()):
            return
        if parts[1] != self._job_hash:
            if up and (peer, parts[1]) not in self._odd and len(self._odd) < 1000:
                self._odd.add((peer, parts[1]))
                self._mismatch(peer, parts[1])
            return
        standing = self._up[peer]
        (standing.add if up else standing.discard)(int(incarnation[:18]))
        # Of a hand that was started again the old token may fall late; and an old one never comes back.
        newest = max(standing, default=None)
        before = self._known.get(peer)
        if newest is None and before is not None:
            del self._known[peer]
            self._changed(peer, None)
        elif newest is not None and newest != before:
            self._known[peer] = newest
            self._changed(peer, newest)

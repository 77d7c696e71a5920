"""The shelf: bodies that this hand offers, and the answering of those who ask for parts of them.

A puller that stops reading must not stall the others, so at most 4 MiB are under way to each.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections import Counter
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import zenoh

from manyhands.blocks import Weights
from manyhands.wire import topics
from manyhands.wire.body import Body, make_body, name_of

__all__ = ["ASK_WHO", "MAX_OUTSTANDING_BYTES", "Shelf"]

MAX_OUTSTANDING_BYTES = 4 << 20
ASK_WHO = b"?"
"""Asked instead of a range: whether somebody has the body at all."""

BUSY, GONE, BAD = b"busy", b"gone", b"bad"


@dataclass
class _Offer:
    body: Body
    count: int = 0


class Shelf:
    """What this hand offers. Called from any thread.

    Args:
        name: Of the hand; answers are given under it.
        peers: Who may ask.
        executor: Reads and answers, so that the network's threads never wait.
    """

    def __init__(self, job: str, name: str, peers: Collection[str], executor: ThreadPoolExecutor) -> None:
        self._job, self._name = job, name
        self._peers = frozenset(peers)
        self._executor = executor
        self._lock = threading.Lock()
        self._offers: dict[str, _Offer] = {}
        self._received: dict[str, dict[str, weakref.ref[Weights]]] = {}
        self._outstanding: Counter[str] = Counter()
        self._made: tuple[Mapping[str, Weights], Body, bytes] | None = None
        self.num_refused = 0

    async def offer(self, blocks: Mapping[str, Weights]) -> tuple[Body, bytes]:
        """Offers some blocks; made once where the same go to several peers in a row.

        Returns:
            Their bytes, and the digests of these.
        """
        known, body, digests = self._made or ({}, None, b"")
        if body is None or known.keys() != blocks.keys() or any(known[n] is not blocks[n] for n in blocks):
            body = await asyncio.to_thread(make_body, blocks)
            digests = await asyncio.to_thread(body.digests, self._executor)
            self._made = dict(blocks), body, digests
        self.put(name_of(digests), body)
        return body, digests

    def forget(self) -> None:
        """Keeps no blocks for the next peer any more."""
        self._made = None

    def put(self, digest: str, body: Body) -> None:
        """Offers a body; as often as it is put it must be taken down."""
        with self._lock:
            self._offers.setdefault(digest, _Offer(body)).count += 1

    def take_down(self, digest: str) -> None:
        """Offers a body no longer."""
        with self._lock:
            offer = self._offers[digest]
            offer.count -= 1
            if not offer.count:
                del self._offers[digest]

    def keep(self, digest: str, blocks: Mapping[str, Weights]) -> None:
        """Offers blocks that were received, for as long as somebody here holds them anyway."""
        with self._lock:
            self._received[digest] = {name: weakref.ref(weights) for name, weights in blocks.items()}
            gone = [d for d, refs in self._received.items() if any(ref() is None for ref in refs.values())]
            for other in gone:
                del self._received[other]

    def answer(self, query: zenoh.Query) -> None:
        """Takes a query, on one of the network's threads, to be answered on another."""
        try:
            key = str(query.key_expr)
            asked = b"" if query.payload is None else bytes(query.payload)[:64]
            asker, digest = topics.name_in(key, 4), key.rpartition("/")[2]
            self._executor.submit(self._answer, query, asker, digest, asked)
        except (RuntimeError, IndexError):  # closing; or no key of ours
            query.drop()

    def _answer(self, query: zenoh.Query, asker: str, digest: str, asked: bytes) -> None:
        with query:
            found = self._find(digest)
            where = topics.body(self._job, self._name, asker, digest)
            if asker not in self._peers or found is None:
                if asked != ASK_WHO:
                    self._refuse(query, GONE)
            elif asked == ASK_WHO:
                query.reply(where, b"here")
            elif (span := _span(asked, found.nbytes)) is None:
                self._refuse(query, BAD)
            elif not self._reserve(asker, span[1] - span[0]):
                self._refuse(query, BUSY)
            else:
                try:
                    query.reply(where, found.read(*span))
                finally:
                    self._release(asker, span[1] - span[0])

    def _refuse(self, query: zenoh.Query, why: bytes) -> None:
        self.num_refused += 1
        query.reply_err(why)

    def _find(self, digest: str) -> Body | None:
        with self._lock:
            if digest in self._offers:
                return self._offers[digest].body
            refs = self._received.get(digest, {})
        blocks = {name: weights for name, ref in refs.items() if (weights := ref()) is not None}
        return make_body(blocks) if blocks and len(blocks) == len(refs) else None

    def _reserve(self, asker: str, nbytes: int) -> bool:
        with self._lock:
            if self._outstanding[asker] + nbytes > MAX_OUTSTANDING_BYTES:
                return False
            self._outstanding[asker] += nbytes
            return True

    def _release(self, asker: str, nbytes: int) -> None:
        with self._lock:
            self._outstanding[asker] -= nbytes


def _span(asked: bytes, nbytes: int) -> tuple[int, int] | None:
    """The bytes that are asked for, as ``start-stop``; None if they are not there or are too many."""
    start, _, stop = asked.partition(b"-")
    if not (start.isdigit() and stop.isdigit()):
        return None
    span = int(start), int(stop)
    return span if span[0] < span[1] <= min(nbytes, span[0] + MAX_OUTSTANDING_BYTES) else None

"""Sessions on loopback for the tests of the wire: the system chooses the ports, and everything is closed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import psutil
import torch
import zenoh

from manyhands.blocks import Weights
from manyhands.hand import Message
from manyhands.wire.expected import Expected, expect
from manyhands.wire.post import ZenohPost
from manyhands.wire.session import Wiring, open_session
from manyhands.wire.transfer import Pace

PATIENCE_S = 90
JOB = "job"


def weights(count: int = 1000, seed: int = 0) -> Weights:
    generator = torch.Generator().manual_seed(seed)
    return Weights({"w": torch.randn(count, generator=generator), "steps": torch.tensor(3)})


def expected(num_rounds: int = 10, count: int = 1000) -> Expected:
    return expect({"model": weights(count)}, num_rounds)


def ports() -> set[int]:
    """Where this process listens."""
    found = psutil.Process().net_connections(kind="tcp")
    return {one.laddr.port for one in found if one.status == psutil.CONN_LISTEN}


@contextmanager
def hub(wiring: Wiring) -> Iterator[tuple[zenoh.Session, str]]:
    """A session that listens, and where."""
    before = ports()
    session = open_session(replace(wiring, listen=("127.0.0.1:0",)))
    try:
        (port,) = ports() - before
        yield session, f"127.0.0.1:{port}"
    finally:
        session.close()


@contextmanager
def spoke(name: str, *connect: str, **changes: Any) -> Iterator[zenoh.Session]:
    """A session that calls others."""
    session = open_session(Wiring(name, JOB, connect=connect, **changes))
    try:
        yield session
    finally:
        session.close()


class Line:
    """A post and what has come to it."""

    def __init__(
        self,
        name: str,
        peers: Sequence[str],
        connect: Sequence[str] = (),
        wanted: Expected | None = None,
        **changes: Any,
    ) -> None:
        settings = {"job_hash": JOB, "incarnation": 1, "listen": ("127.0.0.1:0",), "connect": tuple(connect)}
        wiring = Wiring(name, **settings | changes)
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.messages: list[Message] = []
        self.seen: list[tuple[str, int | None]] = []
        self.post = ZenohPost(
            wiring,
            peers,
            wanted or expected(),
            tell=lambda event, facts: self.events.append((event, facts)),
            pace=Pace(part_s=5.0),
        )
        self.endpoint = ""

    def open(self) -> Line:
        before = ports()
        self.post.open(self.messages.append, lambda peer, number: self.seen.append((peer, number)))
        (port,) = ports() - before
        self.endpoint = f"127.0.0.1:{port}"
        return self

    def told(self, event: str) -> list[dict[str, Any]]:
        return [facts for name, facts in self.events if name == event]


async def until(what: Callable[[], object], meanwhile: Callable[[], object] = lambda: None) -> None:
    """Waits until something holds, doing something again and again; a test that waits in vain fails."""
    async with asyncio.timeout(PATIENCE_S):
        while not what():
            meanwhile()
            await asyncio.sleep(0.02)


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(test())

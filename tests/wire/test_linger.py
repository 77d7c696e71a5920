"""That a link which is cut cannot hold up the others: its socket closes at once."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from pathlib import Path

import pytest
from lines import Line, run, until

from manyhands.wire import linger
from manyhands.wire.linger import close_at_once

TEN_S = struct.pack("ii", 1, 10)


def lingers(held: socket.socket) -> bool:
    return struct.unpack("ii", held.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, len(TEN_S)))[0] != 0


def num_lingering(ports: set[int]) -> int:
    """How many sockets of this process at some ports wait when they are closed."""
    count = 0
    for name in os.listdir("/dev/fd"):
        try:
            with socket.socket(fileno=os.dup(int(name))) as held:
                if held.family == socket.AF_INET and {held.getsockname()[1], *held.getpeername()[1:]} & ports:
                    count += lingers(held)
        except OSError:  # closed in the meantime, not connected, or no socket
            continue
    return count


def test_no_link_of_a_post_waits_when_it_is_closed() -> None:
    async def test() -> None:
        a = Line("a", ["b"]).open()
        b = Line("b", ["a"], [a.endpoint]).open()
        ports = {int(line.endpoint.rpartition(":")[2]) for line in (a, b)}
        try:
            await until(lambda: a.seen and b.seen)
            await until(lambda: num_lingering(ports) == 0)
        finally:
            await asyncio.gather(a.post.close(), b.post.close())

    run(test)


def test_zenoh_still_makes_links_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """When this fails, `wire.linger` has become needless."""
    monkeypatch.setattr("manyhands.wire.post.close_at_once", lambda: 0)

    async def test() -> None:
        a = Line("a", ["b"]).open()
        b = Line("b", ["a"], [a.endpoint]).open()
        ports = {int(line.endpoint.rpartition(":")[2]) for line in (a, b)}
        try:
            await until(lambda: a.seen and b.seen)
            assert num_lingering(ports) > 0
        finally:
            await asyncio.gather(a.post.close(), b.post.close())

    run(test)


def test_only_tcp_sockets_are_touched_and_stay_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    near, far = socket.socketpair()
    server = socket.create_server(("127.0.0.1", 0))
    link = socket.create_connection(server.getsockname())
    with near, far, server, link, (tmp_path / "file").open("w"):
        link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, TEN_S)
        near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, TEN_S)
        assert close_at_once() >= 1
        assert not lingers(link)
        assert lingers(near)
        link.sendall(b"still here")
        taken, _ = server.accept()
        with taken:
            assert taken.recv(10) == b"still here"
    monkeypatch.setattr(linger, "OPEN_FILES", str(tmp_path / "nowhere"))
    assert close_at_once() == 0

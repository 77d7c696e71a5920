"""Asking devices how they stand."""

from __future__ import annotations

import asyncio
from typing import Any

from manyhands.wire.expected import expect
from manyhands.wire.post import ZenohPost
from manyhands.wire.session import Wiring, free_endpoints
from manyhands.wire.status import ask_status


def test_who_asks_one_device_hears_of_all() -> None:
    first, second = free_endpoints(2)
    posts = [
        ZenohPost(Wiring("a", "job", 1, (first,), (second,)), ("a", "b"), expect({}, 1)),
        ZenohPost(Wiring("b", "job", 1, (second,), (first,)), ("a", "b"), expect({}, 1)),
    ]

    async def scene() -> list[dict[str, Any]]:
        here: set[str] = set()
        for post in posts:
            post.open(lambda _message: None, lambda peer, _incarnation: here.add(peer))
            post.answer_status(lambda name=post.wiring.name: {"round": len(name) + 6, "lost": []})
        async with asyncio.timeout(60):
            while here != {"a", "b"}:
                await asyncio.sleep(0.05)
            told: list[dict[str, Any]] = []
            while len(told) < 2:
                told = await asyncio.to_thread(ask_status, (first,), None)
        for post in posts:
            await post.close()
        return told

    told = asyncio.run(scene())
    assert [(said["device"], said["job"], said["round"]) for said in told] == [
        ("a", "job", 7),
        ("b", "job", 7),
    ]


def test_where_nobody_is_nobody_answers() -> None:
    assert ask_status(tuple(free_endpoints(1)), None, wait_s=0.5) == []

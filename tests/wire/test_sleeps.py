"""A process notices that it was stopped."""

from __future__ import annotations

import asyncio

from manyhands.wire.sleeps import Sleeps


class _Clock(asyncio.SelectorEventLoop):
    """A loop whose clock can be put forward."""

    ahead_s = 0.0

    def time(self) -> float:
        return super().time() + self.ahead_s


def test_a_leap_of_the_clock_is_noticed_once() -> None:
    loop = _Clock()
    woken: list[float] = []

    async def after() -> None:
        woken.append(loop.time())

    async def run() -> None:
        sleeps = Sleeps(20.0, loop, after)
        try:
            await asyncio.sleep(0.1)
            assert not woken
            loop.ahead_s = 100.0
            while not woken:
                await asyncio.sleep(0.05)
            await asyncio.sleep(3.0)  # it has looked again
            assert len(woken) == 1
        finally:
            sleeps.stop()

    try:
        loop.run_until_complete(run())
    finally:
        loop.close()

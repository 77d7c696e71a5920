from __future__ import annotations

import asyncio
import time

import pytest

from manyhands.engine.clock import Interval, VirtualLoop


def run(*coroutines: object) -> VirtualLoop:
    loop = VirtualLoop()
    tasks = [loop.create_task(coroutine) for coroutine in coroutines]
    loop.run_until_idle()
    for task in tasks:
        task.result()
    return loop


def test_sleeping_takes_virtual_time_and_no_real_time() -> None:
    async def program() -> None:
        await asyncio.sleep(86_400)

    before = time.monotonic()
    assert run(program()).time() == 86_400
    assert time.monotonic() - before < 60


def test_what_is_due_at_the_same_instant_happens_in_the_order_it_was_scheduled() -> None:
    order: list[int] = []
    loop = VirtualLoop()
    for number in range(100):
        loop.call_at(1.0, order.append, number)
    loop.call_at(0.5, order.append, -1)
    loop.run_until_idle()
    assert order == [-1, *range(100)]


def test_plain_asyncio_works_on_it() -> None:
    async def leaf(seconds: float) -> float:
        await asyncio.sleep(seconds)
        return asyncio.get_running_loop().time()

    async def program() -> None:
        assert await asyncio.gather(leaf(3), leaf(1), leaf(2)) == [3, 1, 2]
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await leaf(50)
        assert asyncio.get_running_loop().time() == 8
        async with asyncio.TaskGroup() as group:
            group.create_task(leaf(1))
        assert asyncio.get_running_loop().time() == 9

    run(program())


def test_a_cancelled_timer_does_not_move_the_clock() -> None:
    loop = VirtualLoop()
    loop.call_at(10.0, lambda: None).cancel()
    loop.call_at(1.0, lambda: None)
    loop.run_until_idle()
    assert loop.time() == 1.0


def test_a_failing_callback_ends_the_run() -> None:
    loop = VirtualLoop()

    def fail() -> None:
        raise ValueError("broken")

    loop.call_at(1.0, fail)
    with pytest.raises(ValueError, match="broken"):
        loop.run_until_idle()


def test_an_interval_is_due_once() -> None:
    interval = Interval(0.0)
    assert interval.due()
    assert not Interval(3600).due()

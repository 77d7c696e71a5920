"""How devices find each other and agree on who is left, without processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch.distributed as dist

from manyhands.crew.meeting import Meeting, Over, connections, say_gone
from manyhands.errors import RunError

NAMES = ("a", "b", "c")


@pytest.fixture
def store() -> dist.TCPStore:
    return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


@pytest.fixture
def meet(store: dist.TCPStore) -> Iterator[Callable[..., Meeting]]:
    made: list[Meeting] = []

    def make(name: str, patience_s: float = 60.0) -> Meeting:
        made.append(Meeting(store.clone(), name, NAMES, patience_s))
        return made[-1]

    yield make
    for meeting in made:
        meeting.close()


def gather(meetings: list[Meeting], generation: int) -> list[tuple[str, ...]]:
    with ThreadPoolExecutor(len(meetings)) as pool:
        return list(pool.map(lambda meeting: meeting.gather(generation, NAMES), meetings))


def test_all_meet_in_the_order_of_the_job(meet: Callable[..., Meeting]) -> None:
    assert gather([meet(name) for name in reversed(NAMES)], 0) == [NAMES] * 3


def test_those_who_are_left_go_on_without_one_that_fell_silent(meet: Callable[..., Meeting]) -> None:
    meetings = [meet(name, patience_s=2.0) for name in NAMES]
    gather(meetings, 0)
    meetings[1].close()
    assert gather([meetings[0], meetings[2]], 1) == [("a", "c")] * 2
    with pytest.raises(RunError, match="the others have gone on without b"):
        meetings[1].gather(1, NAMES)


def test_one_whose_process_has_ended_is_not_waited_for(
    meet: Callable[..., Meeting], store: dist.TCPStore
) -> None:
    meetings = [meet(name) for name in NAMES]
    gather(meetings, 0)
    say_gone(store, "a")
    assert gather(meetings[1:], 1) == [("b", "c")] * 2


def test_one_that_the_wire_says_is_gone_is_not_waited_for(meet: Callable[..., Meeting]) -> None:
    meetings = [meet(name) for name in NAMES]
    gather(meetings, 0)
    meetings[0].lose("b")
    meetings[2].lose("b")
    assert gather([meetings[0], meetings[2]], 1) == [("a", "c")] * 2


def test_waiting_at_the_store_can_be_broken_off(store: dist.TCPStore) -> None:
    before = connections()
    meeting = Meeting(store.clone(), "a", NAMES, 60.0, before)
    try:
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(meeting.gather, 1, NAMES)
            assert connections() - before
            meeting.break_off()
            with pytest.raises(Over, match="the meeting point of the group is gone"):
                waiting.result(timeout=120)
        assert store.check(["1/here/a"]) in (True, False)  # others' connections still stand
    finally:
        meeting.close()


def test_a_group_that_cannot_form_at_first_says_who_is_missing(
    meet: Callable[..., Meeting], store: dist.TCPStore
) -> None:
    say_gone(store, "c")
    with pytest.raises(RunError, match="a: the group cannot form, c did not come"):
        gather([meet("a")], 0)


def test_who_comes_when_all_is_done_may_go(meet: Callable[..., Meeting]) -> None:
    first, late = meet("a"), meet("b")
    first.say_done(0)
    assert late.gather(4, NAMES) == ()
    assert late.wait_done("a")

from __future__ import annotations

from itertools import pairwise

from manyhands.wire.announcement import Announcement
from manyhands.wire.outbox import MAX_WAITING, Outbox
from manyhands.wire.presence import Presence
from manyhands.wire.refusals import Refusals


def words(number: int, round: int = 0, kind: str = "blocks", nbytes: int = 8) -> Announcement:
    return Announcement(1, number, kind, round, nbytes=nbytes)


def test_what_waits_is_said_again_less_and_less_often_until_it_is_acknowledged() -> None:
    dropped: list[Announcement] = []
    box = Outbox(dropped.append)
    box.add("a", words(1), 0.0)
    times = [tick / 10 for tick in range(200) if list(box.due(tick / 10))]
    gaps = [round(b - a, 1) for a, b in pairwise(times)]
    assert times[0] == 0.3
    assert gaps[:4] == [0.6, 1.2, 2.4, 4.0]
    assert set(gaps[4:]) <= {4.0}
    box.acknowledge("a", 7)
    box.acknowledge("b", 1)
    assert len(box) == 1
    box.acknowledge("a", 1)
    assert (len(box), dropped) == (0, [words(1)])
    assert not list(box.due(1e9))


def test_tensors_of_old_rounds_give_way_to_new_ones_and_all_that_waits_is_bounded() -> None:
    dropped: list[Announcement] = []
    box = Outbox(dropped.append)
    for number in range(4):
        box.add("a", words(number, round=number), 0.0)
    box.add("a", words(9, kind="chunk"), 0.0)
    assert [w.number for w in box.waiting("a")] == [2, 3, 9]
    for number in range(10, 50):
        box.add("a", words(number, kind="broken", round=number, nbytes=0), 0.0)
    assert [w.number for w in box.waiting("a")] == list(range(50 - MAX_WAITING, 50))
    box.clear("a")
    assert len(box) == 0
    assert len(dropped) == 45


def test_presence_is_the_newest_token_that_stands() -> None:
    told: list[tuple[str, int | None]] = []
    odd: list[tuple[str, str]] = []
    presence = Presence("j", ["a", "b"], lambda *x: told.append(x), lambda *x: odd.append(x))
    for key, up in [
        ("mh/j/a/alive/1", True),
        ("mh/j/a/alive/1", True),
        ("mh/j/a/alive/2", True),
        ("mh/j/a/alive/1", False),
        ("mh/j/stranger/alive/1", True),
        ("mh/j/b/alive/x", True),
        ("mh/k/b/alive/1", True),
        ("mh/k/b/alive/1", True),
        ("mh/j/a/alive/2", False),
        ("mh/j/a/alive/2", False),
    ]:
        presence.token(key, up)
    assert told == [("a", 1), ("a", 2), ("a", None)]
    assert odd == [("b", "k")]


def test_refusals_are_counted_by_sender_and_reason_and_told_until_somebody_is_ignored() -> None:
    told: list[tuple[str, dict[str, object]]] = []
    refusals = Refusals(lambda *x: told.append(x), patience=3)
    for number in range(5):
        refusals.add("a", f"not a body: {number}", number)
    refusals.add("b", "no such round")
    assert refusals.counts == {("a", "not a body"): 5, ("b", "no such round"): 1}
    assert [event for event, _ in told] == ["refused", "refused", "refused", "ignored", "refused"]
    assert refusals.ignores("a")
    assert not refusals.ignores("b")

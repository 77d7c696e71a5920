from __future__ import annotations

import json

import pytest
import torch
import zenoh
from lines import JOB, Line, run, spoke, until, weights

from manyhands.hand import Message
from manyhands.wire import topics
from manyhands.wire.announcement import Announcement, announce
from manyhands.wire.body import make_body, name_of
from manyhands.wire.post import ZenohPost
from manyhands.wire.refusals import PATIENCE
from manyhands.wire.shelf import ASK_WHO, GONE


def test_messages_come_whole_and_in_order_both_ways() -> None:
    async def test() -> None:
        a = Line("a", "ab").open()
        b = Line("b", "ab", [a.endpoint]).open()
        await until(lambda: a.seen and b.seen)
        assert (a.seen, b.seen) == ([("b", 1)], [("a", 1)])
        sent = [weights(seed=number) for number in range(5)]
        for number, block in enumerate(sent):
            await a.post.send("b", Message("blocks", number % 2, {"stage": number}, {"model": block}))
            await b.post.send("a", Message("broken", number, {"newest": 2}))
        await until(lambda: len(b.messages) == 5 and len(a.messages) == 5)
        for number, message in enumerate(b.messages):
            assert (message.kind, message.round, message.facts) == ("blocks", number % 2, {"stage": number})
            assert message.sender == "a"
            assert all(torch.equal(message.blocks["model"][n], t) for n, t in sent[number].items())
        assert [m.round for m in a.messages] == list(range(5))
        await until(lambda: not a.post.num_waiting and not b.post.num_waiting)
        await b.post.close()
        await until(lambda: a.seen[-1] == ("b", None))
        await a.post.close()
        assert not a.events
        assert not b.events

    run(test)


def test_one_that_comes_late_hears_what_waits_for_it_and_once_only() -> None:
    async def test() -> None:
        a = Line("a", "ab").open()
        await a.post.send("b", Message("stopped", 4))
        await a.post.send("b", Message("blocks", 5, {}, {"model": weights()}))
        b = Line("b", "ab", [a.endpoint]).open()
        await until(lambda: len(b.messages) == 2 and not a.post.num_waiting)
        # What was heard and is announced again is acknowledged again, and not delivered.
        again = announce(Message("stopped", 4), 1, 1, None, b"")
        with spoke("a", b.endpoint) as copy:
            acks: list[bytes] = []
            copy.declare_subscriber(
                topics.ack(JOB, "b", "a"), lambda sample: acks.append(bytes(sample.payload))
            )
            await until(lambda: acks, lambda: copy.put(topics.news(JOB, "a", "b"), again.text()))
        assert acks[0] == b"[1, 1]"
        assert [m.kind for m in b.messages] == ["stopped", "blocks"]
        await b.post.close()
        await a.post.close()

    run(test)


def test_a_peer_that_was_started_again_is_told_as_such_and_heard() -> None:
    async def test() -> None:
        a = Line("a", "ab").open()
        first = Line("b", "ab", [a.endpoint]).open()
        await until(lambda: a.seen and first.seen)
        await first.post.send("a", Message("stopped", 1))
        await until(lambda: a.messages)
        second = Line("b", "ab", [a.endpoint], incarnation=2).open()
        await until(lambda: a.seen[-1] == ("b", 2))
        await second.post.send("a", Message("stopped", 2))
        await until(lambda: len(a.messages) == 2)
        await first.post.close()  # late: it changes nothing
        await second.post.send("a", Message("stopped", 3))
        await until(lambda: len(a.messages) == 3)
        assert a.seen == [("b", 1), ("b", 2)]
        await second.post.close()
        await a.post.close()

    run(test)


def test_one_that_has_slept_begins_anew_and_is_heard_as_before() -> None:
    async def test() -> None:
        a = Line("a", "ab").open()
        b = Line("b", "ab", [a.endpoint]).open()
        await until(lambda: a.seen and b.seen)
        await b.post.send("a", Message("stopped", 1))
        await until(lambda: a.messages)
        await b.post._begin_anew()
        await until(lambda: len(a.seen) >= 3 and len(b.seen) >= 3)
        await until(lambda: a.seen[-1] == ("b", 1) and b.seen[-1] == ("a", 1))
        assert ("b", None) in a.seen
        assert ("a", None) in b.seen
        await b.post.send("a", Message("blocks", 2, {}, {"model": weights()}))
        await a.post.send("b", Message("blocks", 3, {}, {"model": weights()}))
        await until(lambda: len(a.messages) == 2 and len(b.messages) == 1)
        assert (a.messages[1].round, b.messages[0].round) == (2, 3)
        await b.post.close()
        await a.post.close()

    run(test)


def test_an_announcement_that_was_lost_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    publish = ZenohPost._publish
    tried: list[int] = []

    def lose_the_first(post: ZenohPost, peer: str, announcement: Announcement) -> None:
        tried.append(announcement.number)
        if len(tried) > 1:
            publish(post, peer, announcement)

    monkeypatch.setattr(ZenohPost, "_publish", lose_the_first)
    monkeypatch.setattr(ZenohPost, "_ask_head", lambda _post, _peer: None)  # would hear of it otherwise

    async def test() -> None:
        a = Line("a", "ab").open()
        b = Line("b", "ab", [a.endpoint]).open()
        await until(lambda: a.seen and b.seen)
        await a.post.send("b", Message("stopped", 1))
        await until(lambda: b.messages)
        assert tried[:2] == [1, 1]
        await b.post.close()
        await a.post.close()

    run(test)


def test_tensors_that_could_not_be_pulled_are_pulled_when_they_are_announced_again() -> None:
    async def test() -> None:
        body = make_body({"model": weights()})
        digests = body.digests()
        said = announce(Message("blocks", 3, {}, {"model": weights()}), 1, 1, body, digests)
        where = topics.body(JOB, "b", "a", name_of(digests))
        asked: list[bytes] = []

        def answer(query: zenoh.Query) -> None:
            with query:
                what = bytes(query.payload or b"")
                asked.append(what)
                if len([one for one in asked if one != ASK_WHO]) == 1:
                    if what != ASK_WHO:
                        query.reply_err(GONE)
                elif what != ASK_WHO:
                    query.reply(where, body.read(*map(int, what.split(b"-"))))

        a = Line("a", "ab").open()
        with spoke("b", a.endpoint) as other:
            held = other.declare_queryable(where, answer, complete=True)
            news = topics.news(JOB, "b", "a")
            await until(lambda: a.messages, lambda: other.put(news, said.text(), attachment=digests))
            held.undeclare()
        assert len([one for one in asked if one != ASK_WHO]) == 2
        assert [message.round for message in a.messages] == [3]
        await a.post.close()

    run(test)


def test_what_a_peer_said_before_it_was_started_again_is_not_heard_after() -> None:
    async def test() -> None:
        a = Line("a", "ab").open()
        with spoke("b", a.endpoint) as other:

            def say(incarnation: int, number: int) -> None:
                said = announce(Message("stopped", number), incarnation, number, None, b"")
                other.put(topics.news(JOB, "b", "a"), said.text())

            for count, (incarnation, number) in enumerate([(1, 1), (2, 2), (2, 4)]):
                await until(lambda: len(a.messages) > count, lambda: say(incarnation, number))  # noqa: B023
                if number == 2:
                    say(1, 3)  # comes before whatever is said later
        assert [message.round for message in a.messages] == [1, 2, 4]
        await a.post.close()

    run(test)


def test_a_peer_with_another_job_is_named_and_not_heard() -> None:
    async def test() -> None:
        a = Line("a", "ab").open()
        b = Line("b", "ab", [a.endpoint], job_hash="another").open()
        await until(lambda: a.told("mismatch") and b.told("mismatch"))
        assert a.told("mismatch") == [{"peer": "b", "theirs": "another", "ours": JOB}]
        assert not a.seen
        assert not b.seen
        await b.post.close()
        await a.post.close()

    run(test)


@pytest.mark.parametrize(
    ("blocks", "reason"),
    [
        ({"w": torch.full((1000,), float("nan")), "steps": torch.tensor(3)}, "not finite"),
        ({"w": torch.zeros(1000)}, "names differ: steps"),
        ({"w": torch.zeros(10, 100), "steps": torch.tensor(3)}, "is (10, 100)"),
        ({"w": torch.zeros(1000).double(), "steps": torch.tensor(3)}, "float64"),
    ],
)
def test_tensors_that_do_not_fit_are_refused_and_counted(
    blocks: dict[str, torch.Tensor], reason: str
) -> None:
    async def test() -> None:
        a = Line("a", "ab").open()
        b = Line("b", "ab", [a.endpoint]).open()
        await until(lambda: b.seen)
        await b.post.send("a", Message("update", 3, {}, {"model": blocks}))  # type: ignore[dict-item]
        await b.post.send("a", Message("update", 4, {}, {"model": weights()}))
        await until(lambda: a.messages and not b.post.num_waiting)
        assert [m.round for m in a.messages] == [4]
        (refused,) = a.told("refused")
        assert reason in refused["reason"]
        assert (refused["peer"], refused["round"], a.post.refusals.total) == ("b", 3, 1)
        await b.post.close()
        await a.post.close()

    run(test)


def test_who_keeps_sending_rubbish_is_ignored_and_named_and_others_are_heard() -> None:
    async def test() -> None:
        a = Line("a", "abc").open()
        b = Line("b", "abc", [a.endpoint]).open()
        await until(lambda: a.seen and b.seen)
        with spoke("c", a.endpoint) as rubbish:

            def send() -> None:
                rubbish.put(topics.news(JOB, "c", "a"), b"{" * 9)
                rubbish.put(topics.ack(JOB, "c", "a"), b"x" * 100)

            await until(lambda: a.told("ignored"), send)
            rubbish.put(topics.news(JOB, "c", "a"), announce(Message("stopped", 1), 1, 1, None, b"").text())
            await b.post.send("a", Message("stopped", 7))
            await until(lambda: a.messages and a.post.refusals.total > PATIENCE)
        (ignored,) = a.told("ignored")
        assert (ignored["peer"], ignored["count"]) == ("c", PATIENCE)
        assert len(a.told("refused")) == PATIENCE
        assert [(m.sender, m.round) for m in a.messages] == [("b", 7)]
        assert sum(a.post.refusals.counts.values()) == a.post.refusals.total
        await b.post.close()
        await a.post.close()

    run(test)


def test_an_acknowledgement_of_something_else_takes_nothing_away() -> None:
    async def test() -> None:
        a = Line("a", "ab").open()
        await a.post.send("b", Message("stopped", 1))
        with spoke("b", a.endpoint) as other:
            deaf = topics.ack(JOB, "b", "a")

            def send() -> None:
                for text in (json.dumps([9, 1]), json.dumps([1, 77]), "[]", "[1, 2"):
                    other.put(deaf, text)

            await until(lambda: a.post.refusals.total > 1, send)
            assert a.post.num_waiting == 1
            await until(lambda: not a.post.num_waiting, lambda: other.put(deaf, json.dumps([1, 1])))
        await a.post.close()

    run(test)

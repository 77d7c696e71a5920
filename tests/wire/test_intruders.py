from __future__ import annotations

import asyncio
import json
import stat
from contextlib import ExitStack
from pathlib import Path

import pytest
import zenoh
from lines import JOB, Line, run, spoke, until, weights
from typer.testing import CliRunner

from manyhands.cli import app
from manyhands.errors import JobError
from manyhands.hand import Message
from manyhands.wire import topics
from manyhands.wire.announcement import announce
from manyhands.wire.diagnosis import check_keys, why_unreachable
from manyhands.wire.keyring import add_device, new_cluster

MEMBERS = {"a": "a", "b": "b", "c": "c", "coordinator": "c"}


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("keys")
    made = {one.path.name: one.path for one in new_cluster(folder / "ours", ["a", "b", "c", "unlisted"])}
    made["foreign"] = new_cluster(folder / "theirs", ["b"])[0].path
    made["expired"] = add_device(folder / "ours", "expired", days=-1).path
    made["cluster"] = folder / "ours"
    return made


def secure(name: str, keys: dict[str, Path], *connect: str) -> Line:
    return Line(name, list(MEMBERS), connect, keys=keys[name], members=MEMBERS)


def word(kind: str, number: int) -> bytes:
    """Something that is delivered as it stands, if it is let in."""
    return announce(Message(kind, number), 1, number, None, b"").text()


def test_devices_of_a_cluster_hear_each_other(keys: dict[str, Path]) -> None:
    async def test() -> None:
        a = secure("a", keys).open()
        b = secure("b", keys, a.endpoint).open()
        await until(lambda: a.seen and b.seen)
        await a.post.send("b", Message("round", 1, {}, {"model": weights()}))
        await b.post.send("a", Message("update", 1, {}, {"model": weights()}))
        await until(lambda: a.messages and b.messages)
        assert not a.events
        assert not b.events
        await b.post.close()
        await a.post.close()

    run(test)


@pytest.mark.parametrize("who", ["foreign", "expired", None])
def test_who_has_no_good_certificate_gets_nothing_in_and_hears_nothing(
    keys: dict[str, Path], who: str | None
) -> None:
    async def test() -> None:
        a = secure("a", keys).open()
        heard: list[object] = []
        with spoke("b", a.endpoint, keys=who and keys[who], members=MEMBERS) as intruder:

            def hear(sample: zenoh.Sample) -> None:
                if topics.name_in(str(sample.key_expr)) != "b":  # what it says itself comes back to it
                    heard.append(sample)

            intruder.declare_subscriber("mh/**", hear)
            intruder.liveliness().declare_subscriber("mh/**", hear, history=True)
            token = intruder.liveliness().declare_token(topics.token(JOB, "b", 1))
            # The positive control comes later, over the same way, and with the same words.
            with spoke("c", a.endpoint, keys=keys["c"], members=MEMBERS) as honest:

                def speak() -> None:
                    intruder.put(topics.news(JOB, "b", "a"), word("stopped", 1))
                    honest.put(topics.news(JOB, "c", "a"), word("stopped", 2))

                await until(lambda: a.messages, speak)
                await a.post.send("b", Message("broken", 1))
                asked = await asyncio.to_thread(lambda: list(intruder.get("mh/**", timeout=1.0)))
                assert not intruder.info.links()
            token.undeclare()
        assert [(m.sender, m.round) for m in a.messages] == [("c", 2)]
        assert not asked
        assert not heard
        assert not [peer for peer, _ in a.seen if peer == "b"]
        await a.post.close()

    run(test)


def test_a_device_speaks_under_its_own_name_only(keys: dict[str, Path]) -> None:
    async def test() -> None:
        a = secure("a", keys).open()
        for name in ("b", "c"):  # what waits for each, and is for nobody else
            await a.post.send(name, Message("broken", 1))
        with spoke("c", a.endpoint, keys=keys["c"], members=MEMBERS) as c:
            fake = c.liveliness().declare_token(topics.token(JOB, "b", 9))
            own = c.liveliness().declare_token(topics.token(JOB, "c", 1))
            c.declare_queryable(topics.head(JOB, "b", "a"), lambda query: query.drop())

            def speak() -> None:
                for name in ("b", "*", "**"):
                    c.put(f"mh/{JOB}/{name}/to/a", word("stopped", 1))
                    c.put(f"mh/{JOB}/{name}/ack/a", json.dumps([1, 1]))
                c.put(topics.news(JOB, "coordinator", "a"), word("stopped", 3))
                c.put(topics.news(JOB, "c", "a"), word("stopped", 2))

            # What it may say is said last, over the same link: by then the rest was let in or not.
            await until(lambda: {m.sender for m in a.messages} == {"c", "coordinator"}, speak)
            await until(lambda: ("c", 1) in a.seen)

            def asks(name: str) -> list[zenoh.Reply]:
                return [reply for reply in c.get(topics.head(JOB, "a", name), timeout=5.0) if reply.ok]

            stolen, given = await asyncio.to_thread(asks, "b"), await asyncio.to_thread(asks, "c")
            assert a.post.num_waiting == 2
            fake.undeclare()
            own.undeclare()
        assert {(m.sender, m.round) for m in a.messages} == {("c", 2), ("coordinator", 3)}
        assert ("b", 9) not in a.seen
        assert not stolen
        assert len(given) == 1
        await a.post.close()

    run(test)


def test_a_certificate_of_the_cluster_that_the_job_does_not_list_gets_nothing_in(
    keys: dict[str, Path],
) -> None:
    async def test() -> None:
        a = secure("a", keys).open()
        with ExitStack() as held:
            members = MEMBERS | {"unlisted": "unlisted"}
            other = held.enter_context(spoke("b", a.endpoint, keys=keys["unlisted"], members=members))
            c = held.enter_context(spoke("c", a.endpoint, keys=keys["c"], members=MEMBERS))
            held.enter_context(other.liveliness().declare_token(topics.token(JOB, "b", 1)))

            def speak() -> None:
                for name in ("b", "unlisted", "a"):
                    other.put(topics.news(JOB, name, "a"), word("stopped", 1))
                c.put(topics.news(JOB, "c", "a"), word("stopped", 2))

            await until(lambda: a.messages and other.info.links(), speak)
            num_links = len(other.info.links())
            for _ in range(20):
                speak()
                await asyncio.sleep(0.02)
        assert num_links
        assert {m.sender for m in a.messages} == {"c"}
        assert a.post.refusals.total == 0  # not even looked at
        assert not [peer for peer, _ in a.seen if peer == "b"]
        await a.post.close()

    run(test)


async def reason(endpoint: str, folder: Path | None, words: str | None) -> None:
    """Asks why an endpoint will not have us until it says so; a busy machine may answer too late at first."""
    for _ in range(10):
        said = await asyncio.to_thread(why_unreachable, endpoint, folder)
        if said is None if words is None else words in (said or ""):
            return
    raise AssertionError(f"{endpoint} said {said!r}, not {words!r}")


def test_why_nobody_answers_is_said(keys: dict[str, Path]) -> None:
    async def test() -> None:
        a = secure("a", keys).open()
        await reason(a.endpoint, keys["b"], None)
        await reason(
            a.endpoint, keys["foreign"], f"{a.endpoint} shows a certificate that is not to be trusted"
        )
        await reason(a.endpoint, keys["expired"], f"{a.endpoint} says that our certificate has expired")
        await reason(a.endpoint, None, f"{a.endpoint} speaks TLS; give the device's keys")
        await a.post.close()
        plain = Line("a", "ab").open()
        await reason(plain.endpoint, keys["b"], f"{plain.endpoint} does not speak TLS")
        await reason(plain.endpoint, None, None)
        await plain.post.close()
        await reason(plain.endpoint, keys["b"], f"{plain.endpoint} cannot be reached")

    run(test)


def test_keys_are_looked_at_before_they_are_used(keys: dict[str, Path], tmp_path: Path) -> None:
    check_keys(keys["a"], "a")
    with pytest.raises(JobError, match="are the keys of a, not of b"):
        check_keys(keys["a"], "b")
    with pytest.raises(JobError, match="expired on"):
        check_keys(keys["expired"], "expired")
    with pytest.raises(JobError, match=r"there is no ca\.pem in it"):
        check_keys(tmp_path)
    mixed = tmp_path / "mixed"
    mixed.mkdir()
    for file, whose in (("ca.pem", "a"), ("device.pem", "a"), ("device.key", "b")):
        (mixed / file).write_bytes((keys[whose] / file).read_bytes())
    with pytest.raises(JobError, match="do not belong together"):
        check_keys(mixed)


def test_the_command_makes_keys_that_only_their_owner_reads(tmp_path: Path) -> None:
    folder, runner = tmp_path / "home", CliRunner()
    made = runner.invoke(app, ["keys", "new-cluster", str(folder), "--device", "pi-1", "--device", "pi-2"])
    assert made.exit_code == 0, made.output
    assert (
        runner.invoke(app, ["keys", "add", str(folder), "--device", "nas", "--address", "10.0.0.7"]).exit_code
        == 0
    )
    for name in ("pi-1", "pi-2", "nas"):
        check_keys(folder / "devices" / name, name)
        assert stat.S_IMODE((folder / "devices" / name / "device.key").stat().st_mode) == 0o600
        assert not (folder / "devices" / name / "ca.key").exists()
    assert stat.S_IMODE((folder / "ca.key").stat().st_mode) == 0o600
    shown = runner.invoke(app, ["keys", "show", str(folder), "--json"])
    rows = json.loads(shown.output)
    assert [row["name"] for row in rows] == ["manyhands home", "nas", "pi-1", "pi-2"]
    assert all(row["days_left"] > 800 for row in rows)
    again = runner.invoke(app, ["keys", "new-cluster", str(folder), "--device", "x"])
    assert isinstance(again.exception, JobError)
    assert "holds a cluster already" in str(again.exception)
    twice = runner.invoke(app, ["keys", "add", str(folder), "--device", "nas"])
    assert "has keys already" in str(twice.exception)


def test_zenoh_is_imported_by_the_wire_alone() -> None:
    source = Path(zenoh.__file__).parent
    assert source.name == "zenoh"
    package = Path(topics.__file__).parents[1]
    users = {path.parent.name for path in package.rglob("*.py") if "import zenoh" in path.read_text()}
    assert users == {"wire"}

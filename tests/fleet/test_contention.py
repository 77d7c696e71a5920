from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from manyhands.engine.cores import Cores
from manyhands.engine.faults import SlowDown, finish_time
from manyhands.engine.participant import Participant
from manyhands.engine.simulate import Simulation
from manyhands.errors import JobError
from manyhands.fleet import Contention, CoRunning, DeviceSection, Fleet, FleetSection, Use, make_fleet
from manyhands.fleet.recording import MOST_CORES, Span, read_recording, write_recording
from manyhands.hand import ENVELOPE_BYTES, Hand, Message, Outcome, Work
from manyhands.job import Job, load_job
from manyhands.report.page import write_page
from manyhands.run import resume, train

COUNTING = {"kind": "wordcount", "device": "a"}
SORTING = {"kind": "sort", "device": "a"}


def beside(fleet: Fleet, *tables: dict[str, Any], seed: int = 0) -> Contention:
    return Contention([TypeAdapter(CoRunning).validate_python(t) for t in tables], fleet, seed)


def steady(level: float, **more: Any) -> dict[str, Any]:
    return {"kind": "steady", "device": "a", "level": level} | more


def finish(contention: Contention, start_s: float, work_s: float, device: str = "a") -> float:
    return finish_time(start_s, work_s, [], contention.loads.get(device))


# How long work takes.


def test_half_of_the_cores_taken_doubles_the_time(fleet: Fleet) -> None:
    contention = beside(fleet, steady(0.5))
    assert finish(contention, 3.0, 2.0) == 7.0
    assert finish(contention, 3.0, 2.0, "b") == 5.0
    assert (contention.slowdown("a", 9.0), contention.slowdown("b", 9.0)) == (2.0, 1.0)


def test_boundaries_inside_a_piece_of_work_are_exact(fleet: Fleet) -> None:
    contention = beside(fleet, steady(0.5, from_s=1, until_s=2))
    assert finish(contention, 0.0, 2.0) == 2.5  # a second, half of one, half of one
    assert finish(contention, 0.0, 1.0) == 1.0
    assert finish(contention, 1.0, 0.25) == 1.5
    assert finish(contention, 2.0, 1.0) == 3.0


def test_bursts(fleet: Fleet) -> None:
    contention = beside(fleet, {"kind": "bursty", "device": "a", "on_s": 1, "off_s": 3, "level": 0.75})
    assert finish(contention, 0.0, 3.25) == 4.0
    assert finish(contention, 0.0, 3.25 * 1000 + 0.125) == 4000.5
    assert finish(contention, 4001.0, 2.0) == 4003.0


def test_works_at_once_find_what_the_others_left(fleet: Fleet) -> None:
    contention = beside(fleet, steady(0.5), steady(0.75, network_bps=3.0), steady(0.0, network_bps=4.0))
    use, until_s = contention.loads["a"].at(0.0)
    assert (use, until_s) == (Use(0.875, 7.0), math.inf)
    assert contention.slowdown("a", 0.0) == 8.0


def test_a_table_without_a_device_is_of_each(fleet: Fleet) -> None:
    contention = beside(fleet, {"kind": "sort"})
    ends = {finish(contention, 0.0, 500.0, device) for device in fleet.names}
    assert len(ends) == 4  # each draws for itself


def test_slow_downs_and_co_running_work_multiply(fleet: Fleet) -> None:
    slow = [SlowDown(kind="slow_down", device="a", factor=3, from_s=2)]
    load = beside(fleet, steady(0.5, until_s=4)).loads["a"]
    assert finish_time(0.0, 1.0 + 2 / 6 + 1.0, slow, load) == pytest.approx(7.0)


TABLES = st.one_of(
    st.builds(lambda level, at, length: steady(level, from_s=at, until_s=at + length),
              st.floats(0, 0.9), st.floats(0, 50), st.floats(0.1, 50)),
    st.builds(lambda on, off, level: {"kind": "bursty", "on_s": on, "off_s": off, "level": level},
              st.floats(0.01, 3), st.floats(0.01, 3), st.floats(0, 0.9)),
    st.just(COUNTING), st.just(SORTING),
)  # fmt: skip


@given(
    st.lists(TABLES, min_size=1, max_size=3), st.floats(0, 100), st.floats(0.001, 60), st.floats(0.001, 60)
)
def test_work_in_two_parts_takes_as_long_as_in_one(
    tables: list[dict[str, Any]], start_s: float, first_s: float, second_s: float
) -> None:
    contention = beside(_fleet(), *tables)
    whole = finish(contention, start_s, first_s + second_s)
    parts = finish(contention, finish(contention, start_s, first_s), second_s)
    assert parts == pytest.approx(whole)
    assert whole >= start_s + first_s + second_s - 1e-9


@given(st.lists(TABLES, min_size=1, max_size=3), st.floats(0, 300))
def test_pieces_follow_each_other_and_their_mean_is_in_range(
    tables: list[dict[str, Any]], start_s: float
) -> None:
    load = beside(_fleet(), *tables).loads["a"]
    now = start_s
    for _ in range(20):
        use, until_s = load.at(now)
        assert until_s > now
        assert 0 <= use.cores < 1
        if until_s == math.inf:
            break
        assert load.at(math.nextafter(until_s, 0))[0] == use
        now = until_s
    mean = load.mean(start_s, start_s + 10)
    assert all(0 <= figure < math.inf for figure in mean.figures)


def _fleet() -> Fleet:
    devices = (DeviceSection(kind="laptop", name="a"), DeviceSection(kind="laptop", name="b"))
    return make_fleet(FleetSection(device=devices), seed=0)


def test_the_mean_is_what_a_monitor_would_have_found(fleet: Fleet) -> None:
    contention = beside(fleet, steady(0.5, from_s=1, until_s=2, network_bps=8.0, disk_bps=4.0))
    assert contention.mean("a", 0.0, 4.0) == Use(0.125, 2.0, 1.0)
    assert contention.mean("a", 1.5, 1.5) == Use(0.5, 8.0, 4.0)
    assert contention.mean("b", 0.0, 4.0) == Use()


# The jobs of MapReduce.


@pytest.mark.parametrize("table", [COUNTING, SORTING])
def test_jobs_come_from_the_seed(fleet: Fleet, table: dict[str, Any]) -> None:
    ends = [finish(beside(fleet, table, seed=seed), 0.0, 1000.0) for seed in (1, 1, 2)]
    assert ends[0] == ends[1] != ends[2]
    contention = beside(fleet, table, seed=1)
    assert finish(contention, 900.0, 50.0) == finish(beside(fleet, table, seed=1), 900.0, 50.0)
    assert finish(contention, 0.0, 1000.0) == ends[0]  # asked later, the same


def test_jobs_that_sort_use_the_disk_and_the_network_more(fleet: Fleet) -> None:
    count, sort = (beside(fleet, table).mean("a", 0, 50_000) for table in (COUNTING, SORTING))
    assert sort.cores < count.cores
    assert sort.network_bps > 5 * count.network_bps
    assert sort.disk_bps > 1.5 * count.disk_bps


def test_larger_inputs_take_more_of_the_cores(fleet: Fleet) -> None:
    def cores(num_bytes: float) -> float:
        table = COUNTING | {"smallest_bytes": num_bytes, "largest_bytes": num_bytes}
        return beside(fleet, table).mean("a", 0, 20_000).cores

    assert cores(1e6) < cores(1e8) < cores(1e9) < 0.5


# Recordings.

TABLE = "seconds,cores,network_bps,disk_bps\n1,0.5,8,0\n3,0,0,0\n4,1,0,16\n"


def test_a_recording_is_played_once_or_again_and_again(fleet: Fleet, tmp_path: Path) -> None:
    (tmp_path / "seen.csv").write_text(TABLE)
    table = {"kind": "recorded", "device": "a", "path": tmp_path / "seen.csv", "from_s": 10}
    once, repeated = beside(fleet, table), beside(fleet, table | {"repeat": True})
    for contention in (once, repeated):
        uses = [contention.loads["a"].at(second)[0] for second in (0, 10.5, 11, 13.5)]
        assert uses == [Use(), Use(0.5, 8.0), Use(), Use(MOST_CORES, 0.0, 16.0)]
    assert once.slowdown("a", 14.5) == 1.0
    assert repeated.slowdown("a", 14.5) == 2.0
    assert finish(repeated, 10.0 + 4 * 9, 0.5) == 10.0 + 4 * 9 + 1


def test_a_recording_is_read_as_it_was_written(tmp_path: Path) -> None:
    spans = [Span(1.0, Use(0.25, 1e6, 0.0)), Span(2.5, Use(0.5, 0.0, 3e7))]
    with (tmp_path / "x.csv").open("w") as file:
        write_recording(file, spans)
    assert read_recording(tmp_path / "x.csv") == tuple(spans)


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("", "must begin with the line seconds,cores"),
        ("seconds,cores,network_bps,disk_bps\n", "has no rows"),
        (TABLE + "5,0,0\n", "line 5 must have 4 numbers"),
        (TABLE + "x,0,0,0\n", "line 5 must have 4 numbers"),
        (TABLE + "4,0,0,0\n", "line 5: seconds must be at least 4.01"),
        (TABLE + "nan,0,0,0\n", "line 5: seconds must be at least"),
        (TABLE + "5,1.5,0,0\n", "line 5: cores must be from 0 to 1"),
        (TABLE + "5,0,inf,0\n", "line 5: cores must be from 0 to 1"),
        (None, "cannot be read"),
    ],
)
def test_a_damaged_recording_is_refused(fleet: Fleet, tmp_path: Path, text: str | None, wrong: str) -> None:
    if text is not None:
        (tmp_path / "seen.csv").write_text(text)
    with pytest.raises(JobError, match=wrong) as caught:
        beside(fleet, steady(0.5), {"kind": "recorded", "path": tmp_path / "seen.csv"})
    assert caught.value.key == "contention[1].path"


# In the simulator.


def simulated(fleet: Fleet, contention: Contention, programs: dict[str, Callable[[Hand], Any]]) -> Any:
    events: list[dict[str, Any]] = []
    people = {n: Participant(p, n, tuple(x for x in programs if x != n)) for n, p in programs.items()}
    simulation = Simulation(
        fleet, people, lambda event, _: events.append(event), contention=contention, cores=Cores(0)
    )
    return simulation.run(), events


async def two_seconds_of_work(hand: Hand) -> float:
    await hand.compute(Work("add", Outcome, flops=2e9))
    return hand.seconds


def test_the_simulator_charges_what_a_slowed_device_needs(fleet: Fleet) -> None:
    contention = beside(fleet, steady(0.5, from_s=1, until_s=2))
    results, events = simulated(fleet, contention, {"a": two_seconds_of_work, "b": two_seconds_of_work})
    assert results == {"a": 2.5, "b": 2.0}
    slowed = {e["device"]: e.get("slowed_seconds") for e in events if e["event"] == "computed"}
    assert slowed == {"a": 0.5, "b": None}


def test_the_simulator_charges_what_is_left_of_a_link(fleet: Fleet) -> None:
    async def send(hand: Hand) -> None:
        await hand.send("b", Message("note"))

    async def listen(hand: Hand) -> float:
        await hand.receive("note")
        return hand.seconds

    def arrival(*tables: dict[str, Any]) -> float:
        return simulated(fleet, beside(fleet, *tables), {"a": send, "b": listen})[0]["b"]

    at_full_rate = ENVELOPE_BYTES / 1e6  # links of 8 Mbit/s
    assert arrival() == pytest.approx(at_full_rate + 0.02)
    assert arrival(steady(0.0, network_bps=6e6)) == pytest.approx(4 * at_full_rate + 0.02)
    assert arrival(steady(0.0, network_bps=6e6, device="b")) == pytest.approx(4 * at_full_rate + 0.02)
    assert arrival(steady(0.0, network_bps=9e9)) == pytest.approx(20 * at_full_rate + 0.02)
    half_way = steady(0.0, network_bps=4e6, from_s=at_full_rate / 2)
    assert arrival(half_way) == pytest.approx(1.5 * at_full_rate + 0.02)


# In a job.


def slowed(small_job: Callable[..., Job], **changes: Any) -> Job:
    tables = [steady(0.5), {"kind": "sort", "bytes_per_s": 1e10, "pause_s": 0.01, "smallest_bytes": 1e8}]
    return small_job(contention=tables, **changes)


def test_a_run_says_what_co_running_work_cost(small_job: Callable[..., Job], tmp_path: Path) -> None:
    before = train(small_job(), tmp_path / "free")
    after = train(small_job(contention=[steady(0.5)]), tmp_path / "slowed")
    for free, beside_work in zip(before["devices"], after["devices"], strict=True):
        assert free["slowed_seconds"] == 0.0
        assert free["flops"] == beside_work["flops"]
        twice = 2.0 if free["name"] == "a" else 1.0
        assert beside_work["busy_seconds"] == pytest.approx(twice * free["busy_seconds"])
    assert after["devices"][0]["slowed_seconds"] == pytest.approx(before["devices"][0]["busy_seconds"])
    assert after["seconds"] > before["seconds"]
    assert after["accuracy"] == before["accuracy"]
    for result, said in ((before, False), (after, True)):
        write_page(result, "", tmp_path / "report.html")
        assert (" slowed" in (tmp_path / "report.html").read_text(encoding="utf-8")) == said


def test_a_killed_run_beside_other_work_is_gone_on_with_as_if_it_had_not_been(
    small_job: Callable[..., Job], tmp_path: Path
) -> None:
    job = slowed(small_job, run={"checkpoint_every_s": 1e-6})
    whole = train(job, tmp_path / "whole")

    class Killed(BaseException):
        pass

    def kill(split: str, job: Job, tally: Any, event: dict[str, Any] | None) -> None:
        if tally.round == 2:
            raise Killed

    with pytest.raises(Killed):
        train(job, tmp_path / "killed", kill)
    resumed = resume(tmp_path / "killed")
    traces = [(tmp_path / name / "trace.jsonl").read_text() for name in ("whole", "killed")]
    assert traces[0] == traces[1]
    assert {**resumed, "wall_seconds": 0} == {**whole, "wall_seconds": 0}
    assert any("slowed_seconds" in json.loads(line) for line in traces[0].splitlines())


def test_the_seed_decides_over_co_running_work(small_job: Callable[..., Job], tmp_path: Path) -> None:
    seconds = [train(slowed(small_job, seed=seed), tmp_path / f"{seed}")["seconds"] for seed in (1, 2)]
    assert seconds[0] != seconds[1]


def test_the_hash_knows_what_a_recording_holds_and_not_where_it_lies(
    small_job_file: Path, tmp_path: Path
) -> None:
    table = '\n[[contention]]\nkind = "recorded"\npath = "seen.csv"\n'
    hashes = []
    for folder, text in (("one", TABLE), ("two", TABLE), ("three", TABLE + "5,0,0,0\n")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "seen.csv").write_text(text)
        (tmp_path / folder / "small.toml").write_text(small_job_file.read_text() + table)
        job = load_job(tmp_path / folder / "small.toml")
        assert job.contention[0].path == tmp_path / folder / "seen.csv"  # type: ignore[union-attr]
        hashes.append(job.hash)
    assert hashes[0] == hashes[1] != hashes[2]


def test_a_job_names_what_is_wrong(small_job_file: Path, tmp_path: Path) -> None:
    def error(*changes: str) -> str:
        with pytest.raises(JobError) as caught:
            train(load_job(small_job_file, changes), tmp_path / "run")
        return str(caught.value)

    assert error('contention=[{kind="steady", level=0.5, device="z"}]') == (
        'contention[0].device = "z": there is no such device; choose one of a, b, c'
    )
    assert "contention[0].level = 1.0: input should be less than 1" in error(
        'contention=[{kind="steady", level=1.0}]'
    )
    assert "there is no such kind of contention; choose one of steady, bursty" in error(
        'contention=[{kind="crash"}]'
    )
    assert "there is no such kind of fault; choose one of crash" in error('fault=[{kind="sort"}]')
    assert "there is no such key; did you mean on_s?" in error(
        'contention=[{kind="bursty", on_s=1, off_s=1, level=0, one_s=3}]'
    )
    assert 'seen.csv": cannot be read' in error('contention=[{kind="recorded", path="seen.csv"}]')


@pytest.mark.parametrize(
    "table",
    [
        steady(-0.1),
        steady(0.5, from_s=3, until_s=3),
        {"kind": "bursty", "on_s": 0, "off_s": 1, "level": 0.5},
        COUNTING | {"smallest_bytes": 1e9, "largest_bytes": 1e8},
        SORTING | {"pause_s": 0},
        {"kind": "recorded"},
    ],
)
def test_impossible_tables_are_refused(table: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(CoRunning).validate_python(table)

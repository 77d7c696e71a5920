"""Split by data, end to end: devices keep pace, fail, are stopped and resumed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from manyhands.engine import simulate
from manyhands.errors import JobError, RunError
from manyhands.job import Job, load_job
from manyhands.lessons import load_material
from manyhands.run import put_together, resume, train
from manyhands.sizing import Library

MODES = ["neighbours", "epidemic", "push"]
SPEEDS = {"slow": 2e7, "middle": 5e7, "fast": 2e8}


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture
def data_job(small_job: Callable[..., Job]) -> Callable[..., Job]:
    """Three unlike devices on a mesh, an epoch of the fastest taking some tenths of a second."""

    def make(**changes: Any) -> Job:
        said: dict[str, Any] = {
            "data": {"limit": 300},
            "split": {"by": "data", "data": {"order": "turns"}},
            "exchange": {"mode": "neighbours", "rounds": 4},
            "fleet": {
                "topology": "mesh",
                "device": [
                    {"name": name, "kind": "laptop", "flops": flops} for name, flops in SPEEDS.items()
                ],
            },
        }
        for section, value in changes.items():
            said[section] = said.get(section, {}) | value if isinstance(value, dict) else value
        return small_job(**said)

    return make


def by_name(result: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {device["name"]: device for device in result["devices"]}


def figures(result: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in result.items() if key != "wall_seconds"}


def events(folder: Path, *kinds: str) -> list[dict[str, Any]]:
    lines = (folder / "trace.jsonl").read_text(encoding="utf-8").splitlines()
    return [event for event in map(json.loads, lines) if event["event"] in kinds]


def trained(folder: Path) -> list[dict[str, Any]]:
    return [event for event in events(folder, "computed") if event["work"] == "train"]


@pytest.mark.parametrize("mode", MODES)
def test_everybody_takes_the_time_of_the_fastest(
    data_job: Callable[..., Job], tmp_path: Path, mode: str
) -> None:
    result = train(data_job(exchange={"mode": mode}), tmp_path)
    found = by_name(result)
    assert result["split"] == "data"
    assert result["accuracy"] is not None
    assert found["fast"]["ratio"] == 1.0
    later = [event for event in events(tmp_path, "balanced") if event["round"] > 0]
    for event in later:
        assert event["ratio"] == pytest.approx(SPEEDS[event["device"]] / SPEEDS["fast"], rel=0.05)
    seconds = [
        event["seconds"] - event["started"] for event in trained(tmp_path) if event.get("round", 0) > 0
    ]
    assert max(seconds) < 1.2 * min(seconds)
    assert found["slow"]["examples"] < found["middle"]["examples"] < found["fast"]["examples"]


def test_a_run_is_faster_than_one_on_all_data(data_job: Callable[..., Job], tmp_path: Path) -> None:
    """In the simulator's time, which is the same on every machine."""
    paced = train(data_job(), tmp_path / "data")
    waits = train(data_job(split={"by": "homogeneous", "data": None}), tmp_path / "all")
    assert paced["seconds"] < waits["seconds"] / 4
    assert [device["ratio"] for device in waits["devices"]] == [None] * 3
    assert all(device["examples"] > 0 for device in paced["devices"])


def test_every_device_computes_the_same_epoch(data_job: Callable[..., Job], tmp_path: Path) -> None:
    train(data_job(), tmp_path)
    for number in range(4):
        said = {event["epoch_s"] for event in events(tmp_path, "balanced") if event["round"] == number}
        assert len(said) == 1


def test_co_running_work_is_made_room_for(data_job: Callable[..., Job], tmp_path: Path) -> None:
    beside = [{"kind": "steady", "device": "fast", "level": 0.75}]
    train(data_job(contention=beside, split={"data": {"window_s": 0.5}}), tmp_path)
    last = {event["device"]: event for event in events(tmp_path, "balanced") if event["round"] == 3}
    # The fast one is now as fast as the middle one, which so goes through nearly all of its data.
    assert last["middle"]["ratio"] == pytest.approx(1.0, abs=0.05)
    assert last["slow"]["ratio"] == pytest.approx(0.4, abs=0.05)


def test_a_slow_down_that_no_monitor_sees_is_learned(data_job: Callable[..., Job], tmp_path: Path) -> None:
    faults = [{"kind": "slow_down", "device": "fast", "factor": 4.0}]
    train(data_job(fault=faults), tmp_path)
    ratios = [e["ratio"] for e in events(tmp_path, "balanced") if e["device"] == "middle"]
    assert ratios[0] == pytest.approx(0.25, abs=0.02)
    assert ratios[-1] == pytest.approx(1.0, abs=0.05)


def test_the_points_are_made_and_processed_on_the_clock(data_job: Callable[..., Job], tmp_path: Path) -> None:
    train(data_job(split={"data": {"order": "effect", "renew": 1.0}}), tmp_path)
    made = [event for event in events(tmp_path, "computed") if event["work"] == "aggregate"]
    assert {event["device"] for event in made} == set(SPEEDS)
    assert all(event["flops"] > 0 and event["facts"]["points"] > 0 for event in made)
    assert any(event["facts"]["points"] > 0 for event in trained(tmp_path))


TEN = {
    "topology": "mesh",
    "device": [
        {"name": "slow", "kind": "laptop", "count": 5, "flops": 1.25e7},
        {"name": "fast", "kind": "laptop", "count": 5, "flops": 5e7},
    ],
}
FAULTS = [
    {"kind": "crash", "device": "slow-2", "at_s": 1.1},
    {"kind": "loss", "probability": 0.2},
]


@pytest.mark.parametrize("mode", MODES)
def test_it_converges_while_a_tenth_crashes_and_a_fifth_of_all_messages_is_lost(
    data_job: Callable[..., Job], tmp_path: Path, mode: str
) -> None:
    job = data_job(
        data={"name": "digits", "limit": None, "validation": 0.0},
        fleet=TEN,
        fault=FAULTS,
        exchange={"mode": mode, "rounds": 24},
        learn={"learning_rate": 0.03, "batch_size": 8},
        run={"evaluate_every": 6, "evaluate_examples": None},
    )
    result = train(job, tmp_path)
    found = by_name(result)
    assert result["complete"]
    assert result["accuracy"] > 0.8
    assert found["slow-2"]["lost_at_seconds"] == 1.1
    assert not found["slow-2"]["finished"]
    assert all(device["finished"] for name, device in found.items() if name != "slow-2")
    told = {event["event"] for event in result["events"]}
    assert "crashed" in told
    crashed = [event for event in events(tmp_path, "interrupted", "crashed") if event["device"] == "slow-2"]
    assert [event["event"] for event in crashed] == ["crashed", "interrupted"]  # in the middle of an epoch
    assert events(tmp_path, "message_lost")
    lost = events(tmp_path, "gone_without")
    assert lost
    assert all(event["peers"] == ["slow-2"] for event in lost)


def test_data_of_the_failed_is_taken_up_where_there_is_a_copy(
    data_job: Callable[..., Job], tmp_path: Path
) -> None:
    job = data_job(
        split={"data": {"order": "turns", "replicas": 1}},
        fault=[{"kind": "crash", "device": "middle", "at_s": 0.3, "restart_at_s": 9.0}],
        exchange={"rounds": 12},
    )
    result = train(job, tmp_path)
    taken = events(tmp_path, "taken_up")
    assert [(event["device"], event["peers"]) for event in taken] == [("fast", ["middle"])]
    assert not events(tmp_path, "gone_without")
    assert "taken_up" in {event["event"] for event in result["events"]}
    examples = [e["facts"]["examples"] for e in trained(tmp_path) if e["device"] == "fast"]
    assert max(examples) == pytest.approx(2 * examples[0], abs=2)


def test_without_a_copy_it_goes_on_without(data_job: Callable[..., Job], tmp_path: Path) -> None:
    job = data_job(fault=[{"kind": "crash", "device": "middle", "at_s": 0.3}], exchange={"rounds": 12})
    train(job, tmp_path)
    assert {event["device"] for event in events(tmp_path, "gone_without")} == {"slow", "fast"}
    assert not events(tmp_path, "taken_up")


class KilledError(Exception):
    pass


@pytest.mark.parametrize(
    ("mode", "num_events", "order"),
    [
        ("neighbours", 90, "turns"),
        ("neighbours", 90, "recalled"),
        ("epidemic", 70, "turns"),
        ("push", 60, "turns"),
    ],
)
def test_a_run_stopped_anywhere_resumes_to_the_same_bytes(
    data_job: Callable[..., Job],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mode: str,
    num_events: int,
    order: str,
) -> None:
    job = data_job(
        exchange={"mode": mode},
        split={"data": {"order": order}},
        run={"checkpoint_every_s": 1e-9},
        fault=[{"kind": "loss", "probability": 0.1}],
        contention=[{"kind": "bursty", "device": "fast", "on_s": 0.3, "off_s": 0.5, "level": 0.5}],
    )
    whole = train(job, tmp_path / "whole")
    written = 0
    original = simulate.Journal.append

    def killing(self: Any, record: Any, observed: Any) -> None:
        nonlocal written
        written += 1
        if written > num_events:
            raise KilledError
        original(self, record, observed)

    with monkeypatch.context() as patch:
        patch.setattr(simulate.Journal, "append", killing)
        with pytest.raises((RunError, KilledError)):
            train(job, tmp_path / "cut")
    assert list((tmp_path / "cut" / "checkpoint").iterdir())
    resumed = resume(tmp_path / "cut")
    assert figures(resumed) == figures(whole)
    assert (tmp_path / "cut" / "trace.jsonl").read_bytes() == (
        tmp_path / "whole" / "trace.jsonl"
    ).read_bytes()


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"exchange": {"mode": "synchronous"}}, "exchange.mode"),
        ({"learn": {"epochs": 2}}, "learn.epochs"),
        ({"learn": {"examples": 20}}, "learn.examples"),
    ],
)
def test_what_makes_no_sense_is_refused(
    data_job: Callable[..., Job], changes: dict[str, Any], key: str
) -> None:
    with pytest.raises(JobError) as error:
        data_job(**changes).changed({})
    assert error.value.key == key


def test_push_is_for_those_who_hold_the_same(data_job: Callable[..., Job], tmp_path: Path) -> None:
    job = data_job(
        split={"by": "task", "task": {"pretrain_epochs": 0, "settle_epochs": 0}, "data": None},
        exchange={"mode": "push"},
    )
    with pytest.raises(JobError, match="unlike blocks"):
        train(job, tmp_path)


def test_a_live_device_takes_its_slowdown_from_its_profile(data_job: Callable[..., Job]) -> None:
    job = data_job()
    material = load_material(job)

    def slowdown_of_a_team(**known: Any) -> float:
        lineup = put_together(job, material, Library(job, material), live=True, here=("fast",), **known)
        program: Any = lineup.team.participants["fast"].program
        return float(program.keywords["place"].pace.slowdown(1.0, 3.0))

    assert slowdown_of_a_team(slowdown=lambda from_s, until_s: until_s - from_s + 1) == 3.0
    assert slowdown_of_a_team() == 1.0  # without one, epochs alone tell


def test_a_profile_lies_beside_the_job_and_is_no_part_of_it(
    data_job: Callable[..., Job], tmp_path: Path
) -> None:
    job = data_job()
    (tmp_path / "job.toml").write_text(job.to_toml().replace("[live]", '[live]\nprofile = "here.json"'))
    found = load_job(tmp_path / "job.toml")
    assert found.live.profile == (tmp_path / "here.json").resolve()
    assert found.hash == job.hash


def test_a_missing_profile_is_named_before_anything_is_started(
    data_job: Callable[..., Job], tmp_path: Path
) -> None:
    job = data_job(live={"profile": tmp_path / "none.json"})
    with pytest.raises(JobError, match=r"live\.profile = .*none\.json.*manyhands profile --beside"):
        train(job, tmp_path / "run", engine="live")
    assert not (tmp_path / "run").exists()


def test_only_what_they_make_together_is_measured_in_every_round(
    data_job: Callable[..., Job], tmp_path: Path
) -> None:
    said = {"evaluate_every": 1, "evaluate_examples": 40}
    each = train(data_job(run=said), tmp_path / "each")
    few = train(data_job(run={**said, "evaluate_devices_every": 0}), tmp_path / "few")
    assert len(events(tmp_path / "each", "evaluated")) > 3
    assert len(events(tmp_path / "few", "evaluated")) == 3  # each device's, at the end
    assert few["curve"] == each["curve"]

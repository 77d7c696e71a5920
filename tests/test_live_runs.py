"""Live runs with real processes on loopback: the rehearsal, devices that are killed, Ctrl-C and going on."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from manyhands.cli import app
from manyhands.data import DataSection, load
from manyhands.errors import JobError
from manyhands.exchange.counts import Counts
from manyhands.exchange.mixing import mixing_rows
from manyhands.fleet import DeviceSection, FleetSection, make_fleet
from manyhands.job import Job
from manyhands.joiner import Joiner
from manyhands.joining import join
from manyhands.report.device_folder import DeviceFolder, merged_events
from manyhands.run import gather, resume, train
from manyhands.seeds import numpy_generator
from manyhands.wire.session import free_endpoints
from processes import KEPT, PATIENT, children, events


def test_a_rehearsal_gives_the_networks_of_the_simulator(
    small_job: Callable[..., Job], tmp_path: Path
) -> None:
    job = small_job(run=KEPT, live=PATIENT)
    simulated = train(job, tmp_path / "simulated")
    told: list[Any] = []
    live = train(job, tmp_path / "live", lambda *said: told.append(said[-1]), engine="live")
    assert (simulated["engine"], live["engine"]) == ("simulate", "live")
    for key in ("hash", "rounds", "merges", "complete", "measure", "topology"):
        assert live[key] == simulated[key]
    assert live["accuracy"] == pytest.approx(simulated["accuracy"])
    for ours, theirs in zip(live["devices"], simulated["devices"], strict=True):
        for key in ("name", "rounds", "examples", "flops", "bytes_sent", "bytes_received", "finished"):
            assert ours[key] == theirs[key]
        assert ours["busy_seconds"] > 0
    for name in ("a", "b", "c", "global"):
        theirs = load_file(tmp_path / "simulated" / "models" / f"{name}.safetensors")
        ours = load_file(tmp_path / "live" / "models" / f"{name}.safetensors")
        for tensor, weights in theirs.items():
            torch.testing.assert_close(ours[tensor], weights, rtol=1e-6, atol=1e-6)
    merged = events(tmp_path / "live")
    assert [e["seconds"] for e in merged] == sorted(e["seconds"] for e in merged)
    assert sum(event is not None for event in told) == len(merged)
    assert not children()
    # What the devices have left is enough to make the run again.
    for path in ("result.json", "trace.jsonl", "job.toml"):
        (tmp_path / "live" / path).unlink()
    again = gather(tmp_path / "live")
    assert {**again, "wall_seconds": 0} == {**live, "wall_seconds": 0}


@pytest.mark.parametrize(
    ("victim", "exchange"),
    [("c", {}), ("b", {"mode": "neighbours"})],
    ids=["the coordinator's device", "a neighbour"],
)
def test_a_killed_device_is_started_again_and_all_come_to_their_end(
    victim: str, exchange: dict[str, Any], small_job: Callable[..., Job], tmp_path: Path
) -> None:
    job = small_job(
        exchange={"rounds": 150, **exchange},
        run={**KEPT, "evaluate_every": 0},
        live={**PATIENT, "restart_s": 0.0},
        data={"limit": 60},
    )
    folder = tmp_path / "run"
    if not (result := killed_run(job, folder, victim)):
        # This process was held up for longer than the run took, and killed nobody in time.
        folder = tmp_path / "longer"
        result = killed_run(job.changed({"exchange.rounds": 3000}), folder, victim)
    merged = events(folder)
    assert result["complete"]
    assert all(device["finished"] for device in result["devices"])
    own = [e["event"] for e in merged if e["device"] == victim]
    assert own.count("crashed") == own.count("restarted") == 1
    assert {e["peer"] for e in merged if e["event"] == "peer_lost"} <= {victim, "coordinator"}
    assert {path.stem for path in (folder / "models").iterdir()} >= {"a", "b", "c", "global"}
    if exchange:
        assert max(device["rounds"] for device in result["devices"]) == result["rounds"] >= 150
    else:
        # The coordinator went on from its last merge: no round was merged twice, none was left out. A kill
        # may come between a merge on disk and the line that says so; then that line is all that is missing.
        rounds = [e["round"] for e in merged if e["event"] == "merged"]
        assert rounds == sorted(set(rounds))
        assert result["rounds"] - 1 <= len(rounds) <= rounds[-1] == result["rounds"]


def killed_run(job: Job, folder: Path, victim: str) -> dict[str, Any]:
    """A run in which one device is killed when any is seen in its third round; none if that was too late."""
    killed: list[int] = []

    def kill(_split: str, _job: Job, _tally: Any, event: dict[str, Any] | None) -> None:
        if event and event["event"] == "round" and event["round"] >= 3 and not killed:
            process = children().get(victim)
            killed.append(0 if process is None else process.pid)
            if process is not None:
                process.send_signal(signal.SIGKILL)

    result = train(job, folder, kill, engine="live")
    assert len(killed) == 1
    return result if any(e["event"] == "crashed" for e in events(folder)) else {}


def test_ctrl_c_leaves_politely_and_resume_goes_on(small_job_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    changes = ["exchange.rounds=400", "data.limit=60", "run.evaluate_every=0"]
    changes += [f"live.{key}={value}" for key, value in PATIENT.items()]
    command = [sys.executable, "-m", "manyhands", "train", str(small_job_file), "--engine", "live"]
    command += ["--quiet", "--out", str(out)] + [word for change in changes for word in ("--set", change)]
    # What a shell has put in the background ignores Ctrl-C, and so would this test's process.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        trace = out / "devices" / "a" / "trace.jsonl"
        until = time.monotonic() + 300
        while not (trace.is_file() and '"event":"round"' in trace.read_text()):
            assert process.poll() is None, process.communicate()[1]
            assert time.monotonic() < until
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=300)
    finally:
        process.kill()
    assert process.returncode == 130
    assert f"'manyhands resume {out}' goes on with it" in said
    assert not (out / "result.json").exists()
    left = {name: list(DeviceFolder(out / "devices" / name).events())[-1] for name in "abc"}
    assert {event["event"] for event in left.values()} == {"left"}
    result = resume(out)
    assert children() == {}
    assert (result["engine"], result["complete"], result["rounds"]) == ("live", True, 400)
    assert [e["event"] for e in events(out)].count("restarted") == 3
    assert "crashed" not in [e["event"] for e in events(out)]


# Without processes.


def test_a_trace_that_was_cut_by_a_kill_is_mended(tmp_path: Path) -> None:
    folder = DeviceFolder(tmp_path / "a")
    past = folder.begin("a", "hash", "name = 'x'\n")
    assert (past.incarnation, past.done) == (1, frozenset())
    folder.trace.write_text('{"seconds":1.0,"device":"a","event":"round"}\n{"seconds":2.0,"dev')
    assert [event["seconds"] for event in folder.events()] == [1.0]
    folder.finish("a")
    again = folder.begin("a", "hash", "name = 'x'\n")
    assert (again.incarnation, again.done, again.origin_s) == (2, {"a"}, past.origin_s)
    assert folder.trace.read_text().endswith("}\n")
    with pytest.raises(JobError, match="another folder"):
        folder.begin("b", "hash", "")
    with pytest.raises(JobError, match="another folder"):
        folder.begin("a", "other", "")


def test_merged_traces_are_on_one_clock_and_say_who_crashed(tmp_path: Path) -> None:
    def device(name: str, origin_s: float, told: list[tuple[float, str]], *, done: bool) -> DeviceFolder:
        folder = DeviceFolder(tmp_path / name)
        folder.path.mkdir()
        about = {"device": name, "job": "x", "origin_s": origin_s, "incarnation": 1}
        (folder.path / "device.json").write_text(json.dumps(about | {"done": [name] if done else []}))
        lines = [{"seconds": s, "device": name, "event": kind, "started": s - 0.5} for s, kind in told]
        folder.trace.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return folder

    folders = {
        "a": device("a", 100.0, [(1.0, "round"), (5.0, "restarted"), (6.0, "finished")], done=True),
        "b": device(
            "b", 102.0, [(1.0, "round"), (2.0, "left"), (8.0, "restarted"), (9.0, "round")], done=False
        ),
        "c": DeviceFolder(tmp_path / "never"),
    }
    told = [(e["seconds"], e["device"], e["event"]) for e in merged_events(folders)]
    assert told == [
        (1.0, "a", "round"),
        (1.0, "a", "crashed"),
        (3.0, "b", "round"),
        (4.0, "b", "left"),
        (5.0, "a", "restarted"),
        (6.0, "a", "finished"),
        (10.0, "b", "restarted"),
        (11.0, "b", "round"),
        (11.0, "b", "crashed"),
    ]
    assert next(e["started"] for e in merged_events(folders) if e["device"] == "b") == 2.5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["join", "JOB", "--name", "z"], "there is no such device; choose one of a, b, c"),
        (["join", "JOB", "--name", "a", "--keys", "nowhere"], "copy the device's folder"),
        (["train", "JOB", "--engine", "life"], "choose simulate or live"),
        (["compare", "JOB", "--engine", "live"], "take simulate"),
        (["gather", "nowhere"], "copy each to RUN/devices/NAME"),
        (
            ["train", "JOB", "--engine", "live", "--set", 'fault=[{kind="loss"}]'],
            "is for the simulator",
        ),
    ],
)
def test_what_cannot_be_is_said_in_one_line(
    arguments: list[str], message: str, small_job_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = [str(small_job_file) if word == "JOB" else word for word in arguments]
    error = CliRunner().invoke(app, words).exception
    assert isinstance(error, JobError)
    assert message in str(error)


def test_a_device_takes_no_folder_of_another_job(small_job: Callable[..., Job], tmp_path: Path) -> None:
    DeviceFolder(tmp_path).begin("a", "other", "")
    with pytest.raises(JobError, match="holds job other"):
        join(small_job(), Joiner("a", tmp_path))


def test_nothing_that_live_says_is_in_the_hash(small_job: Callable[..., Job]) -> None:
    job = small_job()
    assert job.changed({"live.quorum": 2, "live.connect": ["10.0.0.1:7447"]}).hash == job.hash


def own_data(path: Path, num_examples: int, seed: int) -> Path:
    """A file of one device: digits, some of them."""
    digits = load(DataSection(), seed=seed)
    x, y = digits.train.x.numpy(), digits.train.y.numpy()
    chosen = numpy_generator(seed, "own").permutation(len(y))[:num_examples]
    test = {"x_test": digits.test.x.numpy()[:60], "y_test": digits.test.y.numpy()[:60]}
    np.savez(path, x_train=x[chosen], y_train=y[chosen], **test)
    return path


def test_devices_with_certificates_and_data_of_their_own_train_together(tmp_path: Path) -> None:
    job = tmp_path / "own.toml"
    job.write_text(OWN_JOB)
    assert CliRunner().invoke(app, ["keys", "new-cluster", str(tmp_path / "keys"), *DEVICES]).exit_code == 0
    where = dict(zip("ab", free_endpoints(2), strict=True))
    run = tmp_path / "run"
    processes = {}
    try:
        for name, count in (("a", 200), ("b", 100)):
            data = own_data(tmp_path / f"{name}.npz", count, seed=count)
            command = [sys.executable, "-m", "manyhands", "join", str(job), "--name", name]
            command += ["--data", str(data), "--keys", str(tmp_path / "keys" / "devices" / name)]
            command += ["--out", str(run / "devices" / name)]
            command += ["--listen", where[name], "--connect", where["b" if name == "a" else "a"]]
            processes[name] = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        said = {name: process.communicate(timeout=300)[0] for name, process in processes.items()}
    finally:
        for process in processes.values():
            process.kill()
    assert [process.returncode for process in processes.values()] == [0, 0], said
    assert "round 3 of 3 done" in said["a"]
    result = gather(run, tmp_path / "a.npz")
    assert (result["complete"], result["rounds"]) == (True, 3)
    networks = [load_file(run / "devices" / name / "models" / f"{name}.safetensors") for name in "ab"]
    for tensor, weights in networks[0].items():
        torch.testing.assert_close(networks[1][tensor], weights)
    trained = [e for e in events(run) if e["event"] == "computed" and e["work"] == "train"]
    assert {e["device"]: e["facts"]["examples"] for e in trained} == {"a": 200, "b": 100}


OWN_JOB = """
[data]
name = "npz"
shares = "own"
validation = 0.0
[model]
name = "lenet5"
[learn]
batch_size = 10
[exchange]
rounds = 3
[live]
wait_s = 300.0
patience_s = 120.0
[[fleet.device]]
name = "a"
kind = "raspberry-pi-4"
[[fleet.device]]
name = "b"
kind = "laptop"
"""
DEVICES = ["--device", "a", "--device", "b"]


def test_what_devices_tell_of_their_data_changes_the_weights_in_place() -> None:
    section = FleetSection(device=(DeviceSection(kind="laptop", count=3),), topology="ring")
    fleet = make_fleet(section, seed=0)
    holds = dict.fromkeys(fleet.names, ("model",))
    counts = Counts(fleet, dict.fromkeys(fleet.names, 100))
    rows = counts.rows(holds)
    first = rows[fleet.names[0]]["model"]
    counts.correct(fleet.names[1], 900)
    counts.correct("nobody", 5)
    told = dict(zip(fleet.names, (100, 900, 100), strict=True))
    assert counts.num_examples == told
    assert rows == mixing_rows(fleet, holds, told)
    assert rows[fleet.names[0]]["model"] is first


def test_a_ring_cannot_be_planned_for_data_that_nobody_knows(small_job: Callable[..., Job]) -> None:
    job = small_job(exchange={"mode": "neighbours", "consensus": "ring"})
    with pytest.raises(JobError, match="take gossip"):
        job.changed({"data.shares": "own"})


def test_simulated_own_data_is_all_data_for_everybody(small_job: Callable[..., Job], tmp_path: Path) -> None:
    result = train(small_job(data={"shares": "own", "validation": 0.0}), tmp_path)
    assert [device["num_examples"] for device in result["devices"]] == [120] * 3

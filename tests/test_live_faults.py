"""Live runs that are disturbed: a device that is stopped, a fleet that is cut in two; nobody hangs.

What is done next depends on what the devices report, never on how long they took. While somebody is away the
others go on at the pace that the job's devices are expected to have, which is slow here, so that whoever is
back finds them training. `benchmarks/live_faults.py` does the same with more devices, worse links and kills.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import pytest

from hosts import Hosts, lay_links, why_not
from manyhands.job import Job
from manyhands.report.device_folder import DeviceFolder
from manyhands.run import gather, train
from processes import KEPT, PATIENT, children, events

NAMES = ("a", "b", "c")
LIMIT_S = 300.0
ROUNDS = 60
Event = dict[str, Any]


@pytest.fixture
def paced_job(small_job: Callable[..., Job]) -> Job:
    devices = [{"name": name, "kind": "raspberry-pi-4", "flops": 5e7} for name in NAMES]
    return small_job(
        exchange={"rounds": ROUNDS, "mode": "neighbours"},
        run={**KEPT, "evaluate_every": 0},
        live=PATIENT,
        fleet={"topology": "mesh", "device": devices},
    )


def check_ends(result: Event, merged: list[Event]) -> None:
    """All came to their end, and no round that was reported was done again."""
    assert result["complete"]
    assert [device["finished"] for device in result["devices"]] == [True] * len(NAMES)
    assert not [e for e in merged if e["event"] in ("crashed", "restarted", "left", "ignored", "refused")]
    for name in NAMES:
        rounds = [e["round"] for e in merged if e["event"] == "round" and e["device"] == name]
        assert all(earlier < later for earlier, later in pairwise(rounds))
        assert rounds[-1] <= ROUNDS
        assert [e["round"] for e in merged if e["event"] == "finished" and e["device"] == name] == rounds[-1:]


def told(merged: list[Event], kind: str) -> set[tuple[str, str]]:
    """Who reported something of whom."""
    return {(e["device"], e["peer"]) for e in merged if e["event"] == kind}


def test_a_device_that_is_stopped_is_lost_and_taken_back(paced_job: Job, tmp_path: Path) -> None:
    stopped: list[psutil.Process] = []
    done: dict[str, int] = {}
    lost_at: dict[str, int] = {}

    def watch(_split: str, _job: Job, _tally: Any, event: Event | None) -> None:
        if event is None:
            return
        who, kind = event["device"], event["event"]
        if kind == "round":
            done[who] = event["round"]
        if not stopped and done.get(who, 0) >= 3:
            stopped.append(children()["b"])
            stopped[0].suspend()
            guard.start()
        if stopped and kind == "peer_lost" and event["peer"] == "b":
            lost_at[who] = done[who]
        if len(lost_at) == 2 and all(done[name] >= number + 3 for name, number in lost_at.items()):
            guard.cancel()
            stopped[0].resume()  # the others have gone on without it
            lost_at.clear()

    # Should nobody ever lose it, the test is to fail and not to hang.
    guard = threading.Timer(LIMIT_S, lambda: [process.resume() for process in stopped])
    try:
        result = train(paced_job, tmp_path / "run", watch, engine="live")
    finally:
        guard.cancel()
    merged = events(tmp_path / "run")
    check_ends(result, merged)
    assert told(merged, "peer_lost") >= {("a", "b"), ("c", "b")}
    assert told(merged, "peer_back") >= {("a", "b"), ("c", "b")}
    # What the others did without it, it has not done.
    rounds = {device["name"]: device["rounds"] for device in result["devices"]}
    assert max(rounds.values()) > rounds["b"] >= 3
    assert not children()


@pytest.fixture
def three_hosts() -> Any:
    if reason := why_not():
        pytest.skip(reason)
    with lay_links(NAMES) as hosts:
        yield hosts


def start(name: str, hosts: Hosts, run: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "manyhands", "join", str(run / "job.toml"), "--name", name]
    command += ["--out", str(run / "devices" / name), "--quiet", "--listen", f"{hosts.address(name)}:7447"]
    for peer in NAMES:
        command += ["--connect", f"{hosts.address(peer)}:7447"] if peer != name else []
    with (run / f"{name}.txt").open("wb") as log:
        return subprocess.Popen(hosts.inside(name, *command), stdout=log, stderr=log)


def test_a_fleet_that_is_cut_in_two_goes_on_and_comes_together_again(
    three_hosts: Hosts, paced_job: Job, tmp_path: Path
) -> None:
    (tmp_path / "job.toml").write_text(paced_job.to_toml())
    processes = {name: start(name, three_hosts, tmp_path) for name in NAMES}
    across = {("a", "b"), ("b", "a"), ("a", "c"), ("c", "a")}

    def now() -> list[Event]:
        return [event for name in NAMES for event in DeviceFolder(tmp_path / "devices" / name).events()]

    def until(holds: Callable[[list[Event]], bool]) -> None:
        deadline = time.monotonic() + LIMIT_S
        while not holds(now()):
            assert time.monotonic() < deadline, {n: (tmp_path / f"{n}.txt").read_text() for n in NAMES}
            assert not [n for n, process in processes.items() if process.poll()]
            time.sleep(0.1)

    def all_ended(_events: list[Event]) -> bool:
        return all(process.poll() is not None for process in processes.values())

    try:
        until(lambda merged: any(e["event"] == "round" and e["round"] >= 3 for e in merged))
        three_hosts.cut(["a"], ["b", "c"])
        until(lambda merged: told(merged, "peer_lost") >= across)
        three_hosts.mend()
        until(all_ended)
    finally:
        for process in processes.values():
            process.kill()
            process.wait()
    assert [process.returncode for process in processes.values()] == [0, 0, 0]
    result = gather(tmp_path)
    merged = events(tmp_path)
    check_ends(result, merged)
    assert told(merged, "peer_back") >= across

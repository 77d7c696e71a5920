"""Devices of a tile group that are started one by one and find each other over the wire."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from crews import events_of, furthest_apart
from safetensors.torch import load_file
from typer.testing import CliRunner

from manyhands.cli import app
from manyhands.concluding import gather_crew, told_once
from manyhands.errors import JobError
from manyhands.job import Job
from manyhands.joiner import Joiner
from manyhands.mustering import join_crew
from manyhands.run import train
from manyhands.wire.session import free_endpoints

MakeJob = Callable[..., Job]
NUM_STEPS = 18  # 96 examples in batches of 16, three rounds
PATIENT = tuple(f"live.{key}=300" for key in ("wait_s", "patience_s", "linger_s"))
PATIENCE_S = 300


class Devices:
    """Processes that each join as a device; all are gone in the end."""

    def __init__(self, job: Job, run: Path, count: int, program: str, keys: Path | None) -> None:
        self.run, self._program, self._keys = run, program, keys
        self._job = run.parent / "joined.toml"
        self._job.write_text(job.to_toml())
        self._where = dict(zip((f"pi-{n + 1}" for n in range(count)), free_endpoints(count), strict=True))
        self.processes: dict[str, subprocess.Popen[str]] = {}

    def start(self, name: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", self._program, "join", str(self._job), "--name", name]
        command += ["--out", str(self.folder(name)), "--listen", self._where[name]]
        for other in self._where.keys() - {name}:
            command += ["--connect", self._where[other]]
        if self._keys is not None:
            command += ["--keys", str(self._keys / "devices" / name)]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        self.processes[name] = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
        return self.processes[name]

    def folder(self, name: str) -> Path:
        return self.run / "devices" / name

    def finish(self) -> dict[str, str]:
        """Waits for all to end well; what each had to say."""
        said = {name: process.communicate(timeout=PATIENCE_S)[1] for name, process in self.processes.items()}
        assert {name: process.returncode for name, process in self.processes.items()} == dict.fromkeys(
            self.processes, 0
        ), said
        return said

    def end(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.communicate()


@pytest.fixture
def devices(tmp_path: Path) -> Iterator[Callable[..., Devices]]:
    made: list[Devices] = []

    def make(job: Job, count: int, program: str = "manyhands", keys: Path | None = None) -> Devices:
        made.append(Devices(job, tmp_path / "run", count, program, keys))
        return made[-1]

    yield make
    for one in made:
        one.end()


def network_of(folder: Path) -> dict[str, Any]:
    return load_file(folder / "models" / "global.safetensors")


def of_kind(events: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [event for event in events if event["event"] == kind]


def test_devices_that_join_train_what_one_device_trains(
    crew_job: MakeJob, devices: Callable[..., Devices], tmp_path: Path
) -> None:
    job = crew_job(changes=PATIENT)
    keys = tmp_path / "keys"
    made = ["keys", "new-cluster", str(keys), "--device", "pi-1", "--device", "pi-2"]
    assert CliRunner().invoke(app, made).exit_code == 0
    joined = devices(job, 2, keys=keys)
    for name in ("pi-2", "pi-1"):
        joined.start(name)
    for text in joined.finish().values():
        assert "neither encrypted nor authenticated" in text
    train(job, tmp_path / "simulated")
    for name in ("pi-1", "pi-2"):
        theirs = network_of(joined.folder(name))
        assert furthest_apart(theirs, network_of(tmp_path / "simulated")) < 1e-4
        assert json.loads((joined.folder(name) / "device.json").read_text())["done"] == [name]
    result = gather_crew(joined.run)
    assert (result["engine"], result["complete"], result["rounds"]) == ("live", True, 3)
    assert [device["name"] for device in result["devices"]] == ["pi-1", "pi-2"]
    assert all(device["finished"] and device["memory_bytes"] > 2**20 for device in result["devices"])
    # Both have written down every step, and each stands there once.
    assert [e["step"] for e in of_kind(events_of(joined.run), "step")] == list(range(1, NUM_STEPS + 1))
    assert network_of(joined.run).keys() == network_of(joined.folder("pi-1")).keys()


def test_the_others_go_on_without_one_that_is_killed_and_take_it_back(
    crew_job: MakeJob, devices: Callable[..., Devices], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CREW_FAULT", "pi-1 5")  # the one that leads, and serves the store
    job = crew_job(count=3, changes=PATIENT)
    joined = devices(job, 3, "faulty_join")
    for name in ("pi-1", "pi-2", "pi-3"):
        joined.start(name)
    killed = joined.processes["pi-1"]
    killed.communicate(timeout=PATIENCE_S)
    assert killed.returncode == -signal.SIGKILL
    joined.start("pi-1")
    said = joined.finish()
    for name in ("pi-2", "pi-3"):
        assert "was broken off" in said[name]
        # All that pi-1 had to say in its fifth step the others may have heard.
        assert re.search(r"going on without pi-1 from step [45]\b", said[name])
    # Tiles are exact, whoever computes them; and the one that was away has what the others have.
    train(job, tmp_path / "simulated")
    for name in ("pi-1", "pi-2", "pi-3"):
        assert furthest_apart(network_of(joined.folder(name)), network_of(tmp_path / "simulated")) < 1e-4
    result = gather_crew(joined.run)
    assert result["complete"]
    events = events_of(joined.run)
    assert [e["step"] for e in of_kind(events, "step")] == list(range(1, NUM_STEPS + 1))
    assert [e["peers"] for e in of_kind(events, "formed")][:2] == [["pi-1", "pi-2", "pi-3"], ["pi-2", "pi-3"]]
    assert of_kind(events, "formed")[1]["step"] in (4, 5)
    assert of_kind(events, "peer_lost")[0]["peer"] == "pi-1"
    assert of_kind(events, "peer_back")[-1]["peer"] == "pi-1"
    assert [e["incarnation"] for e in of_kind(events, "restarted")] == [2]


def test_one_that_waits_for_the_others_leaves_politely(
    crew_job: MakeJob, devices: Callable[..., Devices]
) -> None:
    joined = devices(crew_job(changes=PATIENT), 2)
    process = joined.start("pi-2")
    trace, until = joined.folder("pi-2") / "trace.jsonl", time.monotonic() + PATIENCE_S
    while not (trace.is_file() and "gathering" in trace.read_text()):
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < until
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert "pi-2 has left; the same command goes on with it" in said
    events = events_of(joined.folder("pi-2"))
    assert events[0]["missing"] == ["pi-1"]
    assert events[-1]["event"] == "left"


@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        ("pi-9", (), "there is no such device; choose one of pi-1, pi-2"),
        ("pi-1", ('fault=[{kind="loss"}]',), "is for the simulator"),
    ],
)
def test_what_cannot_be_joined_is_said_in_one_line(
    crew_job: MakeJob, tmp_path: Path, name: str, changes: tuple[str, ...], said: str
) -> None:
    with pytest.raises(JobError, match=said):
        join_crew(crew_job(changes=changes), Joiner(name, tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_what_several_have_written_down_is_told_once() -> None:
    def told(seconds: float, event: str, device: str = "crew", **facts: Any) -> dict[str, Any]:
        return {"seconds": seconds, "device": device, "event": event, **facts}

    first = [told(1.0, "step", step=1), told(2.0, "step", step=2), told(2.5, "left", "a")]
    others = [
        told(1.1, "step", step=1),
        told(2.1, "step", step=2),
        told(3.0, "peer_lost", peer="a", formation=2),
        told(3.1, "step", step=3),
        told(4.0, "finished"),
    ]
    # It came back and was only told how it ended.
    late = [told(0.9, "step", step=1), told(3.9, "formed", formation=3), told(3.95, "left", "c")]
    kept = told_once([first, others, late], "crew")
    assert [(e["seconds"], e["event"]) for e in kept] == [
        (1.1, "step"),
        (2.1, "step"),
        (2.5, "left"),
        (3.0, "peer_lost"),
        (3.1, "step"),
        (3.95, "left"),
        (4.0, "finished"),
    ]
    # Of steps that the most talkative has missed, others tell.
    assert [e["step"] for e in told_once([first[:1], others[1:4]], "crew") if "step" in e] == [1, 2, 3]

"""Real processes that train one network in tiles, and what becomes of them when some die."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from crews import FAULTY, alive, events_of, furthest_apart
from safetensors.torch import load_file

from manyhands import crewmate
from manyhands.crewing import train_crew
from manyhands.errors import JobError, RunError
from manyhands.job import Job
from manyhands.report.folder import RunFolder
from manyhands.run import train

MakeJob = Callable[..., Job]
NUM_STEPS = 18  # 96 examples in batches of 16, three rounds


def weights_of(out: Path) -> dict[str, torch.Tensor]:
    return load_file(out / "models" / "global.safetensors")


def steps_of(out: Path) -> list[int]:
    return [event["step"] for event in events_of(out) if event["event"] == "step"]


def test_a_crew_trains_what_the_simulator_trains(crew_job: MakeJob, tmp_path: Path) -> None:
    job = crew_job(changes=("run.report=true",))
    live = train_crew(job, tmp_path / "live")
    simulated = train(job, tmp_path / "simulated")
    assert furthest_apart(weights_of(tmp_path / "live"), weights_of(tmp_path / "simulated")) < 1e-4
    assert (live["engine"], live["complete"], live["rounds"]) == ("live", True, 3)
    assert live["accuracy"] == simulated["accuracy"]
    assert [d["name"] for d in live["devices"]] == [d["name"] for d in simulated["devices"]]
    assert steps_of(tmp_path / "live") == list(range(1, NUM_STEPS + 1))
    (group,), (planned,) = live["groups"], simulated["groups"]
    assert group["measured_step_seconds"] > 0
    assert group | {"measured_step_seconds": None} == planned
    assert all(device["memory_bytes"] > 2**20 for device in live["devices"])
    assert "Step, measured" in (tmp_path / "live" / "report.html").read_text()
    assert not alive(tmp_path / "live")


def test_the_others_go_on_without_a_leader_that_is_killed(
    crew_job: MakeJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = crew_job(count=3)
    monkeypatch.setenv("CREW_FAULT", "pi-1 5 SIGKILL")
    result = train_crew(job, tmp_path / "run", program=FAULTY)
    check_went_on(result, tmp_path / "run", "pi-1")
    # Tiles are exact, whoever computes them: who is left trains what all would have.
    train(job, tmp_path / "simulated")
    assert furthest_apart(weights_of(tmp_path / "run"), weights_of(tmp_path / "simulated")) < 1e-4


def check_went_on(result: dict[str, Any], out: Path, victim: str) -> None:
    assert result["complete"]
    left = [name for name in ("pi-1", "pi-2", "pi-3") if name != victim]
    formed = [event["peers"] for event in events_of(out) if event["event"] == "formed"]
    assert formed[-1] == left
    assert [event["peer"] for event in events_of(out) if event["event"] == "peer_lost"] == [victim]
    assert steps_of(out)[-1] == NUM_STEPS
    assert len(set(steps_of(out))) == len(steps_of(out))
    lost = {device["name"]: device["lost_at_seconds"] for device in result["devices"]}
    assert [name for name, at in lost.items() if at is not None] == [victim]
    for name in left:
        assert f"going on without {victim}" in (out / "logs" / f"{name}.log").read_text()
    assert not alive(out)


def test_the_others_go_on_without_a_device_that_is_frozen(
    crew_job: MakeJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CREW_FAULT", "pi-2 5 SIGSTOP")
    result = train_crew(crew_job(count=3, patience_s=8.0), tmp_path, program=FAULTY)
    check_went_on(result, tmp_path, "pi-2")
    assert "pi-2 has been silent for 8 s" in (tmp_path / "logs" / "pi-1.log").read_text()


def test_a_run_whose_devices_were_all_killed_goes_on_from_its_last_step(
    crew_job: MakeJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = crew_job()
    monkeypatch.setenv("CREW_FAULT", "pi-1,pi-2 7 SIGKILL")
    with pytest.raises(RunError, match="no device is left"):
        train_crew(job, tmp_path / "run", program=FAULTY)
    assert not (tmp_path / "run" / "result.json").exists()
    alone = [event["peers"] for event in events_of(tmp_path / "run") if event["event"] == "formed"]
    assert alone[0] == ["pi-1", "pi-2"]  # the second may have gone on alone before its turn came
    result = train_crew(job, tmp_path / "run")
    train(job, tmp_path / "whole")
    assert result["complete"]
    assert steps_of(tmp_path / "run") == list(range(1, NUM_STEPS + 1))
    formed = [event for event in events_of(tmp_path / "run") if event["event"] == "formed"]
    assert (formed[-1]["step"], formed[-1]["peers"]) == (6, ["pi-1", "pi-2"])  # not from the beginning
    assert furthest_apart(weights_of(tmp_path / "run"), weights_of(tmp_path / "whole")) < 1e-4


def test_torchrun_starts_a_crew_as_well(crew_job: MakeJob, tmp_path: Path) -> None:
    job = crew_job(changes=("exchange.rounds=1", "split.space.profile=measured"))
    (tmp_path / "job.toml").write_text(job.to_toml())
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    command += ["-m", "manyhands.crewmate", str(tmp_path / "job.toml"), "--out", str(tmp_path / "run")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    result = RunFolder(tmp_path / "run").load_result()
    assert result is not None
    assert (result["engine"], result["complete"], result["rounds"]) == ("live", True, 1)
    assert steps_of(tmp_path / "run") == list(range(1, 7))
    assert result["groups"][0]["measured_profile"]
    assert result["groups"][0]["step_seconds"] > 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--rank", "2", "--master", "127.0.0.1:1"], "--rank = 2: must be from 0 to 1"),
        (["--master", "127.0.0.1:1"], "--rank: is missing"),
        (["--rank", "0", "--master", "nowhere"], "--master"),
    ],
)
def test_a_crewmate_says_what_is_wrong_with_its_command(
    crew_job: MakeJob, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    (tmp_path / "job.toml").write_text(crew_job().to_toml())
    status = crewmate.main([str(tmp_path / "job.toml"), "--out", str(tmp_path / "run"), *arguments])
    assert status == 2
    assert said in capsys.readouterr().err


def test_a_crew_is_refused_a_job_that_is_not_split_by_space(small_job: MakeJob, tmp_path: Path) -> None:
    with pytest.raises(JobError, match="split by"):
        train_crew(small_job(), tmp_path)
    gpu = {"kind": "laptop", "count": 2, "torch_device": "cuda"}
    with pytest.raises(JobError, match="computes on processors"):
        train_crew(small_job(split={"by": "space"}, fleet={"device": [gpu]}), tmp_path)
    assert not list(tmp_path.iterdir())

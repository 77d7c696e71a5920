from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from manyhands.engine import holdings, simulate
from manyhands.errors import JobError, ReplayDiverged, RunError
from manyhands.job import Job
from manyhands.run import compare, resume, train

FAULTS = [
    {"kind": "crash", "device": "a", "at_s": 0.03, "restart_at_s": 0.2},
    {"kind": "loss", "probability": 0.1},
    {"kind": "duplicate", "probability": 0.2},
    {"kind": "corrupt", "device": "b", "probability": 0.3},
]


def figures(result: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in result.items() if key != "wall_seconds"}


def trace(folder: Path) -> bytes:
    return (folder / "trace.jsonl").read_bytes()


def test_a_run_leaves_everything_the_contract_names(small_job: Callable[..., Job], tmp_path: Path) -> None:
    result = train(small_job(run={"alone": True, "save_models": True, "report": True}), tmp_path / "run")
    files = {str(p.relative_to(tmp_path / "run")) for p in (tmp_path / "run").rglob("*") if p.is_file()}
    models = {f"models/{name}.safetensors" for name in ("a", "b", "c", "global")}
    assert {"job.toml", "trace.jsonl", "result.json", "report.html"} | models <= files
    assert not (tmp_path / "run" / "checkpoint").exists()
    assert json.loads((tmp_path / "run" / "result.json").read_text()) == result
    keys = [
        "schema",
        "job",
        "hash",
        "seed",
        "engine",
        "split",
        "seconds",
        "wall_seconds",
        "rounds",
        "accuracy",
        "curve",
        "devices",
    ]
    assert set(keys) <= set(result)
    assert result["schema"] == 1
    assert result["rounds"] == 3
    assert len(result["curve"]) == 3
    for device in result["devices"]:
        assert device["accuracy"] == result["accuracy"]
        assert device["accuracy_alone"] is not None
        assert device["busy_seconds"] > 0
        assert device["energy_joules"] > 0
        assert device["bytes_sent"] > 0


def test_saved_models_are_what_was_measured(small_job: Callable[..., Job], tmp_path: Path) -> None:
    train(small_job(run={"save_models": True}), tmp_path)
    merged, device = (load_file(tmp_path / "models" / f"{name}.safetensors") for name in ("global", "a"))
    assert merged.keys() == device.keys()
    assert all(torch.equal(merged[name], device[name]) for name in merged)


def test_training_together_beats_training_alone(small_job: Callable[..., Job], tmp_path: Path) -> None:
    job = small_job(
        data={"limit": 500, "shares": "dirichlet", "alpha": 0.3},
        exchange={"rounds": 12},
        run={"alone": True, "evaluate_every": 0, "evaluate_examples": None},
    )
    result = train(job, tmp_path)
    gains = [device["accuracy"] - device["accuracy_alone"] for device in result["devices"]]
    assert sum(gains) / len(gains) > 0.1


def test_two_runs_and_any_number_of_workers_give_the_same_bytes(
    small_job: Callable[..., Job], tmp_path: Path
) -> None:
    for mode in ("synchronous", "asynchronous"):
        traces = set()
        for workers in (0, 2, 2, 3):
            job = small_job(exchange={"mode": mode}, run={"workers": workers}, fault=FAULTS)
            folder = tmp_path / f"{mode}-{workers}-{len(list(tmp_path.iterdir()))}"
            train(job, folder)
            traces.add(trace(folder))
        assert len(traces) == 1


def test_an_asynchronous_run_lets_the_fast_do_more(small_job: Callable[..., Job], tmp_path: Path) -> None:
    result = train(small_job(exchange={"mode": "asynchronous", "rounds": 6}), tmp_path)
    rounds = {device["name"]: device["rounds"] for device in result["devices"]}
    assert rounds["c"] > rounds["a"] >= 1
    assert result["rounds"] == 6
    waiting = {device["name"]: device["waiting_seconds"] / result["seconds"] for device in result["devices"]}
    synchronous = train(small_job(exchange={"rounds": 6}), tmp_path / "synchronous")
    before = {d["name"]: d["waiting_seconds"] / synchronous["seconds"] for d in synchronous["devices"]}
    assert waiting["b"] < before["b"]


@pytest.mark.parametrize("send", ["parameters", "gradients"])
@pytest.mark.parametrize("rule", ["mean", "median", "trimmed_mean"])
def test_every_way_to_merge_runs_end_to_end(
    small_job: Callable[..., Job], tmp_path: Path, send: str, rule: str
) -> None:
    job = small_job(
        exchange={"send": send, "merge": {"rule": rule, "trim": 0.34, "clip_norm": 5.0}, "rounds": 2}
    )
    assert train(job, tmp_path)["accuracy"] > 0.05


def test_gradients_and_parameters_agree(small_job: Callable[..., Job], tmp_path: Path) -> None:
    results = [
        train(small_job(exchange={"send": way}), tmp_path / way) for way in ("parameters", "gradients")
    ]
    losses = [[point["loss"] for point in result["curve"]] for result in results]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


# Killed and resumed.


class KilledError(Exception):
    pass


def killed_after(monkeypatch: pytest.MonkeyPatch, events: int) -> None:
    """Makes the next run stop dead after so many events, a checkpoint written at every chance before."""
    emit = simulate.Simulation.emit

    def dying(self: simulate.Simulation, *args: Any, **kwargs: Any) -> None:
        if self.journal.num_events >= events:
            raise KilledError
        emit(self, *args, **kwargs)

    monkeypatch.setattr(simulate.Simulation, "emit", dying)


@pytest.mark.parametrize("mode", ["synchronous", "asynchronous", "isolated"])
@pytest.mark.parametrize("events", [5, 20, 37, 55, 70])
def test_a_run_stopped_anywhere_resumes_to_the_same_bytes(
    small_job: Callable[..., Job], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, events: int
) -> None:
    if mode == "isolated":
        job = small_job(split={"by": "isolated"}, run={"checkpoint_every_s": 1e-9}, exchange={"rounds": 6})
    else:
        job = small_job(exchange={"mode": mode}, run={"checkpoint_every_s": 1e-9}, fault=FAULTS)
    whole = train(job, tmp_path / "whole")
    with monkeypatch.context() as patch:
        killed_after(patch, events)
        if events < len(trace(tmp_path / "whole").splitlines()):
            with pytest.raises((RunError, KilledError)):
                train(job, tmp_path / "cut")
    resumed = resume(tmp_path / "cut") if (tmp_path / "cut").exists() else whole
    assert figures(resumed) == figures(whole)
    if (tmp_path / "cut").exists():
        assert trace(tmp_path / "cut") == trace(tmp_path / "whole")


def test_a_resumed_run_does_not_train_again_what_it_had(
    small_job: Callable[..., Job], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = small_job(run={"checkpoint_every_s": 1e-9}, exchange={"rounds": 5})
    with monkeypatch.context() as patch:
        killed_after(patch, 80)
        with pytest.raises((RunError, KilledError)):
            train(job, tmp_path)
    assert list((tmp_path / "checkpoint").glob("*.safetensors"))
    done = sum('"work":"train"' in line for line in (tmp_path / "trace.jsonl").read_text().splitlines())
    computed = []
    submit = simulate.Cores.submit
    monkeypatch.setattr(
        simulate.Cores, "submit", lambda self, work: computed.append(work.name) or submit(self, work)
    )
    resume(tmp_path)
    assert done >= 6
    assert computed.count("train") <= 15 - done + 3


SLOW_JOB = """
[data]
name = "digits"
[model]
name = "lenet5"
[learn]
batch_size = 8
[exchange]
rounds = 25
[run]
checkpoint_every_s = 0.05
[[fleet.device]]
kind = "raspberry-pi-4"
count = 4
"""


@pytest.mark.slow
def test_sigkill_at_any_moment_loses_nothing(tmp_path: Path) -> None:
    job = tmp_path / "job.toml"
    job.write_text(SLOW_JOB)
    command = [sys.executable, "-m", "manyhands"]
    subprocess.run(
        [*command, "train", str(job), "--out", str(tmp_path / "whole"), "-q"], check=True, timeout=300
    )
    cut, kills = tmp_path / "cut", 0
    arguments = ["train", str(job), "--out", str(cut), "-q"]
    for wait_for in ("trace.jsonl", "checkpoint", "checkpoint"):
        with subprocess.Popen([*command, *arguments]) as process:
            if _appears(cut / wait_for, process):
                time.sleep(0.4 * (kills + 1))
            if process.poll() is None:
                os.kill(process.pid, signal.SIGKILL)
                kills += 1
        arguments = ["resume", str(cut), "-q"]
    subprocess.run([*command, "resume", str(cut), "-q"], check=True, timeout=300)
    assert kills >= 1
    whole, resumed = (json.loads((tmp_path / name / "result.json").read_text()) for name in ("whole", "cut"))
    assert figures(resumed) == figures(whole)
    assert trace(cut) == trace(tmp_path / "whole")
    assert not list(cut.rglob("*.partial"))


def _appears(path: Path, process: subprocess.Popen[bytes]) -> bool:
    for _ in range(1200):
        if path.exists():
            return True
        if process.poll() is not None:
            return False
        time.sleep(0.05)
    return False


def test_an_edited_trace_is_noticed(
    small_job: Callable[..., Job], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        killed_after(patch, 60)
        with pytest.raises((RunError, KilledError)):
            train(small_job(run={"checkpoint_every_s": 1e-9}), tmp_path)
    edited = (tmp_path / "trace.jsonl").read_text().replace('"bytes":', '"bytes": ', 1)
    (tmp_path / "trace.jsonl").write_text(edited)
    with pytest.raises(ReplayDiverged, match="train the job anew"):
        resume(tmp_path)


def test_a_damaged_checkpoint_is_named(small_job: Callable[..., Job], tmp_path: Path) -> None:
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "000000000009.safetensors").write_bytes(b"rubbish")
    with pytest.raises(RunError, match="not a whole checkpoint"):
        train(small_job(), tmp_path)


def test_resuming_what_is_not_a_run(tmp_path: Path) -> None:
    with pytest.raises(JobError, match="not a run folder"):
        resume(tmp_path)


def test_a_finished_run_is_not_run_again(small_job: Callable[..., Job], tmp_path: Path) -> None:
    first = train(small_job(), tmp_path)
    before = trace(tmp_path)
    assert resume(tmp_path) == first
    assert trace(tmp_path) == before


# What goes wrong is in the result; what cannot work is refused.


def test_faults_are_told_in_the_result(small_job: Callable[..., Job], tmp_path: Path) -> None:
    faults = [
        {"kind": "crash", "device": "a", "at_s": 0.02},
        {"kind": "corrupt", "device": "b"},
    ]
    result = train(small_job(fault=faults, exchange={"rounds": 4}), tmp_path)
    assert {"crashed", "refused", "missed"} <= {event["event"] for event in result["events"]}
    by_name = {device["name"]: device for device in result["devices"]}
    assert by_name["a"]["lost_at_seconds"] == 0.02
    assert by_name["c"]["lost_at_seconds"] is None
    assert result["rounds"] == 4
    assert result["num_notable"] == len(result["events"])


def test_the_coordinator_may_die_and_come_back(small_job: Callable[..., Job], tmp_path: Path) -> None:
    faults = [{"kind": "crash", "device": "coordinator", "at_s": 0.05, "restart_at_s": 1.0}]
    result = train(small_job(fault=faults, exchange={"rounds": 4}), tmp_path)
    assert result["rounds"] == 4
    assert result["seconds"] > 1.0
    assert {"crashed", "restarted"} <= {event["event"] for event in result["events"]}


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"model": {"name": "yolov2"}}, ["model.name", "yolov2"]),
        ({"fleet": {"device": [{"kind": "laptop", "share": 1.5}]}}, ["fleet.device[0].share = 1.5"]),
        ({"fleet": {"device": [{"kind": "laptop", "share": 0.5}]}}, ["share", "0.5", "1"]),
        ({"fleet": {"device": [{"kind": "laptob"}]}}, ["fleet.device[0].kind", "laptob", "laptop"]),
        (
            {"fleet": {"topology": "custom", "edges": [["a", "b"]]}},
            ["fleet.edges", "one connected graph", "c"],
        ),
        ({"exchange": {"coordinator": "zzz"}}, ["exchange.coordinator", "zzz", "a, b, c"]),
        ({"fault": [{"kind": "crash", "device": "zzz", "at_s": 1}]}, ["fault[0].device", "zzz"]),
        ({"data": {"classes_per_device": 99, "shares": "by_class"}}, ["classes_per_device"]),
    ],
)
def test_what_cannot_work_is_refused(
    small_job: Callable[..., Job], tmp_path: Path, changes: dict[str, Any], parts: list[str]
) -> None:
    with pytest.raises(JobError) as error:
        train(small_job(**changes), tmp_path)
    assert all(part in str(error.value) for part in parts)


def test_a_network_too_large_for_a_device_is_refused_with_both_figures(
    small_job: Callable[..., Job], tmp_path: Path
) -> None:
    devices = [{"kind": "raspberry-pi-3b", "name": "tiny", "memory_bytes": 2**20}]
    with pytest.raises(JobError, match=r"takes 2\.96 MiB and tiny .* has 1\.00 MiB"):
        train(small_job(fleet={"device": devices}, learn={"batch_size": 512}), tmp_path)


@pytest.mark.parametrize("topology", ["line", "ring", "mesh", "star", "random_regular"])
def test_without_faults_nobody_is_missed_on_any_topology(
    small_job: Callable[..., Job], tmp_path: Path, topology: str
) -> None:
    devices = [{"kind": "raspberry-pi-3b", "count": 9}, {"kind": "laptop", "name": "hub"}]
    fleet = {"device": devices, "topology": topology, "degree": 3}
    job = small_job(fleet=fleet, exchange={"coordinator": "hub", "rounds": 2}, learn={"batch_size": 4})
    result = train(job, tmp_path)
    assert result["events"] == []
    assert all(device["rounds"] == 2 and device["finished"] for device in result["devices"])


def test_an_asynchronous_run_listens_to_a_device_that_is_slower_than_expected(
    small_job: Callable[..., Job], tmp_path: Path
) -> None:
    slow = [{"kind": "slow_down", "device": "b", "factor": 5}]
    fleet = {"device": [{"kind": "laptop", "name": name, "flops": 2e8} for name in "abc"]}
    job = small_job(exchange={"mode": "asynchronous", "rounds": 12}, fault=slow, fleet=fleet)
    result = train(job, tmp_path)
    assert next(d for d in result["devices"] if d["name"] == "b")["rounds"] >= 1
    merged = [e for e in map(json.loads, trace(tmp_path).splitlines()) if e.get("work") == "merge"]
    assert "b" in {event["peer"] for event in merged}


def test_an_asynchronous_run_with_too_short_a_deadline_still_ends(
    small_job: Callable[..., Job], tmp_path: Path
) -> None:
    result = train(small_job(exchange={"mode": "asynchronous", "deadline_s": 1e-5, "rounds": 2}), tmp_path)
    assert result["complete"]
    assert result["merges"] == 6


def test_everybody_gets_the_final_network_although_messages_are_lost(
    small_job: Callable[..., Job], tmp_path: Path
) -> None:
    job = small_job(
        fault=[{"kind": "loss", "probability": 0.4}], run={"save_models": True}, exchange={"rounds": 2}
    )
    result = train(job, tmp_path)
    assert all(device["finished"] for device in result["devices"])
    assert {device["accuracy"] for device in result["devices"]} == {result["accuracy"]}


def test_time_that_a_device_was_down_is_neither_busy_nor_waiting(
    small_job: Callable[..., Job], tmp_path: Path
) -> None:
    fault = [{"kind": "crash", "device": "a", "at_s": 0.03, "restart_at_s": 0.2}]
    result = train(small_job(fault=fault, exchange={"rounds": 20}), tmp_path)
    device = next(d for d in result["devices"] if d["name"] == "a")
    assert device["down_seconds"] == pytest.approx(0.17)
    assert device["busy_seconds"] + device["waiting_seconds"] == pytest.approx(result["seconds"] - 0.17)


def test_a_run_that_nobody_could_finish_says_so(small_job: Callable[..., Job], tmp_path: Path) -> None:
    faults = [{"kind": "crash", "device": name, "at_s": 0} for name in "abc"]
    result = train(small_job(fault=faults), tmp_path)
    assert not result["complete"]
    assert result["rounds"] == 0
    assert result["accuracy"] is None


def test_a_folder_belongs_to_its_job(small_job: Callable[..., Job], tmp_path: Path) -> None:
    train(small_job(), tmp_path)
    with pytest.raises(JobError, match="holds a run of another job"):
        train(small_job(seed=99), tmp_path)


def test_a_refused_job_leaves_no_folder(small_job: Callable[..., Job], tmp_path: Path) -> None:
    with pytest.raises(JobError):
        train(small_job(exchange={"coordinator": "nobody"}), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_idle_devices_of_a_shared_network_hold_no_copies(
    small_job: Callable[..., Job], tmp_path: Path
) -> None:
    """What is alive at a checkpoint does not grow with the devices that took part before."""
    devices = [{"kind": "raspberry-pi-4", "count": 40}]
    job = small_job(
        data={"limit": None, "validation": 0},
        fleet={"device": devices},
        exchange={"rounds": 12, "fraction": 0.1},
        run={"checkpoint_every_s": 1e-9, "evaluate_every": 0},
    )
    sizes = []
    write = holdings.write_checkpoint

    def spying(*args: Any) -> Path:
        path = write(*args)
        sizes.append(path.stat().st_size)
        return path

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(holdings, "write_checkpoint", spying)
        train(job, tmp_path)
    one_network = 90_000
    assert max(sizes) < 8 * one_network  # the merged one, and the updates of four devices under way


def test_compare_runs_each_split_in_its_own_folder(small_job: Callable[..., Job], tmp_path: Path) -> None:
    results = compare(small_job(), ["isolated", "homogeneous"], tmp_path)
    assert results["isolated"]["accuracy"] is None
    assert results["homogeneous"]["accuracy"] is not None
    assert (tmp_path / "isolated" / "result.json").is_file()
    assert all(device["bytes_sent"] == 0 for device in results["isolated"]["devices"])


def test_the_watcher_is_told_everything(small_job: Callable[..., Job], tmp_path: Path) -> None:
    seen: list[Any] = []
    train(small_job(), tmp_path, lambda split, job, tally, event: seen.append((split, event)))
    assert seen[0] == ("homogeneous", None)
    assert len(seen) - 1 == len(trace(tmp_path).splitlines())

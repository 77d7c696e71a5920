from __future__ import annotations

import json
import os
import sys
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from manyhands import cli_profile
from manyhands.cli import main
from manyhands.fleet import CATALOG, DeviceSection, Use
from manyhands.fleet.measure import Machine
from manyhands.fleet.predictor import Regression, Sample, read_predictor
from manyhands.fleet.recording import Span, read_recording
from manyhands.fleet.tables import make_devices

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def manyhands(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["manyhands", "profile", *map(str, arguments)])
        try:
            main()
            status: object = 0
        except SystemExit as end:
            status = end.code or 0
        said = capsys.readouterr()
        assert isinstance(status, int)
        return status, said.out, said.err

    return run


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine = Machine(CATALOG["raspberry-pi-4"].flops * 1.1, 4, 3 * 10**9)
    monkeypatch.setattr(cli_profile, "measure_machine", lambda *_: machine)
    return machine


def test_the_entry_is_one_that_a_job_takes(manyhands: Run, measured: Machine) -> None:
    status, out, err = manyhands()
    assert (status, err) == (0, "")
    (entry,) = tomllib.loads(out)["fleet"]["device"]
    (device,) = make_devices([DeviceSection(**entry)])
    assert (device.kind, device.cores, device.memory_bytes) == ("raspberry-pi-4", 4, 3 * 10**9)
    assert device.flops == pytest.approx(measured.flops, rel=0.01)
    assert "nearest kind, raspberry-pi-4" in out


def test_the_entry_as_json_and_quietly(manyhands: Run, measured: Machine) -> None:
    status, out, _ = manyhands("--json")
    assert status == 0
    assert json.loads(out).keys() == {"name", "kind", "flops", "cores", "memory_bytes"}
    assert manyhands("-q") == (0, "", "")


@pytest.mark.parametrize(
    ("node", "name"), [("pi kitchen.local", "pi-kitchen.local"), ("", "this-machine"), ("_ü", "this-machine")]
)
def test_a_machine_is_called_what_a_job_can_call_it(measured: Machine, node: str, name: str) -> None:
    assert cli_profile.device_entry(measured, node)["name"] == name


def test_this_machine_is_measured_and_torch_left_as_it_was(manyhands: Run) -> None:
    threads = torch.get_num_threads()
    status, out, err = manyhands("--seconds", "0.1", "--json")
    assert (status, err) == (0, "")
    assert json.loads(out)["flops"] > 0
    assert json.loads(out)["cores"] == os.cpu_count()
    assert torch.get_num_threads() == threads


def test_ctrl_c(manyhands: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli_profile, "measure_machine", interrupted)
    assert manyhands() == (130, "", "manyhands: stopped; nothing was measured\n")
    monkeypatch.setattr(cli_profile, "executors_running", interrupted)
    assert manyhands("--beside", "p.json") == (130, "", "manyhands: stopped; p.json was not written\n")
    assert not Path("p.json").exists()


@pytest.fixture
def profiled(monkeypatch: pytest.MonkeyPatch) -> Regression:
    law = Regression(cores=0.5, squeeze=0.75)

    @contextmanager
    def executors() -> Iterator[None]:
        yield None

    def runs(
        _: object, loads: tuple[object, ...], seconds: float, progress: Callable[..., None]
    ) -> list[Sample]:
        progress("nothing", 0, len(loads))
        uses = [Use(number / len(loads)) for number in range(len(loads))]
        return [Sample(use, 0.002 * law(use)) for use in uses]

    monkeypatch.setattr(cli_profile, "executors_running", executors)
    monkeypatch.setattr(cli_profile, "profile_runs", runs)
    return law


def test_a_predictor_is_made(manyhands: Run, profiled: Regression) -> None:
    status, out, err = manyhands("--beside", "p.json")
    assert (status, err) == (0, "")
    assert "mean error on these 14 runs: 0.0%" in out or "mean error on these 10 runs: 0.0%" in out
    made = read_predictor(Path("p.json"))
    assert made.t0_s == pytest.approx(0.002)
    assert made.regression(Use(0.4)) == pytest.approx(profiled(Use(0.4)))
    status, out, _ = manyhands("--beside", "q.json", "--json")
    assert json.loads(out).keys() == {"file", "t0_s", "regression", "mean_error"}


def test_what_others_use_is_recorded(manyhands: Run) -> None:
    status, out, err = manyhands("--record", "seen.csv", "--seconds", "0.3", "--json")
    assert (status, err) == (0, "")
    said = json.loads(out)
    spans = read_recording(Path("seen.csv"))
    assert said == {
        "file": "seen.csv",
        "spans": len(spans),
        "seconds": pytest.approx(spans[-1].end_s, abs=0.001),
    }


def test_a_recording_ends_with_ctrl_c(manyhands: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def until_ctrl_c(*_: object) -> Iterator[Span]:
        yield Span(1.0, Use(0.5))
        yield Span(2.0, Use(0.25, 1e6, 0.0))
        raise KeyboardInterrupt

    monkeypatch.setattr(cli_profile, "seen", until_ctrl_c)
    assert manyhands("--record", "seen.csv") == (0, "2 s of what others used are in seen.csv\n", "")
    assert len(read_recording(Path("seen.csv"))) == 2

    def at_once(*_: object) -> Iterator[Span]:
        raise KeyboardInterrupt
        yield

    monkeypatch.setattr(cli_profile, "seen", at_once)
    status, _, err = manyhands("--record", "none.csv")
    assert status == 130
    assert "none.csv has no rows" in err


def test_what_cannot_be_is_said_at_once(manyhands: Run) -> None:
    status, _, err = manyhands("--record", "a", "--beside", "b")
    assert (status, "leave out either" in err) == (2, True)
    status, _, err = manyhands("--beside", "no/such/folder/p.json")
    assert (status, "must be a file in a folder that is there" in err) == (2, True)
    assert manyhands("--seconds", "0")[0] == 2

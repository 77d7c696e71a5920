from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from manyhands.cli import main

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def manyhands(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """Runs the console script in an empty folder; gives its status, output and errors."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["manyhands", *map(str, arguments)])
        try:
            main()
            status: object = 0
        except SystemExit as end:
            status = end.code or 0
        said = capsys.readouterr()
        assert isinstance(status, int)
        return status, said.out, said.err

    return run


def test_train_says_what_each_device_got_and_where_the_report_is(
    manyhands: Run, small_job_file: Path
) -> None:
    status, out, err = manyhands(
        "train", small_job_file, "--set", "run.alone=true", "--set", "run.report=true"
    )
    assert (status, err) == (0, "")
    for word in ("alone", "together", "a ", "b ", "c ", "energy", "runs/small/report.html"):
        assert word in out
    assert Path("runs/small/report.html").is_file()
    status, _, _ = manyhands("train", small_job_file, "-q")
    assert Path("runs/small-2/result.json").is_file()


def test_json_is_the_result(manyhands: Run, small_job_file: Path) -> None:
    status, out, _ = manyhands("train", small_job_file, "--out", "x", "--json", "--seed", "9")
    assert status == 0
    assert json.loads(out) == json.loads(Path("x/result.json").read_text())
    assert json.loads(out)["seed"] == 9


def test_quiet_says_nothing(manyhands: Run, small_job_file: Path) -> None:
    assert manyhands("train", small_job_file, "--out", "x", "-q") == (0, "", "")


def test_compare_resume_and_show(manyhands: Run, small_job_file: Path) -> None:
    status, out, _ = manyhands("compare", small_job_file, "--out", "x")
    assert status == 0
    assert "isolated" in out
    assert "homogeneous" in out
    assert Path("x/report.html").is_file()
    assert list(Path("x").glob("*.png"))
    status, out, _ = manyhands("resume", "x/homogeneous")
    assert status == 0
    assert "is finished" in out
    status, out, _ = manyhands("show", "x/homogeneous", "--no-open")
    assert status == 0
    assert "homogeneous" in out


@pytest.mark.parametrize(
    "arguments",
    [
        ("devices",),
        ("devices", "--sources"),
        ("models",),
        ("data",),
        ("--help",),
        ("train", "--help"),
        ("--version",),
    ],
)
def test_lists_and_help(manyhands: Run, arguments: tuple[str, ...]) -> None:
    status, out, err = manyhands(*arguments)
    assert (status, err) == (0, "")
    assert len(out) > 10


@pytest.mark.parametrize("what", ["devices", "models", "data"])
def test_lists_as_json(manyhands: Run, what: str) -> None:
    status, out, _ = manyhands(what, "--json")
    assert status == 0
    assert len(json.loads(out)) > 5


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (("train", "none.toml"), ["none.toml", "there is no such file"]),
        (("train", "JOB", "--set", "learn.bach_size=3"), ["learn.bach_size", "batch_size"]),
        (("train", "JOB", "--set", "fleet.device[0].kind='pi-9'"), ["fleet.device[0].kind", "pi-9"]),
        (("train", "JOB", "--set", "fleet.device[0].share=1.2"), ["fleet.device[0].share", "1.2"]),
        (("train", "JOB", "--set", "model.name=yolov2"), ["model.name", "yolov2"]),
        (("train", "JOB", "--set", "model.name=lenet"), ["model.name", "lenet5"]),
        (
            ("train", "JOB", "--set", "data.name=cifar10", "--set", "data.path=/nowhere"),
            ["data.path", "/nowhere"],
        ),
        (("train", "JOB", "--engine", "warp"), ["--engine", "warp", "simulate"]),
        (("compare", "JOB", "--splits", "magic"), ["--splits", "magic", "isolated"]),
        (("compare", "JOB", "--splits", ","), ["--splits"]),
        (("resume", "nowhere"), ["nowhere", "job.toml"]),
        (("show", "nowhere"), ["nowhere"]),
        (("data", "get", "nothing"), ["nothing", "digits"]),
        (("data", "take", "digits"), ["data get NAME"]),
    ],
)
def test_a_mistake_ends_with_status_2_and_one_line(
    manyhands: Run, small_job_file: Path, arguments: tuple[str, ...], parts: list[str]
) -> None:
    status, out, err = manyhands(*(small_job_file if a == "JOB" else a for a in arguments))
    assert status == 2
    assert out == ""
    assert len(err.splitlines()) == 1
    assert err.startswith("manyhands: ")
    assert all(part in err for part in parts)


def test_a_folder_with_a_run_is_not_overwritten(manyhands: Run, small_job_file: Path) -> None:
    manyhands("train", small_job_file, "--out", "x", "-q")
    status, _, err = manyhands("train", small_job_file, "--out", "x", "-q")
    assert status == 2
    assert "manyhands resume x" in err
    Path("y").mkdir()
    Path("y/other.txt").write_text("mine")
    status, _, err = manyhands("train", small_job_file, "--out", "y", "-q")
    assert status == 2
    assert "take another folder" in err


def test_a_damaged_data_file_is_named(manyhands: Run, small_job_file: Path) -> None:
    Path("broken.npz").write_bytes(b"PK\x03\x04 not really")
    change = ["--set", "data.name=npz", "--set", "data.path=broken.npz"]
    status, _, err = manyhands("train", small_job_file, *change)
    assert status == 2
    assert "broken.npz" in err
    assert len(err.splitlines()) == 1


@pytest.mark.slow
def test_the_console_script_runs_as_installed(small_job_file: Path, tmp_path: Path) -> None:
    script = Path(sys.executable).with_name("manyhands")
    done = subprocess.run(
        [script, "train", small_job_file, "--out", tmp_path / "x"],
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | {"COLUMNS": "100"},
        check=False,
    )
    assert done.returncode == 0
    assert done.stderr == ""
    assert "accuracy" in done.stdout

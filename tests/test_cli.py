from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from manyhands import cli_compare, parallel, progress
from manyhands.cli import main
from manyhands.engine import clock
from manyhands.errors import RunError
from manyhands.job import Job, split_labels

TWO_CONV = "model.name=two_conv"

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def manyhands(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """Runs the console script in an empty folder; gives its status, output and errors."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", float("inf"))  # however slow the machine is

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
    assert "% (merged network" in " ".join(out.split())
    status, _, _ = manyhands("train", small_job_file, "-q")
    assert Path("runs/small-2/result.json").is_file()


def test_without_a_report_the_run_folder_is_named(
    manyhands: Run, small_job_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    _, out, _ = manyhands("train", small_job_file, "--out", "x")
    for said in (out, manyhands("show", "x")[1], manyhands("resume", "x")[1]):
        assert said.splitlines()[-1].split() == ["run", "x"]
        assert "report.html" not in said
    assert opened == []
    Path("x/report.html").touch()
    assert manyhands("show", "x")[1].splitlines()[-1].split() == ["report", "x/report.html"]
    assert [page.rpartition("/")[2] for page in opened] == ["report.html"]


def test_one_round_is_no_rounds(manyhands: Run, small_job_file: Path) -> None:
    _, out, _ = manyhands("train", small_job_file, "--set", "exchange.rounds=1")
    assert ", 1 round, " in out


def test_without_a_terminal_a_run_says_now_and_then_how_far_it_is(
    manyhands: Run, small_job_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = itertools.count()  # an event takes a second
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 10.0)
    monkeypatch.setattr(clock, "wall_seconds", lambda: float(next(now)))
    status, out, err = manyhands("train", small_job_file, "--out", "x", "--set", "run.alone=true")
    lines = err.splitlines()
    assert status == 0
    num_events = sum(len(Path(trace).read_text().splitlines()) for trace in TRACES)
    assert 3 < len(lines) <= num_events / 10 + 1
    assert lines[0].startswith("small: first: each device alone, round ")
    assert re.fullmatch(r"small: homogeneous, round \d of 3, .* simulated, accuracy [\d.]+%", lines[-1])
    assert "round 1 of 3" not in out
    for silent in ("--quiet", "--json"):
        assert manyhands("train", small_job_file, "--out", silent.strip("-"), silent)[2] == ""


TRACES = ("x/trace.jsonl", "x/alone/trace.jsonl")


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
    assert "  size" not in out
    assert Path("x/report.html").is_file()
    assert list(Path("x").glob("*.png"))
    status, out, _ = manyhands("resume", "x/homogeneous")
    assert status == 0
    assert "is finished" in out
    status, out, _ = manyhands("show", "x/homogeneous", "--no-open")
    assert status == 0
    assert "homogeneous" in out


def test_a_sweep_has_tables_a_plot_a_page_and_its_figures(manyhands: Run, small_job_file: Path) -> None:
    sweep = ("compare", small_job_file, "--vary", "learn.batch_size=10,20", "--seeds", "1,2", "--out", "x")
    status, out, err = manyhands(*sweep, "--set", "exchange.rounds=1")
    assert status == 0
    for part in ("accuracy of a", "accuracy of c", "learn.batch_size", "homogeneous", "x/report.html"):
        assert part in out
    assert len(re.findall(r"\d% \([\d.]+-[\d.]+\)", out)) == 3 * 2 * 2
    assert "8 of 8 runs, homogeneous, batch_size 20, seed 2" in err
    assert Path("x/compare.png").stat().st_size > 10_000
    assert "accuracy of b" in Path("x/report.html").read_text().lower()
    assert "x/curves.png" in out
    assert Path("x/curves.png").stat().st_size > 10_000
    assert "while it learns" in Path("x/report.html").read_text()
    status, out, err = manyhands(*sweep, "--set", "exchange.rounds=1", "--json")
    assert (status, err) == (0, "")
    assert json.loads(out) == json.loads(Path("x/compare.json").read_text())
    assert len(json.loads(out)["runs"]) == 8
    status, out, err = manyhands(*sweep, "--set", "exchange.rounds=2")
    assert (status, out) == (2, "")
    assert "of another job" in err


def test_learning_curves_are_drawn_smooth_where_there_are_any(
    manyhands: Run, small_job_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    windows: list[int] = []
    real = cli_compare.learning_figure

    def spying(figures: dict[str, Any], results: list[dict[str, Any]], smooth: int) -> Any:
        windows.append(smooth)
        assert [r["seed"] for r in results] == [run["seed"] for run in figures["runs"]]
        return real(figures, results, smooth)

    monkeypatch.setattr(cli_compare, "learning_figure", spying)
    seeds = ("compare", small_job_file, "--splits", "isolated", "--seeds", "1,2")
    assert manyhands(*seeds, "--out", "x", "--smooth", "25")[0] == 0
    assert Path("x/curves.png").is_file()
    _, out, _ = manyhands(*seeds, "--out", "y", "--set", "run.evaluate_every=0")
    assert "curves" not in out
    assert not Path("y/curves.png").exists()
    assert windows == [25, 1]


def test_a_failed_run_of_a_sweep_is_named_after_the_others_finished(
    manyhands: Run, small_job_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = parallel.train

    def failing(job: Job, folder: Path) -> object:
        if job.seed == 1:
            raise RunError("nobody came")
        return real(job, folder)

    monkeypatch.setattr(parallel, "train", failing)
    status, out, err = manyhands(
        "compare", small_job_file, "--splits", "isolated", "--seeds", "1,2", "--out", "x"
    )
    assert status == 1
    assert err.splitlines()[-1] == "manyhands: 1 of 2 runs failed: isolated, seed 1 (nobody came)"
    assert "accuracy of each device" in out
    assert [run["seed"] for run in json.loads(Path("x/compare.json").read_text())["runs"]] == [2]


@pytest.mark.slow
def test_splits_side_by_side_make_the_plain_report(manyhands: Run, small_job_file: Path) -> None:
    status, out, _ = manyhands("compare", small_job_file, "--jobs", "2", "--out", "x")
    assert status == 0
    assert "merged network" in out
    assert Path("x/homogeneous/result.json").is_file()
    assert not Path("x/compare.json").exists()


def test_ctrl_c_says_how_to_go_on(
    manyhands: Run, small_job_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(job: Job, folder: Path) -> object:
        raise KeyboardInterrupt

    monkeypatch.setattr(parallel, "train", interrupted)
    status, _, err = manyhands("compare", small_job_file, "--seeds", "1,2", "--out", "x")
    assert status == 130
    assert "the same command with --out x goes on" in err


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


def test_the_catalogue_fits_into_80_columns(manyhands: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    _, out, _ = manyhands("devices")
    assert "…" not in out
    assert "120-400 W" in out
    assert max(len(line) for line in out.splitlines()) <= 80


@pytest.mark.parametrize(
    ("command", "folder"), [("train", "without it, runs/NAME."), ("compare", "runs/NAME-compare.")]
)
def test_help_names_defaults_and_splits(manyhands: Run, command: str, folder: str) -> None:
    said = " ".join(manyhands(command, "--help")[1].replace("│", " ").split())
    assert folder in said
    assert " ." not in said
    assert all(split in said for split in split_labels()) or command == "train"


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
        (("compare", "JOB", "--splits", "isolated,isolated"), ["--splits", "isolated", "twice"]),
        (("train", "JOB", "--set", "fleet.device[z].share=0.5"), ["--set", 'called "z"', "a, b, c"]),
        (("compare", "JOB", "--vary", "learn.batch_size"), ["--vary", "KEY=V1,V2"]),
        (("compare", "JOB", "--vary", "learn.batch_size=4,0"), ["learn.batch_size = 0"]),
        (
            ("compare", "JOB", "--vary", "model.name=lenet5,alexnet", "--splits", "isolated,width"),
            ['with split width: model.name = "alexnet": '],
        ),
        (
            ("compare", "JOB", "--vary", "learn.batch_size=4", "--splits", "width", "--set", TWO_CONV),
            ["with learn.batch_size = 4, split width: model.name = "],
        ),
        (
            ("compare", "JOB", "--splits", "width,isolated", "--set", TWO_CONV),
            ["with split width: model.name = "],
        ),
        (("compare", "JOB", "--vary", "seed=1", "--vary", "name=a"), ["--vary", "only one"]),
        (
            ("compare", "JOB", "--vary", "fleet.device[a].share=0.1"),
            ["fleet.device[a].share", "every device"],
        ),
        (("compare", "JOB", "--vary", "fleet.device[z].flops=1e9"), ["fleet.device[z].flops", "a, b, c"]),
        (("compare", "JOB", "--seeds", "1,x"), ["--seeds", "1,x"]),
        (("compare", "JOB", "--seeds", "1,1"), ["--seeds", "twice"]),
        (("compare", "JOB", "--seeds", "1", "--seed", "2"), ["--seed", "--seeds"]),
        (("compare", "JOB", "--jobs", "0"), ["--jobs"]),
        (("compare", "JOB", "--smooth", "0", "--seeds", "1,2"), ["--smooth"]),
        (("compare", "JOB", "--smooth", "25"), ["--smooth = 25", "--seeds or --vary"]),
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
    assert err == "manyhands: --out = \"x\": holds a finished run; 'manyhands show x' shows it\n"
    Path("x/result.json").unlink()
    status, _, err = manyhands("train", small_job_file, "--out", "x", "-q")
    assert status == 2
    assert "'manyhands resume x' goes on with it" in err
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
    assert all(line.startswith("small: homogeneous, round ") for line in done.stderr.splitlines())
    assert "accuracy" in done.stdout

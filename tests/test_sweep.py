from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from manyhands import parallel
from manyhands.errors import JobError, RunError
from manyhands.job import Job
from manyhands.sweeps import Cell, Vary, comparison, prepare, sweep
from manyhands.variation import plan

Make = Callable[..., Job]
SHARES = [("a", "raspberry-pi-3b", 0.2), ("b", "raspberry-pi-4", 0.2), ("c", "laptop", 0.6)]


@pytest.fixture
def make(small_job: Make) -> Make:
    def make(**changes: Any) -> Job:
        devices = [{"name": name, "kind": kind, "share": share} for name, kind, share in SHARES]
        return small_job(**{"fleet": {"device": devices}, "exchange": {"rounds": 1}} | changes)

    return make


def shares(job: Job) -> list[float | None]:
    return [device.share for device in job.fleet.device]


@pytest.mark.parametrize(
    ("text", "key", "values"),
    [
        ("learn.batch_size=4,8", "learn.batch_size", (4, 8)),
        ("exchange.mode=synchronous, asynchronous", "exchange.mode", ("synchronous", "asynchronous")),
        ("model.size=small,2", "model.size", ("small", 2)),
        ('data.name="a,b"', "data.name", ("a,b",)),
        ('fault=[],[{kind="loss"}]', "fault", ([], [{"kind": "loss"}])),
    ],
)
def test_a_varied_key_is_read_with_values_as_toml_or_strings(text: str, key: str, values: object) -> None:
    assert Vary.read(text) == Vary(key, values)  # type: ignore[arg-type]


def test_every_combination_has_a_folder_of_its_own(make: Make) -> None:
    vary = Vary("learn.batch_size", (4, 8))
    cells = plan(make(), ["isolated", "homogeneous"], Path("x"), vary, [1, 2])
    assert [str(cell.folder) for cell in cells[:3]] == [
        "x/isolated/learn.batch_size=4/seed-1",
        "x/isolated/learn.batch_size=4/seed-2",
        "x/isolated/learn.batch_size=8/seed-1",
    ]
    assert len({cell.job.hash for cell in cells}) == 8
    assert [cell.split for cell in cells] == ["isolated"] * 4 + ["homogeneous"] * 4
    assert (cells[-1].job.learn.batch_size, cells[-1].job.seed) == (8, 2)
    assert cells[-1].title == "homogeneous, batch_size 8, seed 2"


def test_levels_that_were_not_asked_for_are_left_out(make: Make) -> None:
    assert [str(c.folder) for c in plan(make(), ["isolated"], Path("x"))] == ["x/isolated"]
    assert [str(c.folder) for c in plan(make(), ["isolated"], Path("x"), None, [4])] == ["x/isolated/seed-4"]
    (cell,) = plan(make(), ["isolated"], Path("x"), Vary("data.path", ("/some/where",)))
    assert cell.folder == Path("x/isolated/data.path=%2Fsome%2Fwhere")


def test_a_very_long_value_still_has_a_folder_name(make: Make) -> None:
    faults = [[{"kind": "loss", "probability": p, "from_s": 1.0 * i} for i in range(9)] for p in (0.1, 0.2)]
    first, second = plan(make(), ["isolated"], Path("x"), Vary("fault", tuple(faults)))
    assert first.folder != second.folder
    assert len(first.folder.name) < 255


@pytest.mark.parametrize("key", ["fleet.device[c].share", "fleet.device[2].share"])
def test_the_other_shares_make_room_for_a_varied_one(make: Make, key: str) -> None:
    half, most = plan(make(), ["isolated"], Path("x"), Vary(key, (0.5, 0.9)))
    assert shares(half.job) == pytest.approx([0.25, 0.25, 0.5])
    assert shares(most.job) == pytest.approx([0.05, 0.05, 0.9])


def test_a_share_counts_for_each_device_of_its_table(make: Make) -> None:
    devices = [
        {"kind": "laptop", "name": "one", "share": 0.4},
        {"kind": "raspberry-pi-4", "name": "pi", "count": 3, "share": 0.2},
    ]
    (cell,) = plan(
        make(fleet={"device": devices}), ["isolated"], Path("x"), Vary("fleet.device[pi].share", (0.3,))
    )
    assert shares(cell.job) == pytest.approx([0.1, 0.3])


@pytest.mark.parametrize(
    ("vary", "parts"),
    [
        (Vary("fleet.device[z].share", (0.1,)), ["fleet.device[z].share", 'called "z"', "a, b, c"]),
        (Vary("fleet.device[7].share", (0.1,)), ["fleet.device[7].share", '"7"']),
        (Vary("fleet.device[a].share", (0.1, 1.0)), ["fleet.device[a].share = 1.0", "leave something"]),
        (Vary("fleet.device[a].share", ("half",)), ["fleet.device[a].share", "half", "number"]),
        (Vary("fleet.device[a].kind", ("laptop", "pi-9")), ["fleet.device[0].kind", "pi-9"]),
        (Vary("learn.batch_size", (4, 0)), ["learn.batch_size = 0", "greater than 0"]),
        (Vary("learn.batchsize", (4,)), ["learn.batchsize", "batch_size?"]),
        (Vary("learn.batch_size", (4, 8, 4)), ["learn.batch_size = 4", "twice"]),
        (Vary("split.by", ("isolated",)), ["split.by", "--splits"]),
        (Vary("seed", (1, 2)), ["seed", "--seeds"]),
        (Vary("model.name", ("lenet5", "yolov2")), ["model.name", "yolov2"]),
    ],
)
def test_every_value_must_be_right_before_anything_is_run(
    make: Make, tmp_path: Path, vary: Vary, parts: list[str]
) -> None:
    with pytest.raises(JobError) as error:
        sweep(make(), ["isolated"], tmp_path / "x", vary, [1])
    assert all(part in str(error.value) for part in parts), error.value
    assert "\n" not in str(error.value)
    assert not (tmp_path / "x").exists()


def test_shares_can_be_varied_only_where_all_have_one(small_job: Make, tmp_path: Path) -> None:
    with pytest.raises(JobError, match="every device has a share"):
        sweep(small_job(), ["isolated"], tmp_path / "x", Vary("fleet.device[a].share", (0.1,)))


def test_the_same_call_goes_on_and_a_larger_one_adds(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[Path] = []
    real = parallel.train

    def spying(job: Job, folder: Path) -> dict[str, Any]:
        trained.append(folder.relative_to(tmp_path))
        return real(job, folder)

    monkeypatch.setattr(parallel, "train", spying)
    told: list[tuple[str, bool, int, int]] = []

    def watch(cell: Cell, done: int, total: int) -> None:
        told.append((cell.title, cell.result is not None, done, total))

    sweep(make(), ["isolated"], tmp_path, None, [1], watch=watch)
    assert told == [("isolated, seed 1", False, 0, 1), ("isolated, seed 1", True, 1, 1)]
    cells = sweep(make(), ["isolated", "homogeneous"], tmp_path, None, [1, 2], watch=watch)
    assert len(trained) == len(set(trained)) == 4
    assert told[2][2:] == (1, 4)
    assert [(cell.split, cell.seed) for cell in cells] == [
        ("isolated", 1),
        ("isolated", 2),
        ("homogeneous", 1),
        ("homogeneous", 2),
    ]
    assert all(cell.result and cell.result["seed"] == cell.seed for cell in cells)


@pytest.mark.parametrize(
    ("changes", "vary", "seeds", "part"),
    [
        ({"learn": {"batch_size": 5}}, None, [1], "of another job"),
        ({}, None, [], "with several seeds"),
        ({}, Vary("learn.batch_size", (4,)), [1], "varies no key"),
    ],
)
def test_a_folder_belongs_to_one_comparison(
    make: Make, tmp_path: Path, changes: dict[str, Any], vary: Vary | None, seeds: list[int], part: str
) -> None:
    sweep(make(), ["isolated"], tmp_path, None, [1])
    with pytest.raises(JobError, match=part):
        sweep(make(**changes), ["homogeneous"], tmp_path, vary, seeds)
    assert not (tmp_path / "homogeneous").exists()


def test_a_folder_with_something_else_is_left_alone(make: Make, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(JobError, match="not empty"):
        sweep(make(), ["isolated"], tmp_path)
    (tmp_path / "compare.toml").write_text("nonsense")
    with pytest.raises(JobError, match="cannot be read"):
        sweep(make(), ["isolated"], tmp_path)


def test_a_run_that_fails_does_not_lose_the_others(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = parallel.train

    def failing(job: Job, folder: Path) -> dict[str, Any]:
        if job.seed == 1:
            raise RunError("nobody\ncame")
        if job.seed == 2:
            raise ZeroDivisionError("a fault of ours")
        return real(job, folder)

    monkeypatch.setattr(parallel, "train", failing)
    cells = sweep(make(), ["isolated"], tmp_path, None, [1, 2, 3])
    assert cells[0].error == "nobody came"
    assert "ZeroDivisionError: a fault of ours" in (cells[1].error or "")
    assert "Traceback" in (cells[1].folder / "error.txt").read_text()
    assert cells[2].result is not None
    figures = comparison(make(), cells, tmp_path)
    assert [entry["seed"] for entry in figures["failed"]] == [1, 2]
    assert [entry["seed"] for entry in figures["runs"]] == [3]
    monkeypatch.undo()
    assert all(cell.result for cell in sweep(make(), ["isolated"], tmp_path, None, [1, 2, 3]))
    assert not (cells[1].folder / "error.txt").exists()


@pytest.mark.slow
def test_side_by_side_is_the_same_to_the_byte(make: Make, tmp_path: Path) -> None:
    one = sweep(make(), ["homogeneous"], tmp_path / "one", None, [1, 2])
    two = sweep(make(), ["homogeneous"], tmp_path / "two", None, [1, 2], jobs=2)
    for a, b in zip(one, two, strict=True):
        assert (a.folder / "trace.jsonl").read_bytes() == (b.folder / "trace.jsonl").read_bytes()
        assert a.result is not None
        assert b.result is not None
        assert a.result["devices"] == b.result["devices"]


def test_cores_are_shared_unless_the_job_says_how_many(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers: list[int | None] = []

    def in_turn(runs: Any, jobs: int, begins: Any, ends: Any) -> None:
        for i, (job, folder) in enumerate(runs):
            workers.append(job.run.workers)
            ends(i, parallel.attempt(job, folder))

    monkeypatch.setattr("manyhands.sweeps.side_by_side", in_turn)
    monkeypatch.setattr("manyhands.sweeps.psutil.cpu_count", lambda logical: 7)
    sweep(make(), ["isolated"], tmp_path / "x", None, [1, 2, 3], jobs=3)
    sweep(make(run={"workers": 1}), ["isolated"], tmp_path / "y", None, [1, 2], jobs=2)
    assert workers == [2, 2, 2, 1, 1]


def killer(job: Job, folder: Path) -> str | None:
    """Stands for `attempt` in another process: the first run dies there as if memory had run out."""
    if job.seed == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    folder.mkdir(parents=True)
    return None


def interrupt(number: int, error: str | None) -> None:
    raise KeyboardInterrupt


@pytest.mark.slow
def test_a_process_that_is_killed_costs_only_its_run(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parallel, "attempt", killer)
    runs = [(make(seed=seed), tmp_path / str(seed)) for seed in (1, 2, 3, 4)]
    ended: dict[int, str | None] = {}
    parallel.side_by_side(runs, 2, lambda n: None, ended.__setitem__)
    assert ended == {0: parallel.KILLED, 1: None, 2: None, 3: None}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["2", "3", "4"]


def sleeper(job: Job, folder: Path) -> str | None:
    """Stands for `attempt` in another process: a run that never ends, but for one."""
    folder.mkdir(parents=True)
    while job.seed != 2:
        signal.pause()
    return None


@pytest.mark.slow
def test_an_interrupt_stops_all_processes(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parallel, "attempt", sleeper)
    runs = [(make(seed=seed), tmp_path / str(seed)) for seed in (1, 2, 3, 4)]
    with pytest.raises(KeyboardInterrupt):
        parallel.side_by_side(runs, 2, lambda n: None, interrupt)
    assert not (tmp_path / "4").exists()


def test_the_figures_are_those_of_the_runs(make: Make, tmp_path: Path) -> None:
    vary = Vary("fleet.device[a].share", (0.1, 0.5))
    cells = sweep(make(), ["homogeneous"], tmp_path, vary, [4])
    figures = comparison(make(), cells, tmp_path, vary)
    assert json.loads(json.dumps(figures)) == figures
    assert (figures["key"], figures["values"], figures["seeds"]) == (vary.key, [0.1, 0.5], [4])
    for entry in figures["runs"]:
        result = json.loads((tmp_path / entry["folder"] / "result.json").read_text())
        assert entry["accuracy"] == result["accuracy"]
        assert entry["bytes_sent"] == sum(device["bytes_sent"] for device in result["devices"])
        assert [d["share"] for d in entry["devices"]] == [d["share"] for d in result["devices"]]
        assert entry["devices"][0]["share"] == entry["value"]
    assert figures["measure"] == "accuracy"


def test_figures_say_what_networks_are_judged_by(make: Make, tmp_path: Path) -> None:
    (cell,) = sweep(make(), ["isolated"], tmp_path, None, [1])
    assert cell.result is not None
    devices = [device | {"accuracy": None, "score": -3.5} for device in cell.result["devices"]]
    judged = cell.result | {"measure": "score", "accuracy": None, "score": 12.0, "devices": devices}
    figures = comparison(make(), [replace(cell, result=judged)], tmp_path)
    assert figures["measure"] == "score"
    (run,) = figures["runs"]
    assert (run["accuracy"], run["score"]) == (None, 12.0)
    assert [(device["accuracy"], device["score"]) for device in run["devices"]] == [(None, -3.5)] * 3
    old = {key: value for key, value in cell.result.items() if key not in ("measure", "score")}
    figures = comparison(make(), [replace(cell, result=old)], tmp_path)
    assert (figures["measure"], figures["runs"][0]["score"]) == ("accuracy", None)


def test_a_check_finds_what_only_the_data_shows(make: Make, tmp_path: Path) -> None:
    with pytest.raises(JobError, match="fault"):
        sweep(
            make(),
            ["isolated"],
            tmp_path / "x",
            Vary("fault", ([], [{"kind": "crash", "device": "q", "at_s": 1}])),
        )
    assert not (tmp_path / "x").exists()


def test_a_plain_comparison_with_a_mistake_leaves_the_folder_as_it_was(make: Make, tmp_path: Path) -> None:
    wrong = make(model={"name": "lenet5", "sizes": 3})
    with pytest.raises(JobError, match="cut to 2 depths"):
        prepare(wrong, ["stem", "depth"], tmp_path / "x")
    assert not (tmp_path / "x").exists()
    with pytest.raises(JobError, match=r"--out = .* cannot be written to"):
        prepare(make(), ["isolated"], Path("/proc/nope"))

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from manyhands.errors import JobError
from manyhands.job import Job, load_job, quick_start

DEVICE = "[[fleet.device]]\nkind = 'laptop'\n"


def refused(path: Path, *changes: str) -> str:
    with pytest.raises(JobError) as error:
        load_job(path, changes)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_job_written_out_reads_back_the_same(small_job_file: Path, tmp_path: Path) -> None:
    job = load_job(small_job_file)
    again = tmp_path / "again.toml"
    again.write_text(job.to_toml())
    assert load_job(again) == job
    assert load_job(again).hash == job.hash


def test_every_fault_survives_being_written_out(small_job: Callable[..., Job], tmp_path: Path) -> None:
    faults = [
        {"kind": "crash", "device": "a", "at_s": 1.0},
        {"kind": "loss", "probability": 0.5},
        {"kind": "partition", "groups": [["a"], ["b", "c"]], "until_s": 4.0},
    ]
    job = small_job(fault=faults)
    path = tmp_path / "job.toml"
    path.write_text(job.to_toml())
    assert load_job(path) == job


def test_the_hash_is_of_what_decides_the_result(small_job: Callable[..., Job]) -> None:
    job = small_job()
    assert small_job(run={"workers": 7}).hash == job.hash
    assert small_job(data={"path": "/elsewhere"}).hash == job.hash
    assert small_job(seed=9).hash != job.hash
    assert small_job(learn={"learning_rate": 0.06}).hash != job.hash


def test_a_job_takes_its_name_from_its_file(tmp_path: Path) -> None:
    path = tmp_path / "my first job!.toml"
    path.write_text("[model]\nname = 'lenet5'\n" + DEVICE)
    assert load_job(path).name == "my-first-job"


def test_a_relative_data_path_is_relative_to_the_file(small_job_file: Path) -> None:
    small_job_file.write_text(small_job_file.read_text().replace("[data]", "[data]\npath = 'pictures'"))
    assert load_job(small_job_file).data.path == small_job_file.parent / "pictures"
    assert load_job(small_job_file, ["data.path=pictures"]).data.path == Path.cwd() / "pictures"


@pytest.mark.parametrize(
    ("change", "read"),
    [
        ("learn.batch_size=4", lambda job: job.learn.batch_size == 4),
        ("model.size=full", lambda job: job.model.size == "full"),
        ("fleet.device[1].kind='jetson-nano'", lambda job: job.fleet.device[1].kind == "jetson-nano"),
        ("fleet.device[c].flops=1e9", lambda job: job.fleet.device[2].flops == 1e9),
        ("seed=77", lambda job: job.seed == 77),
        ("exchange.merge.rule=median", lambda job: job.exchange.merge.rule == "median"),
        ("run.alone=true", lambda job: job.run.alone is True),
    ],
)
def test_the_command_line_can_change_any_key(
    small_job_file: Path, change: str, read: Callable[[Job], bool]
) -> None:
    assert read(load_job(small_job_file, [change]))


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ("learn.batchsize=4", ["learn.batchsize = 4", "did you mean batch_size?"]),
        ("learn.batch_size=0", ["learn.batch_size = 0", "greater than 0"]),
        (
            "learn.optimizer=sgdd",
            ['learn.optimizer = "sgdd"', "did you mean sgd?", "choose one of sgd, adam, rmsprop"],
        ),
        ("split.by=colour", ['split.by = "colour"', "isolated, homogeneous"]),
        ("exchange.fraction=1.5", ["exchange.fraction = 1.5", "less than or equal to 1"]),
        ("exchange.merge.trim=0.5", ["exchange.merge.trim = 0.5", "less than 0.5"]),
        ("fleet.device[7].share=0.5", ["--set", "fleet.device[7].share"]),
        ("fleet.device[z].share=0.5", ["--set", 'nothing here is called "z"', "a, b, c"]),
        ("nonsense", ["--set", "section.key=value"]),
        ('fault=[{kind="crash", device="a", at_s=-1}]', ["fault[0].at_s = -1"]),
        ('fault=[{kind="crash", device="a", at_s=1, where="x"}]', ["fault[0].where", "restart_at_s"]),
        ('fault=[{kind="meteor"}]', ["fault[0]", "meteor"]),
        ("data.name=digitz", ["data.name", "digits"]),
        ("turbo=true", ["turbo = true", "there is no such key"]),
    ],
)
def test_a_mistake_is_one_line_with_key_value_and_remedy(
    small_job_file: Path, change: str, parts: list[str]
) -> None:
    message = refused(small_job_file, change)
    for part in parts:
        assert part in message


def test_a_job_can_be_changed_by_keys(small_job: Callable[..., Job]) -> None:
    job = small_job()
    changed = job.changed({"fleet.device[b].size": "full", "learn.batch_size": 4})
    assert (changed.fleet.device[1].size, changed.learn.batch_size) == ("full", 4)
    assert (
        changed.changed({"fleet.device[1]": job.fleet.device[1].model_dump(), "learn.batch_size": 10}) == job
    )
    with pytest.raises(JobError, match="no such key"):
        job.changed({"learn.speed": 4})


def test_a_name_must_mean_one_device(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_text("[model]\nname = 'lenet5'\n" + DEVICE)
    assert load_job(path, ["fleet.device[laptop].flops=1e9"]).fleet.device[0].flops == 1e9
    path.write_text(path.read_text() + DEVICE)
    assert "several are called" in refused(path, "fleet.device[laptop].flops=1e9")


def test_missing_and_damaged_files(tmp_path: Path) -> None:
    assert "there is no such file" in refused(tmp_path / "none.toml")
    broken = tmp_path / "broken.toml"
    broken.write_text("[model\n")
    assert "cannot be read as TOML" in refused(broken)
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe\x00")
    assert "cannot be read as TOML" in refused(binary)
    empty = tmp_path / "empty.toml"
    empty.write_text("")
    assert "model: is missing" in refused(empty)


def test_the_quick_start_is_a_job() -> None:
    job = quick_start(["exchange.rounds=2"], seed=5)
    assert (job.name, job.seed, job.exchange.rounds) == ("quickstart", 5, 2)
    assert len(job.fleet.device) == 5
    assert tomllib.loads(job.to_toml())["run"]["alone"] is True

"""The commands that tile groups brought: ``plan``, and ``--engine live``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from manyhands import cli
from manyhands.crewing import train_crew
from manyhands.errors import JobError
from manyhands.job import Job
from manyhands.run import train

SPACE = ("--set", "split.by=space")
GROUP = {
    "device": [
        {"name": "a", "kind": "laptop"},
        {"name": "b", "kind": "laptop", "group": "shelf"},
        {"name": "c", "kind": "laptop", "group": "shelf"},
    ]
}


def test_plan_says_what_a_step_should_take_of_whom(small_job_file: Path) -> None:
    said = CliRunner().invoke(cli.app, ["plan", str(small_job_file), *SPACE])
    assert said.exit_code == 0, said.output
    for word in ("crew: ", "a step of 10", "as fast as c alone", "busy", "memory", "tiles up to"):
        assert word in said.output


def test_plan_takes_all_devices_for_one_group_where_there_is_none(small_job_file: Path) -> None:
    by_space = CliRunner().invoke(cli.app, ["plan", str(small_job_file), *SPACE, "--json"])
    without = CliRunner().invoke(cli.app, ["plan", str(small_job_file), "--json"])
    assert json.loads(without.output) == json.loads(by_space.output)
    (figures,) = json.loads(without.output)
    assert figures["step_seconds"] == pytest.approx(sum(figures["parts"].values()))
    assert {part["name"] for part in figures["device_parts"]} == {"a", "b", "c"}


def test_the_live_engine_is_asked_to_train_and_to_go_on(
    small_job_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, str]] = []

    def train_crew(job: Any, out: Path, *_: object) -> dict[str, Any]:
        asked.append((job.split.by, out.name))
        out.mkdir(exist_ok=True)
        (out / "crew.json").write_text("{}")
        (out / "job.toml").write_text(job.to_toml())
        raise JobError("crew", None, "was asked")

    monkeypatch.setattr(cli, "train_crew", train_crew)
    out = tmp_path / "run"
    for command in (
        ["train", str(small_job_file), *SPACE, "--engine", "live", "--out", str(out)],
        ["resume", str(out)],
    ):
        said = CliRunner().invoke(cli.app, command)
        assert isinstance(said.exception, JobError)
    assert asked == [("space", "run")] * 2


def test_a_folder_with_the_result_of_another_job_is_refused(
    small_job: Callable[..., Job], tmp_path: Path
) -> None:
    train(small_job(split={"by": "space"}), tmp_path)
    with pytest.raises(JobError, match="holds a run of another job"):
        train_crew(small_job(split={"by": "space"}, seed=4), tmp_path)


@pytest.mark.parametrize("changes", [{"split": {"by": "space"}}, {"fleet": GROUP}], ids=["space", "group"])
def test_what_computes_in_tiles_is_not_rehearsed_untiled(
    changes: dict[str, Any], small_job: Callable[..., Job], tmp_path: Path
) -> None:
    with pytest.raises(JobError, match="tile group"):
        train(small_job(**changes), tmp_path, engine="live")

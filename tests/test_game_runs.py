"""Reinforcement learning, end to end: unlike devices play, exchange, are stopped, resumed and compared."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from manyhands.cli import main
from manyhands.engine import simulate
from manyhands.errors import JobError, RunError
from manyhands.games import load_game
from manyhands.job import Job, load_job
from manyhands.run import resume, train

pytest.importorskip("minatar", reason="needs the extra rl")

JOB = """
name = "play"
seed = 2
[game]
name = "minatar/breakout"
[play]
steps = 120
warm_up = 100
train_every = 8
replay = 300
test_episodes = 2
[model]
name = "dqn"
[learn]
optimizer = "adam"
learning_rate = 0.001
batch_size = 8
[exchange]
rounds = 3
[run]
checkpoint_every_s = 1e-9
report = false
[[fleet.device]]
name = "powerful"
kind = "laptop"
size = "complex"
[[fleet.device]]
name = "weak"
kind = "raspberry-pi-4"
size = "light"
interaction_rate = 0.5
"""


def job(tmp_path: Path, *changes: str, split: str = "stem") -> Job:
    (tmp_path / "job.toml").write_text(JOB)
    return load_job(tmp_path / "job.toml", changes).split_by(split)


def by_name(result: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {device["name"]: device for device in result["devices"]}


def events(folder: Path, kind: str) -> list[dict[str, Any]]:
    lines = (folder / "trace.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == kind]


@pytest.mark.parametrize("mode", ["synchronous", "asynchronous", "neighbours"])
def test_devices_that_play_share_their_stem_alone(tmp_path: Path, mode: str) -> None:
    result = train(job(tmp_path, f"exchange.mode={mode}"), tmp_path / "run")
    devices = by_name(result)
    assert result["complete"]
    assert (result["measure"], result["data"]) == ("score", "minatar/breakout")
    assert all(device["accuracy"] is None and device["score"] >= 0 for device in devices.values())
    assert devices["powerful"]["steps_per_round"] == 120
    assert devices["weak"]["steps_per_round"] == 60
    strong, weak = (load_file(tmp_path / "run" / "models" / f"{name}.safetensors") for name in devices)
    assert strong["stem.conv1.weight"].shape == weak["stem.conv1.weight"].shape
    assert strong["classifier.out.weight"].shape != weak["classifier.out.weight"].shape
    if mode == "synchronous":
        assert (strong["stem.conv1.weight"] == weak["stem.conv1.weight"]).all()


def test_all_with_one_network_have_one_score(tmp_path: Path) -> None:
    result = train(job(tmp_path, split="homogeneous"), tmp_path / "run")
    devices = by_name(result)
    assert result["score"] == devices["powerful"]["score"] == devices["weak"]["score"]
    assert result["merged_size"] == devices["powerful"]["size"] == "light"


def test_a_device_that_plays_more_often_plays_other_games_and_is_drawn_along_its_own_steps(
    tmp_path: Path,
) -> None:
    """Asynchronously the fast one is called several times in what the coordinator counts as one round."""
    result = train(job(tmp_path, "exchange.mode=asynchronous", "exchange.rounds=4"), tmp_path / "run")
    fast = by_name(result)["powerful"]
    assert fast["rounds"] > 4
    steps = [point["examples"] for point in fast["curve"]]
    assert steps == sorted(set(steps))
    assert steps[-1] == fast["examples"] == fast["rounds"] * 120
    played = [
        tuple(event["facts"][fact] for fact in ("reward", "episodes", "loss"))
        for event in events(tmp_path / "run", "computed")
        if (event["device"], event["work"]) == ("powerful", "train")
    ]
    assert len(set(played)) == len(played) == fast["rounds"]


def test_nothing_is_learned_before_the_warm_up_is_over(tmp_path: Path) -> None:
    train(job(tmp_path, "play.warm_up=200", split="isolated"), tmp_path / "run")
    losses = {
        name: [e["facts"]["loss"] for e in events(tmp_path / "run", "computed") if e["device"] == name]
        for name in ("powerful", "weak")
    }
    assert [loss is not None for loss in losses["powerful"]] == [False, True, True]
    assert [loss is not None for loss in losses["weak"]] == [False, False, False]


@pytest.mark.parametrize("stop", [3, 9, 14])
def test_a_stopped_run_resumes_to_the_same_bytes_with_all_that_it_remembers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: int
) -> None:
    whole = train(job(tmp_path, "exchange.rounds=5"), tmp_path / "whole")
    with monkeypatch.context() as patch:
        submit, left = simulate.Cores.submit, [stop]

        def once_more(self: simulate.Cores, work: Any) -> Any:
            left[0] -= 1
            if left[0] < 0:
                raise RunError("killed")
            return submit(self, work)

        patch.setattr(simulate.Cores, "submit", once_more)
        with pytest.raises(RunError, match="killed"):
            train(job(tmp_path, "exchange.rounds=5"), tmp_path / "cut")
    resumed = resume(tmp_path / "cut")
    assert (tmp_path / "cut" / "trace.jsonl").read_bytes() == (
        tmp_path / "whole" / "trace.jsonl"
    ).read_bytes()
    assert by_name(resumed) == by_name(whole)


def test_memory_of_a_device_has_to_hold_what_it_remembers(tmp_path: Path) -> None:
    small = job(tmp_path, "play.replay=1000000", "fleet.device[weak].memory_bytes=100000000")
    with pytest.raises(JobError, match=r"weak.*takes 4.*MiB.*play\.replay"):
        train(small, tmp_path / "run")


def test_auto_gives_the_network_whose_memories_fit_too(tmp_path: Path) -> None:
    changes = ["fleet.device[weak].size=auto", "fleet.device[weak].memory_bytes=200000000"]
    little, much = (
        by_name(train(job(tmp_path, *changes, f"play.replay={replay}"), tmp_path / name))["weak"]["size"]
        for name, replay in (("little", "300"), ("much", "{ complex = 1000000, light = 300 }"))
    )
    assert (little, much) == ("complex", "light")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("game.name=minatar/breakot", "did you mean"),
        ("game.name=snes/mario", "minatar"),
        ("data.name=mnist", "leave out either"),
        ("learn.epochs=2", r"\[play\]"),
        ("fleet.device[weak].share=0.5", "interaction_rate"),
        ("play.replay=0", "^play.replay = 0"),
        ("play.replay={}", "^play.replay"),
        ("play.replay={ complex = 100, lihgt = 50 }", "no size lihgt; did you mean light"),
        ("run.evaluate_examples=10", "play.test_episodes"),
        ("game.name=atari", "such as atari/breakout"),
        ("split={ form = 'depth', distillation = 0.5 }", "^split.distillation"),
        ("model.name=lenet5", "no such size"),
    ],
)
def test_what_cannot_be_is_said(tmp_path: Path, change: str, said: str) -> None:
    (tmp_path / "job.toml").write_text(JOB)
    with pytest.raises(JobError, match=said) as error:
        train(load_job(tmp_path / "job.toml", [change]), tmp_path / "run")
    assert "\n" not in str(error.value)


def test_a_game_that_does_not_exist_ends_the_command_with_status_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "job.toml").write_text(JOB)
    monkeypatch.setattr(
        sys, "argv", ["manyhands", "train", str(tmp_path / "job.toml"), "--set", "game.name=atari/pogn"]
    )
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    said = capsys.readouterr().err.strip()
    assert said.startswith("manyhands: game.name")
    assert len(said.splitlines()) == 1


def test_play_without_a_game_is_refused(tmp_path: Path) -> None:
    with pytest.raises(JobError, match="play"):
        job(tmp_path, "game={}")


def test_the_game_is_the_one_that_the_job_names(tmp_path: Path) -> None:
    game = load_game(job(tmp_path).game)
    assert game.name == "minatar/breakout"
    assert game.shape[1:] == (10, 10)

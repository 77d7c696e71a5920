"""Tile groups in the simulator: one participant, charged what its plan says."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from manyhands.errors import JobError
from manyhands.fleet import make_fleet
from manyhands.job import Job, load_job
from manyhands.lessons import load_material
from manyhands.run import compare, train
from manyhands.sizing import Library
from manyhands.tile_groups import plan_group, ranked, read_group_graph

MakeJob = Callable[..., Job]
SPACE = {"by": "space"}


def groups_of(*tables: dict[str, Any], **settings: object) -> dict[str, Any]:
    return {"device": tables, **settings}


SHELF = {"kind": "raspberry-pi-3b", "name": "pi", "count": 2, "group": "shelf"}
DESK = {"kind": "laptop", "name": "desk"}


def test_a_group_trains_what_one_device_with_all_the_data_would(small_job: MakeJob, tmp_path: Path) -> None:
    tiled = train(small_job(split=SPACE, run={"save_models": True}), tmp_path / "space")
    alone = small_job(
        split={"by": "isolated"},
        fleet={"device": [{"kind": "laptop", "name": "crew"}]},
        run={"save_models": True},
    )
    train(alone, tmp_path / "alone")
    weights = [load_file(tmp_path / run / "models" / "crew.safetensors") for run in ("space", "alone")]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[1])
    assert tiled["accuracy"] == tiled["devices"][0]["accuracy"]
    assert tiled["curve"] == tiled["devices"][0]["curve"]
    assert (tmp_path / "space" / "models" / "global.safetensors").is_file()


def test_it_is_charged_the_time_and_the_memory_of_its_plan(small_job: MakeJob, tmp_path: Path) -> None:
    job = small_job(split=SPACE)
    result = train(job, tmp_path)
    (group,) = result["groups"]
    (hand,) = make_fleet(job.fleet, seed=job.seed, tiled=True).devices
    material = load_material(job)
    module = Library(job, material)("full").architecture.build()
    plan = plan_group(job, hand.name, ranked(hand), read_group_graph(job, module, material.shape))
    assert group == plan.facts
    steps = result["devices"][0]["examples"] / job.learn.batch_size  # some batches are not full
    assert result["seconds"] == pytest.approx(steps * plan.step_s)
    assert [d["memory_bytes"] for d in result["devices"]] == [plan.parts[n].memory_bytes for n in "abc"]
    assert all(d["group"] == "crew" for d in result["devices"])
    assert result["devices"][0]["bytes_sent"] > 0
    assert all(d["busy_seconds"] <= result["seconds"] for d in result["devices"])


def test_a_group_is_one_member_of_another_split(small_job: MakeJob, tmp_path: Path) -> None:
    result = train(small_job(fleet=groups_of(SHELF, DESK)), tmp_path)
    assert [d["name"] for d in result["devices"]] == ["pi-1", "pi-2", "desk"]
    assert [d["group"] for d in result["devices"]] == ["shelf", "shelf", None]
    assert [d["share"] for d in result["devices"]] == [0.5, 0.5, 0.5]
    assert result["topology"]["nodes"] == ["pi-1", "pi-2", "desk"]
    assert sorted(map(sorted, result["topology"]["edges"])) == [["desk", "pi-1"], ["pi-1", "pi-2"]]
    assert result["complete"]
    hands = {json.loads(line)["device"] for line in (tmp_path / "trace.jsonl").read_text().splitlines()}
    assert hands == {"shelf", "desk", "coordinator"}


@pytest.mark.parametrize("mode", ["asynchronous", "neighbours"])
def test_groups_take_part_in_every_exchange(small_job: MakeJob, tmp_path: Path, mode: str) -> None:
    other = SHELF | {"name": "pipi", "group": "rack"}
    result = train(small_job(fleet=groups_of(SHELF, other, DESK), exchange={"mode": mode}), tmp_path)
    assert len(result["groups"]) == 2
    assert 0 <= result["accuracy"] <= 1
    assert all(d["finished"] for d in result["devices"])


def test_a_killed_run_with_a_group_goes_on(small_job: MakeJob, tmp_path: Path) -> None:
    job = small_job(fleet=groups_of(SHELF, DESK), run={"checkpoint_every_s": 1e-6})
    train(job, tmp_path / "whole")
    seen = 0

    def stop(*_: object) -> None:
        nonlocal seen
        seen += 1
        if seen == 25:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(job, tmp_path / "killed", stop)
    train(job, tmp_path / "killed")
    traces = [(tmp_path / run / "trace.jsonl").read_bytes() for run in ("whole", "killed")]
    assert traces[0] == traces[1]


def test_comparisons_set_a_group_beside_other_splits(small_job: MakeJob, tmp_path: Path) -> None:
    results = compare(small_job(), ["isolated", "space"], tmp_path)
    names = [[device["name"] for device in result["devices"]] for result in results.values()]
    assert names[0] == names[1]
    assert results["space"]["accuracy"] is not None
    assert load_job(tmp_path / "isolated" / "job.toml").split.space is None


@pytest.mark.parametrize("grouping", ["none", "fused"])
def test_the_plan_is_never_slower_than_no_grouping_and_all_fused(
    small_job: MakeJob, tmp_path: Path, grouping: str
) -> None:
    planned = train(small_job(split=SPACE), tmp_path / "planned")
    other = train(small_job(split=SPACE | {"space": {"grouping": grouping}}), tmp_path / "other")
    assert planned["seconds"] <= other["seconds"]
    assert other["accuracy"] == planned["accuracy"]


def test_too_little_memory_is_said_before_training(small_job: MakeJob, tmp_path: Path) -> None:
    tiny = {"kind": "raspberry-pi-3b", "count": 3, "memory_bytes": 50_000}
    with pytest.raises(JobError, match="memory_bytes"):
        train(small_job(split=SPACE, fleet=groups_of(tiny)), tmp_path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            '[split]\nby = "homogeneous"\n[split.space]\ngrouping = "none"',
            "split.space: is read by tile groups",
        ),
        ('[split]\nby = "space"\n[split.task]', "takes no classes apart"),
        ('[split.space]\n[game]\nname = "minatar/breakout"', "tile groups learn from data"),
        ("[split.space]\ngrid = [2, 0]", "split.space.grid"),
    ],
)
def test_a_job_that_cannot_be_is_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "job.toml"
    path.write_text(f'{text}\n[model]\nname = "lenet5"\n[[fleet.device]]\nkind = "laptop"\ncount = 2\n')
    with pytest.raises(JobError, match=said):
        load_job(path)


def test_a_grid_must_have_a_tile_for_each_device(small_job: MakeJob, tmp_path: Path) -> None:
    with pytest.raises(JobError, match=r"split.space.grid = \[2, 2\]: makes 4 tiles, and the group has 3"):
        train(small_job(split=SPACE | {"space": {"grid": [2, 2]}}), tmp_path)


def test_split_space_without_by_means_by_space(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_text('[split.space]\n[model]\nname = "lenet5"\n[[fleet.device]]\nkind = "laptop"\n')
    assert load_job(path).split.by == "space"

"""Split by task, end to end: devices train their own classes, exchange, vanish, and are put together."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from safetensors.torch import save_file as torch_save

from manyhands import load_network
from manyhands.assigning import assign_classes
from manyhands.blocks import Weights, extract
from manyhands.data import load
from manyhands.engine import holdings
from manyhands.errors import JobError, RunError
from manyhands.fleet import make_fleet
from manyhands.job import Job
from manyhands.learn.supervised import accuracy_of
from manyhands.looking import averaged_network
from manyhands.preparing import prepare
from manyhands.run import check, resume, train
from manyhands.sizing import Library
from manyhands.splits import SPLITS
from manyhands.team import offered_networks

FOUR = [{"kind": "raspberry-pi-4", "name": name} for name in "abcd"]


@pytest.fixture(autouse=True, scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Prepared networks are kept for the tests of this file alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def task_job(small_job: Callable[..., Job]) -> Callable[..., Job]:
    """Four devices in a ring with the class lists of paper 000."""

    def make(task: dict[str, Any] | None = None, by: str = "task", **changes: Any) -> Job:
        settings = {
            "part": 0.2,
            "pretrain_epochs": 3,
            "settle_epochs": 3,
            "learning_rate": 0.05,
            "overlap": 2,
            "classes_per_device": 5,
        }
        said: dict[str, Any] = {
            "data": {"limit": 600, "validation": 0.0},
            "learn": {"learning_rate": 0.02, "batch_size": 10},
            "split": {"by": by, "task": settings | (task or {})},
            "exchange": {"mode": "neighbours", "rounds": 2},
            "fleet": {"topology": "ring", "device": FOUR},
        }
        for section, value in changes.items():
            said[section] = said.get(section, {}) | value if isinstance(value, dict) else value
        return small_job(**said)

    return make


def by_name(result: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {device["name"]: device for device in result["devices"]}


def figures(result: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in result.items() if key != "wall_seconds"}


def events(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "trace.jsonl").read_text().splitlines()]


def digits(job: Job) -> Any:
    return load(job.data, seed=job.seed)


# What a device trains.


def test_a_device_has_its_classes_their_data_and_a_network_for_them(
    task_job: Callable[..., Job], tmp_path: Path
) -> None:
    job = task_job(run={"save_models": True, "evaluate_examples": None})
    result = train(job, tmp_path)
    devices = by_name(result)
    assert [devices[name]["classes"] for name in "abcd"] == [
        ["0", "1", "2", "3", "9"],
        ["2", "3", "4", "5", "6"],
        ["5", "6", "7", "8", "9"],
        ["0", "1", "2", "8", "9"],
    ]
    assert sum(device["num_examples"] for device in devices.values()) == 600
    whole = prepare(job, digits(job)).network(range(10)).module
    for name in "abcd":
        network = load_network(tmp_path, name)
        assert network(torch.zeros(1, 1, 8, 8)).shape == (1, 5)
        assert devices[name]["parameters"] < sum(p.numel() for p in whole.parameters())
    assert result["merged_size"] == "0-9"
    assert result["complete"] is True


def test_with_whole_data_every_holder_has_all_of_a_class(
    task_job: Callable[..., Job], tmp_path: Path
) -> None:
    job = task_job({"data": "whole"}, exchange={"rounds": 1})
    labels = digits(job).train.y
    result = train(job, tmp_path)
    for device in result["devices"]:
        own = [int(c) for c in device["classes"]]
        assert device["num_examples"] == int(torch.isin(labels, torch.tensor(own)).sum())


def test_each_device_is_measured_on_its_own_classes(task_job: Callable[..., Job], tmp_path: Path) -> None:
    job = task_job(run={"save_models": True, "evaluate_examples": None})
    result = train(job, tmp_path)
    test = digits(job).test
    for device in result["devices"]:
        own = torch.tensor([int(c) for c in device["classes"]])
        index = torch.isin(test.y, own)
        with torch.no_grad():
            scores = load_network(tmp_path, device["name"])(test.x[index].float() / 255)
        right = (own[scores.argmax(1)] == test.y[index]).float().mean()
        assert device["accuracy"] == pytest.approx(float(right), abs=1e-3)


# The network of all.


def test_the_network_of_all_is_made_of_its_parts_exactly(
    task_job: Callable[..., Job], tmp_path: Path
) -> None:
    """In float64: the mean of shared layers and of each structure, and every class scores as in its part."""
    job = task_job(run={"save_models": True, "evaluate_examples": None})
    result = train(job, tmp_path)
    together = load_network(tmp_path).double()
    parts = {name: load_network(tmp_path, name).double() for name in "abcd"}
    weights = {d["name"]: d["num_examples"] for d in result["devices"]}
    shared = "stem.conv1.weight"
    mean = sum(weights[n] * parts[n].state_dict()[shared] for n in parts) / sum(weights.values())
    torch.testing.assert_close(together.state_dict()[shared], mean, rtol=1e-6, atol=1e-7)
    # With the same shared layers, a class that one device alone holds scores the same in both.
    x = digits(job).test.x[:50].double() / 255
    alone = parts["b"]
    alone.load_state_dict(
        alone.state_dict() | {n: t for n, t in together.state_dict().items() if n.startswith("stem.")}
    )
    with torch.no_grad():
        torch.testing.assert_close(together(x)[:, 4], alone(x)[:, 2], rtol=1e-12, atol=1e-12)
    accuracy = float(
        (together(digits(job).test.x.double() / 255).argmax(1) == digits(job).test.y).double().mean()
    )
    assert result["accuracy"] == pytest.approx(accuracy, abs=1e-3)


def test_its_accuracy_is_followed_through_the_rounds(task_job: Callable[..., Job], tmp_path: Path) -> None:
    result = train(task_job(exchange={"rounds": 3}), tmp_path)
    assert [point["round"] for point in result["curve"]] == [1, 2, 3]
    assert result["curve"][-1]["accuracy"] == result["accuracy"]


def recomposed(job: Job, folder: Path) -> float:
    """The accuracy of the network made out of devices' networks, whatever split they were trained under."""
    data = digits(job)
    library = Library(job, data)
    result = json.loads((folder / "result.json").read_text())
    fleet = assign_classes(job, make_fleet(job.fleet, seed=job.seed), data, library)
    split = SPLITS["task"](fleet, offered_networks(library), job.split)
    held = {
        name: extract(load_file(folder / "models" / f"{name}.safetensors"), split.seats[name].layout)
        for name in split.seats
    }
    examples = {device["name"]: device["num_examples"] for device in result["devices"]}
    network, lost = averaged_network(split, library, held, examples)
    assert not lost
    assert network is not None
    found = accuracy_of(library("0-9").architecture, Weights(network), data.test)
    return float(found["accuracy"] or 0)


@pytest.mark.slow
def test_working_together_beats_working_alone(task_job: Callable[..., Job], tmp_path: Path) -> None:
    """The same networks, data and steps; on each device's own classes, and put together."""
    job = task_job(
        {"pretrain_epochs": 1, "settle_epochs": 1},
        data={"limit": 400, "validation": 0.0},
        learn={"learning_rate": 0.05, "batch_size": 10},
        exchange={"rounds": 20},
        run={"save_models": True, "evaluate_examples": None, "evaluate_every": 0},
    )
    together = train(job, tmp_path / "task")
    alone = train(job.split_by("isolated"), tmp_path / "isolated")
    ours, theirs = ([device["accuracy"] for device in result["devices"]] for result in (together, alone))
    assert sum(ours) / 4 > sum(theirs) / 4 + 0.01
    assert together["accuracy"] == pytest.approx(recomposed(job, tmp_path / "task"), abs=1e-6)
    assert together["accuracy"] > recomposed(job.split_by("isolated"), tmp_path / "isolated") + 0.1
    assert together["accuracy"] > together["prepared"]["accuracy"] + 0.05


@pytest.mark.parametrize("mode", ["synchronous", "asynchronous"])
def test_a_coordinator_can_merge_structures_too(
    task_job: Callable[..., Job], tmp_path: Path, mode: str
) -> None:
    changes = {"exchange": {"mode": mode}, "fleet": {"topology": "star"}, "run": {"save_models": True}}
    result = train(task_job(**changes), tmp_path)
    assert result["merged_size"] == "0-9"
    first = prepare(task_job(), digits(task_job())).whole["features.conv2.weight"].view(10, -1)
    merged = load_network(tmp_path).state_dict()["features.conv2.weight"].view(10, -1)
    assert all(not torch.equal(first[c], merged[c]) for c in range(10))
    assert result["accuracy"] > 0.8


@pytest.mark.parametrize("consensus", ["gossip", "ring"])
def test_shared_layers_come_to_consensus(
    task_job: Callable[..., Job], tmp_path: Path, consensus: str
) -> None:
    exchange = {"consensus": consensus} | ({"tolerance": 1e-4} if consensus == "gossip" else {})
    train(task_job(exchange=exchange, run={"save_models": True}), tmp_path)
    shared = [load_file(tmp_path / "models" / f"{name}.safetensors")["stem.conv1.weight"] for name in "abcd"]
    for other in shared[1:]:
        torch.testing.assert_close(other, shared[0], rtol=1e-3, atol=1e-5)


# Devices that vanish, and runs that are killed.


def test_a_device_that_vanishes_takes_nothing_with_it_that_others_hold(
    task_job: Callable[..., Job], tmp_path: Path
) -> None:
    crash = {"kind": "crash", "device": "d", "at_s": 0.005}
    result = train(task_job(exchange={"rounds": 3}, fault=[crash]), tmp_path)
    assert by_name(result)["d"]["finished"] is False
    assert result["lost_blocks"] == []
    assert result["accuracy"] is not None
    assert [point["round"] for point in result["curve"]] == [2, 3]  # when d was no longer waited for


def test_classes_that_nobody_holds_any_more_are_named_and_stand_as_they_were_prepared(
    task_job: Callable[..., Job], tmp_path: Path
) -> None:
    crash = {"kind": "crash", "device": "b", "at_s": 0.005}
    result = train(task_job(exchange={"rounds": 3}, fault=[crash]), tmp_path)
    assert result["lost_blocks"] == ["task/4"]
    assert result["accuracy"] is not None


def test_a_device_comes_back_and_is_taken_up_again(task_job: Callable[..., Job], tmp_path: Path) -> None:
    crash = {"kind": "crash", "device": "b", "at_s": 0.005, "restart_at_s": 0.02}
    result = train(task_job(exchange={"rounds": 4}, fault=[crash]), tmp_path)
    assert by_name(result)["b"]["finished"] is True
    assert result["lost_blocks"] == []


def test_a_killed_run_goes_on_as_if_nothing_had_happened(
    task_job: Callable[..., Job], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = task_job(exchange={"rounds": 3}, run={"checkpoint_every_s": 1e-9})
    undisturbed = train(job, tmp_path / "whole")
    kept = 0

    def killed(*args: Any, **kwargs: Any) -> None:
        nonlocal kept
        write(*args, **kwargs)
        kept += 1
        if kept == 6:
            raise RunError("killed")

    write = holdings.write_checkpoint
    monkeypatch.setattr(holdings, "write_checkpoint", killed)
    with pytest.raises(RunError, match="killed"):
        train(job, tmp_path / "killed")
    monkeypatch.setattr(holdings, "write_checkpoint", write)
    result = resume(tmp_path / "killed")
    assert figures(result) == figures(undisturbed)
    assert events(tmp_path / "killed") == events(tmp_path / "whole")


# Preparation.


def test_the_same_job_is_prepared_once(task_job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch) -> None:
    job = task_job({"pretrain_epochs": 1, "settle_epochs": 0, "part": 0.3})
    told: list[str] = []
    first = prepare(job, digits(job), lambda what, done, total: told.append(what))
    assert told == ["training the original network"]
    other = task_job(
        {"pretrain_epochs": 1, "settle_epochs": 0, "part": 0.3, "overlap": 3, "classes_per_device": None}
    )
    second = prepare(other, digits(job), lambda what, done, total: told.append("again"))
    assert "again" not in told
    assert all(torch.equal(first.whole[name], second.whole[name]) for name in first.whole)
    assert first.figures == second.figures


def test_a_network_can_be_read_from_a_file(task_job: Callable[..., Job], tmp_path: Path) -> None:
    before = task_job(by="homogeneous", run={"save_models": True}, exchange={"rounds": 1})
    train(before, tmp_path / "before")
    file = tmp_path / "before" / "models" / "global.safetensors"
    task = {"pretrain_epochs": 2, "settle_epochs": 0}
    job = task_job(task).changed({"split.task.pretrained": str(file)})
    prepared = prepare(job, digits(job))
    assert torch.equal(
        prepared.original.state_dict()["stem.conv1.weight"], load_file(file)["stem.conv1.weight"]
    )


def test_a_file_of_another_network_is_refused(task_job: Callable[..., Job], tmp_path: Path) -> None:
    job = task_job({"pretrain_epochs": 2}, model={"name": "two_conv"}).changed(
        {"split.task.pretrained": str(tmp_path / "none.safetensors")}
    )
    with pytest.raises(JobError, match=r"split.task.pretrained = .*: cannot be read: No such file"):
        prepare(job, digits(job))
    torch_save({"stem.conv1.weight": torch.zeros(3, 3)}, tmp_path / "none.safetensors")
    with pytest.raises(JobError, match=r"does not hold this job's network: stem.conv1.weight is \(3, 3\)"):
        prepare(job, digits(job))


# Comparing.


def test_others_train_the_same_data_under_other_splits(task_job: Callable[..., Job], tmp_path: Path) -> None:
    job = task_job(exchange={"rounds": 1})
    results = {
        split: train(job.split_by(split), tmp_path / split) for split in ("task", "isolated", "homogeneous")
    }
    examples = [[device["num_examples"] for device in result["devices"]] for result in results.values()]
    assert examples[0] == examples[1] == examples[2]
    assert results["isolated"]["devices"][1]["size"] == "2-6"
    assert results["isolated"]["accuracy"] is None
    assert results["homogeneous"]["devices"][1]["size"] == "full"


# Assignments.


def test_classes_may_be_listed_by_name_or_number(task_job: Callable[..., Job], tmp_path: Path) -> None:
    devices = [
        {"kind": "raspberry-pi-4", "name": "a", "classes": [0, 1, 2, 3, 4, "5"]},
        {"kind": "laptop", "name": "b", "classes": ["5", "6", "7", "8", "9"]},
    ]
    result = train(task_job(fleet={"topology": "line", "device": devices}, exchange={"rounds": 1}), tmp_path)
    assert [device["size"] for device in result["devices"]] == ["0-5", "5-9"]


@pytest.mark.parametrize("assign", ["mesh", "auto"])
def test_classes_may_be_assigned_in_other_ways(
    task_job: Callable[..., Job], tmp_path: Path, assign: str
) -> None:
    task = {"assign": assign, "overlap": None, "classes_per_device": None}
    devices = [{"kind": "laptop", "name": "fast"}, *FOUR]
    result = train(
        task_job(task, fleet={"topology": "mesh", "device": devices}, exchange={"rounds": 1}), tmp_path
    )
    counts = {device["name"]: len(device["classes"]) for device in result["devices"]}
    assert sum(counts.values()) >= 20
    if assign == "auto":
        assert counts["fast"] == max(counts.values())


TWO = FOUR[:2]


def with_classes(*lists: list[Any]) -> list[dict[str, Any]]:
    return [device | {"classes": own} for device, own in zip(TWO, lists, strict=True)]


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"fleet.device": [FOUR[0] | {"classes": [0, 1]}, FOUR[1]]}, r"classes: b has none but others have"),
    (
        {"fleet.device": with_classes([*range(5)], [*range(5, 10)])},
        r"no class in common, and could never agree: a \| b",
    ),
    ({"fleet.device": with_classes([0, 1], [1, 2])}, r"nobody holds class 3 and 6 more"),
    (
        {"fleet.device": with_classes([10], ["x"])},
        r"fleet.device a: classes = 10: there is no such class.*; write a name, or a number from 0 to 9",
    ),
    ({"fleet.device": [FOUR[0] | {"size": "full"}, FOUR[1]]}, r"fleet.device\[0\].size = .*follows from"),
    ({"data.shares": "dirichlet"}, r"data.shares = .*here their classes do"),
    ({"split": {"by": "capacity", "form": "stem", "task": {}}}, r"split by capacity takes no classes apart"),
    (
        {"split": {"by": "task", "task": {"assign": "mesh", "overlap": 2}}},
        r'overlap is read by assign = "ring"',
    ),
    (
        {"split": {"by": "task", "task": {"first": "conv9"}}},
        r"split.task.first = .conv9.*must name one of stem",
    ),
    ({"split": {}, "fleet.device": with_classes([1], [2])}, r"is read by a split by task"),
    ({"split.task.overlap": 1, "split.task.classes_per_device": 2}, r"take 10 devices or more"),
    ({"model.size": "huge"}, r"model.size = .huge.: lenet5 comes in"),
    ({"fleet.device": with_classes([0, 1.5], [1])}, r"fleet.device\[0\].classes\[1\] = 1.5"),
    (
        {"split.task.overlap": 2, "fleet.device": with_classes([0], [1]), "split.by": "task"},
        r"lists the classes",
    ),
    ({"split.by": "homogeneous", "run.alone": True}, r"run.alone = true: devices would train other networks"),
    (
        {"fleet.device": [FOUR[0] | {"torch_device": "cuda:77"}, *FOUR[1:]]},
        r"torch_device = .cuda:77.*cannot be used",
    ),
    (
        {"fault": [{"kind": "crash", "device": "nope", "at_s": 1}]},
        r"fault\[0\].device = .nope.*no such device",
    ),
    ({"fleet.device": [FOUR[0] | {"memory_bytes": 9}, *FOUR[1:]]}, r"classes = .0-3,9.*take fewer classes"),
    ({"data.limit": 2, "split.task.data": "whole"}, r"have \d examples for it, and it needs at least 2"),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED)
def test_what_cannot_be_is_refused_in_one_line(
    task_job: Callable[..., Job], changes: dict[str, Any], message: str
) -> None:
    job = task_job()
    if not any(key.startswith("split") for key in changes) and any(
        "classes" in device for device in changes.get("fleet.device", [])
    ):
        changes = {"split": {"task": {"part": 0.2}}} | changes

    def attempt() -> None:
        changed = job.changed(changes)
        check(changed, digits(changed))

    with pytest.raises(JobError, match=message) as refused:
        attempt()
    assert "\n" not in str(refused.value)


def test_a_preparation_that_was_killed_goes_on(
    task_job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    job = task_job({"pretrain_epochs": 2, "settle_epochs": 2})
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "undisturbed"))
    undisturbed = prepare(job, digits(job))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "killed"))
    told: list[tuple[str, int]] = []

    def kill(what: str, done: int, _total: int | None) -> None:
        told.append((what, done))
        if len(told) == 4:
            raise RunError("killed")

    with pytest.raises(RunError, match="killed"):
        prepare(job, digits(job), kill)
    found = prepare(job, digits(job), kill)
    original, decoupled = "training the original network", "training the decoupled network"
    assert told == [(original, 0), (original, 1), (decoupled, 0), (decoupled, 1), (decoupled, 1)]
    assert all(torch.equal(found.whole[name], undisturbed.whole[name]) for name in found.whole)
    kept = list((tmp_path / "killed" / "manyhands" / "arrays").iterdir())
    assert len(kept) == 1  # the epochs are gone


def test_a_network_that_has_diverged_is_not_given_out(task_job: Callable[..., Job]) -> None:
    job = task_job({"learning_rate": 1e6, "settle_epochs": 0})
    with pytest.raises(RunError, match=r"its weights are not finite; lower split.task.learning_rate"):
        prepare(job, digits(job))


def test_the_output_layer_alone_may_be_decoupled(task_job: Callable[..., Job], tmp_path: Path) -> None:
    result = train(task_job({"first": "out"}, exchange={"rounds": 1}), tmp_path)
    assert result["accuracy"] > 0.5


def test_under_a_split_without_tasks_devices_have_no_classes(task_job: Callable[..., Job]) -> None:
    lists = {"overlap": None, "classes_per_device": None}
    job = task_job(lists, fleet={"device": with_classes([*range(6)], [*range(5, 10)])})
    assert job.split_by("isolated").fleet.device[0].classes is not None
    plain = job.split_by("stem")
    assert plain.fleet.device[0].classes is None
    assert plain.changed({}).hash == plain.hash


def test_an_own_network_that_was_changed_is_prepared_again(
    task_job: Callable[..., Job], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    # Compiled files know their source by its second and its size, which are the same here.
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    drawn = """
from torch import nn
def net(shape, num_classes):
    conv, out = nn.Conv2d(1, 20, 3), nn.Linear(720, num_classes, bias=False)
    return nn.Sequential(conv, nn.Dropout({}), nn.Flatten(), out)
"""
    job = task_job({"first": "0", "pretrain_epochs": 1, "settle_epochs": 0}, model={"name": "my_own_net:net"})
    prepared = []
    for dropout in (0.0, 0.5):
        (tmp_path / "my_own_net.py").write_text(drawn.format(dropout))
        monkeypatch.delitem(sys.modules, "my_own_net", raising=False)
        importlib.invalidate_caches()
        prepared.append(prepare(job, digits(job)).original)
    assert not torch.equal(prepared[0][0].weight, prepared[1][0].weight)


def test_a_preparation_does_not_depend_on_torchs_threads(
    task_job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    job, found = task_job(), []
    for threads in (1, 2):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / str(threads)))
        torch.set_num_threads(threads)
        found.append(prepare(job, digits(job)).whole)
    torch.set_num_threads(1)
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


@pytest.mark.parametrize("consensus", ["none", "ring"])
def test_operations_of_averaging_are_told_apart(
    task_job: Callable[..., Job], tmp_path: Path, consensus: str
) -> None:
    result = train(task_job(exchange={"consensus": consensus}, run={"report": True}), tmp_path)
    works = [event for event in events(tmp_path) if event["event"] == "computed"]
    for device in result["devices"]:
        own = [work for work in works if work["device"] == device["name"]]
        trained = sum(work["flops"] for work in own if work["work"] == "train")
        assert device["merge_flops"] > 0
        assert device["merge_flops"] == pytest.approx(device["flops"] - trained)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "classes 0-3,9" in page
    assert "before the first round" in page
    assert " merging" in page


@pytest.mark.parametrize("split", ["homogeneous", "cascade", "width"])
def test_networks_of_other_splits_can_be_loaded_too(
    small_job: Callable[..., Job], tmp_path: Path, split: str
) -> None:
    job = small_job(model={"name": "lenet5", "sizes": 2}, run={"save_models": True}, exchange={"rounds": 1})
    result = train(job.split_by(split), tmp_path)
    network = load_network(tmp_path, "a")
    test = digits(job).test.spread(60)
    with torch.no_grad():
        right = (network(test.x.float() / 255).argmax(1) == test.y).float().mean()
    assert by_name(result)["a"]["accuracy"] == pytest.approx(float(right), abs=1e-3)
    with pytest.raises(JobError, match=r"name = .nobody.: has left no such network; there are a, b, c"):
        load_network(tmp_path, "nobody")

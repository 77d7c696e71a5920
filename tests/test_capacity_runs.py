"""Split by capacity, end to end: devices of two sizes train together, are stopped, resumed and compared."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from manyhands.data import load
from manyhands.engine import simulate
from manyhands.errors import JobError, RunError
from manyhands.job import Job
from manyhands.models import build_in_form, cost_of
from manyhands.run import resume, train

FORMS = ["stem", "cascade", "width", "depth"]
DIGITS = (1, 8, 8)
WEAK = {"kind": "raspberry-pi-3b", "name": "weak", "size": "small", "share": 0.3}
STRONG = {"kind": "laptop", "name": "strong", "size": "full", "share": 0.7}


@pytest.fixture
def capacity_job(small_job: Callable[..., Job]) -> Callable[..., Job]:
    """A weak and a strong device, two sizes of LeNet-5."""

    def make(form: str, *devices: dict[str, Any], **changes: Any) -> Job:
        said: dict[str, Any] = {
            "model": {"name": "lenet5", "sizes": 2},
            "learn": {"learning_rate": 0.02, "batch_size": 10},
            "exchange": {"rounds": 2},
            "fleet": {"device": list(devices or (WEAK, STRONG))},
        }
        for section, value in changes.items():
            said[section] = said.get(section, {}) | value if isinstance(value, dict) else value
        return small_job(**said).split_by(form)

    return make


def by_name(result: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {device["name"]: device for device in result["devices"]}


def figures(result: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in result.items() if key != "wall_seconds"}


def trace(folder: Path) -> bytes:
    return (folder / "trace.jsonl").read_bytes()


def saved(folder: Path, name: str) -> dict[str, torch.Tensor]:
    return load_file(folder / "models" / f"{name}.safetensors")


def built(job: Job, size: str) -> torch.nn.Module:
    return build_in_form(job.model, DIGITS, 10, seed=0, size=size, form=job.split.network_form)


def assert_shared(form: str, weak: dict[str, torch.Tensor], strong: dict[str, torch.Tensor]) -> None:
    """What both hold is the same in both in the end, and no more than the form gives them in common."""
    for name, tensor in weak.items():
        if form == "stem" and not name.startswith("stem."):
            assert not torch.equal(tensor, strong[name][tuple(slice(0, n) for n in tensor.shape)])
        else:
            assert torch.equal(tensor, strong[name][tuple(slice(0, n) for n in tensor.shape)]), name


@pytest.mark.parametrize("mode", ["synchronous", "asynchronous"])
@pytest.mark.parametrize("form", FORMS)
def test_a_weak_and_a_strong_device_train_together(
    capacity_job: Callable[..., Job], tmp_path: Path, form: str, mode: str
) -> None:
    job = capacity_job(form, exchange={"mode": mode}, run={"save_models": True, "evaluate_examples": None})
    result = train(job, tmp_path)
    devices, test = by_name(result), load(job.data, seed=job.seed).test
    assert result["complete"]
    assert {name: device["size"] for name, device in devices.items()} == {"weak": "small", "strong": "full"}
    assert {device["size_reason"] for device in devices.values()} == {None}  # they were told
    first = {}
    for name, device in devices.items():
        module = built(job, device["size"])
        first[name] = {key: tensor.clone() for key, tensor in module.state_dict().items()}
        assert device["parameters"] == cost_of(module, DIGITS).parameters
        assert device["rounds"] >= 1
        assert device["bytes_sent"] > 0
        module.load_state_dict(saved(tmp_path, name))
        with torch.no_grad():
            answers = module.eval()(test.x.float() / 255).argmax(1)
        assert device["accuracy"] == pytest.approx(float((answers == test.y).float().mean()))
    assert devices["weak"]["parameters"] < devices["strong"]["parameters"]
    assert_shared(form, saved(tmp_path, "weak"), saved(tmp_path, "strong"))


@pytest.mark.parametrize("form", ["cascade", "width", "depth"])
def test_the_network_that_all_share_is_measured_and_saved(
    capacity_job: Callable[..., Job], tmp_path: Path, form: str
) -> None:
    """Both hold all of the small one, so it is the merged one."""
    result = train(capacity_job(form, run={"save_models": True}), tmp_path)
    merged, weak = saved(tmp_path, "global"), saved(tmp_path, "weak")
    assert merged.keys() == weak.keys()
    assert all(torch.equal(merged[name], weak[name]) for name in weak)
    assert result["accuracy"] == by_name(result)["weak"]["accuracy"]


def test_where_only_a_stem_is_shared_there_is_no_merged_network(
    capacity_job: Callable[..., Job], tmp_path: Path
) -> None:
    assert train(capacity_job("stem", run={"save_models": True}), tmp_path)["accuracy"] is None
    assert not (tmp_path / "models" / "global.safetensors").exists()


def test_a_message_holds_the_shared_blocks_and_not_the_strong_devices_own(
    capacity_job: Callable[..., Job], tmp_path: Path
) -> None:
    hub, weak, strong, other = (
        {"kind": "laptop", "name": name, "size": size}
        for name, size in (("hub", "small"), ("weak", "small"), ("strong", "full"), ("other", "full"))
    )
    one, two = (
        by_name(train(capacity_job("cascade", *devices, exchange={"coordinator": "hub"}), tmp_path / folder))
        for folder, devices in (("one", (hub, weak, strong)), ("two", (hub, weak, strong, other)))
    )
    sent = one["weak"]["bytes_sent"]
    # With nobody beside it the strong one sends what the weak one does; with a second one its branch too.
    assert one["strong"]["bytes_sent"] == sent == two["weak"]["bytes_sent"]
    assert two["strong"]["bytes_sent"] == two["other"]["bytes_sent"] > 2 * sent


def test_statistics_of_activations_stay_within_a_width(
    capacity_job: Callable[..., Job], tmp_path: Path
) -> None:
    devices = [
        {"kind": "laptop", "name": name, "size": size}
        for name, size in (("a", "thin"), ("b", "wide"), ("c", "wide"))
    ]
    job = capacity_job(
        "width",
        *devices,
        model={"name": "vgg16", "sizes": {"thin": 0.04, "wide": 0.08}},
        run={"save_models": True},
        data={"limit": 60},
    )
    train(job, tmp_path)
    a, b, c = (saved(tmp_path, name) for name in "abc")
    assert all(torch.equal(b[name], c[name]) for name in b)
    for name, tensor in a.items():
        corner = b[name][tuple(slice(0, n) for n in tensor.shape)]
        is_statistic = name.endswith(("running_mean", "running_var"))
        if not name.endswith("num_batches_tracked"):
            assert torch.equal(tensor, corner) is not is_statistic, name


def test_sizes_that_are_chosen_are_told_with_reasons(
    capacity_job: Callable[..., Job], tmp_path: Path
) -> None:
    cost = cost_of(built(capacity_job("cascade"), "full"), DIGITS)
    poor = {"kind": "laptop", "name": "poor", "memory_bytes": cost.memory_bytes(10, 1) - 1}
    rich = {"kind": "laptop", "name": "rich"}
    job = capacity_job("cascade", poor, rich, model={"size": "auto"})
    devices = by_name(train(job, tmp_path))
    assert {name: device["size"] for name, device in devices.items()} == {"poor": "small", "rich": "full"}
    assert devices["rich"]["size_reason"] == "the largest there is"
    assert devices["poor"]["size_reason"].startswith("full takes ")
    assert all(device["rounds"] == 2 for device in devices.values())


def test_collaboration_in_a_cascade_is_worth_much_to_the_weak_device(
    capacity_job: Callable[..., Job], tmp_path: Path
) -> None:
    """Paper 001, figure 4c and 4d: with little data of its own, and without costing the strong one much."""
    accuracy = {}
    for split in ("isolated", "cascade"):
        job = capacity_job(
            split,
            {**WEAK, "share": 0.1},
            {**STRONG, "share": 0.9},
            data={"limit": 500},
            exchange={"rounds": 8},
            run={"evaluate_every": 0, "evaluate_examples": None},
        )
        devices = by_name(train(job, tmp_path / split))
        accuracy[split] = {name: device["accuracy"] for name, device in devices.items()}
    assert accuracy["cascade"]["weak"] > accuracy["isolated"]["weak"] + 0.25
    assert accuracy["cascade"]["weak"] > 0.75
    assert accuracy["cascade"]["strong"] > accuracy["isolated"]["strong"] - 0.15


# Repeated, stopped and resumed.


@pytest.mark.parametrize("form", FORMS)
def test_a_run_is_the_same_on_any_number_of_workers(
    capacity_job: Callable[..., Job], tmp_path: Path, form: str
) -> None:
    folders = [tmp_path / f"{workers}" for workers in (0, 2)]
    results = [
        train(capacity_job(form, run={"workers": int(folder.name), "save_models": True}), folder)
        for folder in folders
    ]
    assert figures(results[0]) == figures(results[1])
    assert trace(folders[0]) == trace(folders[1])
    for name in ("weak", "strong"):
        one, other = (saved(folder, name) for folder in folders)
        assert all(torch.equal(one[key], other[key]) for key in one)


class KilledError(Exception):
    pass


@pytest.mark.parametrize("mode", ["synchronous", "asynchronous"])
@pytest.mark.parametrize("form", ["cascade", "width"])
def test_a_run_stopped_in_the_middle_resumes_to_the_same_bytes(
    capacity_job: Callable[..., Job], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str, mode: str
) -> None:
    job = capacity_job(
        form, exchange={"mode": mode, "rounds": 3}, run={"checkpoint_every_s": 1e-9, "save_models": True}
    )
    whole = train(job, tmp_path / "whole")
    num_events = len(trace(tmp_path / "whole").splitlines())
    emit = simulate.Simulation.emit
    for part in (0.35, 0.75):
        cut = tmp_path / f"cut-{part}"

        def dying(self: simulate.Simulation, *args: Any, until: float = part * num_events, **kw: Any) -> None:
            if self.journal.num_events >= until:
                raise KilledError
            emit(self, *args, **kw)

        with monkeypatch.context() as patch:
            patch.setattr(simulate.Simulation, "emit", dying)
            with pytest.raises((RunError, KilledError)):
                train(job, cut)
        assert not (cut / "result.json").exists()
        assert figures(resume(cut)) == figures(whole)
        assert trace(cut) == trace(tmp_path / "whole")
        for name in ("weak", "strong", "global"):
            one, other = saved(cut, name), saved(tmp_path / "whole", name)
            assert all(torch.equal(one[key], other[key]) for key in other)


# What cannot work is refused before anything is trained.


@pytest.mark.parametrize(
    ("form", "changes", "parts"),
    [
        ("stem", {"split": {"stem": ["features"]}}, ["split.stem", "features.conv2.weight", "8x6x5x5"]),
        ("depth", {"model": {"sizes": 4}}, ["model.sizes = 4", "2 depths at most"]),
        ("width", {"model": {"name": "alexnet", "sizes": None}}, ["alexnet", "cannot be made narrower"]),
    ],
)
def test_what_cannot_work_is_refused_and_leaves_no_folder(
    capacity_job: Callable[..., Job], tmp_path: Path, form: str, changes: dict[str, Any], parts: list[str]
) -> None:
    if "split" in changes:
        changes["split"] = {"form": form, "by": "capacity", **changes["split"]}
    job = capacity_job(form, **changes)
    with pytest.raises(JobError) as error:
        train(job, tmp_path / "run")
    assert all(part in str(error.value) for part in parts), error.value
    assert not (tmp_path / "run").exists()


CRASH = [{"kind": "crash", "device": "weak", "at_s": 0.003}]


@pytest.mark.parametrize("mode", ["synchronous", "asynchronous", "neighbours"])
@pytest.mark.parametrize("form", FORMS)
def test_a_device_that_is_lost_leaves_no_network_and_the_others_come_to_their_end(
    capacity_job: Callable[..., Job], tmp_path: Path, form: str, mode: str
) -> None:
    third = {**STRONG, "name": "third", "share": 0.4}
    devices = (WEAK, {**STRONG, "share": 0.3}, third)
    exchange = {"rounds": 4, "mode": mode, **({} if mode == "neighbours" else {"coordinator": "third"})}
    result = train(
        capacity_job(form, *devices, exchange=exchange, run={"save_models": True}, fault=CRASH), tmp_path
    )
    assert result["complete"]
    assert by_name(result)["weak"]["lost_at_seconds"] is not None
    names = {path.stem for path in (tmp_path / "models").iterdir()}
    assert {"strong", "third"} <= names
    assert "weak" not in names


@pytest.mark.parametrize("form", ["stem", "depth"])
def test_neighbours_resume_to_the_same_bytes(
    capacity_job: Callable[..., Job], tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = capacity_job(
        form, exchange={"rounds": 4, "mode": "neighbours"}, run={"checkpoint_every_s": 1e-9, "workers": 1}
    )
    whole = train(job, tmp_path / "whole")
    emit, count = simulate.Simulation.emit, 0

    def stop_in_the_middle(*args: Any, **options: Any) -> None:
        nonlocal count
        count += 1
        if count == 30:
            raise RunError("stopped")
        emit(*args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(simulate.Simulation, "emit", stop_in_the_middle)
        with pytest.raises(RunError, match="stopped"):
            train(job, tmp_path / "cut")
    assert list((tmp_path / "cut" / "checkpoint").glob("*.safetensors"))
    assert figures(resume(tmp_path / "cut")) == figures(whole)
    assert trace(tmp_path / "cut") == trace(tmp_path / "whole")


def test_in_nested_widths_a_device_keeps_nothing_that_is_wholly_shared(
    capacity_job: Callable[..., Job], tmp_path: Path
) -> None:
    twins = ({**WEAK, "count": 2, "share": 0.15}, {**STRONG, "count": 2, "share": 0.35})
    train(capacity_job("width", *twins), tmp_path)
    kept = [
        event["bytes"]["replica"]
        for event in map(json.loads, (tmp_path / "trace.jsonl").read_text().splitlines())
        if event["event"] == "computed" and event["work"] == "train"
    ]
    assert kept
    assert not any(kept)

"""Which network each device trains: named, or the largest that its memory and its time allow."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from manyhands.data import Dataset, load
from manyhands.errors import JobError
from manyhands.fleet import make_fleet
from manyhands.job import Job
from manyhands.lessons import give_lessons, share_out
from manyhands.sizing import Library, Sizing, choose_sizes

GIB = 2**30


_libraries: dict[str, Library] = {}


def digits(job: Job) -> Dataset:
    return load(job.data, seed=job.seed)


def library_of(job: Job) -> Library:
    """Jobs that differ in their devices alone have the same networks; building them takes a while."""
    said = repr((job.model, job.split, job.learn))
    if said not in _libraries:
        _libraries[said] = Library(job, digits(job))
    return _libraries[said]


def settle(job: Job) -> Sizing:
    fleet = make_fleet(job.fleet, seed=job.seed)
    return choose_sizes(job, fleet, library_of(job), give_lessons(job, digits(job), fleet))


def sizes(job: Job) -> dict[str, str | None]:
    return {device.name: device.size for device in settle(job).fleet.devices}


def device(name: str, **said: Any) -> dict[str, Any]:
    return {"kind": "laptop", "name": name, **said}


@pytest.fixture
def sized_job(small_job: Callable[..., Job]) -> Callable[..., Job]:
    """A job with three sizes under the split by capacity; devices are given as tables."""

    def make(*devices: dict[str, Any], **changes: Any) -> Job:
        model = {"name": "lenet5", "sizes": 3, "size": "auto"} | changes.pop("model", {})
        split = {"by": "capacity", "form": "cascade"} | changes.pop("split", {})
        return small_job(fleet={"device": list(devices)}, model=model, split=split, **changes)

    return make


def needs(job: Job) -> dict[str, int]:
    """Size -> bytes that training takes."""
    library = library_of(job)
    fleet = make_fleet(job.fleet, seed=job.seed)
    lessons, any_device = give_lessons(job, digits(job), fleet), fleet.devices[0]
    return {
        size: lessons.memory_bytes(any_device, size, library(size).architecture) for size in library.sizes
    }


def test_memory_decides_to_the_byte(sized_job: Callable[..., Job]) -> None:
    need = needs(sized_job(device("a")))
    assert list(need.values()) == sorted(need.values())
    job = sized_job(
        device("rich", memory_bytes=GIB),
        device("exact", memory_bytes=need["medium"]),
        device("short", memory_bytes=need["medium"] - 1),
        device("almost", memory_bytes=need["full"] - 1),
    )
    assert sizes(job) == {"rich": "full", "exact": "medium", "short": "small", "almost": "medium"}


def test_the_batch_and_the_optimizer_count(sized_job: Callable[..., Job]) -> None:
    one = device("a", memory_bytes=GIB)
    plain = needs(sized_job(one, learn={"optimizer": "sgd", "momentum": 0.0}))["full"]
    assert needs(sized_job(one, learn={"optimizer": "adam"}))["full"] > plain
    assert needs(sized_job(one, learn={"batch_size": 64, "momentum": 0.0}))["full"] > plain


def test_the_time_of_a_local_phase_decides_where_there_is_a_budget(sized_job: Callable[..., Job]) -> None:
    job = sized_job(device("a"), device("b"))
    library = library_of(job)
    own = round(0.5 * len(digits(job).train) * (1 - job.data.validation))
    flops = {size: own * library(size).architecture.cost.train_flops for size in library.sizes}
    speed = 1e6
    budget = flops["medium"] / speed
    timed = sized_job(
        device("a", flops=speed, time_budget_s=budget),
        device("b", flops=speed),  # any time
    )
    assert sizes(timed) == {"a": "medium", "b": "full"}
    hurried = sized_job(device("a", flops=speed, time_budget_s=budget * 0.999), device("b", flops=speed))
    assert sizes(hurried) == {"a": "small", "b": "full"}
    fewer = sized_job(
        device("a", flops=speed, time_budget_s=budget * 0.999),
        device("b", flops=speed),
        learn={"examples": 20},
    )
    assert sizes(fewer) == {"a": "full", "b": "full"}


def test_a_device_with_more_data_has_less_time_for_each_example(sized_job: Callable[..., Job]) -> None:
    def shared(a: float) -> dict[str, str | None]:
        said = {"flops": 1e6, "time_budget_s": 0.6 * phase_s}
        return sizes(sized_job(device("a", share=a, **said), device("b", share=1 - a)))

    job = sized_job(device("a"))
    library = library_of(job)
    phase_s = 96 * library("full").architecture.cost.train_flops / 1e6
    assert len(digits(job).train) * (1 - job.data.validation) == pytest.approx(96, abs=5)
    assert shared(0.1)["a"] == "full"
    assert shared(0.9)["a"] != "full"


def test_the_reason_says_why_no_larger_one_fits(sized_job: Callable[..., Job]) -> None:
    need = needs(sized_job(device("a")))
    job = sized_job(
        device("rich"),
        device("poor", memory_bytes=need["medium"]),
        device("slow", flops=1e6, time_budget_s=4.0),
    )
    sizing = settle(job)
    assert sizing.reasons["rich"] == "the largest there is"
    assert sizing.reasons["poor"].startswith("full takes ")
    assert sizing.reasons["poor"].endswith(" KiB")
    assert " of memory and poor has " in sizing.reasons["poor"]
    assert sizing.reasons["slow"].startswith(("medium takes ", "full takes "))
    assert sizing.reasons["slow"].endswith(" a local phase and slow has 4 s")


def test_what_is_named_stays_and_has_no_reason(sized_job: Callable[..., Job]) -> None:
    job = sized_job(device("a", size="small"), device("b"), device("c", size="medium"))
    sizing = settle(job)
    assert {d.name: d.size for d in sizing.fleet.devices} == {"a": "small", "b": "full", "c": "medium"}
    assert list(sizing.reasons) == ["b"]


def test_without_auto_the_jobs_size_or_the_largest_is_taken(sized_job: Callable[..., Job]) -> None:
    devices = device("a"), device("b", size="small")
    assert sizes(sized_job(*devices, model={"size": None})) == {"a": "full", "b": "small"}
    assert sizes(sized_job(*devices, model={"size": "medium"})) == {"a": "medium", "b": "small"}
    assert settle(sized_job(*devices, model={"size": None})).reasons == {}


def test_one_device_alone_may_ask_for_auto(sized_job: Callable[..., Job]) -> None:
    job = sized_job(device("a", size="auto"), device("b", size="small"), model={"size": None})
    assert sizes(job) == {"a": "full", "b": "small"}


def test_a_size_that_nobody_can_hold_is_named_with_what_it_takes(sized_job: Callable[..., Job]) -> None:
    need = needs(sized_job(device("a")))
    job = sized_job(device("a", memory_bytes=need["small"]), device("b", memory_bytes=need["medium"]))
    with pytest.raises(JobError, match=r"model\.sizes: nobody can hold full: full takes .* of memory") as e:
        settle(job)
    assert "and b has" in str(e.value)  # the strongest, who comes nearest
    assert str(e.value).endswith("write sizes = { small = 0.25, medium = 0.5 }")


def test_several_sizes_that_nobody_can_hold_are_all_named(sized_job: Callable[..., Job]) -> None:
    need = needs(sized_job(device("a")))
    with pytest.raises(JobError, match=r"nobody can hold medium, full: medium takes") as e:
        settle(sized_job(device("a", memory_bytes=need["small"])))
    assert str(e.value).endswith("write sizes = { small = 0.25 }")
    drawn = sized_job(device("a", memory_bytes=need["small"]), model={"sizes": None})
    with pytest.raises(JobError, match="nobody can hold small, full"):
        settle(drawn)


def test_a_budget_where_nothing_is_chosen_is_refused(sized_job: Callable[..., Job]) -> None:
    with pytest.raises(
        JobError, match=r'fleet\.device\[0\]\.time_budget_s = 1.0: is read where size = "auto"'
    ):
        settle(sized_job(device("a", size="full", time_budget_s=1.0)))


def test_a_size_that_a_device_is_told_to_hold_is_not_offered_in_vain(sized_job: Callable[..., Job]) -> None:
    """Budgets are for networks that are chosen; who is told to hold one holds it."""
    job = sized_job(
        device("told", size="full", flops=1e6),
        device("poor", memory_bytes=needs(sized_job(device("a")))["medium"]),
    )
    assert sizes(job) == {"told": "full", "poor": "medium"}


def test_a_device_that_no_size_fits_is_named(sized_job: Callable[..., Job]) -> None:
    job = sized_job(device("a"), device("crumb", memory_bytes=1024))
    with pytest.raises(
        JobError, match=r'fleet\.device crumb: size = "auto": no size of the network fits'
    ) as e:
        settle(job)
    assert "small takes" in str(e.value)
    assert "crumb has 1.00 KiB" in str(e.value)


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"model": {"size": "huge"}}, 'model.size = "huge"'),
        ({"devices": [device("a"), device("b", size="huge")]}, 'fleet.device[1].size = "huge"'),
    ],
)
def test_a_size_that_there_is_not_is_refused_with_those_there_are(
    sized_job: Callable[..., Job], changes: dict[str, Any], key: str
) -> None:
    job = sized_job(*changes.pop("devices", [device("a")]), **changes)
    with pytest.raises(JobError) as error:
        settle(job)
    expected = "lenet5 has no such size; choose one of small, medium, full, auto"
    assert str(error.value) == f"{key}: {expected}"


@pytest.mark.parametrize("by", ["isolated", "homogeneous"])
def test_auto_works_under_the_other_splits_too(sized_job: Callable[..., Job], by: str) -> None:
    assert sizes(sized_job(device("a"), split={"by": by})) == {"a": "full"}


def test_a_reason_is_given_for_the_size_that_was_chosen_and_no_other(sized_job: Callable[..., Job]) -> None:
    sizing = settle(sized_job(device("a")))
    assert sizing.reason("a", "full") == "the largest there is"
    assert sizing.reason("a", "small") == "the smallest that any device has, which all train"
    assert settle(sized_job(device("a", size="full"))).reason("a", "full") is None


def test_a_library_builds_each_network_once_and_copies_are_its_own(sized_job: Callable[..., Job]) -> None:
    job = sized_job(device("a"))
    library = Library(job, digits(job))
    network = library("small")
    assert library("small") is network
    one, two = network.architecture.build(), network.architecture.build()
    assert one is not two
    state = one.state_dict()
    assert all((state[name] == network.first[name]).all() for name in state)
    next(one.parameters()).data.zero_()
    assert next(two.parameters()).any()
    assert network.first["stem.conv1.weight"].any()


def test_architectures_of_different_forms_and_sizes_are_not_taken_for_each_other(
    sized_job: Callable[..., Job],
) -> None:
    keys = set()
    for split in (
        {"form": "cascade"},
        {"form": "cascade", "branch_dropout": 0.25},
        {"form": "stem"},
        {"form": "width"},
    ):
        job = sized_job(device("a"), split=split)
        library = Library(job, digits(job))
        keys |= {library(size).architecture.key for size in library.sizes}
    assert len(keys) == 4 * 3


def test_buffers_are_what_is_counted_and_not_trained(sized_job: Callable[..., Job]) -> None:
    job = sized_job(device("a"), model={"name": "vgg16", "sizes": {"tiny": 0.05}})
    network = Library(job, digits(job))("tiny")
    kinds = {"running_mean", "running_var", "num_batches_tracked"}
    assert {name.rsplit(".", 1)[1] for name in network.buffers} == kinds
    assert network.buffers < set(network.first)


def test_time_is_judged_by_the_examples_that_a_device_really_has(sized_job: Callable[..., Job]) -> None:
    """Where classes are dealt out, a device may hold more than its share of the data."""
    devices = [device("a", share=0.1), device("b", share=0.1), device("c", share=0.8)]
    job = sized_job(*devices, data={"shares": "by_class"})
    fleet = make_fleet(job.fleet, seed=job.seed)
    count = len(share_out(job, digits(job).train, fleet)["a"])
    assert count > 2 * 0.1 * 0.8 * len(digits(job).train)
    flops = count * library_of(job)("full").architecture.cost.train_flops
    devices[0] |= {"flops": 1e9, "time_budget_s": 0.9 * flops / 1e9}
    assert sizes(sized_job(*devices, data={"shares": "by_class"}))["a"] != "full"


def test_sizes_that_do_not_ascend_are_refused(
    sized_job: Callable[..., Job], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "descending.py").write_text(
        "from torch import nn\n"
        "def net(size):\n"
        "    hidden = {'big': 9, 'little': 3}[size]\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, hidden), nn.Linear(hidden, 10))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    model = {"name": "descending:net", "sizes": ["big", "little"]}
    with pytest.raises(JobError, match=r"the smallest comes first, and big has 685 parameters, little 235"):
        settle(sized_job(device("a"), model=model, split={"by": "homogeneous"}))

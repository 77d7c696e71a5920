from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from manyhands.data import DataSection, load
from manyhands.data import aggregate as module
from manyhands.data.aggregate import METHODS, Aggregation, aggregate, aggregation_flops, reduced_dimensions
from manyhands.errors import JobError


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture(scope="module")
def digits() -> tuple[torch.Tensor, torch.Tensor]:
    train = load(DataSection(name="digits"), seed=0).train
    return train.x, train.y


def spread_within(images: torch.Tensor, made: Aggregation) -> float:
    """The mean squared distance of a picture to the point that stands for it."""
    flat = images.reshape(len(images), -1).double()
    points = made.points.reshape(len(made), -1).double()
    parts = [((flat[m] - point) ** 2).sum() for m, point in zip(made.members, points, strict=True)]
    return float(sum(parts)) / len(images)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("ratio", [5, 10, 20])
def test_points_are_means_of_the_original_pictures_of_one_class(
    method: module.MethodName, ratio: int, digits: tuple[torch.Tensor, torch.Tensor]
) -> None:
    x, y = digits
    made = aggregate(x, y, method, ratio, seed=1)
    assert torch.equal(torch.cat(made.members).sort().values, torch.arange(len(x)))
    for point, label, members in zip(made.points, made.labels, made.members, strict=True):
        assert (y[members] == label).all()
        torch.testing.assert_close(point, x[members].double().mean(0).float())
    assert made.points.shape[1:] == x.shape[1:]
    assert len(x) / len(made) == pytest.approx(ratio, rel=0.1)


@pytest.mark.parametrize("method", METHODS)
def test_what_is_alike_comes_together(
    method: module.MethodName, digits: tuple[torch.Tensor, torch.Tensor]
) -> None:
    x, y = digits
    made = aggregate(x, y, method, 10, seed=1)
    shuffled = np.random.default_rng(0)
    random = []  # the same labels and sizes, but subsets at random
    for label in y.unique().tolist():
        places = torch.from_numpy(shuffled.permutation((y == label).nonzero().flatten().numpy()))
        sizes = [len(m) for m, own in zip(made.members, made.labels, strict=True) if own == label]
        random += list(torch.split(places, sizes))
    points = torch.stack([x[m].double().mean(0) for m in random])
    by_chance = spread_within(x, Aggregation(points, made.labels, tuple(random)))
    assert spread_within(x, made) < 0.8 * by_chance


@pytest.mark.parametrize("method", METHODS)
def test_groups_that_lie_far_apart_are_found(method: module.MethodName) -> None:
    dice = np.random.default_rng(3)
    centres = dice.integers(0, 256, size=(4, 12, 12))
    group = dice.permutation(np.repeat(np.arange(4), 16))
    noise = dice.integers(-3, 4, size=(64, 12, 12))
    x = torch.from_numpy(np.clip(centres[group] + noise, 0, 255).astype(np.uint8))[:, None]
    made = aggregate(x, torch.zeros(64, dtype=torch.int64), method, 4, seed=0)
    mixed = sum(len(set(group[m.numpy()].tolist())) > 1 for m in made.members)
    assert mixed <= 2


@pytest.mark.parametrize("method", METHODS)
def test_the_same_seed_gives_the_same_and_another_another(
    method: module.MethodName, digits: tuple[torch.Tensor, torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = digits[0][:400], digits[1][:400]

    def members(seed: int) -> list[list[int]]:
        return [m.tolist() for m in aggregate(x, y, method, 5, seed).members]

    first = members(1)
    monkeypatch.setattr(module.cache, "_read", lambda folder: (_ for _ in ()).throw(OSError()))
    assert members(1) == first
    assert members(2) != first


def test_it_is_done_once(digits: tuple[torch.Tensor, torch.Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = digits
    first = aggregate(x, y, "hash-kmeans", 10, seed=0)
    monkeypatch.setattr(module, "_divide", lambda *_: pytest.fail("divided again"))
    again = aggregate(x, y, "hash-kmeans", 10, seed=0)
    assert torch.equal(first.points, again.points)
    assert all(map(torch.equal, first.members, again.members))
    monkeypatch.undo()


def test_other_pictures_are_not_taken_for_those_in_the_cache(
    digits: tuple[torch.Tensor, torch.Tensor],
) -> None:
    x, y = digits
    aggregate(x, y, "hash-kmeans", 10, seed=0)
    other = x.clone()
    other[0, 0, 0, 0] += 1
    made = aggregate(other, y, "hash-kmeans", 10, seed=0)
    first = next(i for i, m in enumerate(made.members) if 0 in m)
    torch.testing.assert_close(made.points[first], other[made.members[first]].double().mean(0).float())


def test_progress_is_told_up_to_the_end(digits: tuple[torch.Tensor, torch.Tensor]) -> None:
    told: list[tuple[str, int, int | None]] = []
    aggregate(*digits, "isvd-lsh", 10, 0, progress=lambda *what: told.append(what))
    done = [d for _, d, _ in told]
    assert done[0] == 0
    assert done[-1] == len(digits[0])
    assert done == sorted(done)


@given(
    st.integers(1, 40),
    st.integers(1, 3),
    st.sampled_from(METHODS),
    st.floats(1, 50),
    st.booleans(),
    st.integers(1, 30),
)
def test_any_set_is_partitioned_within_its_classes(
    count: int, classes: int, method: module.MethodName, ratio: float, equal: bool, features: int
) -> None:
    dice = np.random.default_rng(count)
    x = dice.integers(0, 256, size=(count, 1, 1, features)).astype(np.uint8)
    x = torch.from_numpy(np.zeros_like(x) if equal else x)
    y = torch.from_numpy(dice.integers(0, classes, size=count))
    made = aggregate(x, y, method, ratio, seed=0)
    assert torch.equal(torch.cat(made.members).sort().values, torch.arange(count))
    assert all((y[m] == label).all() for m, label in zip(made.members, made.labels, strict=True))
    assert all(len(m) for m in made.members)


def test_nothing_to_aggregate() -> None:
    made = aggregate(torch.zeros(0, 1, 4, 4), torch.zeros(0, dtype=torch.int64), "svd-kmeans", 10, 0)
    assert (len(made), made.members, made.points.shape) == (0, (), (0, 1, 4, 4))


def test_what_cannot_be_is_refused(digits: tuple[torch.Tensor, torch.Tensor]) -> None:
    with pytest.raises(JobError, match="choose one of svd-kmeans"):
        aggregate(*digits, "svd", 10, 0)  # type: ignore[arg-type]
    with pytest.raises(JobError, match="at least 1"):
        aggregate(*digits, "svd-kmeans", 0.5, 0)


def test_dimensions_are_those_of_the_paper() -> None:
    assert [reduced_dimensions(3072, method, 10) for method in METHODS] == [10, 5, 10]
    assert [reduced_dimensions(784, "isvd-lsh", ratio) for ratio in (5, 10, 20)] == [4, 3, 2]


def test_a_larger_ratio_and_fewer_pictures_cost_less() -> None:
    for method in METHODS:
        assert aggregation_flops(5000, 784, method, 20) <= aggregation_flops(5000, 784, method, 5)
        assert aggregation_flops(100, 784, method, 5) < aggregation_flops(5000, 784, method, 5)

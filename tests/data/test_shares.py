from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manyhands.data import plan_shares, train_validation
from manyhands.errors import JobError


def whole(shares, total):
    """Every example exactly once."""
    return np.array_equal(np.sort(np.concatenate(shares)), np.arange(total))


@st.composite
def problems(draw):
    devices = draw(st.integers(1, 12))
    classes = draw(st.integers(1, 12))
    seed = draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    weights = rng.uniform(0.3, 3, devices)
    fractions = weights / weights.sum()
    total = draw(st.integers(int(3 / fractions.min()) + 1, 800))
    labels = rng.choice(classes, total, p=rng.dirichlet(np.full(classes, 3.0)))
    return labels, list(fractions), seed


@given(problems())
def test_iid_covers_everything_and_keeps_the_sizes(problem):
    labels, fractions, seed = problem
    shares = plan_shares(labels, fractions, rng=np.random.default_rng(seed))
    assert whole(shares, len(labels))
    for share, fraction in zip(shares, fractions, strict=True):
        assert abs(len(share) - fraction * len(labels)) < 1 + 1e-6
        assert (np.diff(share) > 0).all()


@given(problems(), st.floats(1e-4, 1e4))
def test_dirichlet_covers_everything_and_keeps_the_sizes(problem, alpha):
    labels, fractions, seed = problem
    shares = plan_shares(labels, fractions, kind="dirichlet", alpha=alpha, rng=np.random.default_rng(seed))
    assert whole(shares, len(labels))
    for share, fraction in zip(shares, fractions, strict=True):
        assert abs(len(share) - fraction * len(labels)) < 1 + 1e-6
        assert len(share) >= 2


@given(problems(), st.data())
def test_by_class_covers_everything_within_the_classes(problem, data):
    labels, fractions, seed = problem
    classes = np.unique(labels)
    fewest = -(-len(classes) // len(fractions))
    held = data.draw(st.integers(fewest, len(classes)))
    try:
        shares = plan_shares(
            labels, fractions, kind="by_class", classes_per_device=held, rng=np.random.default_rng(seed)
        )
    except JobError:
        # Right only where a class has too few examples for all who hold it.
        assert np.unique(labels, return_counts=True)[1].min() < 2 * len(fractions)
        return
    assert whole(shares, len(labels))
    for k, share in enumerate(shares):
        first = k * len(classes) // len(fractions)
        allowed = classes[(first + np.arange(held)) % len(classes)]
        assert set(labels[share]) <= set(allowed)
        assert len(share) >= 2


def test_equal_seeds_deal_equally_and_others_do_not():
    labels = np.arange(300) % 10
    for kind in ("iid", "dirichlet", "by_class"):
        deals = [
            plan_shares(
                labels, [0.5, 0.3, 0.2], kind=kind, classes_per_device=7, rng=np.random.default_rng(seed)
            )
            for seed in (1, 1, 2)
        ]
        assert all(np.array_equal(a, b) for a, b in zip(deals[0], deals[1], strict=True))
        assert not all(np.array_equal(a, b) for a, b in zip(deals[0], deals[2], strict=True))


def test_dirichlet_is_more_skewed_the_smaller_alpha_is():
    labels = np.arange(20_000) % 10

    def skew(alpha):
        shares = plan_shares(labels, [0.05] * 20, kind="dirichlet", alpha=alpha, rng=np.random.default_rng(0))
        return np.mean([np.bincount(labels[s], minlength=10).max() / len(s) for s in shares])

    skews = [skew(alpha) for alpha in (0.001, 0.1, 0.5, 5, 1000)]
    assert skews == sorted(skews, reverse=True)
    assert skews[0] > 0.8
    assert skews[2] == pytest.approx(0.38, abs=0.12)  # what Dirichlet(0.5) over ten classes gives
    assert skews[-1] < 0.13


def test_by_class_deals_contiguous_classes():
    labels = np.repeat(np.arange(10), 20)
    shares = plan_shares(labels, [0.2] * 5, kind="by_class", rng=np.random.default_rng(0))
    assert [sorted(set(labels[s])) for s in shares] == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]
    assert [len(s) for s in shares] == [40] * 5
    shares = plan_shares(
        labels, [0.25] * 4, kind="by_class", classes_per_device=5, rng=np.random.default_rng(0)
    )
    assert [sorted(set(labels[s])) for s in shares] == [
        [0, 1, 2, 3, 4],
        [2, 3, 4, 5, 6],
        [5, 6, 7, 8, 9],
        [0, 1, 7, 8, 9],
    ]
    assert all(abs(len(s) - 50) <= 5 for s in shares)


def test_by_class_follows_the_fractions_where_the_classes_allow():
    labels = np.repeat(np.arange(4), 250)
    shares = plan_shares(
        labels, [0.4, 0.1, 0.4, 0.1], kind="by_class", classes_per_device=3, rng=np.random.default_rng(0)
    )
    assert [round(len(s) / 1000, 2) for s in shares] == pytest.approx([0.4, 0.1, 0.4, 0.1], abs=0.01)


@pytest.mark.parametrize(
    ("fractions", "key"),
    [
        ([0.5, 0.6], "fleet.device[].share"),
        ([0.5, 0.4], "fleet.device[].share"),
        ([1.2, -0.2], "fleet.device[0].share"),
        ([1.0, 0.0], "fleet.device[1].share"),
        ([float("nan"), 1.0], "fleet.device[0].share"),
        ([], "fleet.device"),
    ],
)
def test_fractions_that_are_none(fractions, key):
    with pytest.raises(JobError) as caught:
        plan_shares(np.zeros(100, int), fractions, rng=np.random.default_rng(0))
    assert caught.value.key == key


@pytest.mark.parametrize("kind", ["iid", "dirichlet", "by_class"])
def test_a_device_without_examples_is_refused(kind):
    with pytest.raises(JobError, match=r"fleet.device\[1\] would get 1 of 100") as caught:
        plan_shares(np.arange(100) % 2, [0.99, 0.01], kind=kind, rng=np.random.default_rng(0))
    assert caught.value.key == "data.shares"


@pytest.mark.parametrize("held", [1, 11])
def test_classes_per_device_that_cannot_be(held):
    with pytest.raises(JobError, match="from 2 to 10") as caught:
        plan_shares(
            np.arange(100) % 10,
            [0.2] * 5,
            kind="by_class",
            classes_per_device=held,
            rng=np.random.default_rng(0),
        )
    assert caught.value.key == "data.classes_per_device"


def test_unknown_kind():
    with pytest.raises(JobError, match="by_class"):
        plan_shares(np.zeros(9, int), [1.0], kind="fair", rng=np.random.default_rng(0))


def test_a_thousand_devices_take_little_time():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 100, 50_000)
    began = time.process_time()
    for kind in ("iid", "dirichlet", "by_class"):
        shares = plan_shares(labels, [0.001] * 1000, kind=kind, alpha=0.1, rng=rng)
        assert whole(shares, 50_000)
    assert time.process_time() - began < 5  # 0.2 s when nothing else runs


@given(st.integers(0, 300), st.integers(1, 20), st.booleans(), st.integers(0, 2**32 - 1))
@settings(max_examples=60)
def test_train_validation_is_80_to_20(count, classes, stratified, seed):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, 1000)
    indices = rng.choice(1000, count, replace=False)
    train, validation = train_validation(indices, labels if stratified else None, rng)
    assert np.array_equal(np.sort(np.concatenate([train, validation])), np.sort(indices))
    if count >= 2:
        assert len(train) >= 1
        assert len(validation) == max(1, round(count * 0.2))


def test_train_validation_keeps_the_balance_of_classes():
    labels = np.repeat([0, 1, 2], [500, 50, 450])
    _, validation = train_validation(np.arange(1000), labels, np.random.default_rng(3))
    assert np.bincount(labels[validation]).tolist() == pytest.approx([100, 10, 90], abs=1)

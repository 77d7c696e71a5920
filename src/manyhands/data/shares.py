"""Which examples a device holds: numbers in, indices out.

Every example goes to exactly one device. A device's size is its explicit fraction of the whole, to
within one example, for ``iid`` and ``dirichlet``; for ``by_class`` it is as close to it as the device's
classes allow. Three ways to deal:

- ``iid``: a random permutation, cut into pieces. Not stratified: a small share has the class balance
  that chance gave it, as independent draws have.
- ``dirichlet``: label skew as in Hsu et al. 2019 and Li et al. 2022. One Gamma(alpha) variate for each
  device and class (normalised over devices or over classes, these are the Dirichlet(alpha) variates of
  the two papers), scaled by iterative proportional fitting until devices have their sizes and classes
  are used up. So the fractions hold, which plain Dirichlet partitions leave to chance.
- ``by_class``: device k holds `classes_per_device` neighbouring classes, starting at class
  floor(k * classes / devices) and wrapping around; each class is divided among those who hold it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from manyhands.errors import JobError

__all__ = ["plan_class_shares", "plan_shares", "train_validation"]

Array = np.ndarray[Any, np.dtype[Any]]

FEWEST = 2  # examples of a device: one to train on, one to validate with
VALIDATION_FRACTION = 0.2


def plan_shares(
    labels: Array,
    fractions: Sequence[float],
    *,
    rng: np.random.Generator,
    kind: str = "iid",
    alpha: float = 0.5,
    classes_per_device: int | None = None,
) -> list[Array]:
    """Deals the examples out.

    Args:
        labels: The label of every example, integer [N].
        fractions: The part of the examples that each device holds; they sum to 1.
        rng: The only source of chance.
        kind: ``iid``, ``dirichlet`` or ``by_class``.
        alpha: For ``dirichlet``: the smaller, the more unlike the devices.
        classes_per_device: For ``by_class``: how many classes a device holds at most; None: as few as
            cover every class.

    Returns:
        For each device the indices of its examples, ascending.

    Raises:
        JobError: The fractions are no fractions of a whole, or someone would have fewer than two examples.
    """
    sizes = _sizes(len(labels), fractions, kind)
    if kind == "iid":
        owner = np.empty(len(labels), np.int64)
        owner[rng.permutation(len(labels))] = np.repeat(np.arange(len(sizes)), sizes)
        return _by_owner(owner, len(sizes))
    _, label, per_class = np.unique(labels, return_inverse=True, return_counts=True)
    if kind == "dirichlet":
        counts = _dirichlet(sizes, per_class, alpha, rng)
    elif kind == "by_class":
        counts = _by_class(sizes, per_class, classes_per_device)
    else:
        raise JobError("data.shares", kind, 'must be "iid", "dirichlet" or "by_class"')
    return _by_owner(_deal(label, counts, rng), len(sizes))


def plan_class_shares(
    labels: Array,
    held: Sequence[Sequence[int]],
    fractions: Sequence[float],
    *,
    rng: np.random.Generator,
    whole: bool = False,
) -> list[Array]:
    """Deals the examples of each class to those who hold it.

    Args:
        labels: The label of every example, integer [N].
        held: The classes of each device; every class is with one at least.
        fractions: Of each device; those who share a class divide it in proportion to theirs.
        rng: The only source of chance.
        whole: Give each of them all examples of its classes instead.

    Returns:
        For each device the indices of its examples, ascending.
    """
    per_class = np.bincount(labels, minlength=max(max(own) for own in held) + 1)
    weights = np.zeros((len(held), len(per_class)))
    for device, own in enumerate(held):
        weights[device, list(own)] = fractions[device]
    counts = _whole(weights * (per_class / np.maximum(weights.sum(0), 1e-300)))
    if whole:
        counts = (weights > 0) * per_class
    for poor in np.flatnonzero(counts.sum(1) < FEWEST):
        expected = (
            f"the classes of device {poor + 1} have {counts[poor].sum()} examples for it, and it needs "
        )
        expected += f"at least {FEWEST}: use more data, or fewer devices"
        raise JobError("split.task.data", "whole" if whole else "dealt", expected)
    if whole:
        return [np.flatnonzero(np.isin(labels, own)) for own in held]
    return _by_owner(_deal(labels, counts, rng), len(held))


def train_validation(
    indices: Array, labels: Array | None, rng: np.random.Generator, fraction: float = VALIDATION_FRACTION
) -> tuple[Array, Array]:
    """Splits one device's examples, 80/20 unless told otherwise.

    Args:
        indices: The examples of the device, as `plan_shares` gives them.
        labels: The labels of *all* examples (`indices` point into them), to keep the balance of
            classes in both parts; None for a plain random split.
        rng: The only source of chance.
        fraction: The part to validate with; 0 for none.

    Returns:
        Indices to train on and to validate with, ascending. Both are nonempty when there are two examples or
        more and `fraction` is not 0.
    """
    indices = np.asarray(indices)
    count = len(indices)
    if count < FEWEST or fraction == 0:
        return indices.copy(), indices[:0].copy()
    order = rng.permutation(count)
    if labels is not None:
        order = order[np.argsort(np.asarray(labels)[indices[order]], kind="stable")]
    # Evenly spaced picks from the examples in order of class: each class gives its fifth.
    num_validation = min(max(1, round(count * fraction)), count - 1)
    picks = ((np.arange(num_validation) + rng.random()) * count / num_validation).astype(np.int64)
    chosen = np.zeros(count, bool)
    chosen[order[np.minimum(picks, count - 1)]] = True
    return np.sort(indices[~chosen]), np.sort(indices[chosen])


def _sizes(total: int, fractions: Sequence[float], kind: str) -> Array:
    """Whole numbers that sum to the total, each within one of its fraction of it."""
    parts = np.asarray(fractions, float)
    if parts.ndim != 1 or len(parts) == 0:
        raise JobError("fleet.device", None, "there must be at least one device")
    for k in np.flatnonzero(~((parts > 0) & (parts <= 1))):
        raise JobError(f"fleet.device[{k}].share", float(parts[k]), "must be above 0 and at most 1")
    if abs(parts.sum() - 1) > 1e-6:
        raise JobError("fleet.device[].share", None, f"the shares must sum to 1, not to {parts.sum():.6g}")
    exact = parts / parts.sum() * total
    sizes: Array = np.floor(exact).astype(np.int64)
    left_over = total - sizes.sum()
    sizes[np.argsort(sizes - exact, kind="stable")[:left_over]] += 1
    for k in np.flatnonzero(sizes < FEWEST):
        raise _too_few(kind, int(k), int(sizes[k]), total)
    return sizes


def _too_few(kind: str, device: int, size: int, total: int) -> JobError:
    return JobError(
        "data.shares",
        kind,
        f"fleet.device[{device}] would get {size} of {total} examples, and every device needs at least "
        f"{FEWEST}: use more data, fewer devices or a larger share",
    )


def _dirichlet(sizes: Array, per_class: Array, alpha: float, rng: np.random.Generator) -> Array:
    shape = (len(sizes), len(per_class))
    # Logarithms of Gamma(alpha) variates (Gamma(alpha + 1) times U**(1 / alpha)): for a small alpha the
    # variates themselves would all be 0. Scaling rows and columns does not change what the fit arrives at.
    log_variates = np.log(rng.gamma(alpha + 1, size=shape)) + np.log1p(-rng.random(shape)) / alpha
    log_variates -= log_variates.max(1, keepdims=True)
    log_variates -= log_variates.max(0)
    # A trace of every class keeps the fit solvable.
    wanted = _fit(np.exp(log_variates) + 1e-9, sizes, per_class)
    counts = _whole(wanted)
    _repair(counts, wanted, sizes)
    return counts


def _by_class(sizes: Array, per_class: Array, classes_per_device: int | None) -> Array:
    devices, classes = len(sizes), len(per_class)
    fewest = -(-classes // devices)
    held = fewest if classes_per_device is None else classes_per_device
    if not fewest <= held <= classes:
        raise JobError(
            "data.classes_per_device",
            held,
            f"must be from {fewest} to {classes}: {devices} devices have to hold {classes} classes",
        )
    first = np.arange(devices) * classes // devices
    holds = np.zeros((devices, classes), bool)
    holds[np.arange(devices)[:, None], (first[:, None] + np.arange(held)) % classes] = True
    counts = _whole(_fit(holds * sizes[:, None].astype(float), sizes, per_class))
    _feed(counts, holds)
    return counts


def _fit(weights: Array, sizes: Array, per_class: Array) -> Array:
    """Scales rows towards the sizes and columns to the classes, in turn; the columns end up exact."""
    for _ in range(200):
        weights = weights * (sizes / np.maximum(weights.sum(1), 1e-300))[:, None]
        weights = weights * (per_class / weights.sum(0))
        if np.abs(weights.sum(1) - sizes).max() < 0.01:
            break
    return weights


def _whole(wanted: Array) -> Array:
    """Rounds so that each column keeps its (whole) sum and each entry moves by less than one."""
    upto = np.rint(np.cumsum(wanted, 0) - 1e-9).astype(np.int64)
    return np.diff(upto, axis=0, prepend=0)


def _repair(counts: Array, wanted: Array, sizes: Array) -> None:
    """Moves single examples from devices with too many to those with too few, within a class."""
    excess = counts.sum(1) - sizes
    for giver in np.flatnonzero(excess > 0):
        for _ in range(excess[giver]):
            over = np.where(counts[giver] > 0, counts[giver] - wanted[giver], -np.inf)
            label = int(np.argmax(over))
            takers = np.flatnonzero(excess < 0)
            taker = takers[np.argmax(wanted[takers, label] - counts[takers, label])]
            counts[giver, label] -= 1
            counts[taker, label] += 1
            excess[taker] += 1


def _feed(counts: Array, holds: Array) -> None:
    """Gives devices with hardly any examples some from the others who hold the same classes."""
    totals = counts.sum(1)
    for taker in np.flatnonzero(totals < FEWEST):
        while totals[taker] < FEWEST:
            spare = np.where((counts > 0) & (totals > FEWEST)[:, None] & holds[taker], counts, 0)
            giver, label = np.unravel_index(np.argmax(spare), spare.shape)
            if spare[giver, label] == 0:
                raise _too_few("by_class", int(taker), int(totals[taker]), int(totals.sum()))
            counts[giver, label] -= 1
            counts[taker, label] += 1
            totals[giver] -= 1
            totals[taker] += 1


def _deal(label: Array, counts: Array, rng: np.random.Generator) -> Array:
    """The owner of every example, when device k is to have counts[k, c] of class c."""
    owner = np.empty(len(label), np.int64)
    shuffled = rng.permutation(len(label))
    by_label = shuffled[np.argsort(label[shuffled], kind="stable")]
    owner[by_label] = np.repeat(np.tile(np.arange(len(counts)), counts.shape[1]), counts.T.ravel())
    return owner


def _by_owner(owner: Array, devices: int) -> list[Array]:
    ends = np.cumsum(np.bincount(owner, minlength=devices))
    return np.split(np.argsort(owner, kind="stable"), ends[:-1])

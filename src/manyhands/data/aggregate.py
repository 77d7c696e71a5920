"""Aggregated points: a few hundred means that stand for thousands of pictures.

Section 3.2 of Han et al., doi:10.1109/TPDS.2020.3046440, class by class in three steps: pictures are reduced
to a few figures each, divided into subsets of similar ones, and each subset is given the mean of its
*original* pictures (equation 1). The combinations of reduction and division are the three that they keep.

- ``svd-kmeans``: a singular value decomposition of the class, and k-means. (The cost they state, N d^(3/2),
  is that of decomposing each picture by itself; subsets found in that way hardly hold what is alike.)
- ``isvd-lsh``: an incremental one (the generalized Hebbian algorithm of Gorrell, EACL 2006) on a sample of
  the features, and locality-sensitive hashing: random projections, at each of which a subset falls in two.
- ``hash-kmeans``: a fingerprint, every feature hashed into one of a few signed sums, and k-means.
"""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from manyhands.data import cache
from manyhands.data.examples import Array, Progress, silent
from manyhands.errors import JobError
from manyhands.seeds import numpy_generator

__all__ = ["METHODS", "Aggregation", "MethodName", "aggregate", "aggregation_flops", "reduced_dimensions"]

MethodName = Literal["svd-kmeans", "isvd-lsh", "hash-kmeans"]
METHODS: tuple[MethodName, ...] = get_args(MethodName)

DIMENSIONS = 10
ITERATIONS = 20
HEBBIAN_RATE = 0.001
HEBBIAN_DECAY = 0.015
HEBBIAN_FEATURES = 0.01
HEBBIAN_BLOCK = 64
SVD_ITERATIONS = 2
VERSION = 1
"""Of the arithmetic; a cached division of another version is not used."""


@dataclass(frozen=True)
class Aggregation:
    """Aggregated points and whom they stand for.

    Attributes:
        points: float32 [M, ...], in the units of the pictures.
        labels: int64 [M].
        members: For each point, the places of its pictures, ascending. Every place is in one of them.
    """

    points: torch.Tensor
    labels: torch.Tensor
    members: tuple[torch.Tensor, ...]

    def __len__(self) -> int:
        return len(self.labels)


def aggregate(
    images: torch.Tensor,
    labels: torch.Tensor,
    method: MethodName,
    ratio: float,
    seed: int,
    progress: Progress | None = None,
) -> Aggregation:
    """Divides pictures into subsets of one class each and takes their means.

    The division is kept in the cache folder, under what it was made from.

    Args:
        images: [N, ...], uint8 or floating.
        labels: int64 [N].
        method: One of `METHODS`.
        ratio: Pictures to a point, on average.
        seed: Decides over projections and first centres.
        progress: Told how many pictures are divided.

    Raises:
        JobError: There is no such method, or no such ratio.
    """
    if method not in METHODS:
        raise JobError("method", method, f"there is no such aggregation; choose one of {', '.join(METHODS)}")
    if not 1 <= ratio < math.inf:
        raise JobError("ratio", ratio, "must be at least 1: so many pictures have one aggregated point")
    flat = np.asarray(images.detach().cpu().flatten(1))
    classes = np.asarray(labels.detach().cpu())
    key = f"aggregated-{_digest(flat, classes, method, float(ratio), seed)}"
    kept = cache.remembered(key, lambda: _divide(flat, classes, method, ratio, seed, progress or silent))
    order, sizes = torch.from_numpy(np.array(kept["order"])), torch.from_numpy(np.array(kept["sizes"]))
    members = torch.split(order, sizes.tolist())
    points = _means(flat, kept["order"], kept["sizes"])
    first = order[torch.cumsum(sizes, 0) - sizes]
    return Aggregation(
        torch.from_numpy(points).reshape(len(sizes), *images.shape[1:]), labels.detach().cpu()[first], members
    )


def reduced_dimensions(num_features: int, method: MethodName, ratio: float) -> int:
    """The d' of section 4.3: ten, or for the incremental decomposition log2(0.1 d / ratio)."""
    if method != "isvd-lsh":
        return min(DIMENSIONS, num_features)
    return min(max(round(math.log2(max(0.1 * num_features / ratio, 1.0))), 2), num_features)


def aggregation_flops(num_examples: int, num_features: int, method: MethodName, ratio: float) -> float:
    """Operations of an aggregation, for a simulator to charge (the paper's table 3, with its constants).

    K-means of a class compares its pictures with its own centres only; ten classes are assumed.
    """
    n, d, k = float(num_examples), float(num_features), reduced_dimensions(num_features, method, ratio)
    means = n * d
    centres = max(n / ratio / 10, 1.0)
    kmeans = 2.0 * ITERATIONS * n * centres * k
    if method == "svd-kmeans":
        return 4.0 * (SVD_ITERATIONS + 2) * n * d * (k + 10) + kmeans + means
    if method == "hash-kmeans":
        return 2.0 * n * d + kmeans + means
    sampled = max(HEBBIAN_FEATURES * d, k)
    hebbian = 6.0 * ITERATIONS * n * sampled * k
    return hebbian + 2.0 * n * k * math.log2(max(centres, 2.0)) + means


def _digest(flat: Array, classes: Array, *more: object) -> str:
    sha = hashlib.sha256(repr((VERSION, flat.shape, str(flat.dtype), *more)).encode())
    sha.update(np.ascontiguousarray(flat).data)
    sha.update(np.ascontiguousarray(classes).data)
    return sha.hexdigest()[:24]


def _divide(
    flat: Array, classes: Array, method: MethodName, ratio: float, seed: int, progress: Progress
) -> dict[str, Array]:
    """All places in the order of their subsets, and how many each has."""
    reduce_, split = _STEPS[method]
    dimensions = reduced_dimensions(flat.shape[1], method, ratio)
    order: list[Array] = []
    sizes: list[Array] = []
    done = 0
    progress(f"aggregating by {method}", 0, len(flat))
    # One thread: with more, sums are taken in an order that depends on timing.
    with threadpool_limits(limits=1):
        for label in np.unique(classes).tolist():
            places = np.flatnonzero(classes == label)
            dice = numpy_generator(seed, "aggregate", label)
            count = max(round(len(places) / ratio), 1)
            subset = _subsets(flat[places], count, dimensions, reduce_, split, dice)
            order.append(places[np.argsort(subset, kind="stable")])
            sizes.append(np.unique(subset, return_counts=True)[1])
            done += len(places)
            progress(f"aggregating by {method}", done, len(flat))
    return {
        "order": np.concatenate(order).astype(np.int64) if order else np.zeros(0, np.int64),
        "sizes": np.concatenate(sizes).astype(np.int64) if sizes else np.zeros(0, np.int64),
    }


Reduce = Callable[[Array, int, np.random.Generator], Array]
Split = Callable[[Array, int, np.random.Generator], Array]


def _subsets(
    x: Array, count: int, dimensions: int, reduce_: Reduce, split: Split, dice: np.random.Generator
) -> Array:
    """The number of each picture's subset."""
    if count == 1:
        return np.zeros(len(x), np.int64)
    if count == len(x):
        return np.arange(len(x))
    scale = 255.0 if x.dtype == np.uint8 else 1.0
    floats = x.astype(np.float32) / np.float32(scale)
    floats -= floats.mean(axis=0)
    return split(reduce_(floats, dimensions, dice), count, dice)


# Step 1: a few figures for each picture.


def _svd(x: Array, dimensions: int, dice: np.random.Generator) -> Array:
    from sklearn.utils.extmath import randomized_svd  # noqa: PLC0415  (a second to import; others go without)

    if x.shape[1] <= dimensions:
        return x
    state = int(dice.integers(2**31))
    u, s, _ = randomized_svd(x, dimensions, n_iter=SVD_ITERATIONS, random_state=state)
    reduced: Array = u * s
    return reduced


def _incremental_svd(x: Array, dimensions: int, dice: np.random.Generator) -> Array:
    """Right singular vectors learned block by block, never seeing all at once: V += η (yᵀx - tri(yᵀy) V)."""
    count = min(x.shape[1], max(2 * dimensions, round(HEBBIAN_FEATURES * x.shape[1])))
    sample = np.ascontiguousarray(x[:, np.sort(dice.choice(x.shape[1], count, replace=False))])
    vectors = dice.normal(0.0, count**-0.5, (dimensions, count)).astype(np.float32)
    for _ in range(ITERATIONS):
        for start in range(0, len(sample), HEBBIAN_BLOCK):
            block = sample[start : start + HEBBIAN_BLOCK]
            y = block @ vectors.T
            step = y.T @ block - np.tril(y.T @ y) @ vectors - len(block) * HEBBIAN_DECAY * vectors
            vectors += HEBBIAN_RATE * step
    projected: Array = sample @ vectors.T
    return projected


def _fingerprint(x: Array, dimensions: int, dice: np.random.Generator) -> Array:
    """Each feature is hashed to one of a few sums and to a sign there (feature hashing)."""
    places = dice.integers(dimensions, size=x.shape[1])
    signs = dice.choice(np.array([-1.0, 1.0], np.float32), size=x.shape[1])
    hashing = np.zeros((x.shape[1], dimensions), np.float32)
    hashing[np.arange(x.shape[1]), places] = signs
    sums: Array = x @ hashing
    return sums


# Step 2: subsets of similar ones.


def _kmeans(x: Array, count: int, dice: np.random.Generator) -> Array:
    from sklearn.cluster import KMeans  # noqa: PLC0415  (a second to import, and what is cached goes without)
    from sklearn.exceptions import ConvergenceWarning  # noqa: PLC0415

    state = int(dice.integers(2**31))
    means = KMeans(count, init="random", n_init=1, max_iter=ITERATIONS, random_state=state)
    with warnings.catch_warnings():  # fewer subsets than asked for, where pictures are equal, are welcome
        warnings.simplefilter("ignore", ConvergenceWarning)
        subset: Array = means.fit_predict(x)
    return subset


def _hashing(x: Array, count: int, dice: np.random.Generator) -> Array:
    """Buckets of one size: at each level a random projection sends half of a bucket either way."""
    order = np.arange(len(x))
    bounds = np.array([0, len(x)])
    buckets = np.array([count])  # that each part is still to fall into
    while buckets.max() > 1:
        part = np.repeat(np.arange(len(buckets)), np.diff(bounds))
        projected = x[order] @ dice.normal(size=x.shape[1]).astype(np.float32)
        order = order[np.lexsort((projected, part))]
        left = np.where(buckets > 1, (buckets + 1) // 2, buckets)
        sizes = np.diff(bounds)
        cut = np.rint(sizes * left / buckets).astype(np.int64)
        halves = np.stack([cut, sizes - cut], 1).ravel()
        counts = np.stack([left, buckets - left], 1).ravel()
        halves, counts = halves[counts > 0], counts[counts > 0]
        bounds, buckets = np.concatenate([[0], np.cumsum(halves)]), counts
    subset = np.empty(len(x), np.int64)
    subset[order] = np.repeat(np.arange(len(buckets)), np.diff(bounds))
    return subset


_STEPS: dict[MethodName, tuple[Reduce, Split]] = {
    "svd-kmeans": (_svd, _kmeans),
    "isvd-lsh": (_incremental_svd, _hashing),
    "hash-kmeans": (_fingerprint, _kmeans),
}


# Step 3: the mean of the original pictures of each.


def _means(flat: Array, order: Array, sizes: Array) -> Array:
    """Equation 1."""
    points = np.empty((len(sizes), flat.shape[1]), np.float32)
    end = 0
    for number, size in enumerate(sizes.tolist()):
        points[number] = flat[order[end : end + size]].mean(axis=0, dtype=np.float64)
        end += size
    return points

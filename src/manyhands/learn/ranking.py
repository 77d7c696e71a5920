"""In which order a device goes through its data, and where it stops (paper 002, algorithm 2).

Plain numbers, no network. The data is divided into sets, each represented by one aggregated point (the mean
of the set); a point's *effect* is its loss under the current network. Sets are gone through in the order of
their points.

Orders:

- ``effect``: the paper's. Points with the largest loss first, set after set.
- ``mixed``: the same sets, but their examples are shuffled before they are cut into batches. A batch of the
  paper's order is a few sets of one class each, and a step on such a batch undoes the one before.
- ``turns``: sets that have not been gone through for the longest time first, and of those the largest loss;
  shuffled. The part of the data that is left out of one epoch comes first in the next.
- ``sampled``: sets drawn without replacement, each with a chance in proportion to its loss and to how long
  ago it was gone through; shuffled.
- ``recalled``: examples drawn without replacement, each with a chance in proportion to the loss that it had
  when it was last trained on, which training knows anyway; shuffled. There are no points.
- ``random``: examples drawn without regard to any point.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

__all__ = [
    "Indices",
    "Order",
    "draw",
    "iterations",
    "needs_effects",
    "rank",
    "recalled_weights",
    "shuffled",
    "to_renew",
    "uses_points",
]

Order = Literal["effect", "mixed", "turns", "sampled", "recalled", "random"]
Indices = np.ndarray[Any, np.dtype[np.int64]]
Numbers = np.ndarray[Any, np.dtype[Any]]


RECALLED_FLOOR = 0.1
"""What every example has of the mean chance, however well it is known: a network forgets."""


def uses_points(order: Order) -> bool:
    """Whether an order looks at aggregated points at all."""
    return order not in ("recalled", "random")


def needs_effects(order: Order, ratio: float) -> bool:
    """Whether an order looks at effects; one that shuffles does not where nothing is left out."""
    return order == "effect" or (uses_points(order) and ratio < 1)


def rank(order: Order, effects: Numbers, last: Numbers, number: int, rng: np.random.Generator) -> Indices:
    """The points in the order in which their sets are gone through (algorithm 2, lines 2 and 3).

    Args:
        order: One that is not ``random``.
        effects: The points' losses.
        last: The epoch in which each point's set was last gone through; -1: never.
        number: The epoch.
        rng: For what is drawn.
    """
    known = np.where(np.isfinite(effects), effects, np.inf)
    if order == "turns":
        return np.lexsort((-known, last)).astype(np.int64)
    if order == "sampled":
        weight = np.clip(np.nan_to_num(effects, posinf=1e6), 1e-6, 1e6) * (number - last)
        return draw(weight, len(weight), rng)
    return np.argsort(-known, kind="stable").astype(np.int64)


def recalled_weights(losses: Numbers, last: Numbers) -> Numbers:
    """In proportion to what each example is drawn, by the loss that it had when it was last trained on.

    One never trained on counts as much as those of the last epoch on average, whose losses are the newest.

    Args:
        losses: What each had; not a number: never trained on.
        last: The epoch in which each was last trained on; -1: never.
    """
    known = np.isfinite(losses)
    if not known.any():
        return np.ones(len(losses))
    newest = known & (last == last[known].max())
    weights = np.where(known, losses, losses[newest].mean()).astype(np.float64)
    weights = np.clip(weights, 0.0, 1e6)
    return weights + max(RECALLED_FLOOR * float(weights.mean()), 1e-9)


def draw(weights: Numbers, count: int, rng: np.random.Generator) -> Indices:
    """So many places drawn without replacement, in proportion to their weights."""
    keys = np.log(weights) + rng.gumbel(size=len(weights))
    return np.argsort(-keys, kind="stable")[:count].astype(np.int64)


def to_renew(renewed: Numbers, last: Numbers, most: int) -> Indices:
    """The points whose effects are computed anew if there is time for so many.

    Those whose sets were trained on since come first, because their effects have changed the most, and then
    those that were computed the longest ago.

    Args:
        renewed: The epoch in which each effect was last computed; -1: never.
        last: The epoch in which each point's set was last gone through; -1: never.
        most: So many at most.
    """
    trained_since = last >= renewed
    return np.lexsort((renewed, ~trained_since))[:most].astype(np.int64)


def iterations(
    order: Indices, members: Sequence[Indices], batch_size: int, limit: int
) -> tuple[list[Indices], int]:
    """The batches of an epoch, of whole sets, up to `limit` examples (algorithm 2, lines 4 to 16).

    The last batch is cut where the limit is reached; one of a single example, on which batch normalisation
    cannot train, joins the one before it.

    Returns:
        The batches, and how many points' sets they have.
    """
    batches: list[Indices] = []
    processed, i = 0, 0  # lines 4 and 5
    while processed < limit and i < len(order):  # line 6
        here: list[Indices] = []
        size = 0
        while i < len(order) and size < batch_size:  # lines 8 to 13
            here.append(members[order[i]])
            size += len(here[-1])
            i += 1
        batch = np.concatenate(here)[: limit - processed]
        if len(batch) == 1 and batches:
            batches[-1] = np.concatenate([batches[-1], batch])
        else:
            batches.append(batch)  # line 14
        processed += len(batch)  # line 15
    return batches, i


def shuffled(
    order: Indices, members: Sequence[Indices], limit: int, rng: np.random.Generator
) -> tuple[Indices, int]:
    """The first `limit` examples of the sets in this order, mixed; and how many points' sets they have."""
    ends = np.cumsum([len(members[i]) for i in order])
    used = int(np.searchsorted(ends, limit)) + 1 if limit else 0
    picked = np.concatenate([members[i] for i in order[:used]])[:limit] if used else np.empty(0, np.int64)
    return rng.permutation(picked).astype(np.int64), min(used, len(order))

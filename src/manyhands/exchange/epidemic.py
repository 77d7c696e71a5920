"""Who meets whom where peers are drawn anew in every round (epidemic gossip).

All devices draw the same pairs from the job's seed and the round, so both ends of a pair know of each
other, and the weights of a round have the mean over the data as their fixed point, as those of fixed
neighbours have.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from manyhands.exchange.mixing import Pair, mixing_weights
from manyhands.seeds import numpy_generator

__all__ = ["meeting_rows", "round_pairs"]


def round_pairs(names: Sequence[str], seed: int, number: int, fanout: int = 1) -> list[Pair]:
    """The pairs of a round: `fanout` times everybody is paired at random; of an odd number one sits out."""
    rng = numpy_generator(seed, number, "epidemic")
    order = {name: place for place, name in enumerate(names)}
    pairs: dict[Pair, None] = {}
    for _ in range(fanout):
        drawn = [names[i] for i in rng.permutation(len(names))]
        for a, b in zip(drawn[::2], drawn[1::2], strict=False):
            pairs[(a, b) if order[a] < order[b] else (b, a)] = None
    return list(pairs)


def meeting_rows(
    device: str,
    number: int,
    *,
    holds: Mapping[str, Collection[str]],
    num_examples: Mapping[str, int],
    seed: int,
    fanout: int = 1,
) -> dict[str, dict[str, float]]:
    """Block -> peer -> how much the peer's version counts, for one device in one round."""
    pairs = round_pairs(tuple(holds), seed, number, fanout)
    rows = {}
    for block in holds[device]:
        both = [(a, b) for a, b in pairs if block in holds[a] and block in holds[b]]
        rows[block] = mixing_weights(both, num_examples).get(device, {})
    return rows

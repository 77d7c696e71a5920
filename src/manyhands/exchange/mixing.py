"""Who averages a block with whom where nobody coordinates, and with what weight.

Plain names and numbers, no tensors. A block's graph joins those who hold it; averaging along its edges,
round after round, brings all of them to the mean over their data. docs/decisions/0006-neighbours.md has the
reasons. How often they must average to agree, and the ring on which they could pass sums instead, are planned
here too (docs/decisions/0009-consensus.md).
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np
from networkx.utils import UnionFind

from manyhands.fleet import Fleet

__all__ = ["Pair", "block_graphs", "mixing_rows", "mixing_weights", "num_averagings", "ring_order"]

Pair = tuple[str, str]
"""Two devices that send each other a block, in fleet order."""


def mixing_rows(
    fleet: Fleet, holds: Mapping[str, Collection[str]], num_examples: Mapping[str, int]
) -> dict[str, dict[str, dict[str, float]]]:
    """Device -> block that it holds -> peer -> how much the peer's version counts.

    Args:
        fleet: The devices and their links.
        holds: Device -> its blocks.
        num_examples: Device -> how much data it trains on.
    """
    rows: dict[str, dict[str, dict[str, float]]] = {
        device: {block: {} for block in blocks} for device, blocks in holds.items()
    }
    for block, pairs in block_graphs(fleet, holds).items():
        for device, row in mixing_weights(pairs, num_examples).items():
            rows[device][block] = row
    return rows


def mixing_weights(pairs: Sequence[Pair], num_examples: Mapping[str, int]) -> dict[str, dict[str, float]]:
    """Metropolis-Hastings weights whose stationary distribution is the amount of data.

    With data pi and degree d: ``w_ij = min(1 / (d_i + 1), (pi_j / pi_i) / (d_j + 1))``, and a device's own
    version keeps the rest, at least ``1 / (d_i + 1)``. Since ``pi_i w_ij = pi_j w_ji``, an averaging changes
    nothing about the mean over the data. A device without data counts as one with a single example, because
    with none it would pass nothing on.

    Returns:
        Device -> peer -> weight, for each device of a pair, without its own.
    """
    peers: defaultdict[str, list[str]] = defaultdict(list)
    for a, b in pairs:
        peers[a].append(b)
        peers[b].append(a)
    data = {device: max(num_examples[device], 1) for device in peers}
    return {
        i: {j: min(1 / (len(near) + 1), data[j] / data[i] / (len(peers[j]) + 1)) for j in near}
        for i, near in peers.items()
    }


def num_averagings(
    weights: Mapping[str, Mapping[str, float]], num_examples: Mapping[str, int], tolerance: float
) -> int:
    """The fewest averagings after which every disagreement is at most `tolerance` of what it was.

    A disagreement is how far the versions are from their mean over the data, in the norm that weighs each
    with its data. Since ``pi_i w_ij = pi_j w_ji``, the mixing matrix is symmetric in that norm, and the
    disagreement that an averaging shrinks least is shrunk by the second largest absolute eigenvalue.

    Args:
        weights: Device -> peer -> weight, of one connected graph (`mixing_weights`).
        num_examples: Device -> how much data it trains on.
        tolerance: Between 0 and 1.
    """
    if len(weights) < 2:
        return 1
    index = {device: i for i, device in enumerate(weights)}
    mixing = np.zeros((len(index), len(index)))
    for device, row in weights.items():
        mixing[index[device], [index[peer] for peer in row]] = list(row.values())
        mixing[index[device], index[device]] = 1 - sum(row.values())
    root = np.sqrt([max(num_examples[device], 1) for device in index])
    shrinking = float(np.sort(np.abs(np.linalg.eigvalsh(root[:, None] * mixing / root)))[-2])
    if shrinking <= tolerance:
        return 1
    return math.ceil(math.log(tolerance) / math.log(shrinking) - 1e-9)  # 0.1 twice is 0.01, if not in floats


def ring_order(fleet: Fleet) -> tuple[str, ...]:
    """All devices, each followed where possible by one with a direct link, and the last by the first.

    Depth first from a device with the fewest links: a ring is followed link by link, a line from end to end.
    """
    order: dict[str, None] = {}
    waiting = [min(fleet.names, key=lambda name: len(fleet.neighbours(name)))]
    while waiting:
        here = waiting.pop()
        if here not in order:
            order[here] = None
            waiting += reversed(fleet.neighbours(here))
    return tuple(order)


def block_graphs(fleet: Fleet, holds: Mapping[str, Collection[str]]) -> dict[str, list[Pair]]:
    """The pairs of holders that exchange each block: one connected graph a block.

    These are the direct links between two holders and, where those leave the holders in several pieces, as
    few further pairs as join them, over as few hops as can be.

    Args:
        fleet: The devices and their links.
        holds: Device -> its blocks.
    """
    holders: dict[str, set[str]] = {}
    for device in fleet.names:
        for block in holds.get(device, ()):
            holders.setdefault(block, set()).add(device)
    return {block: _graph(fleet, members) for block, members in holders.items()}


def _graph(fleet: Fleet, holders: set[str]) -> list[Pair]:
    order = {device: position for position, device in enumerate(fleet.names)}
    linked = [(link.a, link.b) for link in fleet.links if link.a in holders and link.b in holders]
    pieces = UnionFind(holders)
    for a, b in linked:
        pieces.union(a, b)
    num_pieces = len({pieces[holder] for holder in holders})
    extra = _joining_pairs(fleet, holders, pieces) if num_pieces > 1 else ()
    return [(a, b) if order[a] < order[b] else (b, a) for a, b in (*linked, *extra)]


def _joining_pairs(fleet: Fleet, holders: set[str], pieces: UnionFind[str]) -> Iterator[Pair]:
    """A spanning tree over the pieces with the fewest hops in all.

    Every device belongs to its nearest holder. A link between the regions of two holders is a way from one
    to the other, and the shortest such ways are enough for a smallest tree (Mehlhorn 1988), so each link is
    looked at once instead of each pair of holders.
    """
    hops, nearest = _regions(fleet, holders)
    ways = []
    for position, link in enumerate(fleet.links):
        near, far = sorted((link.a, link.b), key=hops.__getitem__)
        if nearest[near] != nearest[far]:
            ways.append((hops[near] + 1 + hops[far], position, near, far))
    met = {device: [holder] for device, holder in nearest.items()}
    for _, _, near, far in sorted(ways):
        if pieces[nearest[near]] == pieces[nearest[far]]:
            continue
        pieces.union(nearest[near], nearest[far])
        at_far = met[far]
        # Several holders that are equally near to a device between them join in a tree of two branches, so
        # that no one of them has to exchange with all the others.
        yield at_far[(len(at_far) - 1) // 2], nearest[near]
        if hops[near] < hops[far]:
            at_far.append(nearest[near])


def _regions(fleet: Fleet, holders: set[str]) -> tuple[dict[str, int], dict[str, str]]:
    """How many hops each device is from its nearest holder, and which that is; the first of several."""
    nearest = {device: device for device in fleet.names if device in holders}
    hops = dict.fromkeys(nearest, 0)
    queue = deque(nearest)
    while queue:
        here = queue.popleft()
        for there in fleet.neighbours(here):
            if there not in hops:
                hops[there] = hops[here] + 1
                nearest[there] = nearest[here]
                queue.append(there)
    return hops, nearest

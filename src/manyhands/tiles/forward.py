"""The way forward through a group of nodes, for one tile."""

from __future__ import annotations

from torch import Tensor

from manyhands.tiles.convolving import begin_convolving, finish_convolving
from manyhands.tiles.operations import FORWARD, merge_moments, moments_of
from manyhands.tiles.peers import Pending
from manyhands.tiles.step import Step
from manyhands.tiles.values import Part, Value, unpacked

__all__ = ["forward_group"]


def forward_group(step: Step, group: int, *, again: bool = False) -> None:
    """Computes one group. `again`: from what was kept of the first time, without a message."""
    step.group = group
    found = step.program.regions.groups[group]
    first = found.first
    if not again and _import(step, group):
        first += 1
    for number in range(first, found.stop):
        if number not in step.program.norms_of:
            step.at(number)
            FORWARD[step.program.graph.nodes[number].kind](step, number)
    step.at(None)
    for number in found.exports:
        step.exports[number] = step.values[group][number]


def _import(step: Step, group: int) -> bool:
    """Puts together what the group reads: the tile's own part, and what its neighbours send of theirs.

    Over a network, what of the first convolution needs nothing of theirs is computed meanwhile; True if so.
    """
    program = step.program
    found = program.regions.groups[group]
    share = found.shares[program.tile]
    values = step.values[group]
    for node in found.imports:
        if node == 0:
            values[0] = step.exports[0]
            continue
        mine = program.owned(node).and_(share.needed[node])
        tensor = step.exports[node].view(program.owned(node))
        assert tensor is not None
        values[node] = Value([Part(mine, Part(program.owned(node), tensor).view(mine))] if mine.area else [])
    norm = program.first_norms[group]
    moments = moments_of(step, norm) if norm is not None else None
    pending = _send(step, group, moments)
    if pending is None:
        if moments is not None:
            merge_moments(step, norm, [moments])
        return False
    early = program.early[group] if step.peers.far else None
    begun = begin_convolving(step, found.first, early) if early else None
    received = pending.wait()
    if moments is not None:
        tails = {tile: flat[-moments.numel() :] for tile, flat in received.items()}
        merge_moments(step, norm, step.peers.in_order(moments, tails))
    for tile, pieces in program.receives[group].items():
        shapes = [step.shape(node, box) for node, box in pieces]
        for (node, box), tensor in zip(pieces, unpacked(received[tile], shapes), strict=True):
            values[node].parts.append(Part(box, tensor))
    if early and begun:
        finish_convolving(step, found.first, early, begun)
    return begun is not None


def _send(step: Step, group: int, moments: Tensor | None) -> Pending | None:
    """Posts one message to each tile that needs something of this one, a batch norm's sums packed with it."""
    program = step.program
    sends, receives = program.sends[group], program.receives[group]
    if step.peers.alone or not (sends or receives or moments is not None):
        return None
    extra = [] if moments is None else [moments]
    targets = step.peers.others if moments is not None else tuple(sends)
    outgoing = {}
    for tile in targets:
        pieces = []
        for node, box in sends.get(tile, ()):
            tensor = step.exports[node].view(box)
            assert tensor is not None
            pieces.append(tensor)
        outgoing[tile] = [*pieces, *extra]
    sizes = {}
    for tile in step.peers.others if moments is not None else tuple(receives):
        pixels = sum(step.size(node, box) for node, box in receives.get(tile, ()))
        sizes[tile] = pixels + sum(t.numel() for t in extra)
    return step.peers.exchange(outgoing, sizes, step.like)

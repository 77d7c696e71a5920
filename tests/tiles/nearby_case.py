"""What the ranks of `test_nearby.py` do; a module of its own, so that their processes can import it."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from manyhands.errors import RunError
from manyhands.tiles import nearby
from manyhands.tiles.nearby import PIECES, SUMS, Nearby
from manyhands.tiles.peers import Peers


def _met(rank: int, group: Any) -> Nearby:
    found = Peers(range(dist.get_world_size(group)), group, may_share=True).nearby
    assert found is not None
    return found


def talk(rank: int, group: Any, num_rounds: int) -> dict[str, Any]:
    """Everybody tells everybody two things at a time; they are read in another order than they were said."""
    here, world = _met(rank, group), dist.get_world_size(group)
    others = [other for other in range(world) if other != rank]
    wrong = []
    for number in range(num_rounds):
        size = 1000 * (1 + number % 40)
        here.send(SUMS, others, [torch.full((2 * size,), float(rank + 10 * number))])
        maps = torch.full((1, 4, 5, size), float(rank)).contiguous(memory_format=torch.channels_last)
        here.send(PIECES, others, [maps[:, :, 1:3], torch.arange(3.0)])
        for other in others:
            pieces, sums = here.receive(PIECES, other), here.receive(SUMS, other)
            wanted = torch.cat((torch.full((8 * size,), float(other)), torch.arange(3.0)))
            if not torch.equal(pieces.read(maps), wanted):
                wrong.append((number, other, "pieces"))
            if not torch.equal(sums.read(maps), torch.full((2 * size,), float(other + 10 * number))):
                wrong.append((number, other, "sums"))
            pieces.done()
            sums.done()
    return {"wrong": wrong, "blocks": len(here._blocks)}


def leave(rank: int, group: Any) -> tuple[list[float], str]:
    """The last rank says something and goes, without having read what it was told."""
    here, last = _met(rank, group), dist.get_world_size(group) - 1
    here.send(PIECES, [other for other in range(last + 1) if other != rank], [torch.tensor([7.0])])
    dist.barrier(group)
    if rank == last:
        del here
    dist.barrier(group)
    if rank == last:
        return [7.0], ""
    letter = here.receive(PIECES, last)
    heard = letter.read(torch.zeros(1)).tolist()
    letter.done()
    try:
        here.receive(PIECES, last)
    except RunError as error:
        return heard, str(error)
    return heard, "nothing was noticed"


def apart(rank: int, group: Any) -> bool:
    """One rank says that it is elsewhere; whether this one was given shared memory."""
    place = nearby._place
    if rank == 1:
        nearby._place = lambda: b"another machine!"
    try:
        return Peers(range(dist.get_world_size(group)), group, may_share=True).nearby is not None
    finally:
        nearby._place = place

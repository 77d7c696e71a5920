"""Words between the devices of a tile group, over `torch.distributed` or, on one machine, shared memory.

Tiles are numbered as in the plan and ranks as in the process group; here alone the two are translated. Small
sums are sent by everybody to everybody and added in the order of tiles, so that all have the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from manyhands.errors import JobError
from manyhands.tiles.nearby import PIECES, Nearby, lost, meet_nearby
from manyhands.tiles.values import packed

__all__ = ["Peers", "Pending", "sum_in_order"]


@dataclass(frozen=True)
class Pending:
    """Messages under way.

    Attributes:
        wait: Tile -> what came from it, a flat tensor; raises a `RunError` if a device of the group is gone.
    """

    wait: Callable[[], dict[int, Tensor]]


class Peers:
    """The devices of a plan, as one of them sees the others.

    Args:
        devices: Of each tile, the rank.
        group: The ranks.
        may_share: Whether ranks on one machine may speak through its memory.
    """

    def __init__(
        self, devices: Sequence[int], group: dist.ProcessGroup | None, *, may_share: bool = False
    ) -> None:
        self.devices = tuple(devices)
        self.group = group
        self.alone = len(devices) == 1
        if self.alone and not dist.is_initialized():
            self.rank = 0
        else:
            self.rank = dist.get_rank(group)
            if dist.get_world_size(group) != len(devices):
                expected = f"the process group has {dist.get_world_size(group)} ranks; make a tile for each"
                raise JobError("plan.devices", list(devices), expected)
        self.tile = self.devices.index(self.rank)
        self.others = tuple(tile for tile in range(len(devices)) if tile != self.tile)
        self.nearby: Nearby | None = None
        if may_share and not self.alone:
            tiles = [self.devices.index(rank) for rank in range(len(devices))]
            self.nearby = meet_nearby(tiles, self.tile, group)
        self.far = not self.alone and self.nearby is None
        """Whether messages take their time without taking the processor's."""

    def exchange(
        self, outgoing: Mapping[int, Sequence[Tensor]], sizes: Mapping[int, int], like: Tensor
    ) -> Pending:
        """Sends pieces to each of some tiles and expects so many numbers from each of others."""
        sent = {tile: pieces for tile, pieces in outgoing.items() if any(p.numel() for p in pieces)}
        expected = {tile: size for tile, size in sizes.items() if size}
        if self.nearby is None:
            return self._over_network({t: packed(pieces, like) for t, pieces in sent.items()}, expected, like)
        for tile, pieces in sent.items():
            self.nearby.send(PIECES, (tile,), pieces)
        return self._through_memory(self.nearby, tuple(expected), like)

    def share(self, mine: Tensor) -> Pending:
        """Sends a flat tensor to everybody and expects one as large from each."""
        if self.nearby is None:
            sizes = dict.fromkeys(self.others, mine.numel())
            return self._over_network(dict.fromkeys(self.others, mine), sizes, mine)
        self.nearby.send(PIECES, self.others, [mine])
        return self._through_memory(self.nearby, self.others, mine)

    def _over_network(
        self, outgoing: Mapping[int, Tensor], sizes: Mapping[int, int], like: Tensor
    ) -> Pending:
        received = {
            tile: torch.empty(size, dtype=like.dtype, device=like.device) for tile, size in sizes.items()
        }
        operations = [
            dist.P2POp(operation, flat, group=self.group, group_peer=self.devices[tile])
            for operation, flats in ((dist.irecv, received), (dist.isend, outgoing))
            for tile, flat in flats.items()
        ]
        if not operations:
            return Pending(dict)
        try:
            works = dist.batch_isend_irecv(operations)
        except RuntimeError as error:
            raise lost("a tile", error) from error

        def wait() -> dict[int, Tensor]:
            # NCCL gives one work for all of them. What is sent is kept until it is gone.
            for tile, work in zip((*received, *outgoing), works, strict=False):
                try:
                    work.wait()
                except RuntimeError as error:
                    raise lost(f"tile {tile}", error) from error
            return received

        return Pending(wait)

    def _through_memory(self, nearby: Nearby, tiles: Sequence[int], like: Tensor) -> Pending:
        def wait() -> dict[int, Tensor]:
            received = {}
            for tile in tiles:
                letter = nearby.receive(PIECES, tile)
                received[tile] = letter.read(like).clone()
                letter.done()
            return received

        return Pending(wait)

    def in_order(self, mine: Tensor, received: Mapping[int, Tensor]) -> list[Tensor]:
        """What each tile said, in the order of tiles."""
        return [
            mine if tile == self.tile else received[tile].view_as(mine) for tile in range(len(self.devices))
        ]

    def total(self, mine: Tensor) -> Tensor:
        """The sum of what everybody has, the same bits everywhere."""
        parts = self.in_order(mine, self.share(mine.contiguous().view(-1)).wait())
        return sum_in_order(parts)


def sum_in_order(parts: Sequence[Tensor]) -> Tensor:
    """The sum of tensors, first to last."""
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total

"""Words between the devices of a tile group, over `torch.distributed`.

Tiles are numbered as in the plan and ranks as in the process group; here alone the two are translated. Small
sums are sent by everybody to everybody and added in the order of tiles, so that all have the same bits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from manyhands.errors import JobError, RunError

__all__ = ["Peers", "Pending"]


@dataclass
class Pending:
    """Messages under way."""

    works: list[tuple[int, dist.Work]]
    received: dict[int, Tensor]
    kept: list[Tensor]

    def wait(self) -> dict[int, Tensor]:
        """Tile -> what came from it.

        Raises:
            RunError: A device of the group is gone.
        """
        for tile, work in self.works:
            try:
                work.wait()
            except RuntimeError as error:
                raise lost(f"tile {tile}", error) from error
        self.works, self.kept = [], []
        return self.received


class Peers:
    """The devices of a plan, as one of them sees the others."""

    def __init__(self, devices: Sequence[int], group: dist.ProcessGroup | None) -> None:
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

    def exchange(self, outgoing: Mapping[int, Tensor], sizes: Mapping[int, int], like: Tensor) -> Pending:
        """Sends a flat tensor to each of some tiles and expects one of a known size from each of others."""
        received = {
            tile: torch.empty(size, dtype=like.dtype, device=like.device)
            for tile, size in sizes.items()
            if size
        }
        sent = {tile: flat for tile, flat in outgoing.items() if flat.numel()}
        operations = [
            dist.P2POp(dist.irecv, flat, group=self.group, group_peer=self.devices[tile])
            for tile, flat in received.items()
        ]
        operations += [
            dist.P2POp(dist.isend, flat, group=self.group, group_peer=self.devices[tile])
            for tile, flat in sent.items()
        ]
        if not operations:
            return Pending([], received, [])
        try:
            works = dist.batch_isend_irecv(operations)
        except RuntimeError as error:
            raise lost("a tile", error) from error
        return Pending(list(zip((*received, *sent), works, strict=False)), received, list(sent.values()))

    def share(self, mine: Tensor) -> Pending:
        """Sends a flat tensor to everybody and expects one as large from each."""
        return self.exchange(dict.fromkeys(self.others, mine), dict.fromkeys(self.others, mine.numel()), mine)

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


def lost(who: str, error: RuntimeError) -> RunError:
    """The error for a device that does not answer."""
    reason = (str(error).strip() or type(error).__name__).splitlines()[0]
    return RunError(f"tile group: lost {who}, the step cannot be finished: {reason}")

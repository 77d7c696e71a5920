"""What the devices of a crew really take for each layer and for a message, told to all of them."""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.distributed as dist
from pydantic import TypeAdapter

from manyhands.tiles import TileGraph
from manyhands.tiles.measure import measure_link, measure_profile
from manyhands.tiles.profile import LinkProfile, Profile

__all__ = ["Timings"]

NO_LINK = LinkProfile(0.0, float("inf"))
_JSON: TypeAdapter[Profile] = TypeAdapter(Profile)


class Timings:
    """This device's profile, and those of the others; measured when they first meet, and kept."""

    def __init__(self, graph: TileGraph, name: str, batch_size: int) -> None:
        self._graph, self._name, self._batch_size = graph, name, batch_size
        self._own: Profile | None = None
        self._link: LinkProfile | None = None

    def __call__(
        self, here: tuple[str, ...], group: dist.ProcessGroup
    ) -> tuple[tuple[Profile, ...], LinkProfile]:
        """The profiles of the devices that are here, by rank, and the link; all must ask together."""
        alone = len(here) == 1
        # Devices measure each other's company too, and a message takes two: for one who lacks it all do.
        lacking = torch.tensor([self._own is None or (self._link is None and not alone)], dtype=torch.int64)
        dist.all_reduce(lacking, group=group)
        if self._own is None or lacking.item():
            self._own = measure_profile(self._name, self._graph, self._batch_size, group=group)
            self._link = None if alone else measure_link(group)
        profiles = tuple(_JSON.validate_json(text) for text in _shared(_JSON.dump_json(self._own), group))
        if alone:
            return profiles, NO_LINK
        link = self._link
        assert link is not None
        # They may have measured in other company, and must plan with the same numbers.
        numbers = torch.tensor([link.latency_s, link.bytes_per_s], dtype=torch.float64)
        dist.broadcast(numbers, 0, group=group)
        self._link = replace(link, latency_s=numbers[0].item(), bytes_per_s=numbers[1].item())
        return profiles, self._link


def _shared(text: bytes, group: dist.ProcessGroup) -> list[bytes]:
    """What each rank says, on every rank."""
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    sizes = torch.zeros(world, dtype=torch.int64)
    sizes[rank] = len(text)
    dist.all_reduce(sizes, group=group)
    said = torch.zeros(world, int(sizes.max()), dtype=torch.uint8)
    said[rank, : len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    dist.all_reduce(said, group=group)
    return [bytes(row[:size].tolist()) for row, size in zip(said, sizes.tolist(), strict=True)]

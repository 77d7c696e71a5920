"""Profiles and plans for the benchmarks of tiles: measured by all ranks at once, kept under `out/`."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import torch
import torch.distributed as dist

from manyhands.tiles import TileGraph
from manyhands.tiles.measure import measure_link, measure_profile
from manyhands.tiles.planner import make_plan
from manyhands.tiles.pricing import Prediction, Setting
from manyhands.tiles.profile import LinkProfile, Profile, read_profile

OUT = Path(__file__).resolve().parent.parent / "out"


def measured_profile(graph: TileGraph, batch_size: int, name: str) -> Profile:
    """All ranks measure at the same time and then take rank 0's profile, so that all plan alike."""
    path = OUT / f"passes-{name}-{len(graph.names)}-{batch_size}-{dist.get_world_size()}.json"
    known = torch.tensor([int(path.exists())])
    dist.broadcast(known, 0)
    if not known.item():
        mine = measure_profile("this machine", graph, batch_size)
        if dist.get_rank() == 0:
            mine.save(path)
    dist.barrier()
    profile = read_profile(path)
    assert profile is not None
    return profile


def setting_of(graph: TileGraph, batch_size: int, name: str = "local", *, apart: bool = False) -> Setting:
    """The devices of this process group as the planner sees them."""
    profile = measured_profile(graph, batch_size, name)
    link = shared_link(measure_link(share_memory=not apart))
    return Setting(graph, (profile,) * dist.get_world_size(), link, batch_size)


def shared_link(link: LinkProfile) -> LinkProfile:
    """Rank 0's figures, everywhere."""
    said = torch.tensor([link.latency_s, link.bytes_per_s], dtype=torch.float64)
    dist.broadcast(said, 0)
    return dataclasses.replace(link, latency_s=float(said[0]), bytes_per_s=float(said[1]))


def planned(graph: TileGraph, batch_size: int, name: str, *, apart: bool) -> Prediction:
    """The planner's choice for strips of rows of the whole network."""
    mode = "one" if batch_size == 1 else "data"
    shapes = [(dist.get_world_size(), 1)]
    setting = setting_of(graph, batch_size, name or "local", apart=apart)
    return make_plan(setting, tails=["output"], tail_modes=[mode], shapes=shapes)

"""The tiles' part in `tile_torch.py`: a plan, the tiled module, and how a step calls it."""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn

from manyhands.tiles import TiledModule, TilePlan, even_plan, read_graph, tile


def plan_of(model: nn.Module, options: argparse.Namespace, world: int) -> TilePlan:
    """Even tiles with borders before every layer (`none`) or never (`fused`), or the planner's."""
    shape = (3, 416, 416)
    graph = read_graph(model, shape)
    # After every pooling, where maps are smallest.
    stages = tuple(graph.name(n + 1) for n, node in enumerate(graph.nodes[:-1]) if node.kind == "maxpool")
    groups = {"none": None, "fused": (), "stages": stages}
    mode = "one" if options.batch == 1 else "data"
    if options.plan in groups:
        rows, cols = (int(side) for side in (options.grid or f"{world}x1").split("x"))
        starts = groups[options.plan]
        return even_plan(graph, rows, cols, group_starts=starts, tail="output", tail_mode=mode)
    from tile_planning import planned

    return planned(graph, options.batch, options.profile, apart=options.apart).plan


def tiled(
    model: nn.Module, x: Tensor, options: argparse.Namespace
) -> tuple[TiledModule, Callable[[], tuple[Tensor, int]]]:
    plan = plan_of(model, options, dist.get_world_size())
    wire = {"": None, "bf16": torch.bfloat16}[options.wire]
    module = tile(model, plan, checkpoint=options.checkpoint, wire_dtype=wire, share_memory=not options.apart)
    part = module.cut(x).contiguous(memory_format=torch.channels_last)
    total = options.batch * output_numbers(model)

    def forward() -> tuple[Tensor, int]:
        return module(part), total

    return module, forward


def output_numbers(model: nn.Module) -> int:
    """Numbers in the output for one image."""
    shape = read_graph(model, (3, 416, 416)).nodes[-1].shape
    return shape[0] * shape[1] * shape[2]

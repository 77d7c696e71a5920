"""A rank of `tile_links.py`: predicts and measures a step under several groupings."""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import os
import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from tile_planning import setting_of
from tile_torch import LEARNING_RATE, images, loss_of, network

from manyhands.tiles import even_plan, read_graph, tile
from manyhands.tiles.planner import make_plan
from manyhands.tiles.pricing import Prediction, predict


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", choices=("front", "all"), required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--accumulate", type=int, required=True)
    parser.add_argument("--repeats", type=int, required=True)
    parser.add_argument("--waiting", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", rank=rank, world_size=world, timeout=datetime.timedelta(seconds=300))
    model = network(options.layers)
    graph = read_graph(model, (3, 416, 416))
    setting = setting_of(graph, options.batch, "links")
    setting = dataclasses.replace(setting, steps_per_sum=options.accumulate)
    mode = "one" if options.batch == 1 else "data"
    plans = {
        "none": predict(setting, even_plan(graph, world, tail="output", tail_mode=mode)),
        "fused": predict(setting, even_plan(graph, world, group_starts=(), tail="output", tail_mode=mode)),
        "planned": make_plan(setting, tails=["output"], tail_modes=[mode], shapes=[(world, 1)]),
    }
    rounds = {name: prepared(model, plan, options) for name, plan in plans.items()}
    if options.waiting:
        rounds["waiting"] = prepared(model, plans["none"], options, waits=True)
    seconds: dict[str, list[float]] = {name: [] for name in rounds}
    for repeat in range(options.repeats + 1):
        for name, once in rounds.items():
            dist.barrier()
            start = time.perf_counter()
            once()
            dist.barrier()  # the slower rank counts
            if repeat:
                seconds[name].append((time.perf_counter() - start) / options.accumulate)
    if rank == 0:
        print(
            json.dumps({"link": dataclasses.asdict(setting.link), "results": answers(plans, seconds)}),
            flush=True,
        )
    dist.destroy_process_group()


def prepared(
    model: torch.nn.Module, plan: Prediction, options: argparse.Namespace, *, waits: bool = False
) -> Callable[[], None]:
    """A function that trains on some batches and sums the gradients once."""
    tiled = tile(model, plan.plan)
    if waits:
        tiled.peers.far = False  # as if messages took the processor's time: nothing is computed meanwhile
    part = tiled.cut(images(options.batch, 416)).contiguous(memory_format=torch.channels_last)
    total = options.batch * torch.Size(tiled.program.graph.output_shape).numel()
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)

    def once() -> None:
        optimizer.zero_grad()
        for _ in range(options.accumulate - 1):
            with tiled.no_sync():
                loss_of(tiled(part), total).backward()
        loss_of(tiled(part), total).backward()
        tiled.synchronise()
        optimizer.step()

    return once


def answers(plans: dict[str, Prediction], seconds: dict[str, list[float]]) -> list[dict[str, object]]:
    measured = {
        name: {"measured_s": statistics.median(all_s), "all_s": all_s} for name, all_s in seconds.items()
    }
    return [
        {
            "name": name,
            "groups": len(plan.plan.group_starts) + 1,
            "group_starts": plan.plan.group_starts,
            "rows": plan.plan.rows,
            "predicted_s": plan.step_s,
            "parts": dict(plan.parts),
            **measured[name],
        }
        for name, plan in plans.items()
    ] + [{"name": name, **found} for name, found in measured.items() if name not in plans]


if __name__ == "__main__":
    main()

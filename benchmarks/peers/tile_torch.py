"""A rank of the contestants of `tiles.py` that run on torch: one device, tiles, DDP, and the bound.

A rank is told on its standard input how many steps to take, answers with their times as one line of JSON, and
waits for its next turn: contestants are so interleaved without paying for a start each time. All ranks of a
contestant begin a turn together. An empty line ends it, after what it says of its memory.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from operator import itemgetter
from typing import Any

import psutil
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._profiler import _EventType
from torch.autograd.graph import saved_tensors_hooks
from torch.profiler import ProfilerActivity, profile

from manyhands.models.yolov2 import VOC_ANCHORS, YoloV2

SIDE = 416
LEARNING_RATE = 1e-4


def network(layers: str) -> nn.Module:
    """YOLOv2, or its layers 0 to 15 as darknet numbers them: where maps outweigh weights."""
    torch.manual_seed(1)
    whole = YoloV2(3, 20, VOC_ANCHORS)
    if layers == "all":
        return whole.to(memory_format=torch.channels_last)
    stages = whole.features
    last = nn.Sequential()
    for name, module in stages.stage5.named_children():
        if name == "conv13":
            break
        last.add_module(name, module)
    front = nn.Sequential(whole.stem, stages.stage2, stages.stage3, stages.stage4, last)
    return front.to(memory_format=torch.channels_last)


def images(count: int, rows: int) -> Tensor:
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(count, 3, rows, SIDE, generator=generator)
    return x.to(memory_format=torch.channels_last)


def loss_of(output: Tensor, total: int) -> Tensor:
    """The mean square over all that the group computes; the same for every contestant."""
    return output.square().sum() / total


Forward = Callable[[], tuple[Tensor, int]]


@dataclass(frozen=True)
class Trained:
    """A contestant: what is trained and how it is called.

    `between` comes between backward and the optimizer; `total` makes the whole batch's loss of a rank's, and
    every rank must call it.
    """

    module: nn.Module
    forward: Forward
    between: Callable[[], None] = lambda: None
    total: Callable[[Tensor], Tensor] = lambda loss: loss


def plain(model: nn.Module, x: Tensor) -> Forward:
    def forward() -> tuple[Tensor, int]:
        output = model(x)
        return output, output.numel()

    return forward


def contestant(options: argparse.Namespace, rank: int) -> Trained:
    model = network(options.layers)
    if options.kind == "one":
        return Trained(model, plain(model, images(options.batch, SIDE)))
    if options.kind == "bound":
        # Sides must be multiples of 32 for the whole network, so its halves are 7 and 6 cells high.
        rows = SIDE // 2 if options.layers == "front" else (224, 192)[rank]
        return Trained(model, plain(model, images(options.batch, rows)))
    if options.kind == "ddp":
        parallel = nn.parallel.DistributedDataParallel(model)
        forward = plain(parallel, images(max(1, options.batch // 2), SIDE))
        return Trained(parallel, forward, total=mean_over_ranks)
    from tile_ours import tiled

    tiles, called = tiled(model, images(options.batch, SIDE), options)
    return Trained(tiles, called, tiles.synchronise, tiles.total)


def mean_over_ranks(loss: Tensor) -> Tensor:
    dist.all_reduce(loss)
    return loss / dist.get_world_size()


def kept_bytes(model: nn.Module, forward: Callable[[], Tensor]) -> tuple[Tensor, int]:
    """The loss, and what is kept for the backward pass, weights apart, each storage once.

    Autograd's own operations save tensors where only a hook sees them; tiles keep theirs where the garbage
    collector does. What either of them finds counts.
    """
    weights = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}
    before = living_storages()
    kept: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage
        return tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = forward()
    found = {address: storage.nbytes() for address, storage in kept.items()}
    found |= {address: size for address, size in living_storages().items() if address not in before}
    kept.clear()  # the hook, and with it this, lives as long as the graph
    return loss, sum(size for address, size in found.items() if address not in weights)


def memory_of(
    model: nn.Module, forward: Callable[[], Tensor], back: Callable[[Tensor], None]
) -> dict[str, int]:
    """What is kept between the passes, and the most that the step, the first, holds beside gradients."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as profiler:
        loss, kept = kept_bytes(model, forward)
        back(loss)
        del loss
    assert profiler.profiler is not None
    taken = allocations(profiler.profiler.kineto_results.experimental_event_tree())
    gradients = {p.grad.untyped_storage().data_ptr() for p in model.parameters() if p.grad is not None}
    # Addresses are used again: the last time one was taken, it was for the gradient.
    last = {address: at for at, (_, address, size) in enumerate(taken) if size > 0 and address in gradients}
    apart = set(last.values())
    held = accumulate(size for at, (_, _, size) in enumerate(taken) if at not in apart)
    return {"activation_bytes": kept, "step_bytes": max(held)}


def allocations(events: list[Any]) -> list[tuple[int, int, int]]:
    """When memory was taken or, if its size is negative, given back, where, and how many bytes; in order."""
    found, left = [], list(events)
    while left:
        event = left.pop()
        left.extend(event.children)
        if event.tag == _EventType.Allocation:
            found.append((event.start_time_ns, event.extra_fields.ptr, event.extra_fields.alloc_size))
    return sorted(found, key=itemgetter(0))


def living_storages() -> dict[int, int]:
    """Address and size of the memory of every tensor that Python objects hold."""
    gc.collect()
    tensors = [thing for thing in gc.get_objects() if type(thing) in {Tensor, nn.Parameter}]
    return {
        t.untyped_storage().data_ptr(): t.untyped_storage().nbytes()
        for t in tensors
        if t.device.type == "cpu"
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kind", choices=("one", "tiles", "ddp", "bound"), required=True)
    parser.add_argument("--layers", choices=("front", "all"), required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--plan", default="")
    parser.add_argument("--profile", default="")
    parser.add_argument("--wire", default="")
    parser.add_argument("--checkpoint", action="store_true")
    parser.add_argument("--apart", action="store_true", help="no memory shared, as on hosts of their own")
    parser.add_argument("--grid", default="", help="rows and columns of tiles, as in 3x2")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", rank=rank, world_size=world)
    baseline = psutil.Process().memory_info().rss
    trained = contestant(options, rank)
    model, forward = trained.module, trained.forward
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)

    def back(loss: Tensor) -> None:
        loss.backward()
        trained.between()

    def step() -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(*forward())
        back(loss)
        optimizer.step()
        return loss.detach()

    memory = memory_of(model, lambda: loss_of(*forward()), back)
    settings = f"torch {torch.__version__}"
    print(json.dumps({"ready": settings}), flush=True)
    for line in sys.stdin:
        if not line.strip():
            break
        dist.barrier()
        times, parts = [], []
        for _ in range(int(line) + 1):  # the first warms the caches
            start = time.perf_counter()
            parts.append(step())
            times.append(time.perf_counter() - start)
        losses = [trained.total(part).item() for part in parts]
        print(json.dumps({"seconds": times[1:], "losses": losses}), flush=True)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"peak_bytes": peak - baseline, **memory}), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

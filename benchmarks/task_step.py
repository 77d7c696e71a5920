"""What a training step of a network decoupled by class costs, against the operations that it has.

VGG-16 for 3x32x32, whole and decoupled, with all classes and with some; the layers that all classes share,
alone, are the bound that no sub-model can pass. A step is forward, backward and SGD by the product's own
code. Networks take turns, and the table has the best of the repeats (a shared machine only ever adds time).

    python benchmarks/task_step.py [--device cuda] [--batch 128]
"""

from __future__ import annotations

import argparse
import copy
import datetime
import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from manyhands.learn.gradients import Gradients
from manyhands.learn.workspace import Architecture, layout_in_memory, workspace
from manyhands.models import ModelSection, build, cost_of
from manyhands.models.cost import _convolution_backward_flops
from manyhands.models.decoupled import decouple
from manyhands.models.grouped import GroupedConv2d

SHAPE = (3, 32, 32)
HELD = {10: (10, 5, 2), 100: (100, 50, 20, 2)}


@dataclass
class Contestant:
    """One network, with torch's grouped convolutions in a copy of it where it has any."""

    name: str
    held: str
    operations: int
    ours: Gradients
    plain: Gradients | None
    scores: int


def vgg16(num_classes: int) -> nn.Module:
    return build(ModelSection(name="vgg16"), SHAPE, num_classes, seed=1, size="full")


def decoupled(num_classes: int, held: int, first: str) -> nn.Module:
    """The network of the first classes; which channels they have makes no difference to time."""

    def choose(_layer: str, channels: int) -> tuple[Tensor, ...]:
        each = channels // num_classes
        return tuple(torch.arange(c * each, (c + 1) * each) for c in range(held))

    return decouple(vgg16(num_classes), first, range(held), choose).module


def shared(first: str) -> nn.Module:
    """The layers before the first decoupled one; the means of their maps are its scores."""
    model, layers = vgg16(10), []
    for name, layer in (*model.stem.named_children(), *model.features.named_children()):
        if name == first:
            break
        layers.append(layer)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())


def with_torch_groups(model: nn.Module) -> nn.Module:
    model = copy.deepcopy(model)
    for module in model.modules():
        if isinstance(module, GroupedConv2d):
            module.__class__ = nn.Conv2d
    return model


def contestant(name: str, held: str, model: nn.Module, device: str) -> Contestant:
    cost = cost_of(model, SHAPE)
    scores = model(torch.zeros(2, *SHAPE)).shape[1]

    def network(which: str, module: nn.Module) -> Gradients:
        architecture = Architecture((name, held, which), partial(copy.deepcopy, module), cost)
        return workspace(architecture, device, layout_in_memory("auto"))

    groups = any(isinstance(module, GroupedConv2d) and module.groups > 1 for module in model.modules())
    plain = network("plain", with_torch_groups(model)) if groups else None
    return Contestant(name, held, cost.train_flops, network("ours", model), plain, scores)


def contestants(device: str, first: str) -> list[Contestant]:
    found = [contestant("whole", "10 of 10", vgg16(10), device)]
    for classes, parts in HELD.items():
        found += [
            contestant("decoupled", f"{held} of {classes}", decoupled(classes, held, first), device)
            for held in parts
        ]
    return [*found, contestant("shared only", "-", shared(first), device)]


def counted(network: Gradients, x: Tensor, y: Tensor) -> int:
    """Operations an example, as torch counts them in a step that is computed."""
    # torch's own count of a backward pass takes grouped filters for full ones
    mapping = {torch.ops.aten.convolution_backward: _convolution_backward_flops}
    with FlopCounterMode(display=False, custom_mapping=mapping) as counter:
        network.compute(x, y)
    return counter.get_total_flops() // len(x)


def seconds(network: Gradients, x: Tensor, y: Tensor, steps: int) -> float:
    """Seconds a step."""
    optimizer = torch.optim.SGD(network.module.parameters(), lr=1e-4)
    started = 0.0
    for number in range(steps + 1):
        if number == 1:
            finish(x)
            started = time.perf_counter()
        network(x, y)
        optimizer.step()
    finish(x)
    return (time.perf_counter() - started) / steps


def finish(x: Tensor) -> None:
    if x.is_cuda:
        torch.cuda.synchronize()


def compare(networks: Sequence[Contestant], options: argparse.Namespace) -> None:
    device, steps = options.device, 50 if options.device != "cpu" else 1
    threads = [int(number) for number in options.threads.split(",")] if device == "cpu" else [1]
    draws = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (options.batch, *SHAPE), generator=draws, dtype=torch.uint8).to(device)
    best: dict[tuple[int, int, str], float] = {}
    operations = []
    for network in networks:
        y = torch.randint(0, network.scores, (options.batch,), generator=draws).to(device)
        operations.append(counted(network.ours, x, y))
        for kind in (network.ours, network.plain):
            if kind is not None:
                kind.prepare(x.shape)
    for _ in range(options.repeats):
        for number, network in enumerate(networks):
            y = torch.randint(0, network.scores, (options.batch,), generator=draws).to(device)
            for count in threads:
                torch.set_num_threads(count)
                for kind in ("ours", "plain"):
                    gradients = getattr(network, kind)
                    if gradients is not None:
                        took = seconds(gradients, x, y, steps)
                        best[number, count, kind] = min(took, best.get((number, count, kind), took))
    print(f"{'':24}{'operations an example':^28}" + "".join(f"{title(t, device):^34}" for t in threads))
    columns = f"{'torch groups':>14}{'ours':>12}{'faster':>8}"
    print(f"{'network':13}{'classes':11}{'cost.py':>10}{'counted':>10}{'fewer':>8}" + columns * len(threads))
    for number, network in enumerate(networks):
        line = f"{network.name:13}{network.held:11}{network.operations / 1e6:>8.0f} M"
        line += f"{operations[number] / 1e6:>8.0f} M{networks[0].operations / network.operations:>8.2f}"
        for count in threads:
            ours = best[number, count, "ours"]
            plain = best.get((number, count, "plain"))
            line += f"{'-':>14}" if plain is None else f"{plain * 1e3:>11.2f} ms"
            line += f"{ours * 1e3:>9.2f} ms{best[0, count, 'ours'] / ours:>8.2f}"
        print(line)


def title(threads: int, device: str) -> str:
    return device if device != "cpu" else f"{threads} thread{'s' if threads > 1 else ''}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--threads", default="1,2", help="torch threads, on the CPU")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--first", default="conv4_1", help="the first decoupled layer")
    parser.add_argument("--repeats", type=int, default=8)
    options = parser.parse_args()
    print(f"{platform.platform()}, torch {torch.__version__}, {datetime.date.today()}")
    print(f"VGG-16, decoupled from {options.first}, batch {options.batch}, best of {options.repeats}\n")
    compare(contestants(options.device, options.first), options)


if __name__ == "__main__":
    main()

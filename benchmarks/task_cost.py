"""What the split by task saves a device (paper 000, figure 5): operations of an epoch, and where they go.

VGG-16, decoupled by class, in rings of shrinking overlap. A device's epoch is its network over the data of
its own classes, and the averaging with its neighbours; it is held against an epoch of the whole network over
all data. The table has the two factors by themselves: operations for an example, and examples. Operations
come from `manyhands.models.cost`. Beside them stand, as ratios for the forward pass, what follows from the
shapes of weights and maps alone, and what torch.utils.flop_counter counts in a real pass.

    python benchmarks/task_cost.py [--first conv4_1] [--path DATA]

Classes are of equal size unless `--path` names a folder with the data sets, whose own sizes are then used.
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from manyhands.data import DataSection, load
from manyhands.models import ModelSection, build, cost_of
from manyhands.models.decoupled import Decoupled, decouple
from manyhands.models.grouped import GroupedLinear
from manyhands.splits.classes import ClassSet, ring

Shape = tuple[int, int, int]

# Data set: shape, classes, the part of a layer that a class has (paper 000); devices, overlap, classes each.
SETS: dict[str, tuple[Shape, int, float, tuple[tuple[int, int, int], ...]]] = {
    "cifar10": ((3, 32, 32), 10, 0.1, ((4, 2, 5), (5, 2, 4), (10, 1, 2))),
    "cifar100": ((3, 32, 32), 100, 0.01, ((4, 25, 50), (10, 10, 20), (20, 5, 10), (100, 1, 2))),
    "speech_commands": ((1, 49, 40), 12, 0.1, ((4, 3, 6), (6, 2, 4), (12, 1, 2))),
}


@dataclass(frozen=True)
class Epoch:
    """One device's epoch: its network, operations for an example, examples, and operations of averaging."""

    network: nn.Module
    cost: int
    examples: int
    examples_dealt: float
    averaging: int

    @property
    def flops(self) -> int:
        """All of it."""
        return self.cost * self.examples + self.averaging


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--first", default="conv4_1", help="the first decoupled layer")
    parser.add_argument("--path", type=Path, help="a folder with the data sets")
    said = parser.parse_args()
    table = Table(title=f"VGG-16 decoupled from {said.first}: a device's epoch and the whole network's")
    table.add_column("data")
    for column in ("devices", "classes each", "MFLOP an example", "from shapes, counted"):
        table.add_column(column, justify="right")
    for column in (
        "fewer operations",
        "fewer examples",
        "averaging",
        "saves",
        "least to most",
        "data dealt out",
    ):
        table.add_column(column, justify="right")
    for name, (shape, num_classes, part, rings) in SETS.items():
        model = build(ModelSection(name="vgg16"), shape, num_classes, seed=0)
        whole = cost_of(model, shape).train_flops
        sizes = [1000] * num_classes
        if said.path is not None:
            sizes = load(DataSection(name=name, path=said.path), seed=0).train.y.bincount().tolist()
        table.add_row(name, "1", f"all {num_classes}", f"{whole / 1e6:.0f}", *[""] * 4, "1.0")
        for num_devices, overlap, each in rings:
            held = ring(num_devices, num_classes, overlap, each)
            epochs = [
                epoch_of(model, shape, said.first, part, held, place, sizes)
                for place in range(
                    min(num_devices, 12)
                )  # the rest differ by the sizes of their classes at most
            ]
            table.add_row("", str(num_devices), str(each), *row(epochs, shape, whole, sum(sizes)))
    Console(width=150).print(table)


def row(epochs: list[Epoch], shape: Shape, whole: int, examples: int) -> list[str]:
    """The device in the middle, and how far the others are from it."""
    ordered = sorted(epochs, key=lambda epoch: epoch.flops)
    middle, everything = ordered[len(ordered) // 2], whole * examples
    forward = cost_of(middle.network, shape).forward_flops
    dealt = statistics.median(everything / (e.cost * e.examples_dealt + e.averaging) for e in epochs)
    return [
        f"{middle.cost / 1e6:.0f}",
        f"{from_shapes(middle.network, shape) / forward:.3f}, {counted(middle.network, shape) / forward:.3f}",
        f"{whole / middle.cost:.2f}",
        f"{examples / middle.examples:.2f}",
        f"{middle.averaging / 1e6:.1f} MFLOP",
        f"{everything / middle.flops:.1f}",
        f"{everything / ordered[-1].flops:.1f} to {everything / ordered[0].flops:.1f}",
        f"{dealt:.1f}",
    ]


def epoch_of(
    model: nn.Module,
    shape: Shape,
    first: str,
    part: float,
    held: list[ClassSet],
    place: int,
    sizes: list[int],
) -> Epoch:
    own = held[place]
    decoupled = sub_model(model, first, part, own)
    near = (held[place - 1], held[(place + 1) % len(held)])
    # A neighbour's version of a number is multiplied by its weight and added.
    averaging = 2 * sum(numbers(decoupled, len(own), len(set(own) & set(other))) for other in near)
    holders = {c: sum(c in other for other in held) for c in own}
    return Epoch(
        decoupled.module,
        cost_of(decoupled.module, shape).train_flops,
        sum(sizes[c] for c in own),
        sum(sizes[c] / holders[c] for c in own),
        averaging,
    )


def sub_model(model: nn.Module, first: str, part: float, classes: ClassSet) -> Decoupled:
    """The network of some classes; which filters they have does not matter to its cost."""

    def choose(_layer: str, channels: int) -> tuple[torch.Tensor, ...]:
        each = max(1, round(part * channels))
        return tuple((torch.arange(each) + c * each) % channels for c in classes)

    return decouple(model, first, classes, choose)


def numbers(decoupled: Decoupled, own: int, common: int) -> int:
    """How many numbers two devices average: the shared layers, and the structures of common classes."""
    state = decoupled.module.state_dict()
    by_class = sum(state[name].numel() for name in decoupled.by_class)
    return sum(tensor.numel() for tensor in state.values()) - by_class + by_class * common // own


def counted(model: nn.Module, shape: Shape) -> int:
    """Operations of a real forward pass on one example, as torch counts them."""
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model.eval()(torch.zeros(1, *shape))
    return counter.get_total_flops()


def from_shapes(model: nn.Module, shape: Shape) -> int:
    """Operations of the forward pass: every weight is used once for each pixel of its map."""
    total = 0

    def note(module: nn.Module, _inputs: object, output: torch.Tensor) -> None:
        nonlocal total
        if isinstance(module, nn.Conv2d | nn.Linear | GroupedLinear):
            total += 2 * module.weight.numel() * (output[0].numel() // len(module.weight))

    hooks = [module.register_forward_hook(note) for module in model.modules()]
    with torch.no_grad():
        model.eval()(torch.zeros(1, *shape))
    for hook in hooks:
        hook.remove()
    return total


if __name__ == "__main__":
    main()

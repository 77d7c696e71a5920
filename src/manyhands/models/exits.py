"""A deep network with an exit for each size: a weaker device trains only the first layers (DepthFL).

Kim et al., "DepthFL: Depthwise Federated Learning for Heterogeneous Clients" (2023). The features after the
stem are cut into as many pieces as there are sizes; each piece ends in a classifier of its own. A device has
the pieces up to its size, trains all their exits at once and answers with the mean of their scores. With
*distillation* the exits also learn from each other.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from manyhands.models.cost import layer_costs
from manyhands.models.dry import output_of
from manyhands.models.outputs import summed_cross_entropy

__all__ = ["EarlyExits", "cut_features"]


class EarlyExits(nn.Module):
    """One stem, and for each size up to its own the next features and an exit.

    Args:
        stem: The first layers.
        pieces: Size -> its features and its exit, shallowest first.
        distillation: How much the exits learn from each other, beside the labels; 0 for not at all.
    """

    def __init__(
        self, stem: nn.Module, pieces: Mapping[str, tuple[nn.Module, nn.Module]], distillation: float
    ) -> None:
        super().__init__()
        self.stem = stem
        self.branches = nn.ModuleDict(
            {
                size: nn.Sequential(OrderedDict(features=features, exit=exit_))
                for size, (features, exit_) in pieces.items()
            }
        )
        self.distillation = distillation

    def forward(self, x: Tensor) -> Tensor:
        """Class scores: in training those of every exit, [exits, N, C]; otherwise their mean, [N, C]."""
        x = self.stem(x)
        scores = []
        for piece in self.branches.values():
            features, exit_ = piece.children()
            x = features(x)
            scores.append(exit_(x))
        stacked = torch.stack(scores)
        return stacked if self.training else stacked.mean(0)

    def loss(self, scores: Tensor, y: Tensor) -> Tensor:
        """The sum of the exits' cross-entropies, and what each is told by the others."""
        total = summed_cross_entropy(scores, y)
        if self.distillation and len(scores) > 1:
            total = total + self.distillation * _disagreement(scores)
        return total


def _disagreement(scores: Tensor) -> Tensor:
    """For each exit the mean divergence from the others, summed; what an exit says teaches, not learns."""
    log_probabilities = F.log_softmax(scores, -1)
    teachers = log_probabilities.detach()
    exits, examples, _ = scores.shape
    pairs = [
        F.kl_div(log_probabilities[i], teachers[j], reduction="sum", log_target=True)
        for i in range(exits)
        for j in range(exits)
        if i != j
    ]
    return torch.stack(pairs).sum() / (examples * (exits - 1))


def cut_features(
    model: nn.Sequential, shape: tuple[int, int, int], num_classes: int, depths: Mapping[str, float]
) -> dict[str, tuple[nn.Module, nn.Module]]:
    """Cuts the features of a network of stem, features and classifier into pieces with exits.

    Args:
        model: The network; its parts are used, not copied.
        shape: Shape of one example.
        num_classes: What an exit puts out.
        depths: Size -> how much of the features' operations it should have, ascending to 1.

    Raises:
        ValueError: There are more sizes than places to cut.
    """
    stem, features, classifier = model
    assert isinstance(features, nn.Sequential)
    steps = _steps(features)
    if len(depths) > len(steps) + 1:
        raise ValueError(f"it can be cut to {len(steps) + 1} depths at most, not {len(depths)}")
    ends = _ends(_operations(model, steps, shape), list(depths.values()))
    pieces: dict[str, tuple[nn.Module, nn.Module]] = {}
    before: list[nn.Module] = [stem]
    for size, (start, end) in zip(depths, pairwise([0, *ends]), strict=True):
        piece = nn.Sequential(OrderedDict(item for step in steps[start:end] for item in step))
        before.append(piece)
        exit_ = classifier if end == len(steps) else _exit(nn.Sequential(*before), shape, num_classes)
        pieces[size] = piece, exit_
    return pieces


def _steps(features: nn.Sequential) -> list[list[tuple[str, nn.Module]]]:
    """The features' layers, a new step at each one that has weights of a convolution."""
    steps: list[list[tuple[str, nn.Module]]] = []
    # Not `named_children`, which leaves out a layer that stands in two places.
    for name, layer in zip(features._modules, features, strict=True):
        if not steps or any(isinstance(module, nn.Conv2d) for module in layer.modules()):
            steps.append([])
        steps[-1].append((name, layer))
    return steps


def _operations(
    model: nn.Sequential, steps: Sequence[Sequence[tuple[str, nn.Module]]], shape: tuple[int, int, int]
) -> list[int]:
    """Multiplications of each step."""
    costs = layer_costs(model, shape)
    return [
        sum(
            cost.macs
            for name, _ in step
            for cost in costs
            if cost.name == f"features.{name}" or cost.name.startswith(f"features.{name}.")
        )
        for step in steps
    ]


def _ends(operations: Sequence[int], depths: Sequence[float]) -> list[int]:
    """After which step each size ends: as near to its depth as leaves every size a step of its own."""
    total, so_far = sum(operations), [0]
    for count in operations:
        so_far.append(so_far[-1] + count)
    ends: list[int] = []
    for number, depth in enumerate(depths):
        first = ends[-1] + 1 if ends else min(1, len(operations) + 1 - len(depths))
        last = len(operations) - (len(depths) - 1 - number)
        ends.append(min(range(first, last + 1), key=lambda end: abs(so_far[end] - depth * total)))
    ends[-1] = len(operations)
    return ends


def _exit(before: nn.Module, shape: tuple[int, int, int], num_classes: int) -> nn.Module:
    maps = output_of(before, shape)
    if not isinstance(maps, Tensor) or maps.dim() != 4:
        raise ValueError("it can be cut only where there are maps, [N, C, H, W]")
    out = nn.Linear(maps.shape[1], num_classes)
    nn.init.normal_(out.weight, std=0.01)
    nn.init.zeros_(out.bias)
    return nn.Sequential(OrderedDict(pool=nn.AdaptiveAvgPool2d(1), flatten=nn.Flatten(), out=out))

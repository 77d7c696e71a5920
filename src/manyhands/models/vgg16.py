"""VGG-16 with batch normalisation (Simonyan and Zisserman 2015; paper 000), in its form for 32×32 images.

One dense layer follows the thirteen convolutions: 14,728,266 parameters and 313 million multiplications at
3×32×32 with ten classes. Each of the five stages ends with a pooling, except where only one pixel a side is
left (from 28×28 downwards), so that small images work too.
"""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from manyhands.models.dry import flat_size
from manyhands.models.initial import he_initial
from manyhands.models.narrow import narrowed

__all__ = ["build"]

SIZES = ("full",)
STAGES = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))


def build(
    size: str, *, shape: tuple[int, int, int], num_classes: int, width: float = 1.0, stem_width: float = 1.0
) -> nn.Module:
    """A VGG-16; its stem is the first stage, its convolutions are named conv1_1 to conv5_3."""
    channels, *sides = shape
    stages = []
    for number, (full, depth) in enumerate(STAGES, start=1):
        maps = narrowed(full, stem_width if number == 1 else width)
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        for place in range(1, depth + 1):
            layers[f"conv{number}_{place}"] = nn.Conv2d(channels, maps, 3, padding=1)
            layers[f"bn{number}_{place}"] = nn.BatchNorm2d(maps)
            layers[f"relu{number}_{place}"] = nn.ReLU()
            channels = maps
        if min(sides) >= 2:
            layers[f"pool{number}"] = nn.MaxPool2d(2)
            sides = [side // 2 for side in sides]
        stages.append(layers)
    stem, features = nn.Sequential(stages[0]), nn.Sequential(OrderedDict(_joined(stages[1:])))
    out = nn.Linear(flat_size(nn.Sequential(stem, features), shape), num_classes)
    classifier = nn.Sequential(OrderedDict([("flatten", nn.Flatten()), ("out", out)]))
    model = nn.Sequential(OrderedDict(stem=stem, features=features, classifier=classifier))
    he_initial(model, out)
    return model


def _joined(stages: list[OrderedDict[str, nn.Module]]) -> list[tuple[str, nn.Module]]:
    return [item for stage in stages for item in stage.items()]

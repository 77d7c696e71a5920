"""AlexNet (Krizhevsky 2012, in the one-column form of "One weird trick", 2014; papers 000 and 002).

`full` keeps every layer and the 4096-wide classifier: 61,100,840 parameters with ImageNet's 1000 classes
(paper 002 says 61.5 million), 57,044,810 with ten. `small` has the same convolutions and one dense layer,
2,472,266 parameters with ten classes, the form usual for CIFAR.

The original shrinks 224×224 to 6×6 maps. Here the stride of the 11×11 convolution follows the image so that
8 or more pixels a side remain (4 at 32×32, 1 at 8×8), and `full` pools only as far as 6×6.
"""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn

from manyhands.models.dry import flat_size, output_of
from manyhands.models.flatten import Flatten
from manyhands.models.initial import he_initial

__all__ = ["build"]

SIZES = ("small", "full")


def build(size: str, *, shape: tuple[int, int, int], num_classes: int, dropout: float = 0.5) -> nn.Module:
    """An AlexNet; `dropout` is that of the full classifier."""
    with torch.device("meta"):  # so that 57 million weights are drawn once, not twice
        model, out = _layers(size, shape, num_classes, dropout)
    model.to_empty(device="cpu")
    he_initial(model, out)
    return model


def _layers(
    size: str, shape: tuple[int, int, int], num_classes: int, dropout: float
) -> tuple[nn.Sequential, nn.Linear]:
    """The network without weights, and its output layer."""
    stride = min(4, max(1, min(shape[1:]) // 8))
    stem = nn.Sequential(
        OrderedDict(conv1=nn.Conv2d(shape[0], 64, 11, stride=stride, padding=5), relu1=nn.ReLU())
    )
    features = _features(stem, shape, down_to=1 if size == "small" else 6)
    width = flat_size(nn.Sequential(stem, features), shape)
    layers: OrderedDict[str, nn.Module] = OrderedDict(flatten=Flatten())
    if size == "full":
        for number in (6, 7):
            layers[f"drop{number}"] = nn.Dropout(dropout)
            layers[f"dense{number}"], layers[f"relu{number}"] = nn.Linear(width, 4096), nn.ReLU()
            width = 4096
    out = layers["out"] = nn.Linear(width, num_classes)
    return nn.Sequential(OrderedDict(stem=stem, features=features, classifier=nn.Sequential(layers))), out


def _features(stem: nn.Module, shape: tuple[int, int, int], down_to: int) -> nn.Sequential:
    """Convolutions 2 to 5, with pooling that stops at maps of `down_to` pixels a side."""
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    channels = 64
    for number, (width, kernel) in enumerate(((192, 5), (384, 3), (256, 3), (256, 3)), start=2):
        if number in (2, 3):
            layers[f"pool{number - 1}"] = _pool(min(_sides(stem, layers, shape)), down_to)
        layers[f"conv{number}"] = nn.Conv2d(channels, width, kernel, padding=kernel // 2)
        layers[f"relu{number}"] = nn.ReLU()
        channels = width
    layers["pool5"] = _pool(min(_sides(stem, layers, shape)), down_to)
    height, width = _sides(stem, layers, shape)
    if max(height, width) > down_to:  # oblong images, and much larger ones than ImageNet's
        layers["fit"] = nn.AdaptiveMaxPool2d((min(height, down_to), min(width, down_to)))
    return nn.Sequential(layers)


def _pool(side: int, down_to: int) -> nn.Module:
    """Halves the map, or takes off its border where halving would go below `down_to`."""
    if down_to == 1:
        return nn.MaxPool2d(2)
    if side >= 2 * down_to + 1:
        return nn.MaxPool2d(3, stride=2)
    return nn.MaxPool2d(3, stride=1) if side > down_to else nn.Identity()


def _sides(
    stem: nn.Module, layers: OrderedDict[str, nn.Module], shape: tuple[int, int, int]
) -> tuple[int, int]:
    """Height and width of the maps after the layers so far."""
    output = output_of(nn.Sequential(stem, *layers.values()), shape)
    assert isinstance(output, Tensor)
    return output.shape[2], output.shape[3]

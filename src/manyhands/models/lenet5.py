"""LeNet-5 (LeCun et al., "Gradient-based learning applied to document recognition", 1998; paper 002).

With ReLU and max-pooling, as it is used today: 61,706 parameters on 28×28 grey images. It was drawn for
32×32; smaller images are padded inside the convolutions (the first below 32, the second below 28), so that
MNIST gives the original's 5×5 maps before the dense layers, and 8×8 digits still give 2×2.
"""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from manyhands.models.dry import flat_size
from manyhands.models.flatten import Flatten
from manyhands.models.initial import he_initial
from manyhands.models.narrow import narrowed

__all__ = ["build"]

# (maps of the second convolution, widths of the hidden dense layers)
SIZES: dict[str, tuple[int, tuple[int, ...]]] = {"small": (8, (32,)), "full": (16, (120, 84))}


def build(
    size: str, *, shape: tuple[int, int, int], num_classes: int, width: float = 1.0, stem_width: float = 1.0
) -> nn.Module:
    """A LeNet-5; the small one keeps the stem and has fewer maps and one hidden layer."""
    maps, hidden = SIZES[size]
    first, maps = narrowed(6, stem_width), narrowed(maps, width)
    side = min(shape[1:])
    stem = nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(shape[0], first, 5, padding=0 if side >= 32 else 2),
            relu1=nn.ReLU(),
            pool1=nn.MaxPool2d(2),
        )
    )
    features = nn.Sequential(
        OrderedDict(
            conv2=nn.Conv2d(first, maps, 5, padding=0 if side >= 28 else 2),
            relu2=nn.ReLU(),
            pool2=nn.MaxPool2d(2),
        )
    )
    inputs = flat_size(nn.Sequential(stem, features), shape)
    layers: OrderedDict[str, nn.Module] = OrderedDict(flatten=Flatten())
    for number, full_units in enumerate(hidden, start=3):
        units = narrowed(full_units, width)
        layers[f"dense{number}"], layers[f"relu{number}"] = nn.Linear(inputs, units), nn.ReLU()
        inputs = units
    out = layers["out"] = nn.Linear(inputs, num_classes)
    model = nn.Sequential(OrderedDict(stem=stem, features=features, classifier=nn.Sequential(layers)))
    he_initial(model, out)
    return model

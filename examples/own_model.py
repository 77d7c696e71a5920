"""A network of your own: any callable that gives an `nn.Module`.

Arguments named `shape` (channels, height, width) and `num_classes` are filled in from the data; others come
from `[model] options`.
"""

from torch import nn


def make(shape: tuple[int, int, int], num_classes: int, width: int = 16) -> nn.Module:
    """Two convolutions and a mean over the picture."""
    return nn.Sequential(
        nn.Conv2d(shape[0], width, 3, padding=1),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.Conv2d(width, 2 * width, 3, padding=1, stride=2),
        nn.BatchNorm2d(2 * width),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(2 * width, num_classes),
    )

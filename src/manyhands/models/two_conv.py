"""The two-convolution network on which federated-learning simulators are compared for speed.

Two 3×3 convolutions without padding, one pooling, one hidden dense layer, dropout: 1,626,442 parameters on
CIFAR-10. Small enough that the cost of everything around the arithmetic shows.
"""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from manyhands.models.dry import flat_size
from manyhands.models.flatten import Flatten

__all__ = ["build"]

SIZES = ("full",)


def build(size: str, *, shape: tuple[int, int, int], num_classes: int) -> nn.Module:
    """The network, with torch's default first weights."""
    stem = nn.Sequential(OrderedDict(conv1=nn.Conv2d(shape[0], 32, 3), relu1=nn.ReLU()))
    features = nn.Sequential(
        OrderedDict(
            conv2=nn.Conv2d(32, 64, 3),
            pool2=nn.MaxPool2d(2),
            relu2=nn.ReLU(),  # the same after the maximum as before it, on a quarter of the numbers
            drop2=nn.Dropout(0.25),
        )
    )
    width = flat_size(nn.Sequential(stem, features), shape)
    classifier = nn.Sequential(
        OrderedDict(
            flatten=Flatten(),
            dense3=nn.Linear(width, 128),
            relu3=nn.ReLU(),
            drop3=nn.Dropout(0.5),
            out=nn.Linear(128, num_classes),
        )
    )
    return nn.Sequential(OrderedDict(stem=stem, features=features, classifier=classifier))

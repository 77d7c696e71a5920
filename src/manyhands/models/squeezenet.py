"""SqueezeNet 1.1 (Iandola et al. 2016; paper 002), with a first convolution of stride 1 for small images.

722,496 parameters before the last convolution, 727,626 with ten classes (1,235,496 with ImageNet's 1000, as
published). The stride does not change the weights; without it 32×32 images would end as single pixels.
The original's ReLU on the class scores is left out: without it the first steps on CIFAR-10 went faster (one
seed, 180 steps).
"""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn

from manyhands.models.initial import he_initial

__all__ = ["Fire", "build"]

SIZES = ("full",)


class Fire(nn.Module):
    """Squeezes to few channels, then expands by 1×1 and 3×3 convolutions side by side."""

    def __init__(self, channels: int, squeezed: int, expanded: int) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(channels, squeezed, 1)
        self.expand1 = nn.Conv2d(squeezed, expanded, 1)
        self.expand3 = nn.Conv2d(squeezed, expanded, 3, padding=1)
        self.relu = nn.ReLU()
        self.groups = 1

    def forward(self, x: Tensor) -> Tensor:
        """Maps [N, channels, H, W] to [N, 2 * expanded, H, W], group after group."""
        x = self.relu(self.squeeze(x))
        parts = [part.unflatten(1, (self.groups, -1)) for part in (self.expand1(x), self.expand3(x))]
        y: Tensor = self.relu(torch.cat(parts, dim=2).flatten(1, 2))
        return y


def build(size: str, *, shape: tuple[int, int, int], num_classes: int, dropout: float = 0.5) -> nn.Module:
    """A SqueezeNet 1.1; `dropout` is the one before its last convolution."""
    stem = nn.Sequential(
        OrderedDict(conv1=nn.Conv2d(shape[0], 64, 3, padding=1), relu1=nn.ReLU(), pool1=_halve())
    )
    features = nn.Sequential(
        OrderedDict(
            fire2=Fire(64, 16, 64),
            fire3=Fire(128, 16, 64),
            pool3=_halve(),
            fire4=Fire(128, 32, 128),
            fire5=Fire(256, 32, 128),
            pool5=_halve(),
            fire6=Fire(256, 48, 192),
            fire7=Fire(384, 48, 192),
            fire8=Fire(384, 64, 256),
            fire9=Fire(512, 64, 256),
        )
    )
    conv10 = nn.Conv2d(512, num_classes, 1)
    classifier = nn.Sequential(
        OrderedDict(
            drop=nn.Dropout(dropout),
            conv10=conv10,
            pool10=nn.AdaptiveAvgPool2d(1),
            flatten=nn.Flatten(),
        )
    )
    model = nn.Sequential(OrderedDict(stem=stem, features=features, classifier=classifier))
    he_initial(model, conv10)
    return model


def _halve() -> nn.MaxPool2d:
    # Padding keeps the last row of even maps, as the original's rounding up does, but tiles more easily.
    return nn.MaxPool2d(3, stride=2, padding=1)

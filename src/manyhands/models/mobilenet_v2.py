"""MobileNet-v2 (Sandler et al. 2018; paper 002), with the first two strides at 1 for 32×32 images.

The layers and weights are those of the paper at width 1.0: 2,236,682 parameters with ten classes, 3,504,872
with ImageNet's 1000, as published. At 32×32 the last maps are 4×4, at 8×8 one pixel.
"""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor, nn

from manyhands.models.initial import he_initial
from manyhands.models.narrow import narrowed

__all__ = ["InvertedResidual", "build"]

SIZES = ("full",)
# (expansion, channels, repeats, stride) of the paper's table 2, the second stage with stride 1 for 2.
STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 1),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


class InvertedResidual(nn.Module):
    """Expands the channels, filters each by itself, projects back; and perhaps adds its input."""

    def __init__(self, channels: int, expansion: int, out_channels: int, stride: int, *, adds: bool) -> None:
        super().__init__()
        hidden = channels * expansion
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        if expansion != 1:
            layers["expand"] = _conv_bn(channels, hidden, 1)
        layers["filter"] = _conv_bn(hidden, hidden, 3, stride=stride, groups=hidden)
        layers["project"] = _conv_bn(hidden, out_channels, 1, active=False)
        self.layers = nn.Sequential(layers)
        self.adds = adds

    def forward(self, x: Tensor) -> Tensor:
        """Maps [N, channels, H, W] to [N, out_channels, H / stride, W / stride]."""
        y: Tensor = self.layers(x)
        return x + y if self.adds else y


def build(
    size: str,
    *,
    shape: tuple[int, int, int],
    num_classes: int,
    dropout: float = 0.2,
    width: float = 1.0,
    stem_width: float = 1.0,
) -> nn.Module:
    """A MobileNet-v2; `dropout` is the one before its dense layer."""
    channels = narrowed(32, stem_width)
    stem = _conv_bn(shape[0], channels, 3)
    features: OrderedDict[str, nn.Module] = OrderedDict()
    for number, (expansion, full, repeats, stride) in enumerate(STAGES, start=1):
        maps = narrowed(full, width)
        for place in range(1, repeats + 1):
            # Only the first of a stage changes width or resolution; those after it can add their input.
            block = InvertedResidual(channels, expansion, maps, stride if place == 1 else 1, adds=place > 1)
            features[f"block{number}_{place}"] = block
            channels = maps
    last = narrowed(1280, width)
    features["last"] = _conv_bn(channels, last, 1)
    out = nn.Linear(last, num_classes)
    classifier = nn.Sequential(
        OrderedDict(
            [
                ("pool", nn.AdaptiveAvgPool2d(1)),
                ("flatten", nn.Flatten()),
                ("drop", nn.Dropout(dropout)),
                ("out", out),
            ]
        )
    )
    model = nn.Sequential(OrderedDict(stem=stem, features=nn.Sequential(features), classifier=classifier))
    he_initial(model, out)
    return model


def _conv_bn(
    channels: int, out_channels: int, kernel: int, *, stride: int = 1, groups: int = 1, active: bool = True
) -> nn.Sequential:
    layers: OrderedDict[str, nn.Module] = OrderedDict(
        conv=nn.Conv2d(
            channels, out_channels, kernel, stride=stride, padding=kernel // 2, groups=groups, bias=False
        ),
        bn=nn.BatchNorm2d(out_channels),
    )
    if active:
        layers["relu"] = nn.ReLU6()
    return nn.Sequential(layers)

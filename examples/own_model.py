"""Networks of your own: any callable that gives an `nn.Module`.

Arguments named `shape` (channels, height, width) and `num_classes` are filled in from the data; others come
from `[model] options`. With parts called stem, features and classifier a network can be split by capacity.
"""

from collections import OrderedDict

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


def make_deep(shape: tuple[int, int, int], num_classes: int, width: float = 1.0) -> nn.Module:
    """Six convolutions; all but the first, the stem, have a part `width` of their channels."""
    few, many = round(16 * width), round(32 * width)
    features = OrderedDict(
        conv2=_conv(16, few),
        conv3=_conv(few, many, stride=2),
        conv4=_conv(many, many),
        conv5=_conv(many, many),
        conv6=_conv(many, many),
    )
    classifier = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(many, num_classes))
    return nn.Sequential(
        OrderedDict(stem=_conv(shape[0], 16), features=nn.Sequential(features), classifier=classifier)
    )


def _conv(channels: int, out_channels: int, stride: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(channels, out_channels, 3, padding=1, stride=stride, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(out_channels), nn.ReLU())

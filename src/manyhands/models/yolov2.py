"""YOLOv2 (Redmon and Farhadi, "YOLO9000: better, faster, stronger", 2017; paper 003).

Darknet-19 without its classifier, a passthrough that brings 2×2 patches of the finer maps to the coarse
ones, and a head that predicts five boxes per cell. The output is [N, A·(5+C), H/32, W/32]: for each of the A
anchors tx, ty, tw, th, the confidence, and C class scores. `yolov2_loss.py` trains it. 50.6 million
parameters with VOC's 20 classes; 62.9 billion operations at 608×608 with COCO's 80, as published.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from manyhands.models.initial import he_initial

__all__ = ["VOC_ANCHORS", "YoloV2", "build"]

SIZES = ("full",)

# Widths and heights as parts of the image: the published VOC anchors, which count cells of a 13×13 grid.
VOC_ANCHORS = tuple(
    (width / 13, height / 13)
    for width, height in (
        (1.3221, 1.73145),
        (3.19275, 4.00944),
        (5.05587, 8.09892),
        (9.47112, 4.84053),
        (11.2364, 10.0071),
    )
)


class YoloV2(nn.Module):
    """The detector; `anchors` are (width, height) as parts of the image."""

    def __init__(self, channels: int, num_classes: int, anchors: Sequence[tuple[float, float]]) -> None:
        super().__init__()
        self.anchors = tuple((float(width), float(height)) for width, height in anchors)
        self.num_classes = num_classes
        self.stem = _stage(1, channels, [(32, 3)], pool=True)
        self.features = nn.Sequential(
            OrderedDict(
                stage2=_stage(2, 32, [(64, 3)], pool=True),
                stage3=_stage(3, 64, [(128, 3), (64, 1), (128, 3)], pool=True),
                stage4=_stage(6, 128, [(256, 3), (128, 1), (256, 3)], pool=True),
                stage5=_stage(9, 256, [(512, 3), (256, 1), (512, 3), (256, 1), (512, 3)]),
            )
        )
        deep = [(1024, 3), (512, 1), (1024, 3), (512, 1), (1024, 3), (1024, 3), (1024, 3)]
        self.deep = nn.Sequential(
            OrderedDict(pool13=nn.MaxPool2d(2), **dict(_stage(14, 512, deep).named_children()))
        )
        self.passthrough = nn.Sequential(
            OrderedDict(stage=_stage(21, 512, [(64, 1)]), reorganise=nn.PixelUnshuffle(2))
        )
        self.head = _stage(22, 1024 + 4 * 64, [(1024, 3)])
        self.head.add_module("out", nn.Conv2d(1024, len(self.anchors) * (5 + num_classes), 1))

    def forward(self, x: Tensor) -> Tensor:
        """Maps images [N, C, H, W], sides multiples of 32, to predictions [N, A·(5+C), H/32, W/32]."""
        fine = self.features(self.stem(x))
        joined = torch.cat((self.passthrough(fine), self.deep(fine)), dim=1)
        predictions: Tensor = self.head(joined)
        return predictions


def build(
    size: str,
    *,
    shape: tuple[int, int, int],
    num_classes: int,
    anchors: Sequence[tuple[float, float]] = VOC_ANCHORS,
) -> nn.Module:
    """A YOLOv2; `anchors` are (width, height) as parts of the image."""
    with torch.device("meta"):  # so that 50 million weights are drawn once, not twice
        model = YoloV2(shape[0], num_classes, anchors)
    model.to_empty(device="cpu")
    out = model.head.out
    assert isinstance(out, nn.Conv2d)
    he_initial(model, out)
    return model


def _stage(first: int, channels: int, layers: Sequence[tuple[int, int]], pool: bool = False) -> nn.Sequential:
    """Convolutions of (width, kernel), numbered from `first`, with batch norm and leaky ReLU."""
    stage: OrderedDict[str, nn.Module] = OrderedDict()
    for number, (width, kernel) in enumerate(layers, start=first):
        stage[f"conv{number}"] = nn.Conv2d(channels, width, kernel, padding=kernel // 2, bias=False)
        stage[f"bn{number}"] = nn.BatchNorm2d(width)
        stage[f"leaky{number}"] = nn.LeakyReLU(0.1, inplace=True)  # keeps one map less
        channels = width
    if pool:
        stage[f"pool{first + len(layers) - 1}"] = nn.MaxPool2d(2)
    return nn.Sequential(stage)

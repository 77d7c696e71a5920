"""The loss of YOLOv2, term by term as Darknet's region layer has it, and the boxes that a prediction means.

A true box belongs to the cell that holds its centre and, there, to the anchor closest to it in shape. With
the defaults (Darknet's), per image and halved squares, so that gradients are Darknet's too:

- coordinates: 1 · (2 − w·h) · ½[(σ(tx) − x)² + (σ(ty) − y)² + (tw − log(w/aw))² + (th − log(h/ah))²] for the
  anchors that own a box; x, y inside the cell; small boxes weigh up to twice as much;
- object: 5 · ½(confidence − IoU of the predicted and the true box)² for the same anchors;
- no_object: 1 · ½ confidence² for anchors that own none, unless they overlap a true box by 0.6 or more;
- classes: 1 · cross-entropy of the class scores for the anchors that own a box.

Sizes are parts of the image throughout. Letters: N images, A anchors, H × W cells, C classes, T true boxes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["YoloLoss", "YoloScales", "yolo_boxes", "yolo_loss"]

Anchors = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class YoloScales:
    """Weights of the terms, and the overlap from which an anchor without a box is left in peace."""

    coordinates: float = 1.0
    object: float = 5.0
    no_object: float = 1.0
    classes: float = 1.0
    ignore_iou: float = 0.6


@dataclass(frozen=True)
class YoloLoss:
    """The terms, each a scalar: sum over the batch divided by the number of images."""

    coordinates: Tensor
    object: Tensor
    no_object: Tensor
    classes: Tensor

    @property
    def total(self) -> Tensor:
        """What is minimised."""
        return self.coordinates + self.object + self.no_object + self.classes


DARKNET_SCALES = YoloScales()


def yolo_loss(
    output: Tensor, truths: Sequence[Tensor], anchors: Anchors, scales: YoloScales = DARKNET_SCALES
) -> YoloLoss:
    """The loss of a batch.

    Args:
        output: The network's output, [N, A·(5+C), H, W].
        truths: For each image a [T, 5] tensor of class, centre x, centre y, width, height; T may be 0.
        anchors: (width, height) of each anchor.
        scales: Weights of the terms.

    Raises:
        ValueError: A true box has no size, lies outside the image, or is of a class that does not exist.
    """
    raw = _by_anchor(output, anchors)
    if len(truths) != len(raw):
        raise ValueError(f"true boxes for {len(truths)} images, but predictions for {len(raw)}")
    boxes = yolo_boxes(output, anchors)
    zero = raw.sum() * 0.0
    terms = [zero, zero, zero, zero]
    for raw_image, boxes_image, truth in zip(raw, boxes, truths, strict=True):
        of_image = _image_terms(raw_image, boxes_image, truth.to(raw), raw.new_tensor(anchors), scales)
        terms = [term + more for term, more in zip(terms, of_image, strict=True)]
    return YoloLoss(*(term / len(raw) for term in terms))


def yolo_boxes(output: Tensor, anchors: Anchors) -> Tensor:
    """The boxes that the network's output means: [N, A, H, W, 4], centre x, centre y, width, height."""
    raw = _by_anchor(output, anchors)
    height, width = raw.shape[2:4]
    row = torch.arange(height, device=raw.device).view(-1, 1)
    column = torch.arange(width, device=raw.device)
    x = (raw[..., 0].sigmoid() + column) / width
    y = (raw[..., 1].sigmoid() + row) / height
    size = raw[..., 2:4].exp() * raw.new_tensor(anchors).view(1, -1, 1, 1, 2)
    return torch.cat((x.unsqueeze(-1), y.unsqueeze(-1), size), dim=-1)


def _by_anchor(output: Tensor, anchors: Anchors) -> Tensor:
    """[N, A·(5+C), H, W] as [N, A, H, W, 5+C]."""
    batch_size, channels, height, width = output.shape
    if channels % len(anchors) or channels // len(anchors) <= 5:
        raise ValueError(f"{channels} channels are not {len(anchors)} anchors of 5 numbers and class scores")
    return output.view(batch_size, len(anchors), -1, height, width).permute(0, 1, 3, 4, 2)


def _image_terms(
    raw: Tensor, boxes: Tensor, truth: Tensor, anchors: Tensor, scales: YoloScales
) -> list[Tensor]:
    """The four terms of one image, from raw [A, H, W, 5+C], boxes [A, H, W, 4] and truth [T, 5]."""
    _check(truth, num_classes=raw.shape[-1] - 5)
    confidence = raw[..., 4].sigmoid()
    owner = _owners(truth[:, 1:], anchors, height=raw.shape[1], width=raw.shape[2])
    with torch.no_grad():
        overlaps = _iou(boxes.reshape(-1, 1, 4), truth[:, 1:].unsqueeze(0))
        free = torch.ones_like(confidence, dtype=torch.bool)
        if len(truth):
            free = (overlaps.amax(dim=1) < scales.ignore_iou).view_as(free)
        free[owner] = False
    no_object = scales.no_object * 0.5 * (confidence[free] ** 2).sum()
    own, own_box = raw[owner], truth[:, 1:]
    cells = own_box.new_tensor([raw.shape[2], raw.shape[1]])
    in_cell = own_box[:, :2] * cells - torch.stack((owner[2], owner[1]), dim=1)
    log_size = (own_box[:, 2:] / anchors[owner[0]]).log()
    weight = scales.coordinates * (2 - own_box[:, 2:].prod(dim=1))
    off = (own[:, :2].sigmoid() - in_cell).square().sum(dim=1) + (own[:, 2:4] - log_size).square().sum(dim=1)
    wanted = _iou(boxes[owner], own_box).detach()
    object_ = scales.object * 0.5 * (confidence[owner] - wanted).square().sum()
    classes = scales.classes * F.cross_entropy(own[:, 5:], truth[:, 0].long(), reduction="sum")
    return [0.5 * (weight * off).sum(), object_, no_object, classes]


def _owners(boxes: Tensor, anchors: Tensor, height: int, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """Anchor, row and column that own each true box."""
    column = (boxes[:, 0] * width).long().clamp(max=width - 1)
    row = (boxes[:, 1] * height).long().clamp(max=height - 1)
    shared = torch.minimum(boxes[:, None, 2:], anchors).prod(dim=-1)
    shape_iou = shared / (boxes[:, None, 2:].prod(dim=-1) + anchors.prod(dim=-1) - shared)
    return shape_iou.argmax(dim=1), row, column


def _iou(a: Tensor, b: Tensor) -> Tensor:
    """Intersection over union of boxes (centre, size), broadcast over all but the last dimension."""
    low = torch.maximum(a[..., :2] - a[..., 2:] / 2, b[..., :2] - b[..., 2:] / 2)
    high = torch.minimum(a[..., :2] + a[..., 2:] / 2, b[..., :2] + b[..., 2:] / 2)
    shared = (high - low).clamp(min=0).prod(dim=-1)
    return shared / (a[..., 2:].prod(dim=-1) + b[..., 2:].prod(dim=-1) - shared)


def _check(truth: Tensor, num_classes: int) -> None:
    if truth.ndim != 2 or truth.shape[1] != 5:
        raise ValueError(f"true boxes are rows of class, x, y, width, height; got shape {tuple(truth.shape)}")
    if not len(truth):
        return
    kind, centre, size = truth[:, 0], truth[:, 1:3], truth[:, 3:]
    if not (((kind >= 0) & (kind < num_classes)).all() and ((centre >= 0) & (centre <= 1)).all()):
        raise ValueError(f"a true box has a class outside 0..{num_classes - 1} or a centre outside the image")
    if not ((size > 0) & (size <= 1)).all():
        raise ValueError("a true box has a width or height that is not a part of the image (0 to 1)")

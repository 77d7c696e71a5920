"""YOLOv2's loss: each term by hand, gradients that go the right way, and one image learned by heart."""

from __future__ import annotations

import math

import pytest
import torch

from manyhands.models import ModelSection, build
from manyhands.models.yolov2 import VOC_ANCHORS
from manyhands.models.yolov2_loss import YoloScales, yolo_boxes, yolo_loss

ANCHORS = ((0.5, 0.5), (0.25, 0.5))
NONE = torch.zeros(0, 5)


def blank(num_classes=3, side=2):
    """Zero output of one image: every confidence 1/2, every box an anchor in the middle of its cell."""
    return torch.zeros(1, len(ANCHORS) * (5 + num_classes), side, side)


def test_boxes_of_a_blank_output_are_anchors_in_the_middle_of_their_cells():
    boxes = yolo_boxes(blank(), ANCHORS)
    assert boxes.shape == (1, 2, 2, 2, 4)
    torch.testing.assert_close(boxes[0, 1, 0, 1], torch.tensor([0.75, 0.25, 0.25, 0.5]))


def test_oblong_grids_keep_rows_and_columns_apart():
    boxes = yolo_boxes(torch.zeros(1, 16, 2, 4), ANCHORS)
    torch.testing.assert_close(boxes[0, 0, 1, 3, :2], torch.tensor([3.5 / 4, 1.5 / 2]))
    truth = torch.tensor([[0, 0.9, 0.7, 0.5, 0.5]])
    assert yolo_loss(torch.zeros(1, 16, 2, 4), [truth], ANCHORS).coordinates < 0.2


def test_terms_without_an_object():
    loss = yolo_loss(blank(), [NONE], ANCHORS)
    assert loss.no_object.item() == pytest.approx(8 * 0.5 * 0.25)
    assert loss.coordinates.item() == loss.object.item() == loss.classes.item() == 0


def test_terms_of_a_perfectly_placed_object():
    truth = torch.tensor([[2, 0.75, 0.25, 0.25, 0.5]])  # the second anchor, row 0, column 1
    loss = yolo_loss(blank(), [truth], ANCHORS)
    assert loss.coordinates.item() == pytest.approx(0, abs=1e-10)
    assert loss.object.item() == pytest.approx(5 * 0.5 * (0.5 - 1) ** 2)
    assert loss.classes.item() == pytest.approx(math.log(3))
    assert loss.no_object.item() == pytest.approx(7 * 0.5 * 0.25)  # all anchors but the owner
    assert loss.total.item() == pytest.approx(0.625 + math.log(3) + 0.875)


def test_terms_of_a_shifted_object():
    truth = torch.tensor([[0, 0.30, 0.25, 0.5, 0.4]])
    loss = yolo_loss(blank(), [truth], ANCHORS, YoloScales(ignore_iou=0.5))
    expected = (2 - 0.2) * 0.5 * ((0.5 - 0.6) ** 2 + math.log(0.8) ** 2)
    assert loss.coordinates.item() == pytest.approx(expected, rel=1e-4)
    overlap = 0.45 * 0.4 / (0.5 * 0.5 + 0.5 * 0.4 - 0.45 * 0.4)
    assert loss.object.item() == pytest.approx(2.5 * (0.5 - overlap) ** 2, rel=1e-4)


def test_anchors_that_overlap_an_object_well_are_left_in_peace():
    output = blank()
    wide = (1.0, 1.0)
    truth = torch.tensor([[0, 0.25, 0.25, 1.0, 1.0]])
    strict = yolo_loss(output, [truth], (wide, wide), YoloScales(ignore_iou=1.1))
    lenient = yolo_loss(output, [truth], (wide, wide), YoloScales(ignore_iou=0.6))
    assert strict.no_object.item() == pytest.approx(7 * 0.125)
    assert lenient.no_object.item() == pytest.approx(6 * 0.125)  # the twin in the same cell overlaps wholly


def test_batches_are_averaged_and_scales_weigh():
    truth = torch.tensor([[1, 0.3, 0.6, 0.3, 0.3]])
    one = yolo_loss(blank(), [truth], ANCHORS)
    two = yolo_loss(blank().repeat(2, 1, 1, 1), [truth, NONE], ANCHORS)
    empty = yolo_loss(blank(), [NONE], ANCHORS)
    assert two.total.item() == pytest.approx((one.total.item() + empty.total.item()) / 2)
    doubled = yolo_loss(blank(), [truth], ANCHORS, YoloScales(classes=2.0))
    assert doubled.classes.item() == pytest.approx(2 * one.classes.item())


def test_centre_on_the_far_edge_belongs_to_the_last_cell():
    loss = yolo_loss(blank(), [torch.tensor([[0, 1.0, 1.0, 0.5, 0.5]])], ANCHORS)
    assert torch.isfinite(loss.total)


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ([3, 0.5, 0.5, 0.1, 0.1], "class outside 0..2"),
        ([0, 1.5, 0.5, 0.1, 0.1], "centre outside"),
        ([0, 0.5, 0.5, 0.0, 0.1], "width or height"),
        ([0, 0.5, float("nan"), 0.1, 0.1], "centre outside"),
        ([0, 0.5, 0.5, 0.1], "rows of class"),
    ],
)
def test_impossible_boxes_are_refused(row, says):
    with pytest.raises(ValueError, match=says):
        yolo_loss(blank(), [torch.tensor([row])], ANCHORS)


def test_mismatched_batches_and_channels_are_refused():
    with pytest.raises(ValueError, match="true boxes for 2 images"):
        yolo_loss(blank(), [NONE, NONE], ANCHORS)
    with pytest.raises(ValueError, match="not 2 anchors"):
        yolo_loss(torch.zeros(1, 15, 2, 2), [NONE], ANCHORS)


def test_gradients_agree_with_differences():
    generator = torch.Generator().manual_seed(0)
    output = torch.randn(1, 16, 2, 2, generator=generator, dtype=torch.float64, requires_grad=True)
    truth = torch.tensor([[2, 0.6, 0.3, 0.3, 0.4], [0, 0.2, 0.9, 0.1, 0.2]], dtype=torch.float64)
    # Confidence aims at the current overlap, which is held fixed: leave that term out of the comparison.
    scales = YoloScales(object=0.0)
    assert torch.autograd.gradcheck(lambda x: yolo_loss(x, [truth], ANCHORS, scales).total, (output,))


def test_one_image_is_learned_by_heart():
    model = build(ModelSection(name="yolov2"), (3, 64, 64), 3, seed=0)
    generator = torch.Generator().manual_seed(0)
    image = 0.1 * torch.rand(1, 3, 64, 64, generator=generator)
    image[:, 0, 8:24, 36:60] = 1.0
    truth = torch.tensor([[1, 48 / 64, 16 / 64, 24 / 64, 16 / 64]])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
    losses = []
    for _ in range(8):
        loss = yolo_loss(model(image), [truth], model.anchors)
        optimizer.zero_grad()
        loss.total.backward()
        optimizer.step()
        losses.append(loss.total.item())
    assert all(map(math.isfinite, losses))
    assert losses[-1] < 0.3 * losses[0]


def test_output_has_five_boxes_per_cell():
    model = build(ModelSection(name="yolov2"), (3, 64, 96), 20, seed=0).eval()
    with torch.no_grad():
        output = model(torch.zeros(1, 3, 64, 96))
    assert output.shape == (1, 5 * 25, 2, 3)
    assert len(VOC_ANCHORS) == 5


def test_anchors_are_an_option():
    section = ModelSection(name="yolov2", options={"anchors": [[0.1, 0.1], [0.5, 0.5]]})
    model = build(section, (3, 32, 32), 4, seed=0)
    assert model.anchors == ((0.1, 0.1), (0.5, 0.5))
    assert model.head.out.out_channels == 2 * 9

"""Convolutions of a tile, at once or in pieces: the inner part first, the rest when the borders have come."""

from __future__ import annotations

import torch
from torch import nn

from manyhands.tiles.early import Early
from manyhands.tiles.geometry import Box
from manyhands.tiles.regions import conv_sight
from manyhands.tiles.step import Step
from manyhands.tiles.values import Part

__all__ = ["begin_convolving", "convolve", "finish_convolving"]


def convolve(step: Step, number: int) -> None:
    """A convolution whose input is all there."""
    node = step.program.graph.nodes[number]
    module = step.module(number)
    assert isinstance(module, nn.Conv2d)
    (source,) = node.inputs
    sight, padding = conv_sight(node, step.program.box[number], step.program.graph.nodes[source].sides)
    x = step.read(source, sight)
    y = torch.conv2d(x, module.weight, module.bias, module.stride, padding, module.dilation, module.groups)
    step.saved[number] = (x, sight, padding)
    step.keep(number, Part(step.program.box[number], y))


def begin_convolving(step: Step, number: int, early: Early) -> tuple[Part, Part]:
    """What a convolution is handed, with its borders still to come, and its output as far as it goes."""
    node = step.program.graph.nodes[number]
    (own,) = step.values[step.group][node.inputs[0]].parts
    box = step.program.box[number]
    x = Part(early.sight, step.take((step.batch_size, *own.data.shape[1:2], *early.sight.sides), own.data))
    for frame in early.frame:
        x.view(frame).zero_()
    x.view(own.box.and_(x.box)).copy_(own.view(own.box.and_(x.box)))
    y = Part(box, step.take((step.batch_size, node.channels, *box.sides), own.data))
    _conv_into(step, number, x, y, early.inner)
    return x, y


def finish_convolving(step: Step, number: int, early: Early, begun: tuple[Part, Part]) -> None:
    """The rest of it, when its borders are there."""
    x, y = begun
    (source,) = step.program.graph.nodes[number].inputs
    for part in step.values[step.group][source].parts[1:]:
        shared = part.box.and_(x.box)
        x.view(shared).copy_(part.view(shared))
    for strip in early.strips:
        _conv_into(step, number, x, y, strip)
    step.saved[number] = (x.data, x.box, early.padding)
    step.keep(number, y)


def _conv_into(step: Step, number: int, x: Part, y: Part, box: Box) -> None:
    module = step.module(number)
    assert isinstance(module, nn.Conv2d)
    node = step.program.graph.nodes[number]
    sight, padding = conv_sight(node, box, step.program.graph.nodes[node.inputs[0]].sides)
    found = torch.conv2d(
        x.view(sight), module.weight, module.bias, module.stride, padding, module.dilation, module.groups
    )
    y.view(box).copy_(found)

"""A network decoupled by class: shared first layers, then a structure for each class by itself (paper 000).

Every class has filters of its own in each deep layer, and they see only the class's own filters of the layer
before. So the structures are the groups of grouped convolutions, class after class along the channels. A
network for some of the classes is the same with fewer groups, and its tensors are the rows of its classes.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from manyhands.models.grouped import GroupedConv2d, GroupedLinear
from manyhands.models.mobilenet_v2 import InvertedResidual
from manyhands.models.squeezenet import Fire

__all__ = ["CannotDecouple", "Choose", "Decoupled", "Sets", "decouple", "layers_to_choose"]

Sets = tuple[Tensor, ...]
"""For each class, which channels of a layer are its own."""

Choose = Callable[[str, int], Sets]
"""``(layer, channels) -> Sets``: which of a layer's channels each class is given."""

# Layers that treat every channel alike and by itself.
_ANY_CHANNELS = (
    nn.ReLU,
    nn.ReLU6,
    nn.MaxPool2d,
    nn.AvgPool2d,
    nn.AdaptiveAvgPool2d,
    nn.AdaptiveMaxPool2d,
    nn.Dropout,
    nn.Flatten,
    nn.Identity,
)


@dataclass(frozen=True)
class Decoupled:
    """The network of some classes.

    Attributes:
        module: The network.
        by_class: The tensors of its state that have rows for each class by itself, class after class.
    """

    module: nn.Module
    by_class: frozenset[str]


class CannotDecouple(ValueError):
    """A layer of which no class can have a part of its own."""


def decouple(model: nn.Module, first: str, classes: Sequence[int], choose: Choose) -> Decoupled:
    """The network of some classes, with the weights that these have in a whole network.

    Args:
        model: A network of convolutions and dense layers; its last layer has a row for each class.
        first: The first layer that is decoupled, by its name in the network or the end of it.
        classes: Which classes, in the order of the new network's scores.
        choose: Which channels of each layer each of these classes has; not asked for the last layer.

    Raises:
        CannotDecouple: There is no such layer, or a layer after it is of a kind that cannot be decoupled.
    """
    layers = [name for name, module in model.named_modules() if isinstance(module, nn.Conv2d | nn.Linear)]
    named = [name for name in layers if name == first or name.endswith(f".{first}")]
    if len(named) != 1:
        raise CannotDecouple(f"{first!r} must name one of {', '.join(layers)}")
    walk = _Walk(named[0], layers[-1], tuple(classes), choose)
    new, _ = walk(model, "", _Flow(None, 0))
    tensors = {name for name, tensor in new.state_dict().items() if tensor.dim()}
    return Decoupled(new, frozenset(name for name in tensors if name.rpartition(".")[0] in walk.own))


def layers_to_choose(model: nn.Module, first: str) -> list[str]:
    """The layers of whose channels every class is given some: those that `decouple` asks for."""
    asked: list[str] = []

    def note(layer: str, _channels: int) -> Sets:
        asked.append(layer)
        return (torch.tensor([0]),)

    decouple(model, first, (0,), note)
    return asked


@dataclass(frozen=True)
class _Flow:
    """What comes out of a layer: each class's own channels, or all of them shared, and how many there are."""

    sets: Sets | None
    channels: int


@dataclass
class _Walk:
    """Goes through a network layer by layer and makes each anew for the classes."""

    first: str
    last: str
    classes: tuple[int, ...]
    choose: Choose
    begun: bool = False
    own: set[str] = field(default_factory=set)

    def __call__(self, module: nn.Module, name: str, flow: _Flow) -> tuple[nn.Module, _Flow]:
        """The layer for the classes, and what comes out of it."""
        self.begun = self.begun or name == self.first
        new, flow = self._made(module, name, flow)
        if flow.sets is not None:
            self.own.add(name)
        return new, flow

    def _made(self, module: nn.Module, name: str, flow: _Flow) -> tuple[nn.Module, _Flow]:
        if isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward:
            return self._chain(module, name, flow)
        if isinstance(module, Fire):
            return self._fire(module, name, flow)
        if isinstance(module, InvertedResidual):
            return self._residual(module, name, flow)
        if isinstance(module, nn.Conv2d | nn.Linear):
            return self._weights(module, name, flow)
        if isinstance(module, nn.BatchNorm2d):
            return self._normalised(module, flow), flow
        if isinstance(module, _ANY_CHANNELS):
            return copy.deepcopy(module), flow
        kind = type(module).__name__
        if not name:
            raise CannotDecouple(f"the network must be an nn.Sequential, and this one is a {kind}")
        raise CannotDecouple(f"{name} is a {kind}, which cannot be taken apart")

    def _chain(self, module: nn.Sequential, name: str, flow: _Flow) -> tuple[nn.Module, _Flow]:
        new = nn.Sequential()
        for child, layer in module._modules.items():
            assert layer is not None
            made, flow = self(layer, f"{name}.{child}" if name else child, flow)
            new.add_module(child, made)
        return new, flow

    def _weights(self, module: nn.Conv2d | nn.Linear, name: str, flow: _Flow) -> tuple[nn.Module, _Flow]:
        rows = module.weight.shape[0]
        if not self.begun:
            return copy.deepcopy(module), _Flow(None, rows)
        if isinstance(module, nn.Conv2d) and module.groups == module.in_channels == rows > 1:
            return self._by_channel(module, name, flow), flow
        if isinstance(module, nn.Conv2d) and module.groups != 1:
            raise CannotDecouple(f"{name} is grouped already")
        ends = name == self.last
        sets = tuple(torch.tensor([c]) for c in self.classes) if ends else self.choose(name, rows)
        return _cut(module, flow, sets), _Flow(sets, rows)

    def _by_channel(self, module: nn.Conv2d, name: str, flow: _Flow) -> nn.Conv2d:
        if flow.sets is None:
            raise CannotDecouple(f"{name} filters each channel by itself: begin at the layer before it")
        kept = torch.cat(flow.sets)
        return _convolution(module, module.weight.detach()[kept], module.bias, kept, len(kept), len(kept))

    def _normalised(self, module: nn.BatchNorm2d, flow: _Flow) -> nn.BatchNorm2d:
        new = copy.deepcopy(module)
        if flow.sets is not None:
            kept = torch.cat(flow.sets)
            new.num_features = len(kept)
            for name in ("weight", "bias", "running_mean", "running_var"):
                if (tensor := getattr(module, name)) is not None:
                    own = tensor.detach()[kept].clone()
                    setattr(new, name, nn.Parameter(own) if isinstance(tensor, nn.Parameter) else own)
        return new

    def _residual(self, module: InvertedResidual, name: str, flow: _Flow) -> tuple[nn.Module, _Flow]:
        if module.adds and self.begun and flow.sets is None:
            raise CannotDecouple(f"{name} adds its shared input to its output: begin at another block")
        new = copy.deepcopy(module)
        given = flow.sets
        if module.adds and given is not None:
            choose = self._same_at_the_end(name, given)
            inner = _Walk(self.first, self.last, self.classes, choose, begun=True, own=self.own)
        else:
            inner = self
        new.layers, flow = inner(module.layers, f"{name}.layers", flow)  # type: ignore[assignment]
        self.begun = self.begun or inner.begun
        return new, flow

    def _same_at_the_end(self, name: str, given: Sets) -> Choose:
        """What is added to the input must be of the same channels."""
        last = f"{name}.layers.project.conv"
        return lambda layer, rows: given if layer == last else self.choose(layer, rows)

    def _fire(self, module: Fire, name: str, flow: _Flow) -> tuple[nn.Module, _Flow]:
        new = copy.deepcopy(module)
        new.squeeze, squeezed = self._weights_of(module.squeeze, f"{name}.squeeze", flow)
        new.expand1, one = self._weights_of(module.expand1, f"{name}.expand1", squeezed)
        new.expand3, three = self._weights_of(module.expand3, f"{name}.expand3", squeezed)
        channels = one.channels + three.channels
        if three.sets is None:
            return new, _Flow(None, channels)
        if one.sets is None:
            raise CannotDecouple(f"{name}: begin at {name}.squeeze, so that both of its parts are decoupled")
        new.groups = len(self.classes)
        joined = tuple(torch.cat((a, b + one.channels)) for a, b in zip(one.sets, three.sets, strict=True))
        return new, _Flow(joined, channels)

    def _weights_of(self, module: nn.Conv2d, name: str, flow: _Flow) -> tuple[nn.Conv2d, _Flow]:
        new, flow = self(module, name, flow)
        assert isinstance(new, nn.Conv2d)
        return new, flow


def _cut(module: nn.Conv2d | nn.Linear, flow: _Flow, sets: Sets) -> nn.Module:
    """The rows of each class, with the inputs that are its own."""
    kept, groups = torch.cat(sets), 1
    weight = module.weight.detach()
    if flow.sets is None:
        weight = weight[kept]
    else:
        groups = len(sets)
        each = weight.shape[1] // flow.channels  # a dense layer after maps has each channel's pixels in a row
        inputs = [(own[:, None] * each + torch.arange(each)).reshape(-1) for own in flow.sets]
        weight = torch.cat([weight[rows][:, own] for rows, own in zip(sets, inputs, strict=True)])
    if isinstance(module, nn.Conv2d):
        return _convolution(module, weight, module.bias, kept, groups * weight.shape[1], groups)
    bias = None if module.bias is None else module.bias.detach()[kept].clone()
    return GroupedLinear(groups, weight.clone(), bias)


def _convolution(
    like: nn.Conv2d, weight: Tensor, bias: Tensor | None, kept: Tensor, inputs: int, groups: int
) -> nn.Conv2d:
    given: Any = like  # its pairs are any tuples to mypy
    new = GroupedConv2d(
        inputs,
        len(kept),
        given.kernel_size,
        given.stride,
        given.padding,
        given.dilation,
        groups,
        bias is not None,
        given.padding_mode,
        device="meta",  # where no first weights are drawn
    ).train(like.training)
    new.weight = nn.Parameter(weight.clone())
    new.bias = None if bias is None else nn.Parameter(bias.detach()[kept].clone())
    return new

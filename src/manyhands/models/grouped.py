"""Layers of several groups, each of which sees only its own part of the input.

They compute what torch's own grouped layers compute, in the way that is fastest for their shapes
(`benchmarks/task_step.py`). The way follows from the shapes and the kind of device alone, never from a
timing, because it decides the last bits of a result.
"""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor, nn

__all__ = ["GroupedConv2d", "GroupedLinear"]

Pair = tuple[int, int]


class GroupedLinear(nn.Module):
    """A dense layer for each group: [N, groups * inputs] to [N, groups * outputs]."""

    def __init__(self, groups: int, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.groups = groups
        self.weight = nn.Parameter(weight)
        self.bias = None if bias is None else nn.Parameter(bias)

    def extra_repr(self) -> str:
        """What stands in brackets where a network is printed."""
        rows, inputs = self.weight.shape
        return f"{self.groups * inputs}, {rows}, groups={self.groups}, bias={self.bias is not None}"

    def forward(self, x: Tensor) -> Tensor:
        """The products of all groups at once."""
        groups, (rows, inputs) = self.groups, self.weight.shape
        grouped = x.view(len(x), groups, inputs).transpose(0, 1)
        weight = self.weight.view(groups, rows // groups, inputs).transpose(1, 2)
        if self.bias is None:
            y = torch.bmm(grouped, weight)
        else:
            y = torch.baddbmm(self.bias.view(groups, 1, -1), grouped, weight)
        return y.transpose(0, 1).reshape(len(x), rows)


class GroupedConv2d(nn.Conv2d):
    """A convolution of groups, with the tensors of `nn.Conv2d`.

    Maps of a few pixels are multiplied, all groups at once, with a matrix from pixels to pixels: of nine taps
    over 2×2 pixels five always miss the map, and over a single pixel eight do. Larger maps are left to torch,
    on a CPU as they are. A GPU's library copies small channels-last maps several times over, and is faster
    when it is given them channel by channel.
    """

    computes_as = nn.Conv2d  # for the tiler, which takes a class it does not know for something else

    def forward(self, input: Tensor) -> Tensor:
        """Convolves [N, channels, H, W], as a rule in the channels-last layout."""
        if self.groups in (1, self.in_channels) or input.dim() != 4:
            return super().forward(input)
        sides = (int(input.shape[2]), int(input.shape[3]))
        pixels, taps = prod(sides), prod(self.kernel_size)
        if pixels <= taps and self._is_usual():
            places = self._places(sides)
            if 0 < prod(places) * pixels <= 2 * taps:
                return self._by_pixels(input, sides, places)
        if input.is_cuda and pixels <= 16 and input.is_contiguous(memory_format=torch.channels_last):
            y: Tensor = self._conv_forward(input.contiguous(), self.weight.contiguous(), self.bias)
            return y.contiguous(memory_format=torch.channels_last)
        return super().forward(input)

    def _is_usual(self) -> bool:
        """Whether taps lie side by side, and every result sees some pixel."""
        if isinstance(self.padding, str) or self.padding_mode != "zeros" or self.dilation != (1, 1):
            return False
        return all(padding < kernel for padding, kernel in zip(self.padding, self.kernel_size, strict=True))

    def _places(self, sides: Pair) -> Pair:
        """Height and width of the output."""
        places = []
        for axis in (0, 1):
            space = sides[axis] + 2 * int(self.padding[axis]) - self.kernel_size[axis]
            places.append(max(0, space // self.stride[axis] + 1))
        return places[0], places[1]

    def _by_pixels(self, x: Tensor, sides: Pair, places: Pair) -> Tensor:
        """One product a group: all of an example's pixels with all of its results."""
        groups, inputs, rows = self.groups, self.weight.shape[1], self.out_channels // self.groups
        taps = self.weight.permute(0, 2, 3, 1).reshape(groups, rows, -1, inputs).unbind(2)
        nothing = torch.zeros_like(taps[0])
        lines = []
        for place in _pixels(places):
            used = [self._tap(place, pixel) for pixel in _pixels(sides)]
            lines.append(torch.cat([nothing if tap is None else taps[tap] for tap in used], 2))
        matrix = torch.cat(lines, 1).transpose(1, 2)
        pixels = x.permute(0, 2, 3, 1).reshape(len(x), prod(sides), groups, inputs)
        examples = pixels.permute(2, 0, 1, 3).flatten(2)
        if self.bias is None:
            y = torch.bmm(examples, matrix)
        else:
            y = torch.baddbmm(self.bias.view(groups, 1, rows).tile(len(lines)), examples, matrix)
        return y.view(groups, len(x), *places, rows).permute(1, 2, 3, 0, 4).flatten(3).permute(0, 3, 1, 2)

    def _tap(self, place: Pair, pixel: Pair) -> int | None:
        """Which of the filter's taps lies over a pixel when it computes the result at a place."""
        tap = 0
        for axis in (0, 1):
            step = pixel[axis] + int(self.padding[axis]) - place[axis] * self.stride[axis]
            if not 0 <= step < self.kernel_size[axis]:
                return None
            tap = tap * self.kernel_size[axis] + step
        return tap


def _pixels(sides: Pair) -> list[Pair]:
    return [(line, column) for line in range(sides[0]) for column in range(sides[1])]

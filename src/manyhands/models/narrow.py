"""Narrower networks: the same layers with a fraction of the channels.

The channels of a narrower layer are the first ones of the full layer, so the weights of a narrower network
are corners of the full one's: what HeteroFL (Diao, Ding and Tarokh 2021) trains.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

__all__ = ["narrowed", "scale_up"]


def narrowed(channels: int, width: float) -> int:
    """How many of a layer's channels a network of this width has; never none.

    Raises:
        ValueError: The width is no fraction.
    """
    if not 0 < width <= 1:
        raise ValueError(f"width must be above 0 and at most 1, not {width}")
    return max(1, round(channels * width))


class _ScaleUp:
    """Divides what a layer puts out by the width, in training only."""

    def __init__(self, width: float) -> None:
        self._width = width

    def __call__(self, module: nn.Module, _inputs: Any, output: Tensor) -> Tensor:
        return output / self._width if module.training else output


def scale_up(model: nn.Module, width: float) -> None:
    """Has every convolution and dense layer but the last give, in training, as much as a full one would.

    This is the *scaler* of HeteroFL: a layer with half the inputs adds up half as much. It is meant for
    networks with batch normalisation, which takes the magnitude out again; others then see in use what they
    did not see in training.
    """
    layers = [module for module in model.modules() if isinstance(module, nn.Conv2d | nn.Linear)]
    for layer in layers[:-1]:
        layer.register_forward_hook(_ScaleUp(width))

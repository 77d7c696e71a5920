"""The network of deep Q-learning (Mnih et al. 2015) and its lightweight sibling (paper 001, 4.2 and B.1).

`complex` is the network of Nature: three convolutions and 512 hidden units, 1,686,180 parameters for four
actions on 84×84×4. `light` has the same first four layers (activations counted, as Keras does: the first two
convolutions), then 8 maps and 64 hidden units. The paper's text gives only its ratios, 66 % of the operations
and 4.2 % of the parameters of `complex`; this head was searched for to meet them (66.2 % and 4.2 %).

Below 36 pixels, where the large strides leave nothing, three unpadded 3×3 convolutions take their place; on
MinAtar's 10×10 Breakout `light` then has 55 % of the operations and 11 % of the parameters.

What it puts out is not scores of classes but the expected return of each action.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from torch import nn

from manyhands.models.dry import flat_size
from manyhands.models.flatten import Flatten
from manyhands.models.initial import he_initial
from manyhands.models.narrow import narrowed

__all__ = ["build"]

SIZES = ("light", "complex")


@dataclass(frozen=True)
class _Plan:
    """Maps of the stem, (kernel, stride) of the three convolutions, and per size (maps, hidden units)."""

    stem: tuple[int, int]
    kernels: tuple[tuple[int, int], tuple[int, int], tuple[int, int]]
    heads: dict[str, tuple[int, int]]


NATURE = _Plan((32, 64), ((8, 4), (4, 2), (3, 1)), {"light": (8, 64), "complex": (64, 512)})
SMALL = _Plan((16, 16), ((3, 1), (3, 1), (3, 1)), {"light": (8, 32), "complex": (32, 128)})


def build(
    size: str, *, shape: tuple[int, int, int], num_classes: int, width: float = 1.0, stem_width: float = 1.0
) -> nn.Module:
    """One of the two networks, both with the same stem; `num_classes` is the number of actions."""
    plan = NATURE if min(shape[1:]) >= 36 else SMALL
    first, second = (narrowed(maps, stem_width) for maps in plan.stem)
    maps, hidden = (narrowed(count, width) for count in plan.heads[size])
    kernel1, kernel2, kernel3 = plan.kernels
    stem = nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(shape[0], first, *kernel1),
            relu1=nn.ReLU(),
            conv2=nn.Conv2d(first, second, *kernel2),
            relu2=nn.ReLU(),
        )
    )
    features = nn.Sequential(OrderedDict(conv3=nn.Conv2d(second, maps, *kernel3), relu3=nn.ReLU()))
    out = nn.Linear(hidden, num_classes)
    classifier = nn.Sequential(
        OrderedDict(
            flatten=Flatten(),
            dense4=nn.Linear(flat_size(nn.Sequential(stem, features), shape), hidden),
            relu4=nn.ReLU(),
            out=out,
        )
    )
    model = nn.Sequential(OrderedDict(stem=stem, features=features, classifier=classifier))
    he_initial(model, out)
    return model

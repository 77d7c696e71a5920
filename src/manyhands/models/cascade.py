"""A cascade: the lighter networks of a family wholly contained in the heavier one (paper 001, figure 5).

All branches start from one stem, and their class scores are added. In training a branch is left out of the
sum for half of the examples, wholly or not at all (*branch dropout*), so that the lighter branches do not
come to rely on the heavier ones: a weaker device has only them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

import torch
from torch import Tensor, nn

__all__ = ["Cascade"]


class Cascade(nn.Module):
    """One stem, and a branch for each size up to its own, lightest first.

    Args:
        members: Size -> a network whose first part is its stem; the stem is taken from the first.
        branch_dropout: The part of the examples for which a branch is left out in training. The lightest is
            never left out, and where a branch is, so are those that are heavier.
    """

    def __init__(self, members: Mapping[str, nn.Sequential], branch_dropout: float) -> None:
        super().__init__()
        self.stem = next(iter(members.values()))[0]
        self.branches = nn.ModuleDict(
            {
                # Not `named_children`, which leaves out a layer that stands in two places.
                size: nn.Sequential(OrderedDict(list(zip(member._modules, member, strict=True))[1:]))
                for size, member in members.items()
            }
        )
        self.branch_dropout = branch_dropout

    def forward(self, x: Tensor) -> Tensor:
        """Class scores, [N, C]."""
        x = self.stem(x)
        lightest, *heavier = self.branches.values()
        scores: Tensor = lightest(x)
        there = scores.new_ones(len(x), 1)
        for branch in heavier:
            if self.training:
                there = there * torch.bernoulli(torch.full_like(there, 1 - self.branch_dropout))
            scores = scores + there * branch(x)
        return scores

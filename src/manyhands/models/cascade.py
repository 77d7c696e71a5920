"""A cascade: the lighter networks of a family wholly contained in the heavier one (paper 001, figure 5).

All branches start from one stem, and their class scores are added. The lighter branches must not come to rely
on the heavier ones, because a weaker device has only them. The paper leaves a branch out of the sum for half
of the examples in training, wholly or not at all (*branch dropout*). The other way here, `each`, compares
every size's sum with the labels and lets a heavier branch correct the lighter ones without changing them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from manyhands.models.outputs import summed_cross_entropy

__all__ = ["Cascade"]


class Cascade(nn.Module):
    """One stem, and a branch for each size up to its own, lightest first.

    Args:
        members: Size -> a network whose first part is its stem; the stem is taken from the first.
        branch_dropout: The part of the examples for which a branch is left out in training. The lightest is
            never left out, and where a branch is, so are those that are heavier.
        each: Train the sum of every size, in place of branch dropout.
    """

    def __init__(
        self, members: Mapping[str, nn.Sequential], branch_dropout: float, *, each: bool = False
    ) -> None:
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
        self.each = each

    def forward(self, x: Tensor) -> Tensor:
        """Class scores, [N, C]; while every size is trained those of each, [sizes, N, C]."""
        x = self.stem(x)
        if self.each and self.training:
            return self._every_sum(x)
        lightest, *heavier = self.branches.values()
        scores: Tensor = lightest(x)
        there = scores.new_ones(len(x), 1)
        for branch in heavier:
            if self.training:
                there = there * torch.bernoulli(torch.full_like(there, 1 - self.branch_dropout))
            scores = scores + there * branch(x)
        return scores

    def _every_sum(self, x: Tensor) -> Tensor:
        sums: list[Tensor] = []
        for branch in self.branches.values():
            scores: Tensor = branch(x)
            sums.append(sums[-1].detach() + scores if sums else scores)
        return torch.stack(sums)

    def loss(self, scores: Tensor, y: Tensor) -> Tensor:
        """Cross-entropy; summed over the sizes where each has scores of its own."""
        return summed_cross_entropy(scores, y) if scores.dim() == 3 else F.cross_entropy(scores, y)

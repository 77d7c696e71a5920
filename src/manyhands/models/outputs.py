"""The loss of a network that in training gives the scores of several outputs, one for each size in it."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

__all__ = ["summed_cross_entropy"]


def summed_cross_entropy(scores: Tensor, y: Tensor) -> Tensor:
    """The sum of the outputs' mean cross-entropies: scores [outputs, N, C], labels [N]."""
    outputs, examples, _ = scores.shape
    return F.cross_entropy(scores.flatten(0, 1), y.repeat(outputs), reduction="sum") / examples

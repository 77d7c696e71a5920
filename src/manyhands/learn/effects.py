"""What sets of data are worth to a network: the loss of a point that stands for each (paper 002, alg. 2).

A device remembers effects between epochs and computes only some of them anew.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F

from manyhands.data import Examples
from manyhands.learn.gradients import as_input
from manyhands.learn.holding import Share
from manyhands.learn.ledger import Ledger, Numbers
from manyhands.learn.ranking import Indices
from manyhands.learn.transfer import moved
from manyhands.learn.workspace import Architecture, Tensors, load, workspace
from manyhands.replica import Replica

__all__ = ["Notes", "effects_of", "losses_of"]

POINTS_AT_ONCE = 64


class Notes:
    """What a device remembers of its points between epochs."""

    def __init__(self, shares: Sequence[Share], replica: Replica) -> None:
        sizes = {share.owner: len(share.gathered.points) for share in shares}
        first = {"effect": np.float32(np.nan), "renewed": np.int32(-1), "last": np.int32(-1)}
        self._ledger = Ledger(sizes, replica, first)
        self.effects, self.renewed, self.last = (self._ledger.columns[what] for what in first)
        self.kept = self._ledger.kept

    def renew(self, chosen: Indices, effects: Numbers, number: int) -> None:
        """Writes down effects; those never computed are taken to be as large as these on average."""
        self.effects[chosen], self.renewed[chosen] = effects, number
        unknown = self.renewed < 0
        if len(effects) and unknown.any():
            self.effects[unknown] = np.mean(effects)


def losses_of(loss: torch.Tensor, outputs: object, y: torch.Tensor) -> torch.Tensor:
    """The loss of each example of a batch; where a network has a loss of its own, that of the batch."""
    if isinstance(outputs, torch.Tensor) and outputs.ndim == 2 and y.ndim == 1:
        return F.cross_entropy(outputs, y, reduction="none")
    return loss.expand(len(y)).clone()


def effects_of(
    architecture: Architecture,
    weights: Tensors,
    points: Examples,
    torch_device: str = "cpu",
    memory_format: torch.memory_format = torch.channels_last,
) -> Numbers:
    """Each point's loss under a network (algorithm 2, line 1).

    Points go through in the layout that training has, and in batches whose maps stay in a processor's cache.
    """
    module = workspace(architecture, torch_device, memory_format).module
    load(module, weights)
    module.eval()
    losses = []
    size = POINTS_AT_ONCE if torch_device == "cpu" else 512
    with torch.inference_mode():
        for first in range(0, len(points), size):
            x = as_input(moved(points.x[first : first + size], torch_device), memory_format)
            y = moved(points.y[first : first + size], torch_device)
            losses.append(F.cross_entropy(module(x), y, reduction="none"))
    return torch.cat(losses).cpu().numpy() if losses else np.empty(0, np.float32)

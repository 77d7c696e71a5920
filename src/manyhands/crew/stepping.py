"""One step of a tile group: every device computes its tile, and has the whole batch's gradients in the end."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F

from manyhands.crew.member import Step
from manyhands.crew.state import Learner
from manyhands.grouping import GroupPlan
from manyhands.learn.gradients import as_input
from manyhands.splits import SpaceSection

__all__ = ["make_step"]


def make_step(
    learner: Learner, plan: GroupPlan, section: SpaceSection, group: dist.ProcessGroup, seed: int
) -> Step:
    """The step of this device under a plan."""

    def step(x: torch.Tensor, y: torch.Tensor, number: int) -> float:
        outputs = learner.module(as_input(x, torch.channels_last))
        loss = F.cross_entropy(outputs, y)
        loss.backward()  # type: ignore[no-untyped-call]
        for p in learner.parameters:
            dist.all_reduce(p.grad, group=group)
            p.grad /= dist.get_world_size(group)
        return float(loss.detach())

    return step

"""One step of a tile group: each device computes its tile, and has the whole batch's gradients in the end."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F

from manyhands.crew.member import Step
from manyhands.crew.state import Learner
from manyhands.learn.gradients import as_input
from manyhands.splits import SpaceSection
from manyhands.tile_groups import GroupPlan
from manyhands.tiles import TileGraph
from manyhands.tiles.module import TiledModule

__all__ = ["make_step"]


def make_step(
    learner: Learner,
    graph: TileGraph,
    plan: GroupPlan,
    section: SpaceSection,
    group: dist.ProcessGroup,
    seed: int,
) -> Step:
    """This device's part in a step under a plan.

    Args:
        learner: The network.
        graph: Its operations.
        plan: Who computes what.
        section: The job's settings.
        group: The devices, by rank.
        seed: Of dropout.
    """
    tiled = TiledModule(
        learner.module,
        graph,
        plan.prediction.plan,
        group,
        checkpoint=plan.prediction.checkpoint,
        wire_dtype=torch.bfloat16 if section.wire_dtype == "bfloat16" else None,
        seed=seed,
    )
    criterion = getattr(learner.module, "loss", None) or F.cross_entropy

    def step(x: torch.Tensor, y: torch.Tensor, number: int) -> float:
        tiled.num_steps = number  # a step that was broken off is made again with the same dropout
        output = tiled(as_input(tiled.cut(x), torch.channels_last))
        loss = tiled.loss(criterion, output, y)
        loss.backward()  # type: ignore[no-untyped-call]
        tiled.synchronise()
        return float(tiled.total(loss))

    return step

"""Splits: who trains which network, and which blocks of it are shared with whom.

A split is data and a function: given the fleet and the networks there are, it hands each device a `Seat`.
Another way to split is one new file and a line in `SPLITS`.
"""

from __future__ import annotations

from manyhands.splits.capacity import capacity
from manyhands.splits.data import data, replica_holders
from manyhands.splits.seat import Networks, Seat, Split
from manyhands.splits.section import DataSplitSection, SpaceSection, SplitSection, TaskSection
from manyhands.splits.space import space
from manyhands.splits.task import task
from manyhands.splits.whole import homogeneous, isolated

__all__ = [
    "SPLITS",
    "DataSplitSection",
    "Networks",
    "Seat",
    "SpaceSection",
    "Split",
    "SplitSection",
    "TaskSection",
    "replica_holders",
]

SPLITS = {
    "isolated": isolated,
    "homogeneous": homogeneous,
    "capacity": capacity,
    "task": task,
    "data": data,
    "space": space,
}
"""By the name a job gives it (``[split] by = …``)."""

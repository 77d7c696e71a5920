"""The line-up of a run: everything that is settled before it starts, and who may drive it and watch it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from manyhands.fleet import Fleet
from manyhands.hand import Facts
from manyhands.job import Job
from manyhands.lessons import Material
from manyhands.report.folder import RunFolder
from manyhands.report.summary import Tally
from manyhands.sizing import Library
from manyhands.splits import Split
from manyhands.team import Team
from manyhands.tile_groups import GroupPlan

__all__ = ["Drive", "Lineup", "Watch", "teller"]


@dataclass(frozen=True)
class Lineup:
    """A run that is put together and not yet started.

    Attributes:
        job: The job.
        material: What it learns from.
        library: Its networks.
        fleet: Its devices.
        split: Who trains what.
        team: The programs of all hands.
        groups: How tile groups compute, by name.
    """

    job: Job
    material: Material
    library: Library
    fleet: Fleet
    split: Split
    team: Team
    groups: Mapping[str, GroupPlan]


Watch = Callable[[str, Job, Tally, Facts | None], None]
"""Told of every event: the run's split, its job, what was counted so far, the event (None at the start)."""

Drive = Callable[[Lineup, RunFolder, Tally, Watch | None], Mapping[str, Any]]
"""What makes events of a line-up: counts them, and gives what each hand has left."""


def teller(job: Job, tally: Tally, watch: Watch | None) -> Callable[[Facts | None], None]:
    """Counts each event that it is told, and tells who watches."""

    def told(event: Facts | None) -> None:
        if event is not None:
            tally.add(event)
        if watch is not None:
            watch(job.split.label, job, tally, event)

    return told

"""The company of a job: its devices as those who exchange, with or without a coordinator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from manyhands.exchange.counts import Counts
from manyhands.exchange.member import Member
from manyhands.fleet import Fleet
from manyhands.fleet.outlook import Slowdown
from manyhands.job import Job
from manyhands.lessons import Phase
from manyhands.replica import Blocks
from manyhands.splits import Split

__all__ = ["Company"]


@dataclass(frozen=True)
class Company:
    """Who exchanges what.

    Attributes:
        job: The job.
        fleet: Its devices.
        split: Who holds what.
        members: Device -> its part.
        phases: Device -> how it learns.
        blocks: All blocks before the first round.
        counts: How much data each device has.
        live: Whether devices are on hosts of their own, whose speed is not known.
        slowdown: Of such a host, what co-running work costs it, where it has a profile.
    """

    job: Job
    fleet: Fleet
    split: Split
    members: Mapping[str, Member]
    phases: Mapping[str, Phase]
    blocks: Blocks
    counts: Counts
    live: bool = False
    slowdown: Slowdown | None = None

    @property
    def holds(self) -> dict[str, tuple[str, ...]]:
        """Device -> its blocks."""
        return {name: tuple(seat.layout) for name, seat in self.split.seats.items()}

    @property
    def num_examples(self) -> dict[str, int]:
        """Device -> how much it learns from; corrected in place when devices tell."""
        return self.counts.num_examples

    @property
    def patience_s(self) -> float:
        """How long nobody is given up, at the least."""
        return self.job.live.patience_s if self.live else 0.0

    def others(self, name: str) -> tuple[str, ...]:
        """All devices but one."""
        return tuple(other for other in self.members if other != name)

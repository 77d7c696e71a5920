"""A run on the virtual clock: its trace and checkpoints in its folder, gone on with where it was killed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, TextIO

from manyhands.engine.checkpoint import read_checkpoint
from manyhands.engine.cores import Cores
from manyhands.engine.faults import Faults
from manyhands.engine.holdings import Keeping
from manyhands.engine.simulate import Simulation, Until
from manyhands.fleet import Contention
from manyhands.hand import Facts
from manyhands.lineup import Lineup, Watch, teller
from manyhands.report.folder import RunFolder
from manyhands.report.summary import Tally
from manyhands.seeds import derive

__all__ = ["simulate"]


def simulate(lineup: Lineup, folder: RunFolder, tally: Tally, watch: Watch | None) -> Mapping[str, Any]:
    """Drives all hands on the virtual clock, from the last checkpoint if there is one."""
    job, fleet, team = lineup.job, lineup.fleet, lineup.team
    checkpoint = read_checkpoint(folder.checkpoint)
    if checkpoint is not None:
        folder.check_same(job.hash, checkpoint.job_hash)
    recorded = folder.recorded(checkpoint.num_events if checkpoint else 0)
    told = teller(job, tally, watch)
    told(None)
    for event in folder.events() if recorded else ():
        told(event)
    with folder.open_trace() as trace:

        def write(event: Facts, line: str) -> None:
            trace.write(line + "\n")
            told(event)

        simulation = Simulation(
            fleet,
            team.participants,
            write,
            faults=Faults(job.fault, derive(job.seed, "faults")),
            contention=Contention(job.contention, fleet, job.seed),
            cores=Cores(job.run.workers, job.run.threads),
            until=Until(tuple(recorded), checkpoint),
            keeping=Keeping(
                folder.checkpoint,
                job.hash,
                job.run.checkpoint_every_s,
                before=lambda: _to_disk(trace),
                at="merged" if team.coordinator_host else "round",
            ),
        )
        return simulation.run()


def _to_disk(file: TextIO) -> None:
    file.flush()
    os.fsync(file.fileno())

"""Profiling runs: training on this machine beside loads of known kinds, from which the predictor learns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import psutil

from manyhands.fleet.burn import burning
from manyhands.fleet.executor import Executors
from manyhands.fleet.mapreduce import JobName, jobs_running
from manyhands.fleet.monitor import Monitor
from manyhands.fleet.predictor import Sample, throughput

__all__ = ["Beside", "loads_to_learn_from", "profile_run", "profile_runs"]


@dataclass(frozen=True)
class Beside:
    """A load: processes that are busy for a part of the time, or that do jobs of MapReduce.

    Attributes:
        level: The part of the time that each process is busy.
        workers: How many processes.
        job: In place of a level, the jobs they do.
        num_bytes: Of a job's input.
    """

    level: float = 0.0
    workers: int = 1
    job: JobName | None = None
    num_bytes: int = 0

    @property
    def label(self) -> str:
        """For a person."""
        if self.job is not None:
            return f"{self.workers} x {self.job} of {self.num_bytes / 1e6:g} MB"
        return f"{self.workers} x {self.level:.0%} of a core" if self.level else "nothing"

    def start(self) -> AbstractContextManager[Any]:
        """The load, while the context lasts."""
        if self.job is not None:
            return jobs_running(self.job, self.num_bytes, self.workers)
        return burning(self.level, self.workers)


def loads_to_learn_from(num_cores: int | None = None) -> tuple[Beside, ...]:
    """Loads from none to one process a core that is always busy, and jobs of two kinds."""
    cores = num_cores or psutil.cpu_count() or 1
    busy = [Beside(level, workers) for workers in sorted({1, cores}) for level in (0.25, 0.5, 0.75, 1.0)]
    jobs = [Beside(job=job, num_bytes=size) for job in ("wordcount", "sort") for size in (10**6, 10**7)]
    return Beside(), *busy, *jobs, Beside()


def profile_run(executors: Executors, beside: Beside, seconds: float) -> Sample:
    """Trains beside a load for so long; what others used meanwhile, and what an example took an executor."""
    with beside.start():
        executors.run_for(min(1.0, seconds / 4))  # until the scheduler has found its balance
        monitor = Monitor(own=executors.pids)
        paces = executors.run_for(seconds)
        use = monitor.sample()
    examples_per_s = throughput(pace.seconds_per_example for pace in paces)
    return Sample(use, len(paces) / examples_per_s)


def profile_runs(
    executors: Executors,
    loads: Sequence[Beside],
    seconds: float,
    progress: Callable[[str, int, int], None] | None = None,
) -> list[Sample]:
    """A profiling run beside each load."""
    samples = []
    for number, beside in enumerate(loads):
        if progress is not None:
            progress(beside.label, number, len(loads))
        samples.append(profile_run(executors, beside, seconds))
    return samples

"""A load that can be ordered: processes that each keep one core busy for a part of the time.

Run as a program, this file is one such process. It imports nothing of manyhands, so that it is there at
once. It compares the processor time that it has used with the time that has passed, works while it is behind
and sleeps while it is ahead; so the part is met as long as the machine has that much to give. It ends when
its standard input does, which is when whoever started it has died.
"""

from __future__ import annotations

import os
import resource
import select
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np

__all__ = ["READY", "burning", "end", "running"]

NAP_S = 0.02
BEHIND_S = 0.1
"""Lateness beyond this is forgiven: a load that could not be met for a while does not pile up."""
READY = "ready"


@contextmanager
def burning(level: float, workers: int = 1) -> Iterator[tuple[subprocess.Popen[str], ...]]:
    """So many processes, each busy for the part `level` of the time, while the context lasts."""
    if level <= 0:
        yield ()
        return
    with running([[__file__, str(level)]] * workers) as processes:
        yield processes


@contextmanager
def running(programs: Sequence[Sequence[str]]) -> Iterator[tuple[subprocess.Popen[str], ...]]:
    """Python programs that say when they are ready and end when their standard input does."""
    single = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    with ExitStack() as stack:
        processes = []
        for program in programs:
            process = subprocess.Popen(
                [sys.executable, *program],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, **single},
            )
            stack.callback(end, process)
            processes.append(process)
        for process in processes:
            assert process.stdout is not None  # it is a pipe
            if process.stdout.readline().strip() != READY:
                raise ChildProcessError(f"{programs[0][0]} did not start as a process of its own")
        yield tuple(processes)


def end(process: subprocess.Popen[str]) -> None:
    """Ends a process at once and waits until it is gone."""
    with process:  # closes its pipes, and waits for it
        process.kill()


def _processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def stopped(wait_s: float) -> bool:
    """Waits, and says whether the standard input has ended meanwhile."""
    return bool(select.select([sys.stdin], [], [], wait_s)[0])


def _work(a: np.ndarray[Any, np.dtype[np.float32]]) -> None:
    """A few milliseconds of multiplication."""
    for _ in range(50):
        a @ a


def main(level: float) -> None:
    """Burns until the standard input ends."""
    a = np.full((96, 96), 0.01, np.float32)
    print(READY, flush=True)
    # os.times counts in hundredths of a second, which is what naps are made of anyway.
    started_s, used_before_s, forgiven_s = os.times().elapsed, _processor_seconds(), 0.0
    while not stopped(0.0):
        passed_s = os.times().elapsed - started_s
        behind_s = level * passed_s - (_processor_seconds() - used_before_s) - forgiven_s
        if behind_s > BEHIND_S:
            forgiven_s += behind_s - BEHIND_S
        if behind_s <= 0 and level < 1:
            if stopped(NAP_S):
                return
            continue
        _work(a)


if __name__ == "__main__":
    main(float(sys.argv[1]))

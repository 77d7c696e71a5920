"""Training processes that can be told to train for a while: the executors of one platform.

Run as a module, this is one such process: it reads seconds from its standard input, line by line, trains the
network of `measure` for so long, and answers with what an example took. Several of them, of one thread each,
never wait for each other, so that a load on one core slows one of them and not all; threads of one process
do wait at the end of every operation, actively unless told otherwise, and lose far more beside a load.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict

import psutil
import torch

from manyhands.errors import RunError
from manyhands.fleet.burn import READY, end
from manyhands.fleet.measure import Pace, TrainingStep

__all__ = ["Executors", "executors_running"]

MODULE = "manyhands.fleet.executor"


class Executors:
    """Some training processes.

    Args:
        processes: Each of them running this module, and ready.
    """

    def __init__(self, processes: tuple[subprocess.Popen[str], ...]) -> None:
        self._processes = processes

    @property
    def pids(self) -> tuple[int, ...]:
        """Their processes."""
        return tuple(process.pid for process in self._processes)

    def run_for(self, seconds: float) -> list[Pace]:
        """Lets all of them train at once, and waits for their answers."""
        for process in self._processes:
            assert process.stdin is not None  # it is a pipe
            process.stdin.write(f"{seconds}\n")
            process.stdin.flush()
        return [Pace(**json.loads(_answer(process))) for process in self._processes]


@contextmanager
def executors_running(count: int | None = None, threads: int = 1) -> Iterator[Executors]:
    """So many training processes of so many threads, while the context lasts; by default one a core."""
    # A thread that waits for another must not keep a core from those who have something to do.
    env = {**os.environ, "OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "PASSIVE"}
    command = [sys.executable, "-m", MODULE, str(threads)]
    with ExitStack() as stack:
        processes = []
        for _ in range(count or psutil.cpu_count() or 1):
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
            )
            stack.callback(end, process)
            processes.append(process)
        for process in processes:
            if _answer(process) != READY:
                raise RunError("a training process said something else than that it is ready")
        yield Executors(tuple(processes))


def _answer(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None  # it is a pipe
    line = process.stdout.readline().strip()
    if not line:
        raise RunError(f"a training process ended with status {process.wait()}")
    return line


def main(threads: int) -> None:
    """Trains for as long as each line says, until the standard input ends."""
    torch.set_num_threads(threads)
    step = TrainingStep()
    print(READY, flush=True)
    for line in sys.stdin:
        print(json.dumps(asdict(step.run_for(float(line)))), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))

"""Processes that stay, so that a test of several ranks costs what it computes and not what starting costs."""

from __future__ import annotations

import multiprocessing
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

PATIENCE_S = 240


class Crew:
    """Ranks 0 to `size` - 1, with a process group for every smaller number of them."""

    def __init__(self, size: int, store: Path) -> None:
        self.size, self.store = size, store
        self.generation = 0
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["torch", "torch.distributed", "manyhands.tiles"])
        self.generation += 1
        self.pipes, self.processes = [], []
        for rank in range(self.size):
            ours, theirs = context.Pipe()
            store = str(self.store / f"ranks-{self.generation}")
            process = context.Process(target=_work, args=(rank, self.size, store, theirs), daemon=True)
            process.start()
            theirs.close()
            self.pipes.append(ours)
            self.processes.append(process)

    def __call__(self, size: int, case: Callable[..., Any], *args: Any) -> list[Any]:
        """Runs ``case(rank, group, *args)`` on the first ranks, and returns what each gave."""
        for pipe in self.pipes[:size]:
            pipe.send((size, case, args))
        results, failures = [], []
        for rank, pipe in enumerate(self.pipes[:size]):
            if failures and not pipe.poll(5):
                continue  # it waits for the one that failed
            if not failures and not pipe.poll(PATIENCE_S):
                failures.append(f"rank {rank} does not answer")
                continue
            try:
                done, result = pipe.recv()
            except EOFError:
                done, result = False, "it died"
            (results if done else failures).append(result if done else f"rank {rank}: {result}")
        if failures:
            self.stop()
            self._start()
            raise AssertionError("\n".join(failures))
        return results

    def stop(self) -> None:
        for process in self.processes:
            process.kill()
            process.join()
        for pipe in self.pipes:
            pipe.close()


def _work(rank: int, size: int, store: str, pipe: Any) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        store=dist.FileStore(store, size),
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=PATIENCE_S),
    )
    groups = {count: dist.new_group(list(range(count))) for count in range(1, size + 1)}
    while True:
        try:
            count, case, args = pipe.recv()
        except EOFError:
            return
        try:
            result = (True, case(rank, groups[count], *args))
        except BaseException:
            result = (False, traceback.format_exc())
        pipe.send(result)

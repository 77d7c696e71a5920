"""The machine's cores: where the arithmetic of all hands really runs.

Works go to a pool of threads, each of which computes with a fixed number of torch threads, because the
number of threads decides how sums are split and so the last bits of a result; the number of workers
does not. torch releases Python's lock inside its kernels, so threads serve as well as processes here
and share the tensors.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor

import psutil
import torch

from manyhands.hand import Outcome, Work

__all__ = ["Cores"]


def _keep_freed_memory() -> None:
    """Has glibc keep freed buffers for the next ones of their size instead of handing them to the system.

    A training step frees and takes the same megabytes again and again, and fresh pages cost more than the
    arithmetic on them. Does nothing where the allocator is another.
    """
    try:
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, 32 << 20)
        libc.mallopt(_M_TRIM_THRESHOLD, 256 << 20)
    except (OSError, AttributeError):
        return


_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


BESIDE_NICE = 5


def _begin(threads: int, beside: bool) -> None:
    """What a worker does before its first work."""
    torch.set_num_threads(threads)
    if beside and sys.platform == "linux":  # elsewhere a thread has no priority of its own
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), BESIDE_NICE)


class Cores:
    """A pool of workers; with `workers=0` each work runs when its result is asked for.

    With `beside` they give way to everything else that the process does.
    """

    def __init__(self, workers: int | None = None, threads: int = 1, *, beside: bool = False) -> None:
        self.workers = psutil.cpu_count(logical=True) or 1 if workers is None else workers
        self._before = torch.get_num_threads()
        torch.set_num_threads(threads)
        _keep_freed_memory()
        self._pool = (
            ThreadPoolExecutor(self.workers, "manyhands", initializer=_begin, initargs=(threads, beside))
            if self.workers
            else None
        )

    def submit(self, work: Work) -> Future[Outcome]:
        """Starts a work."""
        if self._pool is not None:
            return self._pool.submit(work.run)
        return _Lazy(work)

    def close(self) -> None:
        """Waits for what runs, drops what has not begun, and gives the threads back."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        torch.set_num_threads(self._before)


class _Lazy(Future[Outcome]):
    """A future that does its work in the first call of `result`."""

    def __init__(self, work: Work) -> None:
        super().__init__()
        self._work: Work | None = work

    def result(self, timeout: float | None = None) -> Outcome:
        if self._work is not None:
            work, self._work = self._work, None
            try:
                self.set_result(work.run())
            except Exception as error:  # handed on by result() below
                self.set_exception(error)
        return super().result(timeout)

    def done(self) -> bool:
        return True

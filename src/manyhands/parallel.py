"""Runs side by side, each in a process of its own.

Every process is a pool of one, because a process that dies takes its whole pool along: so it costs only the
run that it was at. A line that nobody writes to connects all of them with this process; when it is
closed, or this process dies, they end at once. Nothing is lost by that, as a run can be killed at any moment.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue

from manyhands.errors import ManyhandsError
from manyhands.job import Job
from manyhands.report.atomic import write_atomically
from manyhands.run import train

__all__ = ["attempt", "side_by_side"]

KILLED = "its process was killed, perhaps because memory ran out"


def attempt(job: Job, folder: Path) -> str | None:
    """Runs a job in a folder, or goes on with it; returns what went wrong, in one line, or None."""
    notes = folder / "error.txt"
    notes.unlink(missing_ok=True)
    try:
        train(job, folder)
    except (ManyhandsError, OSError) as error:
        return " ".join(str(error).split())
    except Exception as error:  # nobody foresaw it; the other runs can do without this one
        write_atomically(notes, traceback.format_exc())
        return " ".join(f"{type(error).__name__}: {error} (see {notes})".split())
    return None


def side_by_side(
    runs: Sequence[tuple[Job, Path]],
    jobs: int,
    begins: Callable[[int], None],
    ends: Callable[[int, str | None], None],
) -> None:
    """Attempts all runs, `jobs` at a time.

    `begins` is told the number of each run, `ends` also what `attempt` returned; one call at a time.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)[::-1]
    lock = threading.Lock()
    pools: SimpleQueue[ProcessPoolExecutor] = SimpleQueue()

    def fresh_pool() -> ProcessPoolExecutor:
        return ProcessPoolExecutor(1, context, initializer=_live_as_long_as, initargs=(theirs,))

    def run(number: int) -> str | None:
        pool = pools.get()
        with lock:
            begins(number)
        try:
            return pool.submit(attempt, *runs[number]).result()
        except BrokenProcessPool:
            pool.shutdown()
            pool = fresh_pool()
            return KILLED
        finally:
            pools.put(pool)

    with _uninterrupted():  # what a process starts with, it keeps: Ctrl-C is for this one to answer
        for _ in range(jobs):
            pool = fresh_pool()
            pool.submit(os.getpid)  # starts the process
            pools.put(pool)
    threads = ThreadPoolExecutor(jobs)
    try:
        futures: dict[Future[str | None], int] = {threads.submit(run, n): n for n in range(len(runs))}
        for future in as_completed(futures):
            with lock:
                ends(futures[future], future.result())
    finally:
        threads.shutdown(wait=False, cancel_futures=True)
        ours.close()
        threads.shutdown()
        while not pools.empty():
            pools.get().shutdown()
        theirs.close()


def _live_as_long_as(line: Connection) -> None:
    """Has this process end when the other end of a line is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def wait() -> None:
        line.poll(None)
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


@contextmanager
def _uninterrupted() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)

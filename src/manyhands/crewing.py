"""A tile group that trains for real on this machine: one process a device, started and watched from here.

The processes write the trace, the checkpoint and the network (`manyhands.crew`). This one serves the point
where they meet, so that none of them is needed by the others, tells who has ended, and makes the result from
the trace.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
from torch._C._distributed_c10d import TCPStore  # torch.distributed has them, but not for type checkers

from manyhands.concluding import conclude
from manyhands.crew.meeting import say_gone
from manyhands.data import Progress as ReadingProgress
from manyhands.duties import check_crew, muster_roll
from manyhands.engine.clock import wall_seconds
from manyhands.errors import RunError
from manyhands.hand import Facts
from manyhands.job import Job, load_job
from manyhands.lessons import load_material
from manyhands.lineup import Watch, teller
from manyhands.report.atomic import write_atomically
from manyhands.report.folder import RunFolder
from manyhands.report.summary import Tally
from manyhands.run import put_together
from manyhands.sizing import Library

__all__ = ["is_crew_run", "train_crew"]

MARK = "crew.json"
POLL_S = 0.1
POLITE_S = 3.0


def is_crew_run(out: Path) -> bool:
    """Whether a folder holds a run of real processes."""
    return (out / MARK).is_file()


def train_crew(
    job: Job,
    out: Path,
    watch: Watch | None = None,
    progress: ReadingProgress | None = None,
    *,
    program: str = "manyhands.crewmate",
) -> dict[str, Any]:
    """Runs a job that is split by space on real processes, or goes on with it, and returns its result.

    Args:
        job: The job.
        out: The run's folder.
        watch: Told of every event.
        progress: Told how far reading the data is.
        program: The module that each process runs.

    Raises:
        JobError: The job cannot be trained so, or its network does not fit its devices.
        RunError: All processes failed.
    """
    check_crew(job)
    folder, started = RunFolder(out), wall_seconds()
    if (finished := folder.load_result()) is not None:
        folder.check_same(job.hash, finished["hash"])
        return finished
    if folder.is_run:
        folder.check_same(job.hash, load_job(folder.job).hash)
    material = load_material(job, progress)
    library = Library(job, material, progress)
    lineup = put_together(job, material, library)
    folder.begin(job.to_toml())
    tally = Tally(lineup.team.hosts, lineup.team.measure)
    tally.clock = "so far"
    told = teller(job, tally, watch)
    told(None)
    with _processes(job, folder, muster_roll(job), program) as (processes, store):
        _watch_over(processes, store, _Tail(folder.trace, told))
    return conclude(job, material, library, folder, started)


# Processes.


@contextmanager
def _processes(
    job: Job, folder: RunFolder, names: tuple[str, ...], program: str
) -> Iterator[tuple[dict[str, subprocess.Popen[bytes]], TCPStore]]:
    """Starts a process for each device; none is left when the block ends, however that is."""
    logs = folder.path / "logs"
    logs.mkdir(exist_ok=True)
    write_atomically(folder.path / MARK, "{}\n")  # from now on it is known what kind of run this is
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    environment = os.environ | {"OMP_NUM_THREADS": str(job.run.threads)} | _loopback()
    # So that [model] name = "own_model:make" finds what the parent finds.
    environment["PYTHONPATH"] = os.pathsep.join(path or os.getcwd() for path in sys.path)
    processes: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for rank, name in enumerate(names):
            command = [sys.executable, "-m", program, str(folder.job), "--out", str(folder.path)]
            command += ["--rank", str(rank), "--master", f"127.0.0.1:{store.port}", "--hosted", "--no-report"]
            with (logs / f"{name}.log").open("ab") as log:
                processes[name] = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=environment,
                    start_new_session=True,  # Ctrl-C is for this process, which then ends the others
                )
        who = {name: process.pid for name, process in processes.items()}
        write_atomically(folder.path / MARK, json.dumps({"processes": who}) + "\n")
        yield processes, store
    finally:
        _end(list(processes.values()))


def _loopback() -> dict[str, str]:
    """Where Gloo's sockets are: not wherever this machine's name happens to lead."""
    names = [name for name in ("lo", "lo0") if name in psutil.net_if_addrs()]
    return {"GLOO_SOCKET_IFNAME": names[0]} if names else {}


def _end(processes: list[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        with suppress(OSError):
            process.terminate()
    for process in processes:
        try:
            process.wait(POLITE_S)
        except subprocess.TimeoutExpired:
            process.kill()  # also ends one that was stopped
            process.wait()


def _watch_over(processes: dict[str, subprocess.Popen[bytes]], store: TCPStore, tail: _Tail) -> None:
    """Waits until the run is done, telling the others of each process that ends."""
    ended: set[str] = set()
    pause = threading.Event()
    while True:
        tail.read()
        for name, process in processes.items():
            if name not in ended and process.poll() is not None:
                ended.add(name)
                say_gone(store, name)
        if any(process.returncode == 0 for process in processes.values()) and store.check(["done"]):
            break
        if len(ended) == len(processes):
            raise RunError(f"no device is left: {_last_words(processes, tail)}")
        pause.wait(POLL_S)
    tail.read()


def _last_words(processes: dict[str, subprocess.Popen[bytes]], tail: _Tail) -> str:
    """What the first device that said why it ended has said."""
    for name in processes:
        log = tail.path.parent / "logs" / f"{name}.log"
        lines = (
            log.read_text(encoding="utf-8", errors="replace").strip().splitlines() if log.is_file() else []
        )
        if lines:
            return f"{name} said: {lines[-1].removeprefix('manyhands: ')}"
    return "none has said why"


class _Tail:
    """Reads a trace while it is written."""

    def __init__(self, path: Path, told: Callable[[Facts], None]) -> None:
        self.path, self._told, self._place = path, told, 0

    def read(self) -> None:
        """Tells of the whole lines that have come since the last time."""
        if not self.path.is_file():
            return
        with self.path.open("rb") as file:
            file.seek(self._place)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._place += len(line)
                with suppress(ValueError):  # another leader may just have written the file anew
                    self._told(json.loads(line))

"""The rehearsal: each device of a job as a process of its own on this machine, over real sockets.

A device is started by the same command as on a host of its own, ``manyhands join``, and keeps everything in
its folder ``OUT/devices/NAME``. The rehearsal starts them, follows their traces, and merges these when all is
over. A device that is killed is missed by the others as it would be anywhere; with ``live.restart_s`` it is
started again.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from pydantic_core import from_json

from manyhands.collecting import collect
from manyhands.engine.clock import wall_seconds
from manyhands.errors import JobError, RunError
from manyhands.fleet.predictor import read_predictor
from manyhands.hand import Facts
from manyhands.job import Job
from manyhands.lineup import Lineup, Watch, teller
from manyhands.report.device_folder import DeviceFolder
from manyhands.report.folder import RunFolder
from manyhands.report.summary import Tally
from manyhands.team import Team
from manyhands.wire.session import free_endpoints

__all__ = ["check_live", "rehearse"]

LOOK_EVERY_S = 0.2
LEAVE_S = 20.0
"""How long a device may take to leave when it is told to."""

MAX_FALSE_STARTS = 3

BEFORE = frozenset({"gathering", "unreachable", "restarted", "mismatch", "refused"})
"""What a device may have to say before it begins."""


def check_live(job: Job) -> None:
    """What only the simulator can do is refused.

    Raises:
        JobError: with the first such thing.
    """
    if job.split.by == "space":
        raise JobError("split.by", "space", "a tile group is trained by 'manyhands train' or 'join'")
    if job.fleet.has_groups:
        expected = 'a tile group among others is only simulated; leave group out, or take by = "space"'
        raise JobError("fleet.device.group", None, expected)
    if job.fault:
        raise JobError("fault", None, "is for the simulator: on real hosts things go wrong by themselves")
    if job.live.profile is not None:
        read_predictor(job.live.profile, "live.profile")


def rehearse(lineup: Lineup, folder: RunFolder, tally: Tally, watch: Watch | None) -> Mapping[str, Any]:
    """Runs all devices until they are done; counts their events and gives what their hands have left."""
    job, team = lineup.job, lineup.team
    told = teller(job, Tally(team.hosts, team.measure, "live"), watch)
    told(None)
    with _devices(job, lineup.fleet.names, folder) as devices:
        nap = threading.Event()
        while sum(device.look(told) for device in devices.values()):
            _check_quorum(job, devices)
            _send_home(job, team, devices)
            nap.wait(LOOK_EVERY_S)
    return collect(lineup, folder, tally)


class _Device:
    """One device's process, as its rehearsal sees it."""

    def __init__(self, name: str, folder: DeviceFolder, command: list[str], restart_s: float | None) -> None:
        self.name, self.folder = name, folder
        self._command, self._restart_s = command, restart_s
        self._num_false_starts = 0
        self._restart_at_s: float | None = None
        self._trace: BinaryIO | None = None
        self._rest = b""
        self.heard_s, self._heard, self.begun = wall_seconds(), False, False
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        self._restart_at_s = None
        self.folder.path.mkdir(parents=True, exist_ok=True)
        with (self.folder.path / "log.txt").open("ab") as log:
            # In a session of its own: Ctrl-C in the terminal is for the rehearsal to answer. Its standard
            # input is a pipe that ends with this process, and the device leaves then.
            return subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True
            )

    @property
    def over(self) -> bool:
        """Whether it has ended and will not be started again."""
        return self.process.poll() is not None and self._restart_at_s is None

    def look(self, told: Callable[[Facts], None]) -> bool:
        """Passes on what is new in its trace; whether it is still to be reckoned with."""
        status = self.process.poll()  # before its trace is read, so that nothing is missed
        for event in self._news():
            self.heard_s, self._heard = wall_seconds(), True
            self.begun = self.begun or event["event"] not in BEFORE
            told(event)
        if status is None:
            return True
        if self._restart_at_s is not None:
            if wall_seconds() >= self._restart_at_s:
                self._close_pipe()
                self.process = self._start()
            return True
        if status == 0:
            return False
        if not self._heard:
            return self._try_again()
        if self._restart_s is not None:
            self._restart_at_s = wall_seconds() + self._restart_s
            return True
        return False

    def _try_again(self) -> bool:
        """One that never came to take part may have found its port taken."""
        self._num_false_starts += 1
        if self._num_false_starts >= MAX_FALSE_STARTS:
            raise RunError(f"{self.name} could not be started: {self.last_words()}")
        self._restart_at_s = wall_seconds() + 1.0
        return True

    def _news(self) -> Iterator[Facts]:
        if self._trace is None:
            if not self.folder.trace.is_file():
                return
            self._trace = self.folder.trace.open("rb")
        *lines, self._rest = (self._rest + self._trace.read()).split(b"\n")
        for line in lines:
            yield from_json(line)

    def last_words(self) -> str:
        """The end of what the process had to say."""
        log = (self.folder.path / "log.txt").read_text(encoding="utf-8", errors="replace").split("\n")
        return next((text for text in reversed(log) if text.strip()), "it said nothing")

    def _close_pipe(self) -> None:
        if self.process.stdin is not None:
            self.process.stdin.close()

    def leave(self) -> None:
        """Asks it to leave."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.send_signal(signal.SIGCONT)  # one that is stopped could not hear it

    def end(self) -> None:
        """Sees that it is gone."""
        try:
            self.process.wait(LEAVE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._close_pipe()
        if self._trace is not None:
            self._trace.close()


@contextmanager
def _devices(job: Job, names: tuple[str, ...], folder: RunFolder) -> Iterator[dict[str, _Device]]:
    """All devices, started; on the way out they are asked to leave, and are gone."""
    where = dict(zip(names, free_endpoints(len(names)), strict=True))
    started: dict[str, _Device] = {}
    try:
        for name in names:
            own = DeviceFolder(folder.devices / name)
            command = _command(folder.job, name, own.path, where)
            started[name] = _Device(name, own, command, job.live.restart_s)
        yield started
    finally:
        for device in started.values():
            device.leave()
        for device in started.values():
            device.end()


def _command(job: Path, name: str, out: Path, where: Mapping[str, str]) -> list[str]:
    command = [sys.executable, "-m", "manyhands", "join", str(job), "--name", name, "--out", str(out)]
    command += ["--tethered", "--quiet", "--listen", where[name]]
    for other, address in where.items():
        if other != name:
            command += ["--connect", address]
    return command


def _check_quorum(job: Job, devices: Mapping[str, _Device]) -> None:
    """Those who died before anybody began may be those for whom all others wait.

    Raises:
        RunError: A quorum will never be there.
    """
    dead = [device for device in devices.values() if device.over and device.process.returncode]
    if not dead or any(device.begun for device in devices.values()):
        return
    if len(devices) - len(dead) < min(job.live.quorum or len(devices), len(devices)):
        raise RunError(f"{dead[0].name} died before all could begin: {dead[0].last_words()}")


def _send_home(job: Job, team: Team, devices: Mapping[str, _Device]) -> None:
    """Ends what cannot come to an end: devices whose coordinator is gone for good wait in vain."""
    host = team.coordinator_host
    if host is None or not devices[host].over:
        return
    patience_s = job.live.patience_s + job.live.linger_s
    for device in devices.values():
        if not device.over and wall_seconds() - device.heard_s > patience_s:
            device.leave()

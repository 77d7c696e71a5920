"""The monitor: what other work takes of this machine, once a second.

As section 3.3 of Han et al., doi:10.1109/TPDS.2020.3046440, has it: counters of the system are read once a
second, and means are kept. What the own processes used is taken off, so that training does not count as
something that slows training down. Of the network only the whole is known to the system; the own part is what
the caller says it is.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import psutil

from manyhands.fleet.measure import thread_seconds, wall_seconds
from manyhands.fleet.recording import Span
from manyhands.fleet.use import IDLE, Use

__all__ = ["Counters", "Monitor", "monitoring", "read_counters", "seen", "used_between"]

PERIOD_S = 1.0
NUM_KEPT = 3600
"""Readings that are kept: an hour of them."""


@dataclass(frozen=True)
class Counters:
    """What was used since the machine started.

    Attributes:
        seconds: When.
        busy_s: Processor time in which no core was idle, summed over them, what a hypervisor took included.
        network_bytes: Sent and received.
        disk_bytes: Read and written.
        own: By process, its processor time and the bytes it read and wrote.
        own_network_bytes: Of `network_bytes`, those of the own processes.
    """

    seconds: float
    busy_s: float
    network_bytes: float = 0.0
    disk_bytes: float = 0.0
    own: dict[int, tuple[float, float]] = field(default_factory=dict)
    own_network_bytes: float = 0.0


def used_between(before: Counters, after: Counters, num_cores: int) -> Use:
    """What others used on average between two readings.

    A process that was not there at the first reading has used all it has since; what one used that is not
    there at the second is not known and counts as others' work.
    """
    seconds = after.seconds - before.seconds
    if seconds <= 0:
        return IDLE
    own_s = own_bytes = 0.0
    for pid, (used_s, num_bytes) in after.own.items():
        used_before_s, bytes_before = before.own.get(pid, (0.0, 0.0))
        own_s += used_s - used_before_s
        own_bytes += num_bytes - bytes_before
    own_network = after.own_network_bytes - before.own_network_bytes
    cores = (after.busy_s - before.busy_s - own_s) / (seconds * num_cores)
    network = after.network_bytes - before.network_bytes - own_network
    disk = after.disk_bytes - before.disk_bytes - own_bytes
    # Counters are read one after the other and counted in ticks, so a difference may fall a little below 0.
    return Use(min(max(cores, 0.0), 1.0), max(8 * network / seconds, 0.0), max(8 * disk / seconds, 0.0))


def read_counters(own: Sequence[psutil.Process], own_network: Callable[[], float] | None = None) -> Counters:
    """The machine's counters now."""
    seconds, times = wall_seconds(), psutil.cpu_times()
    idle_s = times.idle + getattr(times, "iowait", 0.0)
    # A guest's time is in user's as well.
    doubled_s = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)
    network, disk = psutil.net_io_counters(), psutil.disk_io_counters()
    return Counters(
        seconds,
        sum(times) - idle_s - doubled_s,
        network.bytes_sent + network.bytes_recv if network else 0.0,
        disk.read_bytes + disk.write_bytes if disk else 0.0,
        _own_use(own),
        own_network() if own_network is not None else 0.0,
    )


def _own_use(processes: Sequence[psutil.Process]) -> dict[int, tuple[float, float]]:
    used = {}
    for process in processes:
        with suppress(psutil.Error):
            times = process.cpu_times()
            num_bytes = 0.0
            with suppress(psutil.Error, AttributeError):  # not every system counts them
                counted = process.io_counters()
                num_bytes = counted.read_bytes + counted.write_bytes
            used[process.pid] = (times.user + times.system, num_bytes)
    return used


class Monitor:
    """Keeps means of what others use, while it is asked to `sample` now and then.

    Args:
        own: The processes whose use is not others'; None for this one and the children it has now.
        own_network: Bytes that they sent and received so far; None where they have no traffic.
    """

    def __init__(
        self, own: Sequence[int] | None = None, own_network: Callable[[], float] | None = None
    ) -> None:
        self._own = [psutil.Process(pid) for pid in own] if own is not None else _family()
        self._own_network = own_network
        self._num_cores = psutil.cpu_count() or 1
        self._lock = threading.Lock()
        self._since = self._last = read_counters(self._own, own_network)
        self._kept = deque([self._last], maxlen=NUM_KEPT)
        self.spent_s = 0.0
        self.num_samples = 0

    def sample(self) -> Use:
        """What others used since the last sample."""
        started_s = thread_seconds()
        now = read_counters(self._own, self._own_network)
        with self._lock:
            use = used_between(self._last, now, self._num_cores)
            self._last = now
            self._kept.append(now)
            self.num_samples += 1
            self.spent_s += thread_seconds() - started_s
        return use

    def mean(self) -> Use:
        """What others used on average since this was last asked for, or since the beginning."""
        with self._lock:
            use = used_between(self._since, self._last, self._num_cores)
            self._since = self._last
        return use

    def over(self, seconds: float) -> Use:
        """What others used on average over so many seconds until now, or since the beginning.

        The span begins at the last reading before it, so it may be longer by the time between two.
        """
        self.sample()
        with self._lock:
            now = self._kept[-1]
            early = [reading for reading in self._kept if now.seconds - reading.seconds >= seconds]
            return used_between(early[-1] if early else self._kept[0], now, self._num_cores)


def _family() -> list[psutil.Process]:
    me = psutil.Process()
    return [me, *me.children(recursive=True)]


@contextmanager
def monitoring(
    own: Sequence[int] | None = None,
    own_network: Callable[[], float] | None = None,
    period_s: float = PERIOD_S,
) -> Iterator[Monitor]:
    """A monitor that samples in a thread of its own, once every `period_s`."""
    monitor = Monitor(own, own_network)
    stop = threading.Event()

    def work() -> None:
        while not stop.wait(period_s):
            monitor.sample()

    thread = threading.Thread(target=work, name="monitor", daemon=True)
    thread.start()
    try:
        yield monitor
    finally:
        stop.set()
        thread.join()


def seen(monitor: Monitor, seconds: float | None = None, period_s: float = PERIOD_S) -> Iterator[Span]:
    """What others use from now on, span by span; for so many seconds, or without end."""
    started_s, pause = wall_seconds(), threading.Event()
    passed_s = 0.0
    while seconds is None or passed_s < seconds:
        # No span is so short that counters which tick say nothing of it.
        pause.wait(period_s if seconds is None else min(period_s, max(seconds - passed_s, 0.1)))
        use = monitor.sample()
        passed_s = wall_seconds() - started_s
        yield Span(passed_s, use)

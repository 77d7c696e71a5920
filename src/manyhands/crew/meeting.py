"""Where the devices of a crew find each other, and how they notice that one is gone.

They meet at a ``torch.distributed`` store, a small server that outlives each of them. Every device counts up
a number there, its heartbeat, on a thread of its own: a process that died or was stopped does not, however
its sockets look. Whoever notices a silent device, or an error on the way to one, says so at the store, and
every device cuts its connections, which ends whatever it is waiting for. Then those who are left write a new
roster.
"""

from __future__ import annotations

import os
import re
import socket
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta

import psutil
import torch.distributed as dist
from torch._C._distributed_c10d import (  # torch.distributed has them, but not for type checkers
    PrefixStore,
    Store,
    TCPStore,
)

from manyhands.engine.clock import wall_seconds
from manyhands.errors import RunError

__all__ = ["Broken", "Meeting", "Over", "connections", "say_gone"]

PAUSE_S = 0.05
# Connections are watched by heartbeats. This limit only ends what they cannot see.
GROUP_TIMEOUT = timedelta(hours=12)
START_S = 300.0
"""How long the first of a crew waits for the last to come."""

DONE, LEFT = "done", "left"

Connection = tuple[int, int, int, int]
"""A descriptor with its inode, since its number is given out again once it is closed, and the ports of both
ends, if it has any."""


class Broken(RunError):
    """The group cannot go on as it is: a device is gone."""


class Over(RunError):
    """This device has no place at the meeting any more: the store is gone, or the others went on."""


def connections() -> set[Connection]:
    """This process's connected sockets: TCP, and the Unix ones to others on this machine."""
    process = psutil.Process()
    tcp = [(c.fd, c.laddr.port, c.raddr.port) for c in process.net_connections("tcp") if c.raddr]
    unix = [(c.fd, 0, 0) for c in process.net_connections("unix")]
    found = set()
    for descriptor, own, theirs in (*tcp, *unix):
        with suppress(OSError):  # closed in the meantime
            found.add((descriptor, os.fstat(descriptor).st_ino, own, theirs))
    return found


def say_gone(store: Store, name: str) -> None:
    """Says at the store that a device's process has ended, for those who would wait for its heartbeat."""
    store.set(f"gone/{name}", "1")


class Meeting:
    """One device's place at the store.

    Args:
        store: The store; the meeting opens connections of its own to it.
        name: This device.
        everyone: All devices of the job's group, in its order.
        patience_s: How long a device may be silent.
        before: The connections that there were before the store's (`connections`).
        spared: The ports of both ends of those that others open in the meantime; they are never cut.
    """

    def __init__(
        self,
        store: TCPStore,
        name: str,
        everyone: Sequence[str],
        patience_s: float,
        before: Collection[Connection] = (),
        spared: Callable[[], Collection[tuple[int, int]]] = tuple,
    ) -> None:
        self._name, self._everyone, self._patience_s = name, tuple(everyone), patience_s
        self._at_first, self._spared = set(before), spared
        self._store = store
        # A client serves one call at a time, and a heartbeat must not wait for another's call to return.
        self._pulse_store: TCPStore = store.clone()  # type: ignore[attr-defined]  # missing in the stubs
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._generation = 0
        self._before: set[Connection] | None = None
        self._counts = dict.fromkeys(self._everyone, -1)
        self._missed = dict.fromkeys(self._everyone, 0)
        self._pause_s = min(max(patience_s / 20, 0.05), 0.5)
        self._gone: set[str] = set()
        self._told_gone: set[str] = set()
        self._given_up: set[str] = set()
        self._store_lost: str | None = None
        self._thread = threading.Thread(target=self._pulse, name="heartbeat", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stops the heartbeat."""
        self._stop.set()
        self._thread.join(timeout=5)

    def lose(self, name: str) -> None:
        """Takes somebody's word, from any thread, that a device is gone."""
        self._told_gone.add(name)

    def break_off(self) -> None:
        """Ends whatever this device waits for, at the store as well; called from any thread."""
        _cut(self._connections() - self._at_first)

    # Who is there.

    @property
    def why_broken(self) -> str:
        """What the heartbeats say about the devices of the present roster."""
        if self._store_lost is not None:
            return f"the meeting point is gone ({self._store_lost})"
        with self._lock:
            gone = sorted((self._gone & set(self._everyone)) - self._given_up)
            silent = sorted(self._silent() - self._gone - self._given_up)
        parts = [f"{name} has ended" for name in gone]
        parts += [f"{name} has been silent for {self._patience_s:g} s" for name in silent]
        return "; ".join(parts)

    def gather(self, generation: int, among: Sequence[str]) -> tuple[str, ...]:
        """Waits until all who are left have come, and returns who they are; nobody, if the work is done.

        Args:
            generation: How often the group has formed before. The first time, all must come.
            among: Those of the last time.

        Raises:
            RunError: Somebody does not come the first time.
            Over: The others have gone on without this device; or the meeting point is gone.
        """
        roster_key, began_s = f"{generation}/roster", wall_seconds()
        self._set(f"{generation}/here/{self._name}", "1")
        while not self._has(roster_key):
            if self._has(DONE):
                self._add(LEFT, 1)
                return ()
            here = [name for name in among if self._has(f"{generation}/here/{name}")]
            missing = set(among) - set(here)
            with self._lock:
                gone = missing & (self._gone | (self._silent() if generation else set()))
            if generation == 0 and (gone or (missing and wall_seconds() - began_s > START_S)):
                names = ", ".join(sorted(gone or missing))
                raise RunError(f"{self._name}: the group cannot form, {names} did not come")
            if missing == gone and here[0] == self._name:
                self._set_first(roster_key, "\n".join(here))
            self._stop.wait(PAUSE_S)
        roster = tuple(self._get(roster_key).split("\n"))
        if self._name not in roster:
            raise Over(
                f"the others have gone on without {self._name}, which was silent for longer than "
                f"split.space.patience_s = {self._patience_s:g}"
            )
        with self._lock:
            self._given_up = set(self._everyone) - set(roster)
        return roster

    def part(self, generation: int, roster: Sequence[str]) -> None:
        """Waits until all have come to the end of their work together, so that nobody hangs up on another."""
        self._add(f"{generation}/ready", 1)
        while self._add(f"{generation}/ready", 0) < len(roster):
            if self._add(f"{generation}/broken", 0):
                raise RuntimeError("another device broke off")
            self._stop.wait(PAUSE_S)

    def say_done(self, num_others: int) -> None:
        """Lets the others go home, and waits until they know: the store may end with this process."""
        self._set(DONE, "1")
        began_s = wall_seconds()
        while self._add(LEFT, 0) < num_others and wall_seconds() - began_s < self._patience_s:
            self._stop.wait(PAUSE_S)

    def wait_done(self, leader: str) -> bool:
        """Waits for the leader to finish; False if it is gone instead."""
        while not self._has(DONE):
            with self._lock:
                lost = leader in self._gone | self._silent()
            if lost and not self._has(DONE):
                return False
            self._stop.wait(PAUSE_S)
        self._add(LEFT, 1)
        return True

    # The group.

    @contextmanager
    def group(self, generation: int, roster: Sequence[str]) -> Iterator[dist.ProcessGroup]:
        """The process group of a roster; whatever goes wrong in it while a device is gone is `Broken`.

        Raises:
            Broken: A device is gone. The others are told.
            Over: The meeting point is gone.
        """
        rank = list(roster).index(self._name)
        with self._lock:
            self._before = self._connections()
            self._generation = generation
            for name in roster:
                self._missed[name] = 0
        try:
            # Opened now, so that it is cut with the rest if a device dies while others wait for its address.
            store: TCPStore = self._store.clone()  # type: ignore[attr-defined]
            dist.init_process_group(
                "gloo",
                store=PrefixStore(f"{generation}/group", store),
                rank=rank,
                world_size=len(roster),
                timeout=GROUP_TIMEOUT,
            )
            group = dist.group.WORLD
            assert group is not None
            yield group
        except (RuntimeError, RunError) as error:
            # Gloo's errors are RuntimeErrors of many texts, and so are others. Who is left when all have
            # gathered again shows whether a device was gone.
            if self._store_lost is not None:
                raise Over(f"the meeting point of the group is gone: {self._store_lost}") from error
            self._add(f"{generation}/broken", 1)
            raise Broken(self.why_broken or f"a connection was lost ({_first_line(error)})") from error
        finally:
            with self._lock:
                self._before = None
            if dist.is_initialized():
                dist.destroy_process_group()

    # The heartbeat.

    def _pulse(self) -> None:
        while not self._stop.wait(self._pause_s):
            try:
                broken = self._beat()
            except RuntimeError as error:
                if self._stop.is_set():
                    return
                self._store_lost = _first_line(error)
                broken = True
            if broken:
                with self._lock:
                    if self._before is not None:
                        _cut(self._connections() - self._before)
            if self._store_lost is not None and self._before is None:
                return

    def _beat(self) -> bool:
        """Counts up, listens to the others, and returns whether the group is broken."""
        store = self._pulse_store
        store.add(f"beat/{self._name}", 1)
        counts = {name: store.add(f"beat/{name}", 0) for name in self._everyone if name != self._name}
        gone = {n for n in counts if n in self._told_gone or store.check([f"gone/{n}"])}
        with self._lock:
            for name, count in counts.items():
                self._missed[name] = self._missed[name] + 1 if count == self._counts[name] else 0
            self._counts |= counts
            self._gone = gone
            missed = (self._silent() | gone) - self._given_up
            generation, forms = self._generation, self._before is not None
        if not forms:
            return False
        if missed:
            store.add(f"{generation}/broken", 1)
        return bool(store.add(f"{generation}/broken", 0))

    def _silent(self) -> set[str]:
        """Those who have not been heard for so many of this device's own beats as make up its patience.

        Counted in beats and not by the clock, so that a machine that stood still itself blames nobody.
        """
        return {name for name, missed in self._missed.items() if missed * self._pause_s >= self._patience_s}

    def _connections(self) -> set[Connection]:
        spared = set(self._spared())
        return {one for one in connections() if one[2:] not in spared}

    # The store.

    def _set(self, key: str, value: str) -> None:
        with _reached():
            self._store.set(key, value)

    def _set_first(self, key: str, value: str) -> None:
        """Sets a value unless somebody has."""
        with _reached():
            self._store.compare_set(key, "", value)

    def _get(self, key: str) -> str:
        with _reached():
            value: bytes = self._store.get(key)
            return value.decode()

    def _has(self, key: str) -> bool:
        with _reached():
            return bool(self._store.check([key]))

    def _add(self, key: str, amount: int) -> int:
        with _reached():
            return int(self._store.add(key, amount))


@contextmanager
def _reached() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:  # of the store, which has several kinds
        raise Over(f"the meeting point of the group is gone: {_first_line(error)}") from error


def _first_line(error: BaseException) -> str:
    """What an error says, without the place in Gloo's source and its advice to programmers."""
    said = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return re.sub(r"\[/\S+\] |\. (This is typically|Connection was likely) .*", "", said)[:200]


def _cut(those: set[Connection]) -> None:
    """Ends connections, so that who waits for a word over one of them gets an error.

    Gloo has no other way to give up an operation before its timeout: its `abort` leaves one that has begun.
    """
    for descriptor, *_ in those:
        try:
            with socket.socket(fileno=os.dup(descriptor)) as connection:
                connection.shutdown(socket.SHUT_RDWR)
        except OSError:  # closed in the meantime
            continue

"""One formation of a tile group on hosts of their own: from the call to whatever ends it.

The device that called serves a store, the others come to it, and they train over connections of
``torch.distributed``. This runs in a thread of its own; what the wire says meanwhile, that a device is gone,
is told from another and ends the step.
"""

from __future__ import annotations

import os
import socket
from datetime import timedelta

from torch._C._distributed_c10d import TCPStore  # torch.distributed has them, but not for type checkers

from manyhands.crew.address import interface_of, own_address
from manyhands.crew.log import Log
from manyhands.crew.meeting import Meeting, Over, connections
from manyhands.crew.member import Duty, train
from manyhands.crew.muster import Call
from manyhands.errors import RunError
from manyhands.wire.post import ZenohPost

__all__ = ["Formation", "Place", "Unreached"]


class Unreached(Over):
    """The store of a call cannot be reached."""


class Place:
    """Where this host is on the network, for those who compute with it.

    Args:
        post: Its mail, whose links say by which address others know it.
    """

    def __init__(self, post: ZenohPost) -> None:
        self._post = post
        self._interface = os.environ.get("GLOO_SOCKET_IFNAME", "")

    @property
    def address(self) -> str:
        """By which others reach it."""
        linked = [host for host, *_ in self._post.links()]
        return own_address(self._post.wiring.listen, linked, self._interface)

    def wire_ports(self) -> set[tuple[int, int]]:
        """The connections of the wire, which no group may cut."""
        return {(here, there) for _, here, there in self._post.links()}

    def listen(self) -> socket.socket:
        """A place for a store.

        Raises:
            RunError: This host has no such address.
        """
        host = self.address
        try:
            family = socket.getaddrinfo(host, 0)[0][0]
            return socket.create_server((host, 0), family=family, backlog=128)
        except OSError as error:
            raise RunError(f"cannot serve the group at {host}: {error.strerror}") from error

    def point_gloo(self) -> None:
        """Has torch.distributed use the same network as the wire."""
        if (interface := interface_of(self.address)) is not None:
            os.environ["GLOO_SOCKET_IFNAME"] = interface


class Formation:
    """A group that was called for.

    Args:
        call: The call.
        duty: This device's part.
        log: Its trace.
        place: Where this host is.
        served: Where the store is to listen, if this device has called.
    """

    def __init__(
        self, call: Call, duty: Duty, log: Log, place: Place, served: socket.socket | None = None
    ) -> None:
        self.call = call
        self.lost: set[str] = set()
        self.roster: tuple[str, ...] = ()
        self._duty, self._log, self._place, self._served = duty, log, place, served
        self._patience_s = duty.job.split.tiling.patience_s
        self._store: TCPStore | None = None
        self._meeting: Meeting | None = None

    def run(self, before: tuple[str, ...]) -> None:
        """Meets the others and trains with them until the job is done, or others are to be taken in.

        Args:
            before: The devices of the last formation; empty if this device was not there.

        Raises:
            Broken: A device is gone.
            Over: The store is, or the others have gone on without this device.
        """
        others = connections()
        self._place.point_gloo()
        # Kept as long as this object: others may still look at it when this device is through.
        self._store = store = self._open_store()
        meeting = Meeting(
            store, self._duty.name, self.call.roster, self._patience_s, others, self._place.wire_ports
        )
        self._meeting = meeting
        for peer in list(self.lost):  # while the store was being reached
            self.lose(peer)
        try:
            here = self.roster = meeting.gather(self.call.number, self.call.roster)
            with meeting.group(self.call.number, here) as group:
                train(self._duty, self._log, here, before or here, group, self.call.number)
                meeting.part(self.call.number, here)
        finally:
            meeting.close()

    def lose(self, peer: str) -> None:
        """Takes the wire's word that a device is gone; from any thread."""
        self.lost.add(peer)
        if self._meeting is not None:
            self._meeting.lose(peer)
            if peer == self.call.roster[0]:  # and with it the store: nothing of this meeting is left
                self._meeting.break_off()

    def break_off(self) -> None:
        """Ends whatever this device waits for; from any thread."""
        if self._meeting is not None:
            self._meeting.break_off()

    def absent(self) -> set[str]:
        """Those who were called and did not come, although nobody says that they are gone."""
        return set(self.call.roster) - set(self.roster) - self.lost if self.roster else set()

    def _open_store(self) -> TCPStore:
        host, port, served = self.call.host, self.call.port, self._served
        try:
            return TCPStore(
                host,
                port,
                is_master=served is not None,
                timeout=timedelta(seconds=self._patience_s),
                wait_for_workers=False,
                master_listen_fd=None if served is None else served.detach(),
            )
        except RuntimeError as error:
            reason = str(error).strip().splitlines()[0][:200]
            raise Unreached(f"cannot reach {self.call.roster[0]} at {host}:{port}: {reason}") from error

"""Sockets that close at once: a link that is cut must not hold up the links that are well.

Zenoh opens its sockets so that closing one waits up to ten seconds for what was not yet sent
(``SO_LINGER``), and it closes them on the threads that read all other links: one peer behind a cut cable made
a device deaf to everybody for ten seconds, three of them for twenty. The library has no setting for it
(eclipse-zenoh/zenoh issues 1101 and 2350), so the option is taken off the sockets themselves. What is unsent
is then sent by the system in its own time, which is how sockets close by default.
"""

from __future__ import annotations

import os
import socket
import stat
import struct

__all__ = ["OPEN_FILES", "close_at_once"]

OPEN_FILES = "/dev/fd"
"""Where the system lists what this process has open; Linux and macOS do."""

_OFF = struct.pack("ii", 0, 0)


def close_at_once() -> int:
    """Takes the option off every TCP socket of this process; says of how many.

    Where the system does not list them, nothing is done.
    """
    try:
        numbers = [int(name) for name in os.listdir(OPEN_FILES)]
    except OSError:
        return 0
    return sum(map(_take_off, numbers))


def _take_off(number: int) -> bool:
    try:
        if not stat.S_ISSOCK(os.fstat(number).st_mode):
            return False
        # Of one's own: in the meantime the file may be closed, and its number be another's.
        held = socket.socket(fileno=os.dup(number))
    except OSError:  # it is closed already
        return False
    with held:
        try:
            if held.family not in (socket.AF_INET, socket.AF_INET6) or held.type != socket.SOCK_STREAM:
                return False
            on, _ = struct.unpack("ii", held.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, len(_OFF)))
            if on:
                held.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _OFF)
        except OSError:
            return False
    return bool(on)

"""By which of its addresses the others of a tile group reach this host, and on which interface that is."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Sequence

import psutil

__all__ = ["interface_of", "own_address"]

ANYWHERE = frozenset({"", "*", "0.0.0.0", "::"})


def own_address(listen: Sequence[str], linked: Sequence[str], interface: str = "") -> str:
    """The address at which this host can be reached by the others.

    Args:
        listen: Where it listens for the wire, ``HOST:PORT`` each.
        linked: This host's own address in each connection that the wire has.
        interface: The network interface to use, if somebody has said so.
    """
    for found in psutil.net_if_addrs().get(interface, ()):
        if found.family == socket.AF_INET:
            return found.address
    for where in listen:
        host = where.rpartition("/")[2].rpartition(":")[0].strip("[]")
        if host not in ANYWHERE:
            return host
    counted = Counter(host.removeprefix("::ffff:") for host in linked)
    return counted.most_common(1)[0][0] if counted else "127.0.0.1"


def interface_of(host: str) -> str | None:
    """The network interface that has an address; None if none has."""
    try:
        resolved = {str(found[4][0]) for found in socket.getaddrinfo(host, None)}
    except OSError:
        return None
    for name, addresses in psutil.net_if_addrs().items():
        if any(one.address.partition("%")[0] in resolved for one in addresses):
            return name
    return None

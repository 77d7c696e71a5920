"""Hosts of one's own: network namespaces on a switch, with links that are slow, lose packets and can be cut.

Needs root, ``ip``, ``tc`` and ``nft``; `why_not` says in a line what is missing. The kernel's netem is not
needed: the rate is a token bucket's, loss and cuts are rules of the packet filter on what comes in.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count

__all__ = ["Hosts", "lay_links", "why_not"]

_NUMBERS = count()


@dataclass(frozen=True)
class Hosts:
    """Some hosts and the links between them.

    Attributes:
        names: The hosts.
        prefix: Their namespaces are called so and by their names.
    """

    names: tuple[str, ...]
    prefix: str

    def address(self, name: str) -> str:
        """Where a host is."""
        return f"10.77.0.{self.names.index(name) + 1}"

    def inside(self, name: str, *command: str) -> list[str]:
        """A command as it is run on a host; its process is the command's own."""
        return ["ip", "netns", "exec", self.prefix + name, *command]

    def cut(self, one: Sequence[str], other: Sequence[str]) -> None:
        """Lets nothing pass between some hosts and others, from now on."""
        for near, far in ((one, other), (other, one)):
            where = ", ".join(map(self.address, far))
            for name in near:
                _call(self.inside(name, "nft", f"add rule inet faults cut ip saddr {{ {where} }} drop"))

    def mend(self) -> None:
        """Takes all cuts away."""
        for name in self.names:
            _call(self.inside(name, "nft", "flush chain inet faults cut"))


@contextmanager
def lay_links(names: Sequence[str], *, rate: str = "100mbit", loss: float = 0.0) -> Iterator[Hosts]:
    """Hosts with a link each to a switch; all is taken away at the end.

    Args:
        names: The hosts.
        rate: At which each of them sends, as `tc` reads it.
        loss: The part of the packets that never arrive.
    """
    hosts = Hosts(tuple(names), f"mh{os.getpid()}-{next(_NUMBERS)}-")
    switch = f"{hosts.prefix}switch"
    try:
        _call(["ip", "netns", "add", switch])
        _call(["ip", "-n", switch, "link", "add", "br0", "type", "bridge"])
        _call(["ip", "-n", switch, "link", "set", "br0", "up"])
        for name in names:
            _lay_link(hosts, name, switch, rate, loss)
        yield hosts
    finally:
        for name in (*names, "switch"):
            subprocess.run(["ip", "netns", "del", hosts.prefix + name], check=False, capture_output=True)


def _lay_link(hosts: Hosts, name: str, switch: str, rate: str, loss: float) -> None:
    space, port = hosts.prefix + name, f"port{hosts.names.index(name)}"
    _call(["ip", "netns", "add", space])
    _call(["ip", "link", "add", port, "netns", switch, "type", "veth", "peer", "eth0", "netns", space])
    _call(["ip", "-n", switch, "link", "set", port, "master", "br0", "up"])
    for link in ("lo", "eth0"):
        _call(["ip", "-n", space, "link", "set", link, "up"])
    _call(["ip", "-n", space, "addr", "add", f"{hosts.address(name)}/24", "dev", "eth0"])
    shape = f"qdisc add dev eth0 root tbf rate {rate} burst 64kb latency 50ms"
    _call(hosts.inside(name, "tc", *shape.split()))
    chain = "{ type filter hook input priority 0 ; }"
    rules = ["add table inet faults"]
    rules += [f"add chain inet faults {name} {chain}" for name in ("loss", "cut")]
    if loss:
        lost = f"numgen random mod 1000 < {round(loss * 1000)}"
        rules.append(f"add rule inet faults loss iifname eth0 {lost} drop")
    _call(hosts.inside(name, "nft", " ; ".join(rules)))


def why_not() -> str:
    """Why there cannot be such hosts here, in a line; nothing if there can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if missing := [tool for tool in ("ip", "tc", "nft") if shutil.which(tool) is None]:
        return f"there is no {' and no '.join(missing)} here; install iproute2 and nftables"
    try:
        with lay_links(("a", "b"), loss=0.02) as hosts:
            hosts.cut(["a"], ["b"])
            hosts.mend()
    except OSError as error:
        return f"the system does not let this process have network namespaces: {error}"
    return ""


def _call(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {' '.join(done.stderr.split())[:200]}")

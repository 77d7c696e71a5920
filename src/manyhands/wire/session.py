"""A Zenoh session as manyhands needs it: explicit endpoints, mutual TLS, nobody admitted that is not listed.

The figures are the outcome of measurements; docs/decisions/0013-wire.md has the reasons.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

# Read when the first session is opened: with one thread for each, a stopped peer stalls healthy ones.
os.environ.setdefault("ZENOH_RUNTIME", "(tx:(worker_threads:4),net:(worker_threads:4))")

import zenoh

from manyhands.errors import RunError
from manyhands.wire.access import access_rules
from manyhands.wire.keyring import KeyFolder

__all__ = ["MAX_PACKET_BYTES", "Wiring", "free_endpoints", "open_session"]

MAX_PACKET_BYTES = 8 << 20
"""What Zenoh takes in one piece; anything larger closes the link."""

PRIORITIES = (
    *("control", "real_time", "interactive_high", "interactive_low"),
    *("data_high", "data", "data_low", "background"),
)
"""Zenoh's; each has a queue of its own."""


@dataclass(frozen=True)
class Wiring:
    """How one hand is connected.

    Attributes:
        name: The hand.
        job_hash: Of its job; only hands of the same job hear each other.
        incarnation: How often it has been started.
        listen: Where others reach it, ``HOST:PORT`` each.
        connect: Whom it calls, ``HOST:PORT`` each. Each pair must be listed on one side at least: a link
            that Zenoh has learned of by itself is not made again when it breaks.
        keys: The folder with its certificate; without one there is neither TLS nor access control.
        members: Hand -> the common name in the certificate under which it speaks: its own name, or that
            of the device it lives on. Others are not admitted.
        mode: ``client`` where nobody can reach this host: it speaks through whom it calls.
        multicast: Whether to look for others on the local network.
        lease_s: After how long a silent host is taken for gone.
    """

    name: str
    job_hash: str
    incarnation: int = 0
    listen: tuple[str, ...] = ()
    connect: tuple[str, ...] = ()
    keys: Path | None = None
    members: Mapping[str, str] = field(default_factory=dict)
    mode: Literal["peer", "client"] = "peer"
    multicast: bool = False
    lease_s: float = 4.0

    @property
    def protocol(self) -> str:
        """What the bytes travel in."""
        return "tcp" if self.keys is None else "tls"


def open_session(wiring: Wiring) -> zenoh.Session:
    """Opens a session. It goes on calling whom it cannot reach.

    Raises:
        RunError: It cannot listen, or its keys cannot be read.
    """
    config = zenoh.Config()
    for key, value in _settings(wiring).items():
        config.insert_json5(key, json.dumps(value))
    try:
        return zenoh.open(config)
    except zenoh.ZError as error:
        reason = " ".join(str(error).split())[:200]
        raise RunError(f"{wiring.name} cannot listen at {', '.join(wiring.listen)}: {reason}") from error


def _settings(wiring: Wiring) -> dict[str, Any]:
    lease_ms = int(wiring.lease_s * 1000)
    settings: dict[str, Any] = {
        "mode": wiring.mode,
        "scouting/multicast/enabled": wiring.multicast,
        "scouting/gossip/enabled": True,
        "scouting/gossip/autoconnect_strategy": {"peer": {"to_router": "always", "to_peer": "greater-zid"}},
        "listen/endpoints": [_endpoint(wiring.protocol, where) for where in wiring.listen],
        "connect/endpoints": [_endpoint(wiring.protocol, where) for where in wiring.connect],
        "connect/retry": {"period_init_ms": 200, "period_max_ms": 2000, "period_increase_factor": 2},
        "connect/timeout_ms": -1,
        "connect/exit_on_failure": False,
        "transport/unicast/open_timeout": 3000,
        "transport/unicast/accept_timeout": 3000,
        "transport/link/protocols": [wiring.protocol],
        "transport/link/tx/lease": lease_ms,
        "transport/link/tx/keep_alive": 4,
        # In microseconds, and below the lease: a peer that does not read must not cost us healthy ones.
        "transport/link/tx/queue/congestion_control/block/wait_before_close": lease_ms * 750,
        # An announcement that is dropped at the first sign of congestion is only repeated 0.3 s later.
        "transport/link/tx/queue/congestion_control/drop/wait_before_drop": 10_000,
        # With two batches of 64 KiB, the default, who answers and who sends wait for each other all the time.
        "transport/link/tx/queue/size": dict.fromkeys(PRIORITIES, 2) | {"data_low": 8},
        "transport/link/rx/max_message_size": MAX_PACKET_BYTES,
        "transport/shared_memory/enabled": False,
    }
    if wiring.keys is not None:
        settings["transport/link/tls"] = _tls(KeyFolder(wiring.keys))
        settings["access_control"] = access_rules(wiring.members or {wiring.name: wiring.name})
    return settings


def _tls(keys: KeyFolder) -> dict[str, Any]:
    certificate, private_key = str(keys.certificate), str(keys.private_key)
    return {
        "root_ca_certificate": str(keys.authority),
        "enable_mtls": True,
        "listen_certificate": certificate,
        "listen_private_key": private_key,
        "connect_certificate": certificate,
        "connect_private_key": private_key,
        # Whoever the cluster has signed may live at any address; access control looks at the name.
        "verify_name_on_connect": False,
        "close_link_on_expiration": True,
    }


def _endpoint(protocol: str, where: str) -> str:
    return where if "/" in where else f"{protocol}/{where}"


def free_endpoints(count: int, host: str = "127.0.0.1") -> list[str]:
    """Endpoints on this machine at which nobody listens now; all different, because all are held at once."""
    with ExitStack() as held:
        found = []
        for _ in range(count):
            probe = held.enter_context(socket.socket())
            probe.bind((host, 0))
            found.append(f"{host}:{probe.getsockname()[1]}")
        return found

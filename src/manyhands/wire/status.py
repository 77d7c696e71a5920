"""Who is there: what every device that can be reached tells of itself, asked and answered."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import suppress
from pathlib import Path

import zenoh

from manyhands.hand import Facts
from manyhands.wire import topics
from manyhands.wire.diagnosis import why_unreachable
from manyhands.wire.keyring import KeyFolder, facts_of
from manyhands.wire.news import called
from manyhands.wire.session import Wiring, open_session

__all__ = ["answer_status", "ask_status"]

VISITOR = "visitor"
"""The name of who asks without a certificate."""

MAX_STATUS_BYTES = 64 << 10
SETTLE_S = 1.0
"""What it takes until all that can be reached are."""


def ask_status(connect: tuple[str, ...], keys: Path | None, wait_s: float = 3.0) -> list[Facts]:
    """What each device has to say, by name; one that does not answer is left out.

    Args:
        connect: Where some of them listen, ``HOST:PORT`` each; the others are reached through these.
        keys: The key folder of a device, where the job has certificates.
        wait_s: How long to wait for answers.
    """
    # A client's session opens when it has found somebody, and would wait for that for ever.
    there = tuple(where for where in connect if why_unreachable(where, keys) is None)
    if not there:
        return []
    name = VISITOR if keys is None else facts_of(KeyFolder(keys).certificate).name
    told: dict[tuple[str, str], Facts] = {}
    ended = threading.Event()

    def take(reply: zenoh.Reply) -> None:
        sample = reply.ok
        if sample is None or len(sample.payload) > MAX_STATUS_BYTES:
            return
        job, owner = str(sample.key_expr).split("/")[1], topics.name_in(str(sample.key_expr))
        with suppress(ValueError, RecursionError):
            said = json.loads(bytes(sample.payload))
            if isinstance(said, dict):
                told[job, owner] = {**said, "device": owner, "job": job}

    with open_session(Wiring(name, "status", connect=there, keys=keys, mode="client")) as session:
        threading.Event().wait(SETTLE_S)
        session.get(
            topics.status("*", "*", name),
            zenoh.handlers.Callback(take, ended.set, indirect=False),
            consolidation=zenoh.ConsolidationMode.NONE,
            timeout=wait_s,
        )
        ended.wait(wait_s + SETTLE_S)
    return [told[key] for key in sorted(told)]


def answer_status(
    session: zenoh.Session, job: str, name: str, executor: Executor, status: Callable[[], Facts]
) -> zenoh.Queryable[None]:
    """Tells whoever asks how a hand stands, from now on.

    Returns:
        What Zenoh has declared, to be kept and undeclared.
    """

    def answer(query: zenoh.Query) -> None:
        asker = topics.name_in(str(query.key_expr), 4)
        with query:
            query.reply(topics.status(job, name, asker), json.dumps(status(), allow_nan=False).encode())

    def submit(query: zenoh.Query) -> None:
        with suppress(RuntimeError):
            executor.submit(answer, query)

    return session.declare_queryable(topics.status(job, name, "*"), called(submit), complete=True)

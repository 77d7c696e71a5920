"""An announcement: that a message is there, what it says, and the digests of the tensors to pull for it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NoReturn

from manyhands.errors import MessageDamaged
from manyhands.hand import Facts, Message
from manyhands.wire.body import DIGEST_BYTES, Body, leaf_bytes_of, name_of
from manyhands.wire.expected import Expected

__all__ = ["MAX_NEWS_BYTES", "Announcement", "announce", "read_announcement"]

MAX_NEWS_BYTES = 64 << 10
"""What an announcement may take, and its digests beside it."""


@dataclass(frozen=True)
class Announcement:
    """What is said of a message before its tensors are pulled.

    Attributes:
        incarnation: Of the sender.
        number: Counts the sender's messages.
        kind: Of the message, as are the next three.
        round: See above.
        facts: See above.
        blocks: The names of its blocks.
        nbytes: How many bytes its tensors take; 0 where it has none.
        digests: Of the leaves of these bytes.
    """

    incarnation: int
    number: int
    kind: str
    round: int
    facts: Facts = field(default_factory=dict)
    blocks: tuple[str, ...] = ()
    nbytes: int = 0
    digests: bytes = b""

    @cached_property
    def name(self) -> str:
        """What the bytes of its tensors are called."""
        return name_of(self.digests)

    def text(self) -> bytes:
        """All but the digests, to be sent."""
        said = {"incarnation": self.incarnation, "number": self.number, "kind": self.kind}
        said |= {"round": self.round, "facts": self.facts, "blocks": list(self.blocks), "nbytes": self.nbytes}
        return json.dumps(said, separators=(",", ":"), allow_nan=False).encode()


def announce(
    message: Message, incarnation: int, number: int, body: Body | None, digests: bytes
) -> Announcement:
    """The announcement of a message.

    Raises:
        ValueError: Its facts are too long or not JSON: whoever receives it would take it for rubbish.
    """
    announcement = Announcement(
        incarnation,
        number,
        message.kind,
        message.round,
        message.facts,
        tuple(message.blocks),
        0 if body is None else body.nbytes,
        digests,
    )
    if len(announcement.text()) > MAX_NEWS_BYTES:
        raise ValueError(f"the facts of a {message.kind!r} take more than {MAX_NEWS_BYTES} bytes")
    return announcement


def read_announcement(text: bytes, digests: bytes, expected: Expected) -> Announcement:
    """What somebody has said, if it can be.

    Raises:
        MessageDamaged: It is not an announcement, or not one that this job can have.
    """
    if len(text) > MAX_NEWS_BYTES or len(digests) > MAX_NEWS_BYTES:
        raise MessageDamaged("an announcement that is too long")
    try:
        said = json.loads(text, parse_constant=_no_constant)
        incarnation, number, nbytes = (_count(said[key]) for key in ("incarnation", "number", "nbytes"))
        kind, told, facts = said["kind"], said["round"], said["facts"]
        blocks = tuple(said["blocks"])
        known = all(name in expected.blocks for name in blocks) and len(set(blocks)) == len(blocks)
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise MessageDamaged(f"not an announcement: {type(error).__name__}: {str(error)[:80]}") from None
    if not isinstance(facts, dict):
        raise MessageDamaged("its facts are not a table")
    if not isinstance(kind, str) or kind not in expected.kinds:
        raise MessageDamaged("there is no such kind of message")
    if type(told) is not int or not 0 <= told <= expected.num_rounds:
        raise MessageDamaged("there is no such round")
    if not known:
        raise MessageDamaged("there is no such block")
    if nbytes > (expected.max_bytes(blocks) if blocks else 0):
        raise MessageDamaged("its tensors are too large")
    num_leaves = -(-nbytes // leaf_bytes_of(nbytes))
    if bool(blocks) != bool(nbytes) or len(digests) != num_leaves * DIGEST_BYTES:
        raise MessageDamaged("its digests are not of its tensors")
    return Announcement(incarnation, number, kind, told, facts, blocks, nbytes, digests)


def _count(number: Any) -> int:
    if type(number) is not int or not 0 <= number < 1 << 63:
        raise ValueError("a number cannot be")
    return number


def _no_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a number")

"""What the messages of each kind must say, so that a program may rely on it.

Programs read facts of messages without looking twice. In the simulator these come from the same programs;
from another host anything may come, and what a program could not read is refused before it.
"""

from __future__ import annotations

from typing import Any

from manyhands.hand import Message

__all__ = ["what_is_wrong"]

NEEDED: dict[str, tuple[str, ...]] = {
    "round": ("call",),
    "update": ("call",),
    "consensus": ("stage",),
    "chunk": ("stage", "weight"),
    "broken": ("newest",),
}
"""Kind -> the facts that it cannot do without."""


def what_is_wrong(message: Message) -> str:
    """Why a program could not read a message; nothing if it can."""
    for key in NEEDED.get(message.kind, ()):
        if key not in message.facts:
            return f"a {message.kind} that does not say {key}"
    for key, value in message.facts.items():
        if not (_is_pair(value) if key == "call" else _is_plain(value)):
            return f"a {message.kind} with a {key} that cannot be"
    return ""


def _is_pair(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(type(part) is int for part in value)


def _is_plain(value: Any) -> bool:
    return value is None or type(value) in (int, float, bool, str)

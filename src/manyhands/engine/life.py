"""What a live device is given besides its hands: where it writes its life down, and how it meets others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from manyhands.hand import Facts

__all__ = ["Diary", "Manners", "Past"]


@dataclass(frozen=True)
class Past:
    """What a device knows of its earlier lives in this job.

    Attributes:
        origin_s: When it first began, in seconds since 1970.
        incarnation: How often it has begun, this time included.
        done: Which of its hands have come to their end.
    """

    origin_s: float
    incarnation: int = 1
    done: frozenset[str] = field(default_factory=frozenset)


@dataclass(frozen=True)
class Diary:
    """What a device has written down, and where it goes on.

    Attributes:
        past: Its earlier lives.
        write: Takes each event and its line of JSON.
        finished: Told the name of each hand that has come to its end, once what it leaves is on disk.
    """

    past: Past
    write: Callable[[Facts, str], None]
    finished: Callable[[str], None] = lambda _name: None


@dataclass(frozen=True)
class Manners:
    """How a device meets others.

    Attributes:
        greeting: What it tells each hand that it meets, besides how it stands.
        heard: Takes what another tells of itself; says why nothing can be learned together, if so.
        diagnose: Says why others cannot be reached, in a line each; asked once, when nobody comes.
    """

    greeting: Facts = field(default_factory=dict)
    heard: Callable[[str, Facts], str] = lambda _peer, _facts: ""
    diagnose: Callable[[], list[str]] = list

"""A participant: what either engine is given of a hand."""

from __future__ import annotations

from dataclasses import dataclass

from manyhands.hand import Program

__all__ = ["Participant"]


@dataclass(frozen=True)
class Participant:
    """One hand of a run.

    Attributes:
        program: What it does.
        host: The device it lives on.
        peers: Whom it talks to.
        serves: Whether others depend on its answers even when it is done, as they do on a coordinator's.
    """

    program: Program
    host: str
    peers: tuple[str, ...] = ()
    serves: bool = False

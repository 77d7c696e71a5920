"""The account of sum-weights behind asynchronous push gossip (GoSGD; Blot et al. 2016, arXiv:1611.09726).

Every device starts with the same number of *units* and each message takes half of its sender's along. A
unit is in one place at any time, whatever is lost, doubled, delayed or overtaken and whoever crashes and
comes back:

- Units are whole numbers. Half of them is ``n // 2`` and the sender keeps the rest, so nothing is rounded.
- What is sent stays in the sender's book, *in flight*, until the receiver's word on it is known. The units
  count as the receiver's from when it has credited them, and as the sender's until then.
- Each message has a number. The receiver decides once about a number: *credited* or *void*. Another copy of
  it changes nothing.
- The sender never takes units back because time has passed: a message that seems lost may have arrived with
  only its receipt lost. It asks; asking about a number that has not come makes it void, and only the
  receiver's word that it is void brings the units back.

So ``sum of own + sum of what is in flight and not credited`` never changes: `give` moves units from own to
in flight, `take` turns in-flight ones into the receiver's own, `close` strikes out credited ones or brings
void ones back, and each happens once a number. Books are values; a program saves a new one before it speaks
of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

__all__ = ["FIRST_UNITS", "Book", "Flight", "answer", "close", "floor_for", "give", "overdue", "take"]

FIRST_UNITS = 1 << 40
"""What every device starts with: small enough that sums of thousands of them are exact as floats."""


@dataclass(frozen=True)
class Flight:
    """Units on their way: to whom, how many, and when they were sent."""

    peer: str
    units: int
    at_s: float


@dataclass(frozen=True)
class Book:
    """One device's account.

    Attributes:
        own: Its units.
        next_number: Of its next message; never used twice, also after a crash.
        in_flight: Number -> units sent whose fate is not known.
        floors: Sender -> the number below which all of its messages to this device are settled.
        decided: Sender -> number, from the floor on -> whether it was credited (or else is void).
    """

    own: int = FIRST_UNITS
    next_number: int = 0
    in_flight: Mapping[int, Flight] = field(default_factory=dict)
    floors: Mapping[str, int] = field(default_factory=dict)
    decided: Mapping[str, Mapping[int, bool]] = field(default_factory=dict)


def floor_for(book: Book, peer: str) -> int:
    """The lowest number whose fate with a peer is open: it need not remember anything older."""
    return min((n for n, flight in book.in_flight.items() if flight.peer == peer), default=book.next_number)


def give(book: Book, peer: str, now_s: float) -> tuple[Book, int] | None:
    """Puts half of the units in flight to a peer; None if they cannot be halved.

    Returns:
        The book, and the number of the message.
    """
    half = book.own // 2
    if half == 0:
        return None
    number = book.next_number
    flights = {**book.in_flight, number: Flight(peer, half, now_s)}
    return replace(book, own=book.own - half, next_number=number + 1, in_flight=flights), number


def take(book: Book, sender: str, number: int, units: int, floor: int) -> tuple[Book, bool]:
    """Credits what came, unless this number was decided before.

    Returns:
        The book, and whether it is new: if it is not, the network that came with it must not count again.
    """
    book = _from_floor(book, sender, floor)
    if number < book.floors[sender] or number in book.decided[sender]:
        return book, False
    return _decide(replace(book, own=book.own + units), sender, number, True), True


def answer(book: Book, sender: str, number: int, floor: int) -> tuple[Book, bool]:
    """The word on a number that its sender asks about; one that has not come is void from now on.

    Returns:
        The book, and whether the number was credited.
    """
    book = _from_floor(book, sender, floor)
    if number < book.floors[sender]:  # the sender has its answer; this is an old copy of the question
        return book, False
    decided = book.decided[sender]
    return (book, decided[number]) if number in decided else (_decide(book, sender, number, False), False)


def close(book: Book, peer: str, number: int, credited: bool) -> Book:
    """Takes note of a peer's word on a number; units that it has not credited come back."""
    flight = book.in_flight.get(number)
    if flight is None or flight.peer != peer:
        return book
    rest = {n: other for n, other in book.in_flight.items() if n != number}
    return replace(book, own=book.own + (0 if credited else flight.units), in_flight=rest)


def overdue(book: Book, now_s: float, after_s: float) -> list[tuple[int, str]]:
    """The numbers, with their receivers, whose fate should long be known."""
    return [(n, flight.peer) for n, flight in book.in_flight.items() if now_s - flight.at_s >= after_s]


def _from_floor(book: Book, sender: str, floor: int) -> Book:
    """Forgets what the sender knows the fate of."""
    floor = max(floor, book.floors.get(sender, 0))
    kept = {n: credited for n, credited in book.decided.get(sender, {}).items() if n >= floor}
    return replace(book, floors={**book.floors, sender: floor}, decided={**book.decided, sender: kept})


def _decide(book: Book, sender: str, number: int, credited: bool) -> Book:
    return replace(book, decided={**book.decided, sender: {**book.decided[sender], number: credited}})

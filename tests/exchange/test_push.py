"""Push gossip: weights are conserved whatever happens, versions count by their weight, nobody waits."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter
from toys import member, one

from manyhands.engine.cores import Cores
from manyhands.engine.faults import Fault, Faults
from manyhands.engine.participant import Participant
from manyhands.engine.scripted import ScriptedHand
from manyhands.engine.simulate import Simulation
from manyhands.exchange.coordination import ExchangeSection
from manyhands.exchange.push import PushPlace, PushStanding, push_to_peers
from manyhands.exchange.sum_weights import (
    FIRST_UNITS,
    Book,
    answer,
    close,
    floor_for,
    give,
    overdue,
    take,
)
from manyhands.fleet import Fleet
from manyhands.hand import Message

# The books by themselves.


def credited(book: Book, sender: str, number: int) -> bool:
    """Whether a receiver has taken units in: below the floor it is settled, and not in flight any more."""
    return book.decided.get(sender, {}).get(number, False)


def total(books: Mapping[str, Book]) -> int:
    """Everybody's own units, and those in flight that their receiver has not credited."""
    return sum(book.own for book in books.values()) + sum(
        flight.units
        for sender, book in books.items()
        for number, flight in book.in_flight.items()
        if flight.peer not in books or not credited(books[flight.peer], sender, number)
    )


class Post:
    """Books, and messages between them that may be lost, doubled, held back and overtaken."""

    def __init__(self, names: str, first: int = FIRST_UNITS) -> None:
        self.books = {name: Book(own=first) for name in names}
        self.way: list[tuple[str, str, str, tuple[Any, ...]]] = []

    def push(self, sender: str, peer: str) -> None:
        given_ = give(self.books[sender], peer, 0.0)
        if given_ is None:
            return
        self.books[sender], number = given_
        units = self.books[sender].in_flight[number].units
        floor = floor_for(self.books[sender], peer)
        self.way.append(("push", sender, peer, (number, units, floor)))

    def ask(self, sender: str) -> None:
        for number, peer in overdue(self.books[sender], 1.0, 0.0):
            floor = floor_for(self.books[sender], peer)
            self.way.append(("ask", sender, peer, (number, floor)))

    def deliver(self, place: int, *, keep: bool = False) -> None:
        kind, sender, peer, facts = self.way[place]
        if not keep:
            del self.way[place]
        if kind == "receipt":
            self.books[peer] = close(self.books[peer], sender, *facts)
            return
        if kind == "push":
            self.books[peer], _ = take(self.books[peer], sender, *facts)
            facts = (facts[0], facts[2])
        self.books[peer], yes = answer(self.books[peer], sender, *facts)
        self.way.append(("receipt", peer, sender, (facts[0], yes)))


STEPS = st.lists(
    st.tuples(st.sampled_from(["push", "ask", "deliver", "double", "lose", "crash"]), st.integers(0, 10**6)),
    max_size=120,
)


@settings(max_examples=300)
@given(steps=STEPS, first=st.sampled_from([1, 2, 3, 7, FIRST_UNITS]))
def test_no_unit_is_lost_or_counted_twice(steps: list[tuple[str, int]], first: int) -> None:
    names = "abc"
    post = Post(names, first)
    for step, dice in steps:
        sender, peer = random.Random(dice).sample(names, 2)
        if step == "push":
            post.push(sender, peer)
        elif step == "ask":
            post.ask(sender)
        elif step == "crash":  # what was on its way to it is gone; its book, which it had saved, is not
            post.way = [message for message in post.way if message[2] != sender]
        elif post.way:
            place = dice % len(post.way)
            if step == "lose":
                del post.way[place]
            else:
                post.deliver(place, keep=step == "double")
        assert total(post.books) == len(names) * first
        assert all(book.own >= 0 for book in post.books.values())
    for _ in range(2):  # when messages come through again, every unit comes to rest
        for name in names:
            post.ask(name)
        while post.way:
            post.deliver(0)
    assert not any(book.in_flight for book in post.books.values())
    assert sum(book.own for book in post.books.values()) == len(names) * first


def test_a_message_takes_half_and_a_receipt_settles_it() -> None:
    post = Post("ab", 9)
    post.push("a", "b")
    assert (post.books["a"].own, post.books["a"].in_flight[0].units) == (5, 4)
    post.deliver(0)
    assert post.books["b"].own == 13
    post.deliver(0)
    assert not post.books["a"].in_flight


def test_a_lost_message_comes_back_when_the_receiver_says_so_and_a_late_one_is_void() -> None:
    post = Post("ab", 8)
    post.push("a", "b")
    late = post.way.pop()
    post.ask("a")
    post.deliver(0)
    assert post.books["a"].own == 4  # nobody has told it yet
    post.deliver(0)
    assert post.books["a"].own == 8
    post.way.append(late)
    post.deliver(0)
    assert post.books["b"].own == 8


def test_a_lost_receipt_does_not_bring_units_back() -> None:
    post = Post("ab", 8)
    post.push("a", "b")
    post.deliver(0)
    post.way.clear()
    post.ask("a")
    post.deliver(0)
    post.deliver(0)
    assert (post.books["a"].own, post.books["b"].own) == (4, 12)


def test_a_single_unit_is_not_halved_and_settled_numbers_are_forgotten() -> None:
    assert give(Book(own=1), "b", 0.0) is None
    post = Post("ab")
    for _ in range(30):
        post.push("a", "b")
        post.deliver(0)
        post.deliver(0)
    assert len(post.books["b"].decided["a"]) <= 1


# The program.


def place(peers: tuple[str, ...], first: float = 0.0, **section: Any) -> PushPlace:
    told = ExchangeSection(mode="push", **{"rounds": 1, **section})
    return PushPlace(told, 3, {"model": one(first)}, peers, FIRST_UNITS * 4, 1.0, 0)


def pushed(value: float, units: int, number: int = 0, sender: str = "p", **facts: Any) -> Message:
    said = {"number": number, "units": units, "floor": number} | facts
    return Message("push", 0, said, {"model": one(value)}, sender)


def outcome(hand: ScriptedHand, **section: Any) -> float:
    replica = asyncio.run(push_to_peers(hand, member(), place(("p", "q"), **section)))
    return float(replica.weights["w"])


def test_a_version_counts_by_its_units() -> None:
    hand = ScriptedHand("x", [pushed(9.0, 3 * FIRST_UNITS)], ("p", "q"), queued=True)
    assert outcome(hand) == (1.0 + 3 * 9.0) / 4  # its own is 1 after the local phase
    assert hand.saved.book.own == 4 * FIRST_UNITS
    receipts = [(peer, m.facts) for peer, m in hand.sent if m.kind == "receipt"]
    assert receipts == [("p", {"number": 0, "credited": True})]
    assert hand.works == ["train", "merge", "settle"]


def test_a_doubled_message_counts_once() -> None:
    copies = [pushed(9.0, FIRST_UNITS), pushed(9.0, FIRST_UNITS)]
    hand = ScriptedHand("x", copies, ("p", "q"), queued=True)
    assert outcome(hand) == 5.0
    assert hand.saved.book.own == 2 * FIRST_UNITS


def test_a_version_that_is_not_finite_leaves_its_units_and_not_itself() -> None:
    hand = ScriptedHand("x", [pushed(float("nan"), FIRST_UNITS)], ("p", "q"), queued=True)
    assert outcome(hand) == 1.0
    assert hand.saved.book.own == 2 * FIRST_UNITS
    assert [event["peer"] for event in hand.events if event["event"] == "refused"] == ["p"]


@pytest.mark.parametrize(
    "message",
    [
        pushed(9.0, 5 * FIRST_UNITS),
        pushed(9.0, 0),
        pushed(9.0, -1),
        pushed(9.0, 1, sender="stranger"),
        pushed(9.0, 1, floor=5),
        Message("receipt", 0, {"number": "0"}, sender="p"),
        Message("ask", 0, {}, sender="p"),
    ],
)
def test_nonsense_is_refused(message: Message) -> None:
    hand = ScriptedHand("x", [message], ("p", "q"), queued=True)
    assert outcome(hand) == 1.0
    assert hand.saved.book.own == FIRST_UNITS
    assert [event["reason"] for event in hand.events if event["event"] == "refused"] == [
        "not a message of push"
    ]


def test_it_pushes_after_every_phase_but_the_last_and_waits_for_nobody() -> None:
    hand = ScriptedHand("x", peers=("p", "q"))
    assert outcome(hand, rounds=4) == 4.0
    sent = [(peer, m.facts["units"]) for peer, m in hand.sent if m.kind == "push"]
    assert [units for _, units in sent] == [FIRST_UNITS // 2, FIRST_UNITS // 4, FIRST_UNITS // 8]
    assert {peer for peer, _ in sent} <= {"p", "q"}
    assert hand.works == ["train"] * 4 + ["settle"]
    assert {m.facts["number"] for _, m in hand.sent if m.kind == "ask"} == {0, 1, 2}


def test_nobody_pushes_to_one_that_has_left() -> None:
    hand = ScriptedHand("x", [Message("leave", 1, sender="p")], ("p", "q"), queued=True)
    outcome(hand, rounds=6)
    assert {peer for peer, m in hand.sent if m.kind == "push"} == {"q"}


FAULTS = [
    {"kind": "loss", "probability": 0.2},
    {"kind": "duplicate", "probability": 0.3},
    {"kind": "reorder", "probability": 0.3, "window_s": 4.0},
    {"kind": "crash", "device": "b", "at_s": 6.5, "restart_at_s": 11.0},
    {"kind": "crash", "device": "d", "at_s": 15.2, "restart_at_s": 16.0},
]


def simulated(fleet: Fleet, faults: list[dict[str, Any]], seed: int) -> Simulation:
    """Four devices that start at 0, 1, 2 and 3 and train nothing, so that only averaging moves them."""
    names = fleet.names
    participants = {}
    for number, name in enumerate(names):
        own = place(tuple(n for n in names if n != name), float(number), rounds=25)
        program = partial(push_to_peers, member=member(0.0, 1e9 * (1 + 0.1 * number)), place=own)
        participants[name] = Participant(program, name, own.neighbours)
    script = TypeAdapter(list[Fault]).validate_python(faults)
    return Simulation(
        fleet, participants, lambda _event, _line: None, faults=Faults(script, seed), cores=Cores(0)
    )


@pytest.mark.parametrize("seed", range(6))
def test_in_a_simulation_full_of_faults_no_unit_is_lost(fleet: Fleet, seed: int) -> None:
    simulation = simulated(fleet, FAULTS, seed)
    simulation.run()
    standings: dict[str, PushStanding] = {n: hand.saved for n, hand in simulation.hands.items()}
    assert all(standing.round == 25 for standing in standings.values())
    assert total({n: standing.book for n, standing in standings.items()}) == 4 * FIRST_UNITS


def test_all_come_to_one_mean(fleet: Fleet) -> None:
    ends = simulated(fleet, [], 0).run()
    values = [float(replica.weights["w"]) for replica in ends.values()]
    assert max(values) - min(values) < 0.05
    assert 0.5 < sum(values) / 4 < 2.5


def test_one_that_crashes_for_good_holds_nobody_up(fleet: Fleet) -> None:
    ends = simulated(fleet, [{"kind": "crash", "device": "b", "at_s": 3.3}], 0)
    ends.run()
    assert {name for name, hand in ends.hands.items() if hand.finished} == {"a", "c", "d"}

"""A hand: one participant, as the protocol sees it.

What a device does is a plain ``async def program(hand, …)`` over the verbs below. The simulator and
the live engine each bring a `Hand` of their own and drive the same programs; `engine.scripted` brings
a third for tests.

All arithmetic on tensors happens inside a `Work`. That is what lets an engine run it on another core,
charge its cost to a clock, and, when a killed run is resumed, take its recorded facts instead of doing
it again. A program therefore never looks into tensors itself: what it needs to decide on (was an update
refused, how large was the loss) a `Work` returns as *facts*.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from manyhands.blocks import Weights

__all__ = ["ENVELOPE_BYTES", "Facts", "Hand", "Message", "Outcome", "Program", "Work"]

Facts = dict[str, Any]
"""What can be written as JSON: numbers, strings, booleans, None, lists and dicts of them."""

ENVELOPE_BYTES = 512
"""Room for a message's header, beside its tensors (the codec's test holds it to that)."""


@dataclass(frozen=True)
class Outcome:
    """What a `Work` gave: facts that go into the trace, and weights."""

    facts: Facts = field(default_factory=dict)
    weights: Mapping[str, Weights] = field(default_factory=dict)


@dataclass(frozen=True)
class Work:
    """Something to compute, and what it costs.

    Attributes:
        name: What it is, in one word: ``train``, ``merge``.
        run: Does it. Called at most once, on any thread, and must not depend on when.
        flops: Floating-point operations to charge (multiply and add counted separately).
        facts: What is known beforehand and belongs into its trace event, such as the round.
    """

    name: str
    run: Callable[[], Outcome]
    flops: float = 0.0
    facts: Facts = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Message:
    """What one hand tells another. The engine fills in the sender.

    Two kinds come from the engine itself: ``joined`` and ``lost``, when a peer appears or vanishes.
    """

    kind: str
    round: int = 0
    facts: Facts = field(default_factory=dict)
    blocks: Mapping[str, Weights] = field(default_factory=dict)
    sender: str = ""

    @property
    def nbytes(self) -> int:
        """What sending it costs: its tensors and an envelope."""
        return ENVELOPE_BYTES + sum(block.nbytes for block in self.blocks.values())


class Hand(Protocol):
    """One participant's verbs."""

    @property
    def name(self) -> str:
        """The hand's own name, unique in the job."""
        ...

    @property
    def seconds(self) -> float:
        """The run's clock."""
        ...

    @property
    def peers(self) -> tuple[str, ...]:
        """The hands that this one believes to be there, in a fixed order."""
        ...

    @property
    def saved(self) -> Any:
        """What this hand last saved, also across a crash; None on its first start."""
        ...

    def save(self, state: Any) -> None:
        """Keeps something that a restarted program goes on from."""
        ...

    async def compute(self, work: Work) -> Outcome:
        """Does a piece of work and returns when the device would be done with it."""
        ...

    async def send(self, peer: str, message: Message) -> None:
        """Hands a message to the network. It may be lost, late or doubled; nobody tells."""
        ...

    async def receive(self, *kinds: str, timeout_s: float | None = None) -> Message | None:
        """The next message of one of these kinds (of any, if none is named); None when time is up."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Lets time pass."""
        ...

    def report(self, event: str, *, observe: Work | None = None, **facts: Any) -> None:
        """Puts an event into the trace.

        The facts of an observed work are added to it; such work is off the clock: it is what the
        experimenter measures, not what the device does.
        """
        ...


Program = Callable[[Hand], Any]
"""``async def program(hand) -> result``, everything else bound beforehand."""

"""The fault script: what goes wrong, with whom, and when on the run's clock.

Each ``[[fault]]`` table of a job is one `Fault`. The script is data; the simulator asks it three
questions: is this link cut, what happens to this message, and how long does this work take now.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, model_validator

from manyhands.errors import JobError
from manyhands.fleet.contention import Load
from manyhands.settings import Section

__all__ = [
    "Corrupt",
    "Crash",
    "Delay",
    "Duplicate",
    "Fault",
    "Faults",
    "Loss",
    "Partition",
    "Reorder",
    "SlowDown",
    "check_names",
    "finish_time",
]

Probability = Annotated[float, Field(gt=0, le=1)]


class _Span(Section):
    """A fault that lasts from one moment to another, or for ever."""

    from_s: NonNegativeFloat = 0.0
    until_s: PositiveFloat | None = None

    @model_validator(mode="after")
    def _ordered(self) -> _Span:
        if self.until_s is not None and self.until_s <= self.from_s:
            raise ValueError(f"until_s must come after from_s = {self.from_s}")
        return self

    def active(self, seconds: float) -> bool:
        """Whether the fault lasts at this moment."""
        return self.from_s <= seconds and (self.until_s is None or seconds < self.until_s)


class _OnMessages(_Span):
    """A fault that meets messages, of one device or of all, each with a probability."""

    device: str | None = None
    probability: Probability = 1.0

    def meets(self, seconds: float, ends: tuple[str, ...], dice: random.Random) -> bool:
        """Whether it meets a message between these ends; rolls the dice only if it could."""
        return (
            self.active(seconds)
            and (self.device is None or self.device in ends)
            and (self.probability >= 1 or dice.random() < self.probability)
        )


class Crash(Section):
    """A device dies at once and, if `restart_at_s` is given, comes back with what it had saved."""

    kind: Literal["crash"]
    device: str
    at_s: NonNegativeFloat
    restart_at_s: PositiveFloat | None = None

    @model_validator(mode="after")
    def _ordered(self) -> Crash:
        if self.restart_at_s is not None and self.restart_at_s <= self.at_s:
            raise ValueError(f"restart_at_s must come after at_s = {self.at_s}")
        return self


class Loss(_OnMessages):
    """Messages vanish."""

    kind: Literal["loss"]


class Delay(_OnMessages):
    """Messages arrive later, all by the same time, so they keep their order."""

    kind: Literal["delay"]
    delay_s: PositiveFloat


class Duplicate(_OnMessages):
    """Messages arrive twice."""

    kind: Literal["duplicate"]


class Reorder(_OnMessages):
    """Messages are held back for a random time up to `window_s` and overtaken by others."""

    kind: Literal["reorder"]
    window_s: PositiveFloat = 1.0


class Corrupt(_OnMessages):
    """What one device sends is spoilt: made NaN, flipped in sign, or scaled a hundredfold."""

    kind: Literal["corrupt"]
    device: str
    how: Literal["nan", "flip", "scale"] = "nan"


class Partition(_Span):
    """The fleet falls apart into groups that do not hear each other; devices not named stay whole."""

    kind: Literal["partition"]
    groups: tuple[tuple[str, ...], ...] = Field(min_length=2)

    @model_validator(mode="after")
    def _disjoint(self) -> Partition:
        names = [name for group in self.groups for name in group]
        if len(set(names)) < len(names):
            raise ValueError("groups must not name a device twice")
        return self

    def cuts(self, a: str, b: str) -> bool:
        """Whether the two are in different groups."""
        group = {name: number for number, names in enumerate(self.groups) for name in names}
        return a in group and b in group and group[a] != group[b]


class SlowDown(_Span):
    """A device computes `factor` times slower."""

    kind: Literal["slow_down"]
    device: str
    factor: Annotated[float, Field(ge=1)]


Fault = Annotated[
    Crash | Loss | Delay | Duplicate | Reorder | Corrupt | Partition | SlowDown, Field(discriminator="kind")
]


def check_names(script: Sequence[Fault], devices: Sequence[str], hands: Sequence[str]) -> None:
    """A fault must name who there is: a device or, for what meets single hands, the coordinator.

    Raises:
        JobError: It names somebody else.
    """
    for index, fault in enumerate(script):
        groups = getattr(fault, "groups", ())
        known = devices if isinstance(fault, Partition | SlowDown) else [*devices, *hands]
        for name in (getattr(fault, "device", None), *(name for group in groups for name in group)):
            if name is not None and name not in known:
                key = f"fault[{index}].{'groups' if groups else 'device'}"
                raise JobError(key, name, f"there is no such device; choose one of {', '.join(devices[:10])}")


class Faults:
    """A fault script, ready to be asked."""

    def __init__(self, script: Sequence[Fault] = (), seed: int = 0) -> None:
        self.script = tuple(script)
        self._dice = random.Random(seed)
        self._on_messages = [f for f in self.script if isinstance(f, _OnMessages)]
        self.partitions = [f for f in self.script if isinstance(f, Partition)]
        self.crashes = [f for f in self.script if isinstance(f, Crash)]

    def cut(self, seconds: float, a: str, b: str) -> bool:
        """Whether a partition lies between two devices now."""
        return any(p.active(seconds) and p.cuts(a, b) for p in self.partitions)

    def on_message(self, seconds: float, ends: tuple[str, ...]) -> list[_OnMessages]:
        """The faults that meet this message."""
        return [f for f in self._on_messages if f.meets(seconds, ends, self._dice)]

    def hold_back(self, reorder: Reorder) -> float:
        """How long a message to be overtaken is held."""
        return self._dice.uniform(0.0, reorder.window_s)

    def slow_downs(self, device: str) -> list[SlowDown]:
        """The times in which a device is slow."""
        return [f for f in self.script if isinstance(f, SlowDown) and f.device == device]


def finish_time(
    start_s: float, work_s: float, slow_downs: Sequence[SlowDown], load: Load | None = None
) -> float:
    """When work that takes `work_s` at full speed is done, if it starts now.

    Slow-downs that overlap, with each other and with co-running work, multiply.
    """
    now, left = start_s, work_s
    edges = sorted({edge for s in slow_downs for edge in (s.from_s, s.until_s) if edge and edge > start_s})
    while True:
        factor = math.prod(s.factor for s in slow_downs if s.active(now))
        until_s = next((edge for edge in edges if edge > now), math.inf)
        if load is not None:
            use, use_until_s = load.at(now)
            factor, until_s = factor * use.slowdown, min(until_s, use_until_s)
        if now + left * factor <= until_s:
            return now + left * factor
        left -= (until_s - now) / factor
        now = until_s

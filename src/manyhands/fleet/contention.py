"""Co-running work: what else a device does while it trains, and how much slower it trains meanwhile.

Each ``[[contention]]`` table of a job is one such work. What it takes is constant over *pieces* of time: a
share of the device's computing power (its level), bits of its network link, bits of its disk. At a level of
a half, training takes twice as long. Works that run at once find what the others have left. All is a function
of the run's clock and the job's seed, so a simulated run with it is still the same to the byte.

The works of the kinds ``wordcount`` and ``sort`` are after section 4.2 of Han et al.,
doi:10.1109/TPDS.2020.3046440: jobs of MapReduce with inputs of 1 MB to 10 GB.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, NonNegativeFloat, PositiveFloat, model_validator

from manyhands.errors import JobError
from manyhands.fleet.device import Fleet
from manyhands.fleet.recording import Span, read_recording
from manyhands.fleet.use import IDLE, Use, together
from manyhands.seeds import numpy_generator
from manyhands.settings import Section

__all__ = ["Bursty", "CoRunning", "Contention", "Load", "Recorded", "Sort", "Steady", "WordCount"]

LEAST_LINK = 0.05
"""What co-running traffic leaves of a link, whatever it asks for: TCP shares."""

Level = Annotated[float, Field(ge=0, lt=1)]
BurstSeconds = Annotated[float, Field(ge=0.01)]

Timeline = Callable[[float], tuple[Use, float]]
"""What a work takes at a moment since it began, and until when that stays so."""


class _CoRunning(Section):
    """A work beside training, of one device or, each by itself, of all, from one moment to another."""

    device: str | None = None
    from_s: NonNegativeFloat = 0.0
    until_s: PositiveFloat | None = None

    @model_validator(mode="after")
    def _ordered(self) -> _CoRunning:
        if self.until_s is not None and self.until_s <= self.from_s:
            raise ValueError(f"until_s must come after from_s = {self.from_s}")
        return self


class Steady(_CoRunning):
    """Takes the same all the time."""

    kind: Literal["steady"]
    level: Level
    network_bps: NonNegativeFloat = 0.0
    disk_bps: NonNegativeFloat = 0.0


class Bursty(_CoRunning):
    """Takes something for a while, nothing for a while, and so on."""

    kind: Literal["bursty"]
    on_s: BurstSeconds
    off_s: BurstSeconds
    level: Level
    network_bps: NonNegativeFloat = 0.0
    disk_bps: NonNegativeFloat = 0.0


class _MapReduce(_CoRunning):
    """One job of MapReduce after the other, of inputs drawn log-uniformly, with pauses between."""

    smallest_bytes: PositiveFloat = 1e6
    largest_bytes: PositiveFloat = 1e10
    bytes_per_s: PositiveFloat = 2e7
    pause_s: PositiveFloat = 10.0
    level: Level = 0.5

    @model_validator(mode="after")
    def _sizes_ordered(self) -> _MapReduce:
        if self.largest_bytes < self.smallest_bytes:
            raise ValueError(f"largest_bytes must not be below smallest_bytes = {self.smallest_bytes}")
        return self


class WordCount(_MapReduce):
    """Jobs that count words: they compute much, read their input, and send little."""

    kind: Literal["wordcount"]


class Sort(_MapReduce):
    """Jobs that sort: they read and write all of their input, and send all of it between."""

    kind: Literal["sort"]


class Recorded(_CoRunning):
    """What ``manyhands profile --record`` saw on a real machine, from a file."""

    kind: Literal["recorded"]
    path: Path
    repeat: bool = False


CoRunning = Annotated[Steady | Bursty | WordCount | Sort | Recorded, Field(discriminator="kind")]


class Load:
    """Everything that runs beside training on one device."""

    def __init__(self, timelines: Sequence[Timeline]) -> None:
        self._timelines = tuple(timelines)

    def at(self, seconds: float) -> tuple[Use, float]:
        """What is taken now, and until when that stays so (infinity: for ever)."""
        pieces = [timeline(seconds) for timeline in self._timelines]
        return together([use for use, _ in pieces]), min(until_s for _, until_s in pieces)

    def slowdown(self, seconds: float) -> float:
        """How many times longer a work takes, as things are now."""
        return self.at(seconds)[0].slowdown

    def link_free_at(self, start_s: float, num_bits: float, bandwidth_bps: float) -> float:
        """When so many bits that start now are through a link that others use as well."""
        now, left = start_s, num_bits
        while True:
            use, until_s = self.at(now)
            rate_bps = max(bandwidth_bps - use.network_bps, LEAST_LINK * bandwidth_bps)
            end_s = now + left / rate_bps
            if end_s <= until_s:
                return end_s
            left -= (until_s - now) * rate_bps
            now = until_s

    def mean(self, from_s: float, until_s: float) -> Use:
        """What was taken on average between two moments: what a monitor of that time would have found."""
        if until_s <= from_s:
            return self.at(from_s)[0]
        total = np.zeros(3)
        now = from_s
        while now < until_s:
            use, end_s = self.at(now)
            end_s = min(end_s, until_s)
            total += (end_s - now) * np.array(use.figures)
            now = end_s
        return Use(*(total / (until_s - from_s)).tolist())


class Contention:
    """The co-running work of a fleet.

    Args:
        works: The job's tables.
        fleet: Whose devices they name.
        seed: Decides over sizes and pauses.

    Raises:
        JobError: A table names a device that is not there, or a file that cannot be read.
    """

    def __init__(self, works: Sequence[CoRunning] = (), fleet: Fleet | None = None, seed: int = 0) -> None:
        names = fleet.names if fleet is not None else ()
        timelines: dict[str, list[Timeline]] = {}
        for index, work in enumerate(works):
            if work.device is not None and work.device not in names:
                expected = f"there is no such device; choose one of {', '.join(names[:10])}"
                raise JobError(f"contention[{index}].device", work.device, expected)
            spans = _read(index, work) if isinstance(work, Recorded) else ()
            for name in names if work.device is None else (work.device,):
                dice = numpy_generator(seed, "contention", index, name)
                timelines.setdefault(name, []).append(_placed(_timeline(work, dice, spans), work))
        self.loads: Mapping[str, Load] = {name: Load(lines) for name, lines in timelines.items()}

    def slowdown(self, device: str, seconds: float) -> float:
        """How many times longer a device's work takes, as things are at this moment."""
        return self.loads[device].slowdown(seconds) if device in self.loads else 1.0

    def mean(self, device: str, from_s: float, until_s: float) -> Use:
        """What co-running work took of a device on average between two moments."""
        return self.loads[device].mean(from_s, until_s) if device in self.loads else IDLE


def _read(index: int, work: Recorded) -> tuple[Span, ...]:
    try:
        return read_recording(work.path)
    except ValueError as error:
        raise JobError(f"contention[{index}].path", str(work.path), str(error)) from error


def _placed(timeline: Timeline, work: _CoRunning) -> Timeline:
    """A work's timeline on the run's clock: nothing before it begins and after it ends."""
    begin_s, stop_s = work.from_s, math.inf if work.until_s is None else work.until_s

    def on_the_runs_clock(seconds: float) -> tuple[Use, float]:
        if seconds < begin_s:
            return IDLE, begin_s
        if seconds >= stop_s:
            return IDLE, math.inf
        use, until_s = timeline(seconds)
        return use, min(until_s, stop_s)

    return on_the_runs_clock


def _timeline(work: CoRunning, dice: np.random.Generator, spans: Sequence[Span]) -> Timeline:
    """What a work takes on the run's clock, from its beginning on."""
    if isinstance(work, Steady):
        use = Use(work.level, work.network_bps, work.disk_bps)
        return lambda seconds: (use, math.inf)
    if isinstance(work, Bursty):
        busy = Use(work.level, work.network_bps, work.disk_bps)
        return _periodic(work.from_s, (Span(work.on_s, busy), Span(work.on_s + work.off_s, IDLE)))
    if isinstance(work, Recorded):
        return _periodic(work.from_s, spans) if work.repeat else _once(work.from_s, iter(spans))
    return _once(work.from_s, _jobs(work, dice))


def _periodic(begin_s: float, spans: Sequence[Span]) -> Timeline:
    """The same spans again and again."""
    ends = [span.end_s for span in spans]
    period_s = ends[-1]

    def edge(turn: int, place: int) -> float:
        return begin_s + turn * period_s + ends[place]

    def at(seconds: float) -> tuple[Use, float]:
        turn = max(math.floor((seconds - begin_s) / period_s), 0)
        # The division may round to a neighbouring turn; the edges decide, so that each piece ends where
        # the next begins.
        while turn > 0 and seconds < edge(turn - 1, -1):
            turn -= 1
        place = bisect_right(range(len(ends)), seconds, key=lambda k: edge(turn, k))
        while place == len(ends):
            turn += 1
            place = bisect_right(range(len(ends)), seconds, key=lambda k: edge(turn, k))
        return spans[place].use, edge(turn, place)

    return at


def _once(begin_s: float, spans: Iterator[Span]) -> Timeline:
    """Spans one after the other, drawn when time comes to them; after the last, nothing."""
    ends: list[float] = []
    uses: list[Use] = []

    def at(seconds: float) -> tuple[Use, float]:
        while not ends or ends[-1] <= seconds:
            span = next(spans, None)
            if span is None:
                return IDLE, math.inf
            ends.append(begin_s + span.end_s)
            uses.append(span.use)
        place = bisect_right(ends, seconds)
        return uses[place], ends[place]

    return at


START_S = 1.0
START_LEVEL = 0.25
# Part of the job's time, part of its level, whether it reads or writes the disk, whether it sends.
_PHASES = {
    "wordcount": ((0.9, 1.0, 1, 0), (0.1, 0.5, 0, 1)),
    "sort": ((0.3, 0.6, 1, 0), (0.3, 0.4, 0, 1), (0.4, 1.0, 1, 0)),
}
WORDS_SENT = 0.05
"""Of the input of a WordCount, what is left to be sent after words were counted where they were read."""


def _jobs(work: WordCount | Sort, dice: np.random.Generator) -> Iterator[Span]:
    """One job after the other: a start, the phases of its kind, a pause.

    A larger input therefore means a higher mean level, as in figure 10 of the paper: its start weighs less.
    """
    end_s = 0.0
    low, high = math.log(work.smallest_bytes), math.log(work.largest_bytes)
    while True:
        end_s += dice.exponential(work.pause_s)
        yield Span(end_s, IDLE)
        num_bytes = math.exp(dice.uniform(low, high))
        end_s += START_S
        yield Span(end_s, Use(START_LEVEL * work.level))
        for part, level, disk, network in _PHASES[work.kind]:
            phase_s = part * num_bytes / work.bytes_per_s
            sent = num_bytes * (WORDS_SENT if work.kind == "wordcount" else 1.0)
            end_s += phase_s
            bits_per_s = 8 / phase_s
            use = Use(level * work.level, network * sent * bits_per_s, disk * num_bytes * bits_per_s)
            yield Span(end_s, use)

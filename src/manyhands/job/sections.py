"""All that a job file may say: the sections, each declared beside the code that reads it, put together."""

from __future__ import annotations

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from manyhands.data import DataSection
from manyhands.engine.faults import Fault
from manyhands.engine.live import LiveSection
from manyhands.exchange.coordination import ExchangeSection
from manyhands.fleet import CoRunning, FleetSection
from manyhands.games import GameSection
from manyhands.learn.reinforcement import PlaySection
from manyhands.learn.supervised import LearnSection
from manyhands.models import ModelSection
from manyhands.settings import Section
from manyhands.splits import SplitSection

__all__ = ["RunSection", "Sections"]


class RunSection(Section):
    """How the run is carried out and observed (``[run]``); nothing here is known to the devices."""

    alone: bool = False
    evaluate_every: NonNegativeInt = 1
    evaluate_devices_every: NonNegativeInt | None = None
    evaluate_examples: PositiveInt | None = None
    checkpoint_every_s: PositiveFloat = 10.0
    workers: NonNegativeInt | None = None
    threads: PositiveInt = 1
    save_models: bool = True
    report: bool = True

    @property
    def devices_every(self) -> int:
        """Every how many of its rounds a device's own network is measured; 0: only at the end."""
        return self.evaluate_every if self.evaluate_devices_every is None else self.evaluate_devices_every


class Sections(Section):
    """The tables and keys of a job file."""

    name: str = Field(default="job", pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")
    seed: NonNegativeInt = 0
    data: DataSection = DataSection()
    game: GameSection = GameSection()
    play: PlaySection = PlaySection()
    model: ModelSection
    learn: LearnSection = LearnSection()
    split: SplitSection = SplitSection()
    exchange: ExchangeSection = ExchangeSection()
    fleet: FleetSection
    fault: tuple[Fault, ...] = ()
    contention: tuple[CoRunning, ...] = ()
    run: RunSection = RunSection()
    live: LiveSection = LiveSection()

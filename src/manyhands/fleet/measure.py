"""How fast this machine trains: a small convolutional network, timed.

This and the engines' clocks are the only places that read the wall clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import psutil
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from manyhands.seeds import derive

__all__ = ["Machine", "Pace", "TrainingStep", "measure_machine", "thread_seconds", "wall_seconds"]

WARM_UP_STEPS = 5
NUM_WINDOWS = 5
MEMORY_LEFT = 0.75
"""Of the memory that is free now, the part that a training process may count on."""


def wall_seconds() -> float:
    """Seconds of real time, from an arbitrary origin."""
    return time.monotonic()


def thread_seconds() -> float:
    """Processor time that the calling thread has used."""
    return time.thread_time()


@dataclass(frozen=True)
class Pace:
    """How long training took for each example, over a while."""

    seconds_per_example: float
    num_examples: int
    seconds: float


class TrainingStep:
    """Steps of training a small network on random pictures, the same every time."""

    def __init__(self, batch_size: int = 32) -> None:
        self.batch_size = batch_size
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(derive(0, "measure"))
            self._net = nn.Sequential(
                nn.Conv2d(3, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
                nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
                nn.Flatten(), nn.Linear(64 * 8 * 8, 10),
            )  # fmt: skip
            self._x = torch.rand(batch_size, 3, 32, 32)
            self._y = torch.randint(10, (batch_size,))
        self._optimizer = torch.optim.SGD(self._net.parameters(), lr=1e-6)
        with FlopCounterMode(display=False) as counter:
            self._step()
        self.flops = counter.get_total_flops()
        for _ in range(WARM_UP_STEPS):
            self._step()

    def _step(self) -> None:
        self._optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self._net(self._x), self._y)
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()

    def run_for(self, seconds: float) -> Pace:
        """Trains for so long, at least one step."""
        num_steps, started = 0, wall_seconds()
        while True:
            self._step()
            num_steps += 1
            took = wall_seconds() - started
            if took >= seconds:
                num_examples = num_steps * self.batch_size
                return Pace(took / num_examples, num_examples, took)


@dataclass(frozen=True)
class Machine:
    """What ``[[fleet.device]]`` says of a machine, as measured.

    Attributes:
        flops: Sustained training FLOP/s.
        cores: Processor cores.
        memory_bytes: What a training process can have.
    """

    flops: float
    cores: int
    memory_bytes: int


def measure_machine(seconds: float = 5.0, progress: Callable[[int, int], None] | None = None) -> Machine:
    """Trains a while on all cores; the median of several windows, so that a hiccup does not count."""
    memory_bytes = int(MEMORY_LEFT * psutil.virtual_memory().available)
    num_cores, threads_before = psutil.cpu_count() or 1, torch.get_num_threads()
    torch.set_num_threads(num_cores)
    try:
        step = TrainingStep()
        rates = []
        for number in range(NUM_WINDOWS):
            if progress is not None:
                progress(number, NUM_WINDOWS)
            pace = step.run_for(seconds / NUM_WINDOWS)
            rates.append(step.flops / step.batch_size / pace.seconds_per_example)
    finally:
        torch.set_num_threads(threads_before)
    return Machine(median(rates), num_cores, memory_bytes)

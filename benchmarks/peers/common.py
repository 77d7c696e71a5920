"""What all contestants of the simulator benchmark share: the task, the network, the data and the report.

Contestants run in environments of their own, so this file needs nothing beyond torch and numpy.
"""

from __future__ import annotations

import argparse
import functools
import json
import platform
import statistics
from dataclasses import asdict, dataclass
from importlib.metadata import version

import numpy as np
import torch
from torch import nn

NUM_DEVICES = 1000
EXAMPLES_PER_DEVICE = 50
DEVICES_PER_ROUND = 50
BATCH_SIZE = 10
LEARNING_RATE = 0.1
STEPS_PER_ROUND = DEVICES_PER_ROUND * EXAMPLES_PER_DEVICE // BATCH_SIZE
NUM_PARAMETERS = 1_626_442


@dataclass(frozen=True)
class Task:
    """What the runner asks of a contestant."""

    data: str
    rounds: int
    seed: int
    cores: int


@dataclass(frozen=True)
class Outcome:
    """What a contestant hands back; one entry a round in each list."""

    rounds: list[float]
    losses: list[float]
    steps: list[int]
    settings: str
    versions: dict[str, str]


def read_task() -> Task:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--cores", type=int, required=True)
    return Task(**vars(parser.parse_args()))


def report(rounds: list[float], losses: list[float], steps: list[int], settings: str, *packages: str) -> None:
    versions = {name: version(name) for name in ("torch", "numpy", *packages)}
    versions["python"] = platform.python_version()
    outcome = asdict(Outcome(rounds, losses, steps, settings, versions))
    print(json.dumps({**outcome, "loss": losses[-1]}), flush=True)


def network(seed: int) -> nn.Sequential:
    """The two-conv network, with the same first weights for every contestant."""
    torch.manual_seed(seed)
    net = nn.Sequential(
        nn.Conv2d(3, 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.25),
        nn.Flatten(),
        nn.Linear(12544, 128),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(128, 10),
    )
    assert sum(p.numel() for p in net.parameters()) == NUM_PARAMETERS
    return net


@functools.cache
def _arrays(path: str) -> tuple[torch.Tensor, torch.Tensor]:
    with np.load(path, allow_pickle=False) as file:
        return torch.from_numpy(file["x"]), torch.from_numpy(file["y"])


def examples(path: str, device: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The 50 examples of one device; scaled here, inside the timed round, by every contestant alike."""
    x, y = _arrays(path)
    own = slice(device * EXAMPLES_PER_DEVICE, (device + 1) * EXAMPLES_PER_DEVICE)
    return x[own].float().div_(255), y[own]


def train_one_epoch(net: nn.Module, x: torch.Tensor, y: torch.Tensor) -> list[float]:
    """Plain SGD over one device's examples in a new order; the loss of each step."""
    net.train()
    optimizer = torch.optim.SGD(net.parameters(), lr=LEARNING_RATE)
    losses = []
    for batch in torch.randperm(len(x)).split(BATCH_SIZE):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(x[batch]), y[batch])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def cohorts(task: Task) -> list[list[int]]:
    """The devices of each round."""
    rng = np.random.default_rng(task.seed)
    return [rng.choice(NUM_DEVICES, DEVICES_PER_ROUND, replace=False).tolist() for _ in range(task.rounds)]


def mean(values: list[float]) -> float:
    return statistics.fmean(values)

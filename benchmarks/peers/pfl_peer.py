"""FedAvg on pfl-research's simulated backend, in one process or, started again by itself, in one per core."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time

import numpy as np
import torch
from common import (
    BATCH_SIZE,
    DEVICES_PER_ROUND,
    LEARNING_RATE,
    NUM_DEVICES,
    Task,
    examples,
    network,
    read_task,
    report,
)
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import nn

PROCESSES = "BENCHMARK_PFL_PROCESSES"


class Net(nn.Module):
    """The network with the two methods that pfl asks for; it counts its steps and their loss."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.body = network(seed)
        self.tally = torch.zeros(2, dtype=torch.float64)

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """What pfl minimises, with dropout on."""
        self.train()
        value = nn.functional.cross_entropy(self.body(x), y)
        self.tally += torch.tensor([1.0, value.item()], dtype=torch.float64)
        return value

    @torch.no_grad()
    def metrics(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, Weighted]:
        """What pfl reports when it evaluates."""
        self.eval()
        return {"loss": Weighted(nn.functional.cross_entropy(self.body(x), y).item() * len(x), len(x))}


class Stopwatch(TrainingProcessCallback):
    """Notes when each round ended, and what the network counted in it (over all processes)."""

    def __init__(self, net: Net) -> None:
        self.net = net
        self.rounds: list[float] = []
        self.tallies: list[list[float]] = []

    def on_train_begin(self, *, model: PyTorchModel) -> Metrics:
        """Starts the clock."""
        self.start = time.perf_counter()
        return Metrics()

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        """Stops the clock of this round and starts that of the next."""
        self.rounds.append(time.perf_counter() - self.start)
        tally = self.net.tally.clone()
        if torch.distributed.is_initialized():
            torch.distributed.all_reduce(tally)
        self.tallies.append(tally.tolist())
        self.net.tally.zero_()
        self.start = time.perf_counter()
        return False, Metrics()


def train(task: Task, threads: int, settings: str) -> None:
    torch.set_num_threads(threads)
    np.random.seed(task.seed)  # pfl draws its cohorts from the global generator
    net = Net(task.seed)
    examples(task.data, 0)
    users = FederatedDataset(
        lambda user: PyTorchTensorDataset(examples(task.data, user)),
        get_user_sampler("minimize_reuse", list(range(NUM_DEVICES))),
    )
    stopwatch = Stopwatch(net)
    FederatedAveraging().run(
        # pfl evaluates in iterations that the frequency divides: only in iteration 0, which is the warm-up.
        NNAlgorithmParams(
            central_num_iterations=task.rounds,
            evaluation_frequency=10**9,
            train_cohort_size=DEVICES_PER_ROUND,
            val_cohort_size=0,
        ),
        SimulatedBackend(training_data=users, val_data=users, postprocessors=[WeightByDatapoints()]),
        PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), lr=1.0)),
        NNTrainHyperParams(
            local_batch_size=BATCH_SIZE, local_num_epochs=1, local_learning_rate=LEARNING_RATE
        ),
        callbacks=[stopwatch],
        send_metrics_to_platform=False,
    )
    if int(os.environ.get("PFL_WORKER_RANK", "0")) == 0:
        losses = [total / count for count, total in stopwatch.tallies]
        steps = [round(count) for count, _ in stopwatch.tallies]
        report(stopwatch.rounds, losses, steps, settings, "pfl")


def start_workers(count: int) -> int:
    """Starts this script once per rank, as pfl's guide to distributed simulations does."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    addresses = ",".join(f"127.0.0.1:{port}" for _ in range(count))
    workers = [
        subprocess.Popen(
            [sys.executable, *sys.argv],
            env=os.environ | {"PFL_WORKER_ADDRESSES": addresses, "PFL_WORKER_RANK": str(rank)},
        )
        for rank in range(count)
    ]
    return max(abs(worker.wait()) for worker in workers)


def main() -> None:
    task = read_task()
    processes = int(os.environ.get(PROCESSES, "1"))
    if processes == 1:
        train(task, task.cores, f"1 process, {task.cores} torch threads")
    elif "PFL_WORKER_RANK" in os.environ:
        train(task, 1, f"{processes} processes, 1 torch thread each")
    else:
        sys.exit(start_workers(processes))


if __name__ == "__main__":
    main()

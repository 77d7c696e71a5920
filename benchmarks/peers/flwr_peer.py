"""FedAvg on Flower's simulation runtime (Ray), with one actor per core and one torch thread per actor."""

from __future__ import annotations

import functools
import tempfile
import time
from collections.abc import Iterable

import common
import torch
from common import (
    DEVICES_PER_ROUND,
    NUM_DEVICES,
    Task,
    examples,
    mean,
    network,
    read_task,
    report,
    train_one_epoch,
)
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation


class TimedFedAvg(FedAvg):
    """FedAvg that notes how long each round takes, from sampling to the new average."""

    def __init__(self) -> None:
        super().__init__(
            fraction_train=DEVICES_PER_ROUND / NUM_DEVICES,
            fraction_evaluate=0.0,
            min_available_nodes=NUM_DEVICES,
        )
        self.rounds: list[float] = []
        self.losses: list[float] = []
        self.steps: list[int] = []

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Starts the clock of a round."""
        while len(list(grid.get_node_ids())) < NUM_DEVICES:  # before round 1: the nodes are being registered
            time.sleep(0.1)
        self.start_s = time.perf_counter()
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Averages, then stops the clock."""
        replies = list(replies)
        arrays, metrics = super().aggregate_train(server_round, replies)
        self.rounds.append(time.perf_counter() - self.start_s)
        done = [reply.content["metrics"] for reply in replies if not reply.has_error()]
        self.losses.append(mean([float(each["loss"]) for each in done]))
        self.steps.append(sum(int(each["steps"]) for each in done))
        return arrays, metrics


def client_app(task: Task) -> ClientApp:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        torch.set_num_threads(1)
        # The actor keeps the network between messages: `common` is imported there, not copied.
        if not hasattr(common, "actor_net"):
            common.actor_net = network(task.seed)
        net = common.actor_net
        net.load_state_dict(message.content["arrays"].to_torch_state_dict())
        x, y = examples(task.data, int(context.node_config["partition-id"]))
        losses = train_one_epoch(net, x, y)
        metrics = MetricRecord({"loss": mean(losses), "steps": len(losses), "num-examples": len(x)})
        content = RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics})
        return Message(content=content, reply_to=message)

    return app


def serve(grid: Grid, context: Context, *, task: Task, strategy: TimedFedAvg) -> None:
    first = ArrayRecord(network(task.seed).state_dict())
    strategy.start(grid=grid, initial_arrays=first, num_rounds=task.rounds)


def main() -> None:
    task = read_task()
    strategy = TimedFedAvg()
    server = ServerApp()
    server.main()(functools.partial(serve, task=task, strategy=strategy))
    with tempfile.TemporaryDirectory(prefix="ray-") as folder:
        run_simulation(
            server_app=server,
            client_app=client_app(task),
            num_supernodes=NUM_DEVICES,
            backend_config={
                "init_args": {"num_cpus": task.cores, "_temp_dir": folder, "log_to_driver": False},
                "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            },
        )
    settings = f"{task.cores} Ray actors, 1 torch thread each"
    report(strategy.rounds, strategy.losses, strategy.steps, settings, "flwr", "ray")


if __name__ == "__main__":
    main()

"""FedAvg as a bare sequential PyTorch loop that leaves all cores to torch: the bar for a simulator."""

from __future__ import annotations

import time

import torch
from common import EXAMPLES_PER_DEVICE, cohorts, examples, mean, network, read_task, report, train_one_epoch


def main() -> None:
    task = read_task()
    torch.set_num_threads(task.cores)
    net = network(task.seed)
    world = {name: value.clone() for name, value in net.state_dict().items()}
    rounds, losses, steps = [], [], []
    examples(task.data, 0)  # reads the file, which is not part of a round

    for cohort in cohorts(task):
        start = time.perf_counter()
        total = {name: torch.zeros_like(value) for name, value in world.items()}
        step_losses: list[float] = []
        for device in cohort:
            net.load_state_dict(world)
            x, y = examples(task.data, device)
            step_losses += train_one_epoch(net, x, y)
            for name, value in net.state_dict().items():
                total[name].add_(value, alpha=len(x))
        world = {name: value.div_(len(cohort) * EXAMPLES_PER_DEVICE) for name, value in total.items()}
        rounds.append(time.perf_counter() - start)
        losses.append(mean(step_losses))
        steps.append(len(step_losses))

    report(rounds, losses, steps, f"{task.cores} torch threads")


if __name__ == "__main__":
    main()

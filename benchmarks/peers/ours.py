"""manyhands on the task of the simulator benchmark: the product as a user runs it, from a job."""

from __future__ import annotations

import tempfile
import time
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from common import (
    BATCH_SIZE,
    DEVICES_PER_ROUND,
    LEARNING_RATE,
    NUM_DEVICES,
    Task,
    mean,
    read_task,
    report,
)

from manyhands.job import Job
from manyhands.run import train


def data_file(task: Task) -> Path:
    """The benchmark's examples under the names that a job's data file has; the test set is not used."""
    path = Path(task.data).with_suffix(".job.npz")
    if not path.exists():
        with np.load(task.data, allow_pickle=False) as file:
            x, y = file["x"], file["y"]
        partial = path.with_suffix(".partial.npz")
        np.savez(partial, x_train=x, y_train=y, x_test=x[:100], y_test=y[:100])
        partial.replace(path)
    return path


def job(task: Task) -> Job:
    return Job.model_validate(
        {
            "name": "benchmark",
            "seed": task.seed,
            "data": {"name": "npz", "path": data_file(task), "validation": 0},
            "model": {"name": "two_conv"},
            "learn": {"learning_rate": LEARNING_RATE, "momentum": 0, "batch_size": BATCH_SIZE},
            "exchange": {"rounds": task.rounds, "fraction": DEVICES_PER_ROUND / NUM_DEVICES},
            "run": {"evaluate_every": 0, "workers": task.cores, "save_models": False, "report": False},
            "fleet": {"device": [{"kind": "raspberry-pi-4", "count": NUM_DEVICES}]},
        }
    )


def main() -> None:
    task = read_task()
    ends: list[float] = []
    losses: defaultdict[int, list[float]] = defaultdict(list)
    examples: defaultdict[int, int] = defaultdict(int)

    def watch(_split: str, _job: Job, _tally: Any, event: dict[str, Any] | None) -> None:
        if event is None:
            ends.append(time.perf_counter())
        elif event["event"] == "computed" and event["work"] == "train":
            losses[event["round"]].append(event["facts"]["loss"])
            examples[event["round"]] += event["facts"]["examples"]
        elif event["event"] == "computed" and event["work"] == "merge":
            ends.append(time.perf_counter())

    with tempfile.TemporaryDirectory() as folder:
        train(job(task), Path(folder) / "run", watch)
    rounds = [after - before for before, after in pairwise(ends)]
    steps = [examples[number] // BATCH_SIZE for number in range(task.rounds)]
    settings = f"{task.cores} workers, trace and checkpoints on"
    report(rounds, [mean(losses[number]) for number in range(task.rounds)], steps, settings, "manyhands")


if __name__ == "__main__":
    main()

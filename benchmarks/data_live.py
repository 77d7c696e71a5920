"""GoSGD against the split by data on real processes, one of them slowed by real co-running work.

Two devices, each a process of its own pinned to one core (``manyhands train --engine live``), learn
together. Beside one of them busy processes share its core, so that it gets a part of it. GoSGD goes through
all data in an epoch and waits for the slow one; the split by data balances from what epochs have taken. Both
start from the same weights. Time is the wall clock; what counts is the time until the mean accuracy of the
devices is the same: from the start of the processes, which takes the busy one many times as long as the free
one, and from when both have begun. Nothing is taken from a cache.

    MANYHANDS_DATA=DATA python benchmarks/data_live.py --repeats 3 --json data-live.json

The two runs take turns. Needs two cores and Linux.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

from manyhands.fleet import burn
from manyhands.job import Job
from manyhands.run import train

CORES = {"free": 0, "busy": 1}


def make_job(args: argparse.Namespace, name: str, rounds: int, split: dict[str, Any]) -> Job:
    said = {
        "name": name,
        "seed": args.seed,
        "data": {"name": args.data, "limit": args.limit, "validation": 0.0},
        "model": {"name": args.model},
        "learn": {"learning_rate": 0.01, "momentum": 0.9, "batch_size": 64},
        "split": split,
        "exchange": {"mode": "neighbours", "rounds": rounds, "deadline_s": 600.0},
        "fleet": {"topology": "mesh", "device": [{"name": d, "kind": "laptop"} for d in CORES]},
        "live": {"patience_s": 60.0},
        "run": {"evaluate_examples": args.evaluate_examples, "save_models": False, "report": False},
    }
    return Job.model_validate(said)


@contextlib.contextmanager
def loaded(count: int) -> Any:
    """So many busy processes on the slow device's core.

    Each has a session of its own, so that the scheduler gives each a share, and not one to all of them.
    """
    loads = [
        subprocess.Popen(
            [sys.executable, burn.__file__, "1.0"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        for _ in range(count)
    ]
    try:
        for load in loads:
            os.sched_setaffinity(load.pid, {CORES["busy"]})
        yield
    finally:
        for load in loads:
            burn.end(load)


@contextlib.contextmanager
def pinned() -> Any:
    """Keeps every thread of a device's process on the device's core, as soon as there is one."""
    over = threading.Event()

    def pin() -> None:
        while not over.wait(0.02):
            for child in psutil.Process().children(recursive=True):
                with contextlib.suppress(psutil.Error, OSError):
                    command = child.cmdline()
                    if "--name" in command and (name := command[command.index("--name") + 1]) in CORES:
                        for thread in child.threads():
                            os.sched_setaffinity(thread.id, {CORES[name]})

    thread = threading.Thread(target=pin)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def run(args: argparse.Namespace, name: str, rounds: int, split: dict[str, Any]) -> dict[str, Any]:
    job = make_job(args, name, rounds, split)
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as folder, loaded(args.load), pinned():
        os.environ["XDG_CACHE_HOME"] = f"{folder}/cache"
        out = (args.keep or Path(folder)) / f"{name}-{args.seed}"
        result = train(job, out, engine="live")
        events = [json.loads(line) for line in (out / "trace.jsonl").read_text().splitlines()]
    begun = max(
        min(e["started"] for e in events if e["event"] == "computed" and e["device"] == device)
        for device in CORES
    )
    points = sorted(
        (point["seconds"], device["name"], point["accuracy"])
        for device in result["devices"]
        for point in device["curve"]
    )
    latest: dict[str, float] = {}
    curve = []
    for seconds, device, accuracy in points:
        latest[device] = accuracy
        if len(latest) == len(CORES):
            curve.append((seconds, statistics.mean(latest.values())))
    return {
        "name": name,
        "seconds": result["seconds"],
        "begun": begun,
        "curve": curve,
        "accuracy": curve[-1][1],
        "ratios": {device["name"]: device["ratio"] for device in result["devices"]},
        "waiting": {
            device["name"]: device["waiting_seconds"] / result["seconds"] for device in result["devices"]
        },
    }


def seconds_to(curve: list[tuple[float, float]], accuracy: float) -> float | None:
    return next((seconds for seconds, reached in curve if reached >= accuracy), None)


def once_begun(row: dict[str, Any]) -> float:
    """How many times sooner, counted from when both devices have begun."""
    slow_s, fast_s = (row["times"][i] - row[name]["begun"] for i, name in enumerate(("gosgd", "edgegossip")))
    return float(slow_s / fast_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--model", default="lenet5")
    parser.add_argument("--data", default="mnist")
    parser.add_argument("--limit", type=int, default=12000)
    parser.add_argument("--epochs", type=int, default=6, help="of GoSGD")
    parser.add_argument("--stretch", type=float, default=2.0)
    parser.add_argument("--order", help="of the split by data; the job's default if left out")
    parser.add_argument("--epoch-part", type=float, default=1.0, help="of the data; epochs are as many more")
    parser.add_argument("--load", type=int, default=3, help="busy processes beside the slow device")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--evaluate-examples", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="leave the runs, with their traces, here")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if os.cpu_count() == 1:
        parser.error("needs two cores")
    rows = []
    for repeat in range(args.repeats):
        args.seed += repeat > 0
        slow = run(args, "gosgd", args.epochs, {"by": "homogeneous"})
        section = {"epoch_part": args.epoch_part} | ({"order": args.order} if args.order else {})
        rounds = round(args.stretch * args.epochs / args.epoch_part)
        fast = run(args, "edgegossip", rounds, {"by": "data", "data": section})
        same = min(max(a for _, a in slow["curve"]), max(a for _, a in fast["curve"]))
        times = seconds_to(slow["curve"], same), seconds_to(fast["curve"], same)
        rows.append({"seed": args.seed, "gosgd": slow, "edgegossip": fast, "same": same, "times": times})
    table = Table(title=f"{args.model} on {args.data}, two processes, {args.load} busy ones beside one")
    for column in (
        "seed",
        "run",
        "seconds",
        "begun",
        "accuracy",
        "waiting",
        "ratio",
        "to the same",
        "faster",
        "once begun",
    ):
        table.add_column(column, justify="left" if column == "run" else "right")
    for row in rows:
        for name, seconds in zip(("gosgd", "edgegossip"), row["times"], strict=True):
            one = row[name]
            ratios = " ".join("-" if r is None else f"{r:.2f}" for r in one["ratios"].values())
            table.add_row(
                str(row["seed"]),
                name,
                f"{one['seconds']:.1f}",
                f"{one['begun']:.1f}",
                f"{100 * one['accuracy']:.2f}",
                " ".join(f"{w:.2f}" for w in one["waiting"].values()),
                ratios,
                f"{seconds:.1f}",
                *(
                    (f"{row['times'][0] / row['times'][1]:.2f}", f"{once_begun(row):.2f}")
                    if name == "edgegossip"
                    else ("", "")
                ),
            )
    Console(width=120).print(table)
    if args.json:
        args.json.write_text(json.dumps({"settings": vars(args), "rows": rows}, default=str))


if __name__ == "__main__":
    main()

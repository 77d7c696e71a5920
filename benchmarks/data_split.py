"""Time to the same accuracy: gossip on all data (GoSGD) against the split by data (paper 002, section 4.2).

Platforms of four kinds in equal numbers, two of processors and two with graphics cards, each with
co-running jobs of MapReduce, hold equal shares. GoSGD goes through all data in an epoch, waits for the
slowest and exchanges with one peer, drawn anew each time; the split by data balances. Both start from the
same weights, with batches of 64, a rate of 0.01 and a momentum of 0.9. Times are those of the simulator,
with the making and processing of aggregated points charged.

    python benchmarks/data_split.py --model lenet5 --json lenet5.json
    python benchmarks/data_split.py --model squeezenet --devices 8 --device cuda --json squeezenet-8.json
    python benchmarks/data_split.py --model squeezenet --ablation --device cuda --json ablation.json

Runs that are finished are not run again. ``benchmarks/data_plots.py`` draws the figures from the JSON
files.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from manyhands.job import Job
from manyhands.run import train

# Executors a platform has: processors train in clusters of nodes, as in the paper's implementation on Spark.
PLATFORMS = (
    ("cpu-large", "xeon-18-core", 8, "wordcount"),
    ("cpu-small", "xeon-18-core", 4, "sort"),
    ("gpu-titan", "workstation-titan-xp", 1, "wordcount"),
    ("gpu-2080", "workstation-rtx-2080-ti", 1, "sort"),
)
FLOPS = {"xeon-18-core": 302e9, "workstation-titan-xp": 4.86e12, "workstation-rtx-2080-ti": 5.93e12}
# The catalogue's rates are those of large networks. Small ones reach a part of them, on every platform.
EFFICIENCY = {"lenet5": 0.01, "alexnet": 1.0, "squeezenet": 0.1, "mobilenet_v2": 0.2}
EPOCHS = {"lenet5": 10, "alexnet": 30, "squeezenet": 30, "mobilenet_v2": 30}
ORDERS = ("random", "effect", "mixed", "turns", "sampled", "recalled")
LAST = 3
"""Measurements of whose accuracy the mean is taken at the end of a run."""


def make_job(args: argparse.Namespace, name: str, rounds: int, split: dict[str, Any]) -> Job:
    """One run; all of them have the fleet, the data and the seed in common."""
    efficiency = args.efficiency or EFFICIENCY[args.model]
    each = args.devices // len(PLATFORMS)
    names = {p[0]: [p[0]] if each == 1 else [f"{p[0]}-{i + 1}" for i in range(each)] for p in PLATFORMS}
    data: dict[str, Any] = {"name": args.data, "validation": 0.0, "shares": args.shares}
    if args.data_path:
        data["path"] = args.data_path
    if args.limit:
        data["limit"] = args.limit
    waits = {} if split["by"] == "data" else {"deadline_s": 1e6}
    said = {
        "name": name,
        "seed": args.seed,
        "data": data,
        "model": {"name": args.model} | ({"size": args.size} if args.size else {}),
        "learn": {
            "learning_rate": 0.01,
            "momentum": 0.9,
            "batch_size": 64,
            "memory_format": args.memory_format,
        },
        "split": split,
        "exchange": {"mode": args.mode, "rounds": rounds} | (waits if args.mode != "push" else {}),
        "fleet": {
            "topology": args.topology,
            "device": [
                {
                    "name": platform,
                    "kind": kind,
                    "count": each,
                    "flops": FLOPS[kind] * executors * efficiency,
                    "bandwidth_bps": args.bandwidth_bps,
                    "torch_device": args.device,
                }
                for platform, kind, executors, _ in PLATFORMS
            ],
        },
        "contention": [
            {"kind": work, "device": device, "level": args.level, "pause_s": args.pause_s}
            for platform, _, _, work in PLATFORMS
            for device in names[platform]
        ],
        "run": {
            "evaluate_every": args.evaluate_every,
            "evaluate_devices_every": 0,
            "save_models": False,
            "report": False,
            "checkpoint_every_s": 600.0,
            "workers": args.workers,
        }
        | ({"evaluate_examples": args.evaluate_examples} if args.evaluate_examples else {}),
    }
    return Job.model_validate(said)


def run(args: argparse.Namespace, name: str, rounds: int, split: dict[str, Any]) -> dict[str, Any]:
    """Carries a run out and gives what is kept of it."""
    job = make_job(args, name, rounds, split)
    result = train(job, args.out / f"{args.model}-{args.devices}-{name}-{job.hash}")
    points = [(p["seconds"], p["accuracy"]) for p in result["curve"]]
    last = [accuracy for _, accuracy in points[-LAST:]]
    return {
        "name": name,
        "split": split,
        "rounds": rounds,
        "seconds": result["seconds"],
        "wall_seconds": result["wall_seconds"],
        "accuracy": sum(last) / len(last),
        "best": max(accuracy for _, accuracy in points),
        "curve": points,
        "examples": sum(device["examples"] for device in result["devices"]),
        "ratios": {device["name"]: device["ratio"] for device in result["devices"]},
        "waiting": {
            device["name"]: device["waiting_seconds"] / result["seconds"] for device in result["devices"]
        },
        "notable": result["num_notable"],
    }


def seconds_to(run: dict[str, Any], accuracy: float) -> float | None:
    """When a run first had this accuracy; None if it never had."""
    return next((seconds for seconds, reached in run["curve"] if reached >= accuracy), None)


def compared(baseline: dict[str, Any], run: dict[str, Any]) -> dict[str, Any]:
    """A run beside GoSGD: as the paper counts, and by the time to the same accuracy.

    ``reached`` is the highest accuracy that both have had, and the times are those until either first had it.
    ``within`` compares GoSGD's time until it first had its final accuracy with the time until the run was
    within 0.78 points of that.
    """
    reached = min(baseline["best"], run["best"])
    own_s, base_s = seconds_to(run, reached), seconds_to(baseline, reached)
    final_s, within_s = (
        seconds_to(baseline, baseline["accuracy"]),
        seconds_to(run, baseline["accuracy"] - 0.0078),
    )
    return {
        "speedup": baseline["seconds"] / run["seconds"],
        "lost_points": 100 * (baseline["accuracy"] - run["accuracy"]),
        "reached": reached,
        "speedup_to_reached": base_s / own_s if own_s and base_s else None,
        "speedup_within": final_s / within_s if within_s and final_s else None,
    }


def show(console: Console, title: str, baseline: dict[str, Any], runs: list[dict[str, Any]]) -> None:
    table = Table(title=title)
    for column in (
        "run",
        "epochs",
        "seconds",
        "accuracy",
        "examples",
        "speed-up",
        "lost",
        "same",
        "within",
        "wall",
    ):
        table.add_column(column, justify="left" if column == "run" else "right")
    for each in (baseline, *runs):
        beside = each.get("compared")
        cells = ["", "", "", ""]
        if beside:
            cells = [
                f"{beside['speedup']:.2f}",
                f"{beside['lost_points']:+.2f}",
                *(f"{v:.2f}" if v else "-" for v in (beside["speedup_to_reached"], beside["speedup_within"])),
            ]
        table.add_row(
            each["name"],
            str(each["rounds"]),
            f"{each['seconds']:.1f}",
            f"{100 * each['accuracy']:.2f}",
            f"{each['examples']:,}",
            *cells,
            f"{each['wall_seconds']:.0f} s",
        )
    console.print(table)


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--model", choices=list(EFFICIENCY), default="lenet5")
    parser.add_argument("--size", help="of the network; the largest if left out")
    parser.add_argument("--data", help="mnist for lenet5 and cifar10 for the others if left out")
    parser.add_argument("--data-path", help="where the data is, if not in the usual places")
    parser.add_argument("--shares", default="iid", choices=["iid", "dirichlet"])
    parser.add_argument("--devices", type=int, default=4, help="a multiple of four")
    parser.add_argument(
        "--topology",
        choices=["mesh", "ring", "random_regular"],
        help="a mesh if left out; a random graph where more than eight exchange with all neighbours",
    )
    parser.add_argument(
        "--bandwidth-bps", type=float, default=9.4e9, help="of a platform's link; the paper names none"
    )
    parser.add_argument("--mode", default="epidemic", choices=["neighbours", "epidemic", "push"])
    parser.add_argument("--epochs", type=int, help="of GoSGD")
    parser.add_argument(
        "--stretch", type=float, default=2.0, help="epochs of the split by data to one of GoSGD"
    )
    parser.add_argument("--order", default="sampled", choices=ORDERS)
    parser.add_argument(
        "--epoch-part", type=float, default=1.0, help="of the fastest one's data; epochs are as many more"
    )
    parser.add_argument("--orders", help="for --ablation: these, with commas")
    parser.add_argument(
        "--aggregation", default="svd_kmeans", choices=["svd_kmeans", "isvd_lsh", "hash_kmeans"]
    )
    parser.add_argument("--ratio", type=int, default=10, help="pictures to an aggregated point")
    parser.add_argument("--renew", type=float, default=0.09)
    parser.add_argument("--weigh", default="seen", choices=["seen", "held"])
    parser.add_argument(
        "--efficiency", type=float, help="part of the catalogue's rates that the network reaches"
    )
    parser.add_argument("--level", type=float, default=0.5, help="what co-running jobs take of a platform")
    parser.add_argument("--pause-s", type=float, default=10.0, help="between two of them, on average")
    parser.add_argument("--device", default="cpu", help="where the arithmetic runs: cpu or cuda")
    parser.add_argument("--memory-format", default="auto", choices=["auto", "contiguous", "channels_last"])
    parser.add_argument("--workers", type=int, help="threads that train side by side; one a core if left out")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit", type=int, help="so many training examples at most")
    parser.add_argument("--evaluate-every", type=int, default=1)
    parser.add_argument("--evaluate-examples", type=int)
    parser.add_argument("--ablation", action="store_true", help="every order beside each other")
    parser.add_argument("--out", type=Path, default=Path("runs/data-split"))
    parser.add_argument("--json", type=Path, help="write the figures here")
    args = parser.parse_args()
    if args.devices % len(PLATFORMS):
        parser.error(f"--devices {args.devices}: must be a multiple of {len(PLATFORMS)}")
    args.data = args.data or ("mnist" if args.model == "lenet5" else "cifar10")
    many = args.devices > 8 and args.mode != "epidemic"
    args.topology = args.topology or ("random_regular" if many else "mesh")
    args.epochs = args.epochs or EPOCHS[args.model]
    args.workers = args.workers if args.workers is not None else os.cpu_count()
    return args


def main() -> None:
    args = read_arguments()
    console = Console(width=140)
    baseline = run(args, "gosgd", args.epochs, {"by": "homogeneous"})
    rounds = max(round(args.stretch * args.epochs / args.epoch_part), 1)
    runs = []
    orders = args.orders.split(",") if args.orders else ORDERS
    for order in orders if args.ablation else (args.order,):
        section = {
            "order": order,
            "aggregation": args.aggregation,
            "aggregation_ratio": args.ratio,
            "renew": args.renew,
            "weigh": args.weigh,
            "epoch_part": args.epoch_part,
        }
        done = run(args, order if args.ablation else "edgegossip", rounds, {"by": "data", "data": section})
        done["compared"] = compared(baseline, done)
        runs.append(done)
    title = f"{args.model} on {args.data}, {args.devices} platforms, {args.topology}, seed {args.seed}"
    show(console, title, baseline, runs)
    if args.json:
        said = {key: str(value) if isinstance(value, Path) else value for key, value in vars(args).items()}
        args.json.write_text(json.dumps({"settings": said, "baseline": baseline, "runs": runs}, indent=1))


if __name__ == "__main__":
    main()

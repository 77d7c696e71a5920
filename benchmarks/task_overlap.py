"""How good the network of all classes becomes when devices share fewer of them (paper 000, figures 3 and 4).

Runs a job that is split by task once for each overlap, on as many devices as it then takes; and centrally:
the same decoupled network, and the network before it was cut, on a single device with all data, for as many
epochs. All start from the same preparation. Prints a table and draws the accuracy over rounds.

    python benchmarks/task_overlap.py examples/task-cifar100.toml --overlaps 25,10,5 [--side-by-side 3]

Runs that are finished are not run again.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from rich.console import Console
from rich.table import Table

from manyhands.job import load_job
from manyhands.lessons import load_material


def runs_of(job_file: Path, overlaps: list[int], changes: list[str]) -> dict[str, list[str]]:
    """Every run by its name: what it changes in the job."""
    job = load_job(job_file, changes)
    num_classes = len(load_material(job).classes)
    rings = {
        f"overlap {overlap}": [
            f"split.task.overlap={overlap}",
            f"split.task.classes_per_device={2 * overlap}",
            f"fleet.device[0].count={num_classes // overlap}",
        ]
        for overlap in overlaps
    }
    alone = ["fleet.device[0].count=1"]
    named: dict[str, list[str]] = (
        {"the job's own ring": []} if job.split.task and job.split.task.classes_per_device else {}
    )
    return (
        named | rings | {"central, decoupled": alone, "central, original": [*alone, "split.by=homogeneous"]}
    )


def run(job_file: Path, changes: list[str], out: Path) -> dict[str, Any]:
    """One run, as a process of its own."""
    command = [sys.executable, "-m", "manyhands", "train", str(job_file), "--out", str(out)]
    for change in (*changes, "run.save_models=false", "run.report=false"):
        command += ["--set", change]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{out.name}: {done.stderr.strip().splitlines()[-1]}")
    return json.loads((out / "result.json").read_text())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("job", type=Path)
    parser.add_argument("--overlaps", default="", help="such as 25,10,5")
    parser.add_argument("--set", action="append", default=[], dest="changes", metavar="KEY=VALUE")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/out/task"))
    parser.add_argument("--side-by-side", type=int, default=1, help="so many runs at a time")
    said = parser.parse_args()
    overlaps = [int(overlap) for overlap in said.overlaps.split(",") if overlap]
    runs = runs_of(said.job, overlaps, said.changes)
    folders = {name: said.out / name.replace(",", "").replace(" ", "-") for name in runs}
    first, *others = runs  # the first prepares the network for all
    results = {first: run(said.job, [*said.changes, *runs[first]], folders[first])}
    with ThreadPoolExecutor(said.side_by_side) as pool:
        found = pool.map(lambda name: run(said.job, [*said.changes, *runs[name]], folders[name]), others)
        results |= dict(zip(others, found, strict=True))
    Console(width=150).print(table_of(results))
    draw(results, said.out / "overlap.png")


def table_of(results: dict[str, dict[str, Any]]) -> Table:
    some = next(iter(results.values()))
    prepared = some["prepared"]
    title = f"{some['model']} on {some['data']}, seed {some['seed']}; prepared: "
    title += f"{prepared['accuracy_original']:.2%} before the cut"
    table = Table(
        title=f"{title}, {prepared['accuracy_cut']:.2%} after, {prepared['accuracy']:.2%} when settled"
    )
    for column in (
        "run",
        "devices",
        "classes each",
        "rounds",
        "accuracy",
        "against central",
        "own classes",
        "sent, each",
    ):
        table.add_column(column, justify="left" if column == "run" else "right")
    central = results["central, decoupled"]["accuracy"]
    for name, result in results.items():
        devices = result["devices"]
        own = [device["accuracy"] for device in devices if device["accuracy"] is not None]
        table.add_row(
            name,
            str(len(devices)),
            str(max(len(device["classes"]) for device in devices)),
            str(result["rounds"]),
            f"{result['accuracy']:.2%}",
            f"{100 * (result['accuracy'] - central):+.2f}",
            f"{sum(own) / len(own):.2%}",
            f"{sum(device['bytes_sent'] for device in devices) / len(devices) / 1e6:.0f} MB",
        )
    return table


def draw(results: dict[str, dict[str, Any]], path: Path) -> None:
    figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
    for name, result in results.items():
        start = result["prepared"]["accuracy_original" if "original" in name else "accuracy"]
        points = [(0, start)] + [(point["round"], point["accuracy"]) for point in result["curve"]]
        rounds, heights = zip(*points, strict=True)
        style: dict[str, Any] = {"marker": "o", "markersize": 3.5}
        if name.startswith("central"):
            style = {"linestyle": "--" if "decoupled" in name else ":", "color": "black"}
        axes.plot(rounds, heights, label=f"{name}  {result['accuracy']:.1%}", **style)
    some = next(iter(results.values()))
    axes.set_xlabel("communication rounds (0: as prepared)")
    axes.set_ylabel("test accuracy of the network of all classes")
    axes.set_title(f"{some['model']} on {some['data']}, split by task", fontsize=11)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.1%}")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, frameon=False, loc="lower right")
    figure.savefig(path, dpi=140)
    print(path)


if __name__ == "__main__":
    main()

"""Draws what ``benchmarks/data_split.py`` found: accuracy over time, and speed-ups (paper 002, figures 5, 6).

python benchmarks/data_plots.py lenet5.json squeezenet.json squeezenet-8.json --out docs/pictures
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt

NAMES = {"gosgd": "GoSGD: all data, waits", "edgegossip": "split by data"}
MODELS = {
    "lenet5": "LeNet-5",
    "alexnet": "AlexNet",
    "squeezenet": "SqueezeNet",
    "mobilenet_v2": "MobileNet-v2",
}
DATA = {"mnist": "MNIST", "cifar10": "CIFAR-10"}


def label_of(found: dict[str, Any]) -> str:
    settings = found["settings"]
    model, data = settings["model"], settings["data"]
    return f"{MODELS.get(model, model)}, {DATA.get(data, data)}, {settings['devices']} platforms"


def draw_curves(all_found: list[dict[str, Any]], file: Path) -> None:
    """Accuracy over simulated time, a panel a comparison."""
    columns = min(len(all_found), 4)
    rows = math.ceil(len(all_found) / columns)
    figure, axes = plt.subplots(rows, columns, figsize=(4.2 * columns, 3.2 * rows), squeeze=False)
    for axis in axes.flat[len(all_found) :]:
        axis.set_visible(False)
    for axis, found in zip(axes.flat, all_found, strict=False):
        for run in (found["baseline"], *found["runs"]):
            seconds, accuracy = zip(*run["curve"], strict=True)
            style = {"color": "0.3", "linestyle": "--"} if run is found["baseline"] else {}
            axis.plot(
                seconds, [100 * a for a in accuracy], label=NAMES.get(run["name"], run["name"]), **style
            )
        axis.set_title(label_of(found), fontsize=9)
        axis.set_xlabel("simulated seconds")
        axis.set_ylabel("accuracy, %")
        axis.grid(alpha=0.3)
        axis.legend(fontsize=7, loc="lower right")
    figure.tight_layout()
    figure.savefig(file, dpi=120)
    plt.close(figure)


def draw_bars(all_found: list[dict[str, Any]], file: Path) -> None:
    """Speed-ups to the same accuracy, a bar a run, with what it is ahead of GoSGD at its end above it."""
    bars = [
        (label_of(found) if len(found["runs"]) == 1 else f"{label_of(found)}, {run['name']}", run["compared"])
        for found in all_found
        for run in found["runs"]
    ]
    figure, axis = plt.subplots(figsize=(1.6 + 1.1 * len(bars), 4.2))
    heights = [beside["speedup_to_reached"] or 0.0 for _, beside in bars]
    axis.bar(range(len(bars)), heights, color="tab:blue", width=0.6)
    for place, (height, (_, beside)) in enumerate(zip(heights, bars, strict=True)):
        axis.text(
            place,
            height,
            f"{height:.2f}×\n{-beside['lost_points']:+.1f} points",
            ha="center",
            va="bottom",
            fontsize=8,
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1},
        )
    axis.axhline(2.7, color="0.4", linestyle=":", label="paper, on average: 2.70×")
    axis.set_xticks(range(len(bars)), [name.replace(", ", "\n") for name, _ in bars], fontsize=7)
    axis.set_ylabel("times faster to the same accuracy")
    axis.set_ylim(0, 1.25 * max([*heights, 2.7]))
    axis.set_xlim(-0.7, len(bars) - 0.3)
    axis.legend(fontsize=8, title="points: accuracy at the end beside GoSGD's", title_fontsize=8)
    figure.tight_layout()
    figure.savefig(file, dpi=120)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("found", type=Path, nargs="+", help="JSON files of data_split.py")
    parser.add_argument("--out", type=Path, default=Path())
    parser.add_argument("--name", default="data-split", help="how the files' names begin")
    args = parser.parse_args()
    all_found = [json.loads(file.read_text()) for file in args.found]
    args.out.mkdir(parents=True, exist_ok=True)
    draw_curves(all_found, args.out / f"{args.name}-curves.png")
    draw_bars(all_found, args.out / f"{args.name}-speedups.png")


if __name__ == "__main__":
    main()

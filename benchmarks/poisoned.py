"""A poisoned device among eight: the mean against robust rules.

Eight devices train LeNet-5 on the digits, a coordinator merges. One of them is honest, or sends everything
with its sign flipped, or a hundred times too large. The table has the accuracy of the merged network after
the last round, for each rule of ``[exchange.merge]``, as the mean over seeds, and the lowest of them.

    python benchmarks/poisoned.py [--rounds 15] [--seeds 0,1,2] [--json result.json]
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from manyhands.job import Job
from manyhands.run import train

RULES: dict[str, dict[str, object]] = {
    "mean": {},
    "mean, clip_factor 1": {"clip_factor": 1.0},
    "median": {"rule": "median"},
    "trimmed_mean": {"rule": "trimmed_mean"},
    "krum": {"rule": "krum"},
    "multi_krum": {"rule": "multi_krum"},
}
POISONS = ("none", "flip", "scale")


def make_job(rule: dict[str, object], poison: str, rounds: int, seed: int, shares: str) -> Job:
    devices = [{"name": f"pi-{n}", "kind": "raspberry-pi-4"} for n in range(8)]
    said: dict[str, object] = {
        "name": "poisoned",
        "seed": seed,
        "data": {"name": "digits", "shares": shares},
        "model": {"name": "lenet5"},
        "learn": {"learning_rate": 0.05, "batch_size": 16},
        "exchange": {"rounds": rounds, "merge": rule},
        "run": {"evaluate_every": 0, "save_models": False, "report": False},
        "fleet": {"topology": "star", "device": devices},
    }
    if poison != "none":
        said["fault"] = [{"kind": "corrupt", "device": "pi-3", "how": poison}]
    return Job.model_validate(said)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--shares", default="iid", help="how the digits are dealt: iid or dirichlet")
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    options = parser.parse_args()
    seeds = [int(seed) for seed in options.seeds.split(",")]
    found: dict[str, dict[str, list[float]]] = {rule: {} for rule in RULES}
    table = Table("rule", *(f"poison: {poison}" for poison in POISONS))
    for name, rule in RULES.items():
        for poison in POISONS:
            found[name][poison] = []
            for seed in seeds:
                with tempfile.TemporaryDirectory() as folder:
                    job = make_job(rule, poison, options.rounds, seed, options.shares)
                    found[name][poison].append(train(job, Path(folder))["accuracy"])
        cells = (
            f"{statistics.fmean(figures):.1%} (lowest {min(figures):.1%})" for figures in found[name].values()
        )
        table.add_row(name, *cells)
    Console().print(table)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()

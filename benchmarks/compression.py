"""What packed updates cost in accuracy and save in bytes: the same job with each `exchange.compress`.

Eight devices train LeNet-5 on the digits, a coordinator merges changes (`send = "gradients"`). Bytes are what
one device sends in the whole run; times are the simulator's, on links of `--mbit` Mbit/s.

    python benchmarks/compression.py [--rounds 20] [--seeds 0,1,2] [--shares iid] [--mbit 10]
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

WAYS: dict[str, dict[str, object]] = {
    "none": {},
    "fp16": {"compress": "fp16"},
    "int8": {"compress": "int8"},
    "topk 0.1": {"compress": "topk"},
    "topk 0.01": {"compress": "topk", "keep": 0.01},
}


def make_job(way: dict[str, object], options: argparse.Namespace, seed: int) -> Job:
    link = {"bandwidth_bps": options.mbit * 1e6}
    devices = [{"name": f"pi-{n}", "kind": "raspberry-pi-4"} | link for n in range(8)]
    said = {
        "name": "compression",
        "seed": seed,
        "data": {"name": "digits", "shares": options.shares},
        "model": {"name": "lenet5"},
        "learn": {"learning_rate": 0.05, "batch_size": 16},
        "exchange": {"rounds": options.rounds, "send": "gradients", "coordinator": "pi-0"} | way,
        "run": {"evaluate_every": 0, "save_models": False, "report": False},
        "fleet": {"topology": "star", "device": devices},
    }
    return Job.model_validate(said)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--shares", default="iid")
    parser.add_argument("--mbit", type=float, default=10.0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found: dict[str, list[dict[str, float]]] = {}
    table = Table("compress", "accuracy", "lowest", "sent by a device", "simulated s")
    for name, way in WAYS.items():
        rows = found[name] = []
        for seed in (int(seed) for seed in options.seeds.split(",")):
            with tempfile.TemporaryDirectory() as folder:
                result = train(make_job(way, options, seed), Path(folder))
            (one,) = [device for device in result["devices"] if device["name"] == "pi-1"]
            rows.append({key: result[key] for key in ("accuracy", "seconds")} | {"bytes": one["bytes_sent"]})
        mean = {key: statistics.fmean(row[key] for row in rows) for key in rows[0]}
        lowest = min(row["accuracy"] for row in rows)
        sent, seconds = f"{mean['bytes'] / 1e6:.2f} MB", f"{mean['seconds']:.1f}"
        table.add_row(name, f"{mean['accuracy']:.1%}", f"{lowest:.1%}", sent, seconds)
    Console().print(table)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()

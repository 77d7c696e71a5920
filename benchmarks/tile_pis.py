"""PREDICTION, not a measurement: YOLOv2 in tiles on 2 to 6 Raspberry Pi 3, beside what paper 003 reports.

No Raspberry Pi took part. Times follow from rates: arithmetic from the catalogue's entry (six hundredths of
the peak, shared equally by four cores), memory traffic from the assumption below, the link from the
catalogue. The speed-up does not depend on the arithmetic rate alone, because the network's rate stays what
it is; `--core-gflops` shows how much it does. The plan is the planner's for each number of devices.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import shlex
import sys
from pathlib import Path

import torch

from manyhands.fleet.catalog import CATALOG
from manyhands.models.yolov2 import VOC_ANCHORS, YoloV2
from manyhands.tiles import TilePlan, even_plan, read_graph
from manyhands.tiles.planner import make_plan
from manyhands.tiles.pricing import Setting, predict
from manyhands.tiles.profile import LinkProfile, predicted_profile
from manyhands.tiles.works import operation_works

PI = CATALOG["raspberry-pi-3b"]
# Assumed: LPDDR2 at 900 Mbit/s a pin on 32 pins is 3.6 GB/s at most; a core is taken to reach 1.2, the
# board 2.0.
MEMORY_BYTES_PER_S = {1: 1.2e9, 4: 2.0e9}
CALL_S = 50e-6
LATENCY_S = 2 * PI.latency_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--batch", type=int, default=1, help="images a pass (1)")
    parser.add_argument("--accumulate", type=int, default=8, help="passes before gradients are summed (8)")
    parser.add_argument(
        "--layers", choices=("front", "all"), default="front", help="layers 0-15, or all (front)"
    )
    parser.add_argument("--core-gflops", type=float, default=PI.flops / PI.cores / 1e9)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    with torch.device("meta"):
        model = YoloV2(3, 20, VOC_ANCHORS)
    graph = read_graph(model, (3, 416, 416))
    # Layers 0 to 15 are tiled; the rest of the network is left out, as its weights outweigh its maps.
    if options.layers == "front":
        front = torch.nn.Sequential(model.stem, *(getattr(model.features, f"stage{n}") for n in (2, 3, 4)))
        front.append(torch.nn.Sequential(*list(model.features.stage5.children())[:12]))
        graph = read_graph(front, (3, 416, 416))
    works = operation_works(graph, options.batch)
    link = LinkProfile(LATENCY_S, PI.bandwidth_bps / 8)

    def setting(count: int, cores: int) -> Setting:
        profile = predicted_profile(
            f"{PI.title}, {cores} cores",
            works,
            options.batch,
            flops_per_s=options.core_gflops * 1e9 * cores,
            memory_bytes_per_s=MEMORY_BYTES_PER_S[cores],
            call_s=CALL_S,
        )
        return Setting(graph, (profile,) * count, link, options.batch, steps_per_sum=options.accumulate)

    def alone(cores: int) -> tuple[float, float]:
        found = predict(
            setting(1, cores), even_plan(graph, 1, group_starts=(), tail="output", tail_mode="one")
        )
        return found.step_s, found.memory_bytes[0]

    base_s, base_bytes = alone(1)
    command = shlex.join(["python", "benchmarks/tile_pis.py", *sys.argv[1:]])
    print(f"{command}\n\nPREDICTION: no Raspberry Pi was measured.")
    print(f"One core, one device: {base_s:.1f} s a pass, {base_bytes / 2**20:.0f} MiB.\n")
    print("devices  cores  s a pass  x one core  MiB each  x less  groups  none/planned  fused/planned  grid")
    rows = []
    for cores in (1, 4):
        for count in range(1 if cores > 1 else 2, 7):
            if count == 1:
                step_s, used = alone(cores)
                row = {"devices": 1, "cores": cores, "step_s": step_s, "memory_bytes": used, "groups": 1}
                row |= {"none": 1.0, "fused": 1.0, "grid": "1x1"}
            else:
                row = planned_row(setting(count, cores), count, cores)
            rows.append(row)
            print(
                f"{row['devices']:>7}  {cores:>5}  {row['step_s']:>8.1f}  {base_s / row['step_s']:>10.1f}  "
                f"{row['memory_bytes'] / 2**20:>8.0f}  {base_bytes / row['memory_bytes']:>6.1f}  "
                f"{row['groups']:>6}  {row['none']:>12.2f}  {row['fused']:>13.2f}  {row['grid']}",
                flush=True,
            )
    print("\nPaper 003, measured on 2-6 quad-core Raspberry Pi 3, 100 Mbit/s: 2-15 x over one core,")
    print("up to 8 x less memory a device, grouping worth up to 1.5 x.")
    if options.json:
        options.json.write_text(
            json.dumps({"command": command, "prediction": True, "rows": rows}, indent=1) + "\n"
        )


def planned_row(setting: Setting, count: int, cores: int) -> dict[str, object]:
    found = make_plan(setting, tails=["output"], tail_modes=["one"])
    plan = found.plan

    def other(starts: tuple[str, ...]) -> float:
        return predict(setting, dataclasses.replace(plan, group_starts=starts)).step_s / found.step_s

    assert isinstance(plan, TilePlan)
    return {
        "devices": count,
        "cores": cores,
        "step_s": found.step_s,
        "memory_bytes": max(found.memory_bytes),
        "groups": len(plan.group_starts) + 1,
        "none": other(setting.graph.windowed(setting.graph.end)),
        "fused": other(()),
        "grid": f"{len(plan.rows)}x{len(plan.cols)}",
        "parts": dict(found.parts),
    }


if __name__ == "__main__":
    main()

"""Memory of a device that holds one of several tiles of YOLOv2, with and without recomputing.

Processes may share cores: memory does not care. Activations are what is kept between the forward and the
backward pass; with recomputing, all that tiles hold at any time of a step, the group that is computed again
and the gradients of its maps included. Peak is resident memory above what a process holds before its
network is built.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from pathlib import Path

from tiles import OUT, Contestant, Running, UnavailableError, start


def contestants(plan: str, counts: list[int]) -> list[Contestant]:
    found = [Contestant("one device", "tile_torch.py", ("--kind", "one"))]
    for count in counts:
        tiles = ("--kind", "tiles", "--plan", plan)
        found.append(Contestant(f"{count} tiles", "tile_torch.py", tiles, count))
    for count in counts:
        tiles = ("--kind", "tiles", "--plan", "stages", "--checkpoint")
        found.append(Contestant(f"{count} tiles, recomputing", "tile_torch.py", tiles, count))
    return found


def memory_of(contestant: Contestant, options: argparse.Namespace) -> dict[str, float]:
    """The largest of any process, after two steps."""
    running: Running = start(contestant, options)
    try:
        running.turn(1)
        answers = running.end()
    finally:
        running.kill()
    held = "held_bytes" if "--checkpoint" in contestant.arguments else "activation_bytes"
    return {
        "activation_bytes": max(answer[held] for answer in answers),
        "peak_bytes": max(answer["peak_bytes"] for answer in answers),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--layers", choices=("front", "all"), default="front")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--tiles", default="2,4,6", help="how many, separated by commas (2,4,6)")
    parser.add_argument(
        "--plan", default="none", help="groups of those that do not recompute: none or fused (none)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    OUT.mkdir(exist_ok=True)
    rows = []
    print(f"{shlex.join(['python', 'benchmarks/tile_memory.py', *sys.argv[1:]])}\n")
    print(f"{'':<22}  activations MiB  x less  peak MiB  x less")
    for contestant in contestants(options.plan, [int(count) for count in options.tiles.split(",")]):
        try:
            found = memory_of(contestant, options)
        except UnavailableError as reason:
            print(f"{contestant.name}: {reason}")
            continue
        rows.append({"name": contestant.name, **found})
        kept, peak = (rows[0][key] / found[key] for key in ("activation_bytes", "peak_bytes"))
        activations, resident = (found[key] / 2**20 for key in ("activation_bytes", "peak_bytes"))
        print(
            f"{contestant.name:<22}  {activations:>15.1f}  {kept:>6.1f}  {resident:>8.0f}  {peak:>6.1f}",
            flush=True,
        )
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()

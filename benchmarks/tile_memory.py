"""Memory of a device that holds one of several tiles of YOLOv2, with and without recomputing.

Processes may share cores: memory does not care. *Kept* is what is there between the forward and the backward
pass; *in a step* the most that tensors take at any time of a training step, what is computed again, the
gradients of maps and what operations need for a moment included; in both, weights and their gradients are
left out. *Resident* is a process's peak above what it holds before its network is built.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from pathlib import Path

from tiles import OUT, Contestant, Running, UnavailableError, start

COLUMNS = {"activation_bytes": "kept", "step_bytes": "in a step", "peak_bytes": "resident"}


def grid_of(count: int) -> str:
    """As square as it can be, which has the shortest borders."""
    cols = max(side for side in range(1, int(count**0.5) + 1) if count % side == 0)
    return f"{count // cols}x{cols}"


def contestants(plan: str, counts: list[int]) -> list[Contestant]:
    found = [Contestant("one device", "tile_torch.py", ("--kind", "one"))]
    for recomputes in (False, True):
        for count in counts:
            grid = grid_of(count)
            more = ("--plan", "stages", "--checkpoint") if recomputes else ("--plan", plan)
            name = f"{count} tiles ({grid}){', recomputing' if recomputes else ''}"
            arguments = ("--kind", "tiles", "--grid", grid, *more)
            found.append(Contestant(name, "tile_torch.py", arguments, count))
    return found


def memory_of(contestant: Contestant, options: argparse.Namespace) -> dict[str, float]:
    """The largest of any process, after two steps."""
    running: Running = start(contestant, options)
    try:
        running.turn(1)
        answers = running.end()
    finally:
        running.kill()
    return {key: max(answer[key] for answer in answers) for key in COLUMNS}


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
    print(f"{'':<26}" + "".join(f"{name:>12} MiB  x less" for name in COLUMNS.values()))
    for contestant in contestants(options.plan, [int(count) for count in options.tiles.split(",")]):
        try:
            found = memory_of(contestant, options)
        except UnavailableError as reason:
            print(f"{contestant.name}: {reason}")
            continue
        rows.append({"name": contestant.name, **found})
        cells = (f"{found[key] / 2**20:>16.1f}  {rows[0][key] / found[key]:>6.1f}" for key in COLUMNS)
        print(f"{contestant.name:<26}" + "".join(cells), flush=True)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""Times a training step of YOLOv2 on one device, as two tiles, and on what else could use the second device.

Contestants are processes under `peers/`, one thread each, that stay alive and take turns of a few steps, so
that a drift of the machine's speed meets all of them alike. The *bound* is what no exchange of tiles can
beat: two processes that each train the network on half an image at the same time and never speak. See
README.md.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import shlex
import socket
import statistics
import subprocess
import sys
import venv
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
OUT = HERE / "out"
JAX = "jax==0.10.2"


class UnavailableError(Exception):
    """A contestant cannot take part; the message says why."""


@dataclass(frozen=True)
class Contestant:
    """A script under `peers/`, its arguments, and on how many processes it runs."""

    name: str
    script: str
    arguments: tuple[str, ...]
    processes: int = 1
    environment: str | None = None
    images_per_step: int | None = None  # where it is not the batch of the others
    distributed: bool = False


def contestants(batch: int, plan: str, wire: str, *, apart: bool) -> list[Contestant]:
    tiles = ("--kind", "tiles", "--plan", plan, "--wire", wire)
    sockets = Contestant("2 tiles over sockets", "tile_torch.py", (*tiles, "--apart"), 2, distributed=True)
    return [
        Contestant("one device", "tile_torch.py", ("--kind", "one")),
        Contestant("bound", "tile_torch.py", ("--kind", "bound"), 2),
        Contestant("2 tiles", "tile_torch.py", tiles, 2, distributed=True),
        *([sockets] if apart else []),
        Contestant(
            "2-way DDP",
            "tile_torch.py",
            ("--kind", "ddp"),
            2,
            images_per_step=max(batch, 2),
            distributed=True,
        ),
        Contestant("JAX, 1 device", "tile_gspmd.py", ("--devices", "1"), environment="gspmd"),
        Contestant(
            "GSPMD, 2 devices", "tile_gspmd.py", ("--devices", "2"), environment="gspmd", distributed=True
        ),
    ]


def interpreter(contestant: Contestant) -> str:
    """The Python of a contestant, whose environment is made if it is not there yet."""
    if contestant.environment is None:
        return sys.executable
    folder = HERE / ".envs" / contestant.environment
    python, made = folder / "bin" / "python", folder / "made-with.txt"
    if made.exists() and made.read_text() == JAX:
        return str(python)
    print(f"making the environment of {contestant.name} in {folder} ...", flush=True)
    venv.create(folder, with_pip=True, clear=True)
    install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", JAX]
    done = subprocess.run(install, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise UnavailableError(f"pip could not install {JAX}: {last}")
    made.write_text(JAX)
    return str(python)


@dataclass
class Running:
    """The processes of one contestant, and what they have said."""

    contestant: Contestant
    processes: list[subprocess.Popen[str]]
    seconds: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    settings: str = ""

    def hear(self) -> list[dict[str, Any]]:
        """A line of each process."""
        answers = []
        for process in self.processes:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                raise UnavailableError(f"ended, see {log_of(self.contestant)}")
            answers.append(json.loads(line))
        return answers

    def tell(self, line: str) -> None:
        """Says the same to each process."""
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.write(line + "\n")
            process.stdin.flush()

    def turn(self, steps: int) -> None:
        """Takes some steps; a step lasts until the slowest process has done it."""
        self.tell(str(steps))
        answers = self.hear()
        self.seconds += [max(times) for times in zip(*(a["seconds"] for a in answers), strict=True)]
        self.losses += answers[0]["losses"]

    def end(self) -> list[dict[str, Any]]:
        """Lets them go; what they say of their memory."""
        self.tell("")
        memory = self.hear()
        for process in self.processes:
            process.wait(timeout=60)
        return memory

    def kill(self) -> None:
        """Ends what is still there."""
        for process in self.processes:
            process.kill()
            process.wait()


def log_of(contestant: Contestant) -> Path:
    return OUT / f"{contestant.name.replace(' ', '-').replace(',', '')}.log"


def start(contestant: Contestant, options: argparse.Namespace) -> Running:
    python = interpreter(contestant)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [python, str(HERE / "peers" / contestant.script), *contestant.arguments]
    command += ["--layers", options.layers, "--batch", str(options.batch)]
    processes = []
    with log_of(contestant).open("w") as errors:
        for rank in range(contestant.processes):
            variables = os.environ | {
                "RANK": str(rank),
                "WORLD_SIZE": str(contestant.processes),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "OMP_NUM_THREADS": "1",
            }
            processes.append(
                subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    text=True,
                    env=variables,
                )
            )
    running = Running(contestant, processes)
    try:
        running.settings = running.hear()[0]["ready"]
    except UnavailableError:
        running.kill()
        raise
    return running


def race(options: argparse.Namespace) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """What each contestant took, and the reasons of those that could not take part."""
    running: list[Running] = []
    skipped: dict[str, str] = {}
    try:
        for each in options.contestants:
            try:
                running.append(start(each, options))
            except UnavailableError as reason:
                skipped[each.name] = str(reason)
        for repeat in range(options.repeats):
            shift = repeat % len(running)
            for each in running[shift:] + running[:shift]:
                each.turn(options.steps)
        return [summary(each) for each in running], skipped
    finally:
        for each in running:
            each.kill()


def summary(run: Running) -> dict[str, Any]:
    memory = run.end()
    return {
        "name": run.contestant.name,
        "distributed": run.contestant.distributed,
        "images_per_step": run.contestant.images_per_step,
        "seconds": statistics.median(run.seconds),
        "quartiles": statistics.quantiles(run.seconds, n=4)[::2],
        "peak_bytes": max(each["peak_bytes"] for each in memory),
        "activation_bytes": max(each["activation_bytes"] for each in memory),
        "losses": [run.losses[0], run.losses[-1]],
        "settings": run.settings,
        "all_seconds": run.seconds,
    }


def table(rows: list[dict[str, Any]], skipped: dict[str, str], batch: int) -> str:
    named = {row["name"]: row for row in rows}
    one = named.get("one device", {}).get("seconds")
    heads = ["", "s a step", "quartiles", "x one device", "peak MiB", "activation MiB", "loss", "settings"]
    cells = [heads]
    for row in rows:
        same = row["images_per_step"] in {None, batch}
        cells.append(
            [
                row["name"],
                f"{row['seconds']:.3f}",
                "-".join(f"{q:.3f}" for q in row["quartiles"]),
                f"{one / row['seconds']:.2f}" if one and same else "-",
                f"{row['peak_bytes'] / 2**20:.0f}",
                f"{row['activation_bytes'] / 2**20:.0f}",
                " > ".join(f"{loss:.4f}" for loss in row["losses"]),
                row["settings"] + ("" if same else f", {row['images_per_step']} images a step"),
            ]
        )
    widths = [max(len(line[column]) for line in cells) for column in range(len(heads))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in cells]
    lines += [f"{name}: skipped, {reason}" for name, reason in skipped.items()]
    for name in ("2 tiles", "2 tiles over sockets"):
        if {"bound", name} <= named.keys():
            share = named["bound"]["seconds"] / named[name]["seconds"]
            lines.append(f"{name} reach {share:.2f} of the bound's speed-up.")
    ranked = [r for r in rows if r["distributed"] and r["images_per_step"] in {None, batch}]
    if len(ranked) > 1:
        best = min(ranked, key=lambda row: row["seconds"])
        lines.append(f"Fastest of the distributed ones: {best['name']}.")
    if batch == 1 and "2-way DDP" in named:
        lines.append("Data parallelism cannot split one image: its row is a step of two images, one each.")
    return "\n".join(line.rstrip() for line in lines)


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--batch", type=int, default=1, help="images a step (1)")
    parser.add_argument(
        "--layers", choices=("front", "all"), default="front", help="layers 0-15, or all (front)"
    )
    parser.add_argument("--repeats", type=int, default=5, help="turns of each contestant (5)")
    parser.add_argument("--steps", type=int, default=4, help="timed steps a turn (4)")
    parser.add_argument(
        "--plan", default="", help="the tiles' groups: none, fused, or empty for the planner's"
    )
    parser.add_argument("--wire", default="", help="bf16: what tiles send is rounded (empty: float32)")
    parser.add_argument("--apart", action="store_true", help="also tiles that share no memory")
    parser.add_argument("--only", help="names, separated by semicolons, of the contestants to run")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything measured there")
    options = parser.parse_args()
    options.contestants = contestants(options.batch, options.plan, options.wire, apart=options.apart)
    if options.only:
        known = {each.name: each for each in options.contestants}
        unknown = [name for name in options.only.split(";") if name not in known]
        if unknown:
            parser.error(f"--only: no contestant {unknown[0]!r}; there are: {'; '.join(known)}")
        options.contestants = [known[name] for name in known if name in options.only.split(";")]
    return options


def main() -> None:
    options = read_options()
    OUT.mkdir(exist_ok=True)
    rows, skipped = race(options)
    command = shlex.join(["python", "benchmarks/tiles.py", *sys.argv[1:]])
    host = f"{platform.platform()}, {os.cpu_count()} cores, {datetime.datetime.now(datetime.UTC).date()}"
    print(f"\n{command}\n{host}\n\n{table(rows, skipped, options.batch)}\n")
    print("s a step: median; forward, backward and SGD, the slower process. Peak: a device's resident memory")
    print("above what it held before its network. Activations: what is kept for backward (JAX: temporaries).")
    if options.json:
        measured = {"command": command, "host": host, "results": rows, "skipped": skipped}
        options.json.write_text(json.dumps(measured, indent=1) + "\n")


if __name__ == "__main__":
    main()

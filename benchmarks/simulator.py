"""Times a FedAvg round of manyhands beside a bare PyTorch loop, pfl-research and Flower, on one set-up.

Every contestant is a script under `peers/`, run as a process of its own in its own environment on the same
file of examples. Runs are interleaved in rotating order, because a machine's speed drifts; the first round of
each run is warm-up. See README.md for what is and is not compared.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import venv
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil

HERE = Path(__file__).resolve().parent
ENVIRONMENTS = HERE / ".envs"
OUT = HERE / "out"
TORCH = "torch==2.13.0"  # exactly this: a range lets pip take a build that pulls gigabytes
STEPS_PER_ROUND = 250
UNAVAILABLE = 3
RUN_LIMIT_S = 1800
SAMPLE_S = 0.5
QUIET_CORES = 0.25


@dataclass(frozen=True)
class Contestant:
    """A script under `peers/` and what it needs."""

    name: str
    script: str
    environment: str | None = None  # None: the environment that runs this file
    requirement: str = ""
    variables: dict[str, str] = field(default_factory=dict)


class UnavailableError(Exception):
    """A contestant cannot take part; the message says why."""


def contestants(cores: int) -> list[Contestant]:
    quiet = {
        "FLWR_TELEMETRY_ENABLED": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    pfl = "pfl[pytorch]==0.6.0"
    return [
        Contestant("bare", "bare.py"),
        Contestant("manyhands", "ours.py"),
        Contestant("pfl", "pfl_peer.py", "pfl", pfl),
        Contestant("pfl-multi", "pfl_peer.py", "pfl", pfl, {"BENCHMARK_PFL_PROCESSES": str(cores)}),
        Contestant("flwr", "flwr_peer.py", "flwr", "flwr[simulation]==1.41.0", quiet),
    ]


def interpreter(contestant: Contestant) -> str:
    """The Python of a contestant, whose environment is made if it is not there yet."""
    if contestant.environment is None:
        return sys.executable
    folder = ENVIRONMENTS / contestant.environment
    python = folder / "bin" / "python"
    made = folder / "made-with.txt"
    wanted = f"{TORCH}\n{contestant.requirement}\n"
    if made.exists() and made.read_text() == wanted:
        return str(python)
    print(f"making the environment of {contestant.name} in {folder} ...", flush=True)
    venv.create(folder, with_pip=True, clear=True)
    constraints = folder / "constraints.txt"
    constraints.write_text(f"{TORCH}\n")
    install = [str(python), "-m", "pip", "install", "--quiet", "--constraint", str(constraints)]
    for packages in (
        [TORCH, "numpy"],
        [contestant.requirement],
    ):  # torch first, so that nothing picks another
        done = subprocess.run([*install, *packages], capture_output=True, text=True, check=False)
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise UnavailableError(f"pip could not install {' '.join(packages)}: {last}")
    made.write_text(wanted)
    return str(python)


def examples(seed: int) -> tuple[Path, str]:
    """The file of examples that all contestants read, made on first use, and what is in it."""
    OUT.mkdir(exist_ok=True)
    folder = Path(os.environ.get("MANYHANDS_DATA", HERE.parent.parent / "shared" / "data"))
    real, loader = OUT / "cifar10.npz", folder / "load_data.py"
    if not real.exists() and loader.exists() and (folder / "cifar10.npz").exists():
        print("unpacking CIFAR-10 (once) ...", flush=True)
        spec = importlib.util.spec_from_file_location("load_data", loader)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        data = module.load("cifar10")
        save(real, data["x_train"].transpose(0, 3, 1, 2), data["y_train"])
    if real.exists():
        return real, "CIFAR-10, training set"
    made_up = OUT / f"random-{seed}.npz"
    if not made_up.exists():
        rng = np.random.default_rng(seed)
        images = rng.integers(0, 256, (50_000, 3, 32, 32), dtype=np.uint8)
        save(made_up, images, rng.integers(0, 10, 50_000))
    return made_up, "random images in the shape of CIFAR-10 (the data set was not found)"


def save(path: Path, x: np.ndarray, y: np.ndarray) -> None:
    partial = path.with_suffix(".partial.npz")
    np.savez(partial, x=np.ascontiguousarray(x), y=np.asarray(y).ravel().astype(np.int64))
    partial.replace(path)


class TreeWatch(threading.Thread):
    """Samples a process and its descendants: their peak memory, and what others took of the machine."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.root = psutil.Process(pid)
        self.peak_bytes = 0
        self.cpu_s: dict[psutil.Process, float] = {}  # of every process ever seen, at its last sample
        self.busy_s = busy_s()
        self.start_s = time.monotonic()
        self.over = threading.Event()

    def run(self) -> None:
        """Samples until told that the run is over."""
        while not self.over.wait(SAMPLE_S):
            self.peak_bytes = max(self.peak_bytes, self.sample())

    def sample(self) -> int:
        """The bytes that the process tree holds now."""
        total = 0
        try:
            tree = [self.root, *self.root.children(recursive=True)]
        except psutil.NoSuchProcess:
            return 0
        for process in tree:
            try:
                times = process.cpu_times()
                self.cpu_s[process] = times.user + times.system
                info = process.memory_full_info()
                # PSS counts a page that n processes share as 1/n in each: the sum counts it once.
                total += getattr(info, "pss", info.uss)
            except psutil.Error:
                continue  # ended meanwhile
        return total

    def others_cores(self) -> float:
        """How many cores, on average, were busy with something else or taken by the host."""
        others_s = busy_s() - self.busy_s - sum(self.cpu_s.values())
        return max(0.0, others_s / (time.monotonic() - self.start_s))


def busy_s() -> float:
    """CPU seconds that this machine has spent, those stolen by its host included."""
    times = psutil.cpu_times()
    return sum(times) - times.idle - getattr(times, "iowait", 0.0) - getattr(times, "guest", 0.0)


def run_once(contestant: Contestant, arguments: list[str]) -> dict[str, Any]:
    """One run of one contestant, with its peak memory; the log of a failed one goes to `out/`."""
    command = [interpreter(contestant), str(HERE / "peers" / contestant.script), *arguments]
    log = OUT / f"{contestant.name}.log"
    with log.open("w") as errors, tempfile.TemporaryFile("w+") as answers:
        process = subprocess.Popen(
            command, stdout=answers, stderr=errors, env=os.environ | contestant.variables
        )
        watch = TreeWatch(process.pid)
        watch.start()
        try:
            status = process.wait(timeout=RUN_LIMIT_S)
        except subprocess.TimeoutExpired:
            raise UnavailableError(f"not done within {RUN_LIMIT_S} s, see {log}") from None
        finally:
            watch.over.set()
            watch.join()
            end(watch.cpu_s)
            process.wait()
        answers.seek(0)
        lines = [line for line in answers.read().splitlines() if line.startswith("{")]
    result: dict[str, Any] = json.loads(lines[-1]) if lines else {}
    if status == UNAVAILABLE and "unavailable" in result:
        raise UnavailableError(result["unavailable"])
    if status or "rounds" not in result:
        raise UnavailableError(f"ended with status {status}, see {log}")
    wrong = [steps for steps in result["steps"] if steps != STEPS_PER_ROUND]
    if wrong:
        raise UnavailableError(f"took {wrong[0]} steps in a round instead of {STEPS_PER_ROUND}")
    return result | {"peak_rss_bytes": watch.peak_bytes, "others_cores": watch.others_cores()}


def end(processes: Iterable[psutil.Process]) -> None:
    """Ends what a run left behind: itself after a time-out, and any child that outlived it."""
    for process in processes:
        try:
            process.kill()  # psutil refuses where the number now belongs to another process
        except psutil.NoSuchProcess:
            continue


def machine() -> dict[str, Any]:
    model = platform.processor()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [
            line.split(":", 1)[1].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line
        ]
        model = names[0] if names else model
    return {
        "cores": os.cpu_count(),
        "cpu": model,
        "memory_bytes": psutil.virtual_memory().total,
        "system": platform.platform(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


def summarise(name: str, runs: list[dict[str, Any]]) -> dict[str, Any]:
    timed = [seconds for run in runs for seconds in run["rounds"][1:]]
    return {
        "name": name,
        "seconds": statistics.median(timed),
        "fastest": min(timed),
        "slowest": max(timed),
        "peak_rss_bytes": max(run["peak_rss_bytes"] for run in runs),
        "losses": runs[0]["losses"],
        "settings": runs[0]["settings"],
        "versions": runs[0]["versions"],
        "runs": [run["rounds"] for run in runs],
        "others_cores": [round(run["others_cores"], 2) for run in runs],
    }


def table(rows: list[dict[str, Any]], skipped: dict[str, str]) -> str:
    bare = next((row["seconds"] for row in rows if row["name"] == "bare"), None)
    heads = ["", "s a round", "range", "x bare", "peak GiB", "others", "loss", "settings"]
    cells = [heads] + [
        [
            row["name"],
            f"{row['seconds']:.2f}",
            f"{row['fastest']:.2f}-{row['slowest']:.2f}",
            f"{row['seconds'] / bare:.2f}" if bare else "-",
            f"{row['peak_rss_bytes'] / 2**30:.2f}",
            f"{max(row['others_cores']):.2f}",
            f"{row['losses'][0]:.3f} > {row['losses'][-1]:.3f}",
            row["settings"],
        ]
        for row in rows
    ]
    widths = [max(len(line[column]) for line in cells) for column in range(len(heads))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in cells]
    lines += [f"{name}: skipped, {reason}" for name, reason in skipped.items()]
    ours = next((row["seconds"] for row in rows if row["name"] == "manyhands"), None)
    rest = [row for row in rows if row["name"] != "manyhands"]
    if ours and rest:
        best = min(rest, key=lambda row: row["seconds"])
        lines += [
            f"manyhands takes {ours / best['seconds']:.2f} x the time of {best['name']}, the fastest other."
        ]
    return "\n".join(line.rstrip() for line in lines)


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=4, help="rounds a run, the first being warm-up (4)")
    parser.add_argument("--repeats", type=int, default=2, help="runs of each contestant (2)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", help="names, separated by commas, of the contestants to run")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything measured there")
    options = parser.parse_args()
    if options.rounds < 2 or options.repeats < 1:
        parser.error("--rounds must be at least 2 (the first is warm-up) and --repeats at least 1")
    options.contestants = contestants(os.cpu_count() or 1)
    if options.only:
        known = [each.name for each in options.contestants]
        for name in options.only.split(","):
            if name not in known:
                parser.error(f"--only: no contestant {name!r}; there are {', '.join(known)}")
        options.contestants = [each for each in options.contestants if each.name in options.only.split(",")]
    return options


def race(options: argparse.Namespace, data: Path) -> tuple[dict[str, list[dict[str, Any]]], dict[str, str]]:
    """All runs of all contestants, in rotating order, and the reasons of those that could not take part."""
    arguments = ["--data", str(data), "--rounds", str(options.rounds), "--seed", str(options.seed)]
    arguments += ["--cores", str(os.cpu_count() or 1)]
    runs: dict[str, list[dict[str, Any]]] = {}
    skipped: dict[str, str] = {}
    for each in options.contestants:  # all environments first: an installation would disturb a measurement
        try:
            interpreter(each)
        except UnavailableError as reason:
            skipped[each.name] = str(reason)
    for repeat in range(options.repeats):
        shift = repeat % len(options.contestants)
        for each in options.contestants[shift:] + options.contestants[:shift]:
            if each.name in skipped:
                continue
            print(f"run {repeat + 1} of {each.name} ...", flush=True)
            try:
                runs.setdefault(each.name, []).append(run_once(each, arguments))
            except UnavailableError as reason:
                skipped[each.name] = str(reason)
    return {name: done for name, done in runs.items() if done}, skipped


def main() -> None:
    options = read_options()
    data, source = examples(options.seed)
    runs, skipped = race(options, data)
    rows = [summarise(each.name, runs[each.name]) for each in options.contestants if each.name in runs]
    host = machine()
    versions = {name: number for row in rows for name, number in row["versions"].items()}
    command = shlex.join(["python", "benchmarks/simulator.py", *sys.argv[1:]])

    print(f"\n{command}\nseed {options.seed}, {host['date']}, {source}")
    print(f"{host['cpu']}, {host['cores']} cores, {host['system']}")
    print(", ".join(f"{name} {number}" for name, number in sorted(versions.items())))
    print(f"\n{table(rows, skipped)}\n")
    print(
        f"s a round: median of {options.repeats} x {options.rounds - 1} rounds. Peak: PSS of all processes."
    )
    print("others: cores that were busy with something else meanwhile, in the worst run.")
    busiest = max((cores for row in rows for cores in row["others_cores"]), default=0.0)
    if busiest > QUIET_CORES:
        print(
            f"WARNING: the machine was not quiet ({busiest:.1f} cores busy with others): do not quote this."
        )
    if options.json:
        measured = {"command": command, "seed": options.seed, "data": source, "machine": host}
        measured |= {"memory": "pss", "results": rows, "skipped": skipped}
        options.json.write_text(json.dumps(measured, indent=1) + "\n")


if __name__ == "__main__":
    main()

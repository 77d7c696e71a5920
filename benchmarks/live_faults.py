"""What faults on real links cost: six devices in network namespaces, killed, stopped, cut off, started again.

Each device is `manyhands join` on a host of its own, behind a link of 100 Mbit/s that loses 2 % of its
packets; they average with all neighbours in every round. The job runs undisturbed first, then with faults:
two devices are killed, one is stopped for 20 s, the killed ones are started again, the fleet is cut three
against three for 15 s and healed. `--schedule SEED` draws kills, a stop and a cut from a seed instead.

All must finish, within a point of the undisturbed run; no round that a device reported may be done again; and
all faults must hit while it trains. Otherwise it says what went wrong and ends with status 1. Needs root,
`ip`, `tc` and `nft`.

    sudo python benchmarks/live_faults.py [--schedule 1 --schedule 2] [--rounds 90] [--seed 1] [--out DIR]
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from hosts import Hosts, lay_links, why_not
from manyhands.report.device_folder import DeviceFolder, merged_events
from manyhands.report.folder import RunFolder
from manyhands.run import gather
from manyhands.seeds import numpy_generator

NAMES = ("d1", "d2", "d3", "d4", "d5", "d6")
PORT = 7447
FIRST_ROUND = 5
"""The faults begin when somebody has come so far."""

# While somebody is away, the others go on at the pace that the job's devices are expected to have. With these
# figures that is a round in a second, so that the faults are over before the training is, on any machine.
JOB = """
name = "live-faults"
seed = {seed}
[data]
name = "digits"
[model]
name = "lenet5"
[learn]
learning_rate = 0.02
batch_size = 16
[exchange]
mode = "neighbours"
rounds = {rounds}
[run]
evaluate_every = 10
report = false
[live]
wait_s = 120.0
linger_s = 60.0
[fleet]
topology = "mesh"
"""
DEVICE = '[[fleet.device]]\nname = "{name}"\nkind = "raspberry-pi-4"\nflops = 1e8\n'


@dataclass(frozen=True)
class Fault:
    """What is done, to whom, and how long after the first fault."""

    at_s: float
    what: str
    names: tuple[str, ...]

    def __str__(self) -> str:
        if self.what in ("cut", "heal"):
            return f"{self.what} {' '.join(self.names)} | {' '.join(n for n in NAMES if n not in self.names)}"
        return f"{self.what} {' '.join(self.names)}"


SCENARIO = (
    Fault(0.0, "kill", ("d1", "d2")),
    Fault(1.0, "stop", ("d3",)),
    Fault(4.0, "start", ("d1", "d2")),
    Fault(21.0, "continue", ("d3",)),
    Fault(23.0, "cut", ("d1", "d2", "d3")),
    Fault(38.0, "heal", ("d1", "d2", "d3")),
)


def draw(seed: int) -> tuple[Fault, ...]:
    """Two kills with a restart, a stop and a cut, at random times, of random lengths; they may overlap."""
    rng = numpy_generator(seed, "live schedule")
    names = [str(name) for name in rng.permutation(NAMES)]
    apart = tuple(sorted(str(n) for n in rng.permutation(NAMES)[: int(rng.integers(1, len(NAMES)))]))
    faults = []
    for begin, end, who, shortest_s, longest_s in (
        ("kill", "start", names[:1], 2, 12),
        ("kill", "start", names[1:2], 2, 12),
        ("stop", "continue", names[2:3], 5, 20),
        ("cut", "heal", apart, 5, 15),
    ):
        at_s = float(rng.uniform(0, 20))
        until_s = at_s + float(rng.uniform(shortest_s, longest_s))
        faults += [Fault(at_s, begin, tuple(who)), Fault(until_s, end, tuple(who))]
    first_s = min(fault.at_s for fault in faults)
    moved = [Fault(fault.at_s - first_s, fault.what, fault.names) for fault in faults]
    return tuple(sorted(moved, key=lambda fault: fault.at_s))


@dataclass
class Field:
    """A run under way."""

    hosts: Hosts
    job: Path
    out: Path
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self, name: str) -> None:
        """Starts a device, for the first time or again."""
        command = [sys.executable, "-m", "manyhands", "join", str(self.job), "--name", name]
        command += ["--out", str(self.out / "devices" / name)]
        command += ["--listen", f"{self.hosts.address(name)}:{PORT}"]
        for peer in NAMES:
            command += ["--connect", f"{self.hosts.address(peer)}:{PORT}"] if peer != name else []
        (self.out / "devices" / name).mkdir(parents=True, exist_ok=True)
        with (self.out / "devices" / name / "log.txt").open("ab") as log:
            self.running[name] = subprocess.Popen(
                self.hosts.inside(name, *command), stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )

    def do(self, fault: Fault) -> None:
        """Does what a fault says."""
        if fault.what == "cut":
            self.hosts.cut(fault.names, [name for name in NAMES if name not in fault.names])
        elif fault.what == "heal":
            self.hosts.mend()
        for name in fault.names:
            if fault.what == "start":
                self.start(name)
            elif fault.what == "kill":
                self.running[name].kill()
                self.running[name].wait()
            elif fault.what == "stop":
                self.running[name].send_signal(signal.SIGSTOP)
            elif fault.what == "continue":
                self.running[name].send_signal(signal.SIGCONT)

    def round(self) -> int:
        """How far the first of the devices is."""
        return max(rounds[-1] for name in NAMES if (rounds := [0, *rounds_of(self.out, name)]))

    def ended(self) -> list[str]:
        """The devices that have come to their end; says so if one has failed."""
        over = [name for name, process in self.running.items() if process.poll() is not None]
        for name in over:
            if status := self.running[name].returncode:
                raise SystemExit(f"{name} ended with status {status}; see {self.out}/devices/{name}/log.txt")
        return over


def events_of(out: Path) -> list[dict[str, Any]]:
    return merged_events({name: DeviceFolder(out / "devices" / name) for name in NAMES})


def rounds_of(out: Path, name: str) -> list[int]:
    """The rounds that a device has reported, in that order."""
    return [e["round"] for e in DeviceFolder(out / "devices" / name).events() if e["event"] == "round"]


def run(place: Field, faults: tuple[Fault, ...], limit_s: float) -> str:
    """Starts all devices, does the faults, waits for the end; gives what was done when."""
    until = time.monotonic() + limit_s
    told = []
    try:
        for name in NAMES:
            place.start(name)
        if faults:
            while place.round() < FIRST_ROUND:
                place.ended()
                if time.monotonic() > until:
                    raise SystemExit(f"nobody came to round {FIRST_ROUND} in {limit_s} s; see {place.out}")
                time.sleep(0.1)
            began = time.monotonic()
            for fault in faults:
                time.sleep(max(began + fault.at_s - time.monotonic(), 0))
                place.do(fault)
                told.append(f"{time.monotonic() - began:6.1f} s  round {place.round():3}  {fault}")
            if early := place.ended():
                raise SystemExit(f"{', '.join(early)} ended before the faults did; take more --rounds")
        while len(place.ended()) < len(NAMES):
            if time.monotonic() > until:
                hanging = sorted(set(NAMES) - set(place.ended()))
                raise SystemExit(f"{', '.join(hanging)} did not end in {limit_s} s; see {place.out}")
            time.sleep(0.1)
    finally:
        for process in place.running.values():
            process.kill()  # also one that is stopped
            process.wait()
    return "\n".join(told)


def unseen(out: Path) -> dict[str, list[tuple[float, float]]]:
    """Device -> from when to when somebody had lost it."""
    lost: defaultdict[str, set[str]] = defaultdict(set)
    spans: dict[str, list[tuple[float, float]]] = {name: [] for name in NAMES}
    since: dict[str, float] = {}
    events = events_of(out)
    for event in events:
        peer, who = event.get("peer"), event["device"]
        if event["event"] == "peer_lost":
            since.setdefault(peer, event["seconds"])
            lost[peer].add(who)
        elif event["event"] in ("peer_back", "crashed"):
            # One that has crashed sees nobody and misses nobody.
            for name in [peer] if event["event"] == "peer_back" else list(lost):
                lost[name].discard(who)
                if not lost[name] and name in since:
                    spans[name].append((since.pop(name), event["seconds"]))
    for name, at_s in since.items():
        spans[name].append((at_s, events[-1]["seconds"]))
    return spans


def wrong(label: str, out: Path, result: dict[str, Any], reference: float) -> Iterator[str]:
    """What must not be."""
    for device in result["devices"]:
        if not device["finished"]:
            yield f"{label}: {device['name']} did not finish"
        rounds = rounds_of(out, device["name"])
        if any(later <= earlier for earlier, later in pairwise(rounds)):
            yield f"{label}: {device['name']} lost a round that it had done: {rounds}"
    if result["accuracy"] < reference - 0.01:
        yield f"{label}: {result['accuracy']:.1%} is more than a point below {reference:.1%}"


def show(results: dict[str, dict[str, Any]], folder: Path) -> None:
    print("| run | accuracy | rounds | finished | seconds |\n|---|---|---|---|---|")
    for label, result in results.items():
        finished = sum(device["finished"] for device in result["devices"])
        print(
            f"| {label} | {result['accuracy']:.1%} | {result['rounds']} | {finished} of {len(NAMES)} "
            f"| {result['seconds']:.0f} |"
        )
    print("\n| run | device | rounds done | starts | accuracy | lost by somebody, from - to |")
    print("|---|---|---|---|---|---|")
    for label, result in results.items():
        spans = unseen(folder / label)
        for device in result["devices"]:
            name = device["name"]
            starts = DeviceFolder(folder / label / "devices" / name).about()["incarnation"]
            away = ", ".join(f"{a:.1f} - {b:.1f} s" for a, b in spans[name]) or "never"
            print(f"| {label} | {name} | {device['rounds']} | {starts} | {device['accuracy']:.1%} | {away} |")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=90)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--loss", type=float, default=0.02)
    parser.add_argument("--limit-s", type=float, default=400.0, help="how long one run may take")
    parser.add_argument(
        "--schedule", type=int, action="append", default=[], help="faults drawn from a seed, instead"
    )
    parser.add_argument("--out", type=Path, help="keep the runs here, and go on with those that are done")
    options = parser.parse_args()
    if reason := why_not():
        print(f"skipped: {reason}")
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # leaves no namespace behind
    folder = options.out or Path(tempfile.mkdtemp(prefix="live-faults-"))
    folder.mkdir(parents=True, exist_ok=True)
    job = folder / "job.toml"
    job.write_text(
        JOB.format(seed=options.seed, rounds=options.rounds) + "".join(DEVICE.format(name=n) for n in NAMES)
    )
    plans: dict[str, tuple[Fault, ...]] = {"undisturbed": ()}
    plans |= {f"schedule {seed}": draw(seed) for seed in options.schedule} or {"disturbed": SCENARIO}
    print(f"{datetime.date.today()}  {platform.machine()}, {os.cpu_count()} cores, seed {options.seed}")
    results: dict[str, dict[str, Any]] = {}
    for label, faults in plans.items():
        out = folder / label
        found = RunFolder(out).load_result()
        if found is None:
            shutil.rmtree(out, ignore_errors=True)  # what was stopped halfway
            with lay_links(NAMES, loss=options.loss) as hosts:
                told = run(Field(hosts, job, out), faults, options.limit_s)
            (out / "told.txt").write_text(told)
            found = gather(out)
        results[label] = found
        print(f"\n{label}:\n{(out / 'told.txt').read_text()}", flush=True)
    show(results, folder)
    reference = results["undisturbed"]["accuracy"]
    problems = [text for label, r in results.items() for text in wrong(label, folder / label, r, reference)]
    print("\n" + ("\n".join(problems) or "All as it must be."))
    if options.out is None and not problems:
        shutil.rmtree(folder)
    raise SystemExit(bool(problems))


if __name__ == "__main__":
    main()

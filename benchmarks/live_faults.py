"""What faults on real links cost: six devices in network namespaces, killed, stopped, cut off, started again.

Each device is `manyhands join` in a namespace of its own, behind a link of 100 Mbit/s that loses 2 % of its
packets. The job runs undisturbed first, then with faults: two devices are killed, one is stopped for 20 s,
the killed ones are started again, the fleet is cut three against three for 15 s and healed. Needs root, `ip`,
`tc` and `nft`.

    sudo python benchmarks/live_faults.py [--rounds 60] [--seed 1] [--out DIR]
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
from pathlib import Path
from typing import Any

from manyhands.report.device_folder import DeviceFolder
from manyhands.report.folder import RunFolder
from manyhands.run import gather

NAMES = ("d1", "d2", "d3", "d4", "d5", "d6")
PREFIX, BRIDGE = f"mh{os.getpid() % 10000}-", f"mhb{os.getpid() % 10000}"
PORT = 7447

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
epochs = {epochs}
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


def sh(command: str, *, check: bool = True) -> None:
    done = subprocess.run(command.split(), capture_output=True, text=True, check=False)
    if check and done.returncode:
        raise SystemExit(f"{command}: {done.stderr.strip()}")


def address(name: str) -> str:
    return f"10.77.0.{NAMES.index(name) + 1}"


def namespace(name: str) -> str:
    return PREFIX + name


def rule(name: str, words: str) -> None:
    sh(f"ip netns exec {namespace(name)} nft {words}")


def lay_links(loss: float) -> None:
    """A bridge, and a namespace for each device with a shaped and lossy link to it."""
    sh(f"ip link add {BRIDGE} type bridge")
    sh(f"ip link set {BRIDGE} up")
    for number, name in enumerate(NAMES):
        space, outer = namespace(name), f"{BRIDGE}v{number}"
        sh(f"ip netns add {space}")
        sh(f"ip link add {outer} type veth peer name eth0 netns {space}")
        sh(f"ip link set {outer} master {BRIDGE} up")
        sh(f"ip -n {space} link set lo up")
        sh(f"ip -n {space} addr add {address(name)}/24 dev eth0")
        sh(f"ip -n {space} link set eth0 up")
        shape = "root tbf rate 100mbit burst 64kb latency 50ms"
        sh(f"ip netns exec {space} tc qdisc add dev eth0 {shape}")
        rule(name, "add table inet faults")
        for chain in ("loss", "cut"):
            hook = "{ type filter hook input priority 0 ; policy accept ; }"
            rule(name, f"add chain inet faults {chain} {hook}")
        rule(name, f"add rule inet faults loss iifname eth0 numgen random mod 1000 < {int(loss * 1000)} drop")


def take_links_up() -> None:
    for name in NAMES:
        sh(f"ip netns del {namespace(name)}", check=False)
    sh(f"ip link del {BRIDGE}", check=False)


def cut(one: tuple[str, ...], other: tuple[str, ...]) -> None:
    for near, far in ((one, other), (other, one)):
        for name in near:
            for peer in far:
                rule(name, f"add rule inet faults cut ip saddr {address(peer)} drop")


def mend() -> None:
    for name in NAMES:
        rule(name, "flush chain inet faults cut")


def start(name: str, job: Path, out: Path) -> subprocess.Popen[bytes]:
    command = ["ip", "netns", "exec", namespace(name), sys.executable, "-m", "manyhands", "join", str(job)]
    command += ["--name", name, "--out", str(out / "devices" / name), "--listen", f"{address(name)}:{PORT}"]
    for peer in NAMES:
        if peer != name:
            command += ["--connect", f"{address(peer)}:{PORT}"]
    (out / "devices" / name).mkdir(parents=True, exist_ok=True)
    with (out / "devices" / name / "log.txt").open("ab") as log:
        return subprocess.Popen(command, stdout=log, stderr=log)


def reached(out: Path, name: str) -> int:
    rounds = [e["round"] for e in DeviceFolder(out / "devices" / name).events() if e["event"] == "round"]
    return max(rounds, default=0)


def wait_for(out: Path, number: int, limit_s: float = 300.0) -> None:
    until = time.monotonic() + limit_s
    while max(reached(out, name) for name in NAMES) < number:
        if time.monotonic() > until:
            raise SystemExit(f"nobody came to round {number} within {limit_s} s; see {out}")
        time.sleep(0.2)


def disturb(job: Path, out: Path, running: dict[str, subprocess.Popen[bytes]]) -> list[str]:
    """The faults, one after the other; returns what was done when."""
    told, began = [], time.monotonic()

    def say(what: str) -> None:
        told.append(f"{time.monotonic() - began:5.1f} s  {what}")

    wait_for(out, 3)
    for name in ("d1", "d2"):
        running[name].send_signal(signal.SIGKILL)
        running[name].wait()
    say("SIGKILL d1, d2")
    time.sleep(2)
    running["d3"].send_signal(signal.SIGSTOP)
    say("SIGSTOP d3")
    time.sleep(20)
    running["d3"].send_signal(signal.SIGCONT)
    say("SIGCONT d3")
    for name in ("d1", "d2"):
        running[name] = start(name, job, out)
    say("started d1, d2 again")
    time.sleep(8)
    cut(NAMES[:3], NAMES[3:])
    say("cut d1 d2 d3 | d4 d5 d6")
    time.sleep(15)
    mend()
    say("healed")
    return told


def run(job: Path, out: Path, *, faults: bool, limit_s: float) -> tuple[dict[str, Any], list[str]]:
    began = time.monotonic()
    running = {name: start(name, job, out) for name in NAMES}
    told: list[str] = []
    try:
        if faults:
            told = disturb(job, out, running)
        for name, process in running.items():
            left_s = limit_s - (time.monotonic() - began)
            try:
                status = process.wait(max(left_s, 1.0))
            except subprocess.TimeoutExpired:
                raise SystemExit(f"{name} hangs; see {out}") from None
            if status:
                raise SystemExit(f"{name} ended with status {status}; see {out}/devices/{name}/log.txt")
    finally:
        for process in running.values():
            process.kill()
    return gather(out), told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--loss", type=float, default=0.02)
    parser.add_argument("--limit-s", type=float, default=600.0)
    parser.add_argument("--out", type=Path, help="keep the runs here, and go on with those that are done")
    parser.add_argument("--runs", default="undisturbed,disturbed")
    options = parser.parse_args()
    if os.geteuid() != 0 or not all(map(shutil.which, ("ip", "tc", "nft"))):
        raise SystemExit("skipped: network namespaces need root, ip, tc and nft")
    folder = options.out or Path(tempfile.mkdtemp(prefix="live-faults-"))
    folder.mkdir(parents=True, exist_ok=True)
    job = folder / "job.toml"
    text = JOB.format(seed=options.seed, rounds=options.rounds, epochs=options.epochs)
    devices = "".join(f'[[fleet.device]]\nname = "{name}"\nkind = "raspberry-pi-4"\n' for name in NAMES)
    job.write_text(text + devices)
    results: dict[str, dict[str, Any]] = {}
    told = folder / "told.txt"
    for label in options.runs.split(","):
        found = RunFolder(folder / label).load_result()
        if found is None:
            lay_links(options.loss)
            try:
                found, said = run(job, folder / label, faults=label == "disturbed", limit_s=options.limit_s)
            finally:
                take_links_up()
            told.write_text("\n".join(said))
        results[label] = found
    print(f"{datetime.date.today()}  {platform.machine()}, {os.cpu_count()} cores, seed {options.seed}")
    print(told.read_text())
    print("| run | accuracy | rounds of the devices | finished | seconds |\n|---|---|---|---|---|")
    for label, result in results.items():
        rounds = ", ".join(str(device["rounds"]) for device in result["devices"])
        finished = sum(device["finished"] for device in result["devices"])
        print(
            f"| {label} | {result['accuracy']:.1%} | {rounds} | {finished} of 6 | {result['seconds']:.0f} |"
        )
    if options.out is None:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()

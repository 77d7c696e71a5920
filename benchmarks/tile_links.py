"""Grouping on a link of 100 Mbit/s between two network namespaces, predicted and measured.

A token-bucket filter on either end shapes the link, as a Raspberry Pi 3's port would. Each grouping trains
the same network: borders before every layer that needs them (`none`), one group of all layers (`fused`),
and the planner's. Needs root, `ip` and `tc` (iproute2); says so and ends where it may not make namespaces.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
OUT = HERE / "out"
LIMIT_S = 900


def run(command: str) -> None:
    subprocess.run(shlex.split(command), check=True, capture_output=True, text=True)


@contextlib.contextmanager
def two_hosts(rate: str, burst: str, latency_ms: float) -> Iterator[list[str]]:
    """Two namespaces with a shaped link between them; they are removed at the end."""
    names = [f"tiles{os.getpid()}-{rank}" for rank in (0, 1)]
    try:
        for name in names:
            run(f"ip netns add {name}")
        run(f"ip link add v0 netns {names[0]} type veth peer name v1 netns {names[1]}")
        for rank, name in enumerate(names):
            inside = f"ip netns exec {name}"
            run(f"{inside} ip addr add 10.77.0.{rank + 1}/24 dev v{rank}")
            run(f"{inside} ip link set v{rank} up")
            run(f"{inside} ip link set lo up")
            # What may pass at once after a pause: a whole message would not be slowed down at all.
            bucket = f"tbf rate {rate} burst {burst} latency 400ms"
            run(f"{inside} tc qdisc add dev v{rank} root handle 1: {bucket}")
            if latency_ms:
                run(f"{inside} tc qdisc add dev v{rank} parent 1: netem delay {latency_ms}ms")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def missing() -> str | None:
    """Why it cannot be done here."""
    for tool in ("ip", "tc"):
        if shutil.which(tool) is None:
            return f"no {tool} here; install iproute2"
    probe = f"tiles{os.getpid()}-probe"
    done = subprocess.run(["ip", "netns", "add", probe], check=False, capture_output=True, text=True)
    if done.returncode:
        return f"may not make network namespaces ({done.stderr.strip()}); needs root"
    run(f"ip netns del {probe}")
    return None


def measure(options: argparse.Namespace) -> dict[str, object]:
    for profile in OUT.glob("passes-links-*"):  # of another day
        profile.unlink()
    command = [sys.executable, str(HERE / "peers" / "tile_links_rank.py"), "--layers", options.layers]
    command += ["--batch", str(options.batch), "--accumulate", str(options.accumulate)]
    command += ["--repeats", str(options.repeats), *(["--waiting"] if options.waiting else [])]
    with (
        two_hosts(options.rate, options.burst, options.latency_ms) as names,
        (OUT / "tile_links.log").open("w") as errors,
    ):
        ranks = []
        for rank, name in enumerate(names):
            variables = os.environ | {
                "RANK": str(rank),
                "WORLD_SIZE": "2",
                "MASTER_ADDR": "10.77.0.1",
                "MASTER_PORT": "29500",  # a namespace of its own: nobody else has it
                "GLOO_SOCKET_IFNAME": f"v{rank}",
                "OMP_NUM_THREADS": "1",
            }
            inside = ["ip", "netns", "exec", name, *command]
            ranks.append(
                subprocess.Popen(inside, stdout=subprocess.PIPE, stderr=errors, text=True, env=variables)
            )
        try:
            said = [rank.communicate(timeout=LIMIT_S)[0] for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()
    if not said[0].strip():
        sys.exit(f"a rank ended, see {OUT / 'tile_links.log'}")
    result: dict[str, object] = json.loads(said[0].strip().splitlines()[-1])
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--layers", choices=("front", "all"), default="front")
    parser.add_argument("--batch", type=int, default=1, help="images a pass (1)")
    parser.add_argument("--accumulate", type=int, default=8, help="passes before gradients are summed (8)")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rate", default="100mbit", help="of the link, as tc has it (100mbit)")
    parser.add_argument("--burst", default="16kb", help="bytes that pass at once (16kb)")
    parser.add_argument("--latency-ms", type=float, default=0.0, help="more latency each way (0)")
    parser.add_argument("--waiting", action="store_true", help="also without computing while borders travel")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything measured there")
    options = parser.parse_args()
    reason = missing()
    if reason:
        print(f"skipped: {reason}")
        return
    OUT.mkdir(exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that namespaces are removed then, too
    found = measure(options)
    command = shlex.join(["python", "benchmarks/tile_links.py", *sys.argv[1:]])
    link = found["link"]
    print(f"\n{command}\nlink {options.rate}: latency {link['latency_s'] * 1e3:.2f} ms, ", end="")
    print(f"{link['bytes_per_s'] * 8 / 1e6:.0f} Mbit/s as measured between the ranks\n")
    print("grouping  groups  predicted s  measured s  prediction off by")
    for row in found["results"]:
        if "predicted_s" not in row:
            print(f"{row['name']:<29}  {row['measured_s']:>10.3f}  as none, but waiting for borders")
            continue
        off = row["predicted_s"] / row["measured_s"] - 1
        print(
            f"{row['name']:<8}  {row['groups']:>6}  {row['predicted_s']:>11.3f}  "
            f"{row['measured_s']:>10.3f}  {off:+.0%}"
        )
    print("\nseconds a pass: median; the sum of gradients, once in all passes, is shared out among them.")
    if options.json:
        options.json.write_text(json.dumps({"command": command, **found}, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""How long a network's blocks take from one process to another, against a bare copy over TCP.

    python benchmarks/transfer.py                      # on loopback, 6.5 MB and 250 MB
    sudo python benchmarks/transfer.py --rate 1gbit    # over a shaped link between two network namespaces
    python benchmarks/transfer.py --megabytes 6.5 --peers --envs /tmp/peers

Contestants take turns, so that whatever else the machine does meets all of them. A time is from the moment
when the sender is given tensors to the moment when the receiver has them; both ends read the same monotonic
clock.

| contestant | what it is |
|---|---|
| `tcp` | a plain socket from memory to memory, nothing checked |
| `tcp-new` | the same, into memory that is taken from the system within the time, as a message's is |
| `tcp-sha256` | the same, and each side takes the SHA-256 of what passes: the least of a checked copy |
| `zenoh` | parts of 1 MiB asked for over Zenoh, four under way, nothing checked or put together |
| `manyhands` | `ZenohPost.send` to delivery: announced, pulled in parts, bytes and numbers checked |
| `manyhands-tls` | the same over mutual TLS with access control |
| `manyhands-round` | tensors there and back, as in a round with one device |
| `flwr`, `p2pfl` | with `--peers`: a round of theirs that trains nothing |

The peers' environments are made by hand, with Python 3.11, in the folder that `--envs` names:

    python -m venv flwr && flwr/bin/pip install flwr==1.41.0 numpy
    python -m venv p2pfl
    p2pfl/bin/pip install 'p2pfl[dp]==0.4.4' torch==2.13.0 'pyarrow<21' 'numpy<2' 'huggingface_hub<0.26'
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import queue
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import numpy
import psutil
import torch
import zenoh
from rich.console import Console
from rich.table import Table

from manyhands.blocks import Weights
from manyhands.hand import Message
from manyhands.wire.expected import expect
from manyhands.wire.keyring import new_cluster
from manyhands.wire.news import called, publish
from manyhands.wire.post import ZenohPost
from manyhands.wire.session import Wiring, free_endpoints, open_session

CONTESTANTS = ("tcp", "tcp-new", "tcp-sha256", "zenoh", "manyhands", "manyhands-tls", "manyhands-round")
PEERS = ("flwr", "p2pfl")
HERE = Path(__file__).resolve().parent
HOSTS = ("10.77.0.1", "10.77.0.2")
STEP = 1 << 20
NAMES = [f"layer{n}" for n in range(8)]


def tensors(nbytes: int, seed: int) -> Weights:
    generator = torch.Generator().manual_seed(seed)
    count = nbytes // 4 // 8
    return Weights({name: torch.randn(count, generator=generator) for name in NAMES})


# One side of a transfer, in a process of its own. It says when it began or ended, in lines of JSON.


def say(seconds: float) -> None:
    print(json.dumps(seconds), flush=True)


def tcp_sender(where: str, nbytes: int, repeats: int, hashes: bool) -> None:
    host, port = where.split(":")
    data = memoryview(torch.randn(nbytes // 4).numpy()).cast("B")
    with socket.create_server((host, int(port))) as server:
        link, _ = server.accept()
        with link:
            for _ in range(repeats):
                link.recv(1)
                say(time.monotonic())
                hashed = hashlib.sha256()
                for at in range(0, len(data), STEP):
                    if hashes:
                        hashed.update(data[at : at + STEP])
                    link.sendall(data[at : at + STEP])
                if hashes:
                    link.sendall(hashed.digest())


def tcp_receiver(where: str, nbytes: int, repeats: int, hashes: bool, *, new: bool = False) -> None:
    host, port = where.split(":")
    size = nbytes // 4 * 4
    with ExitStack() as held:
        while True:
            try:
                link = held.enter_context(socket.create_connection((host, int(port))))
                break
            except ConnectionRefusedError:
                time.sleep(0.05)
        for _ in range(repeats):
            time.sleep(0.2)
            data = memoryview(b"") if new else memoryview(bytearray(size))
            link.sendall(b"g")
            if new:
                data = numpy.empty(size, numpy.uint8).data
            at, hashed = 0, hashlib.sha256()
            while at < size:
                got = link.recv_into(data[at : at + STEP])
                if hashes:
                    hashed.update(data[at : at + got])
                at += got
            if hashes:
                digest = b""
                while len(digest) < 32:
                    digest += link.recv(32 - len(digest))
                assert digest == hashed.digest()
            say(time.monotonic())


def zenoh_sender(where: str, repeats: int) -> None:
    part = os.urandom(STEP)
    with (
        open_session(Wiring("sender", "benchmark", listen=(where,))) as session,
        ThreadPoolExecutor(8) as pool,
    ):
        asked = queue.SimpleQueue[None]()

        def reply(query: zenoh.Query) -> None:
            with query:
                query.reply(query.key_expr, part)

        parts = session.declare_queryable("mh/part", called(lambda query: pool.submit(reply, query)))
        begun = session.declare_subscriber("mh/begin", called(lambda _sample: asked.put(None)))
        for _ in range(repeats):
            asked.get()
            say(time.monotonic())
            publish(session, "mh/go", b"")
        asked.get()
        begun.undeclare()
        parts.undeclare()


def zenoh_receiver(where: str, nbytes: int, repeats: int) -> None:
    with open_session(Wiring("receiver", "benchmark", connect=(where,))) as session:
        came = queue.SimpleQueue[int]()
        go = session.declare_subscriber("mh/go", called(lambda _sample: came.put(0)))
        time.sleep(2.0)  # until both know of each other

        def ask() -> None:
            session.get(
                "mh/part",
                called(lambda reply: came.put(len(reply.ok.payload.to_bytes()))),
                consolidation=zenoh.ConsolidationMode.NONE,
                congestion_control=zenoh.CongestionControl.BLOCK,
                priority=zenoh.Priority.DATA_LOW,
            )

        for _ in range(repeats):
            time.sleep(0.2)
            publish(session, "mh/begin", b"")
            came.get()
            left, at = -(-nbytes // STEP), 0
            for _ in range(min(4, left)):
                ask()
                left -= 1
            while at < nbytes:
                at += came.get()
                if left:
                    ask()
                    left -= 1
            say(time.monotonic())
        publish(session, "mh/begin", b"")
        go.undeclare()


async def post_side(
    role: str, where: str, nbytes: int, repeats: int, keys: Path | None, *, back: bool = False
) -> None:
    names = {"sender": "sender", "receiver": "receiver"}
    with torch.device("meta"):
        expected = expect({"model": Weights({n: torch.empty(nbytes // 32) for n in NAMES})}, repeats)
    wiring = Wiring(
        role,
        "benchmark",
        listen=(where,) if role == "sender" else (),
        connect=() if role == "sender" else (where,),
        keys=keys and keys / "devices" / role,
        members=names,
    )
    post = ZenohPost(wiring, names, expected, tell=lambda event, facts: print(event, facts, file=sys.stderr))
    there, came = asyncio.Event(), asyncio.Queue[Message]()
    post.open(came.put_nowait, lambda _peer, number: there.set() if number is not None else None)
    await there.wait()
    before = 0
    for number in range(repeats):
        if role == "sender":
            blocks = {"model": tensors(nbytes, number)}
            await asyncio.sleep(0.2)
        before = before or psutil.Process().memory_info().rss
        if role == "sender":
            say(time.monotonic())
            await post.send("receiver", Message("blocks", number, {}, blocks))
            await came.get()
            if back:
                await post.send("receiver", Message("stopped", number, {"seconds": time.monotonic()}))
        else:
            message = await came.get()
            if back:
                await post.send("sender", Message("blocks", number, {}, message.blocks))
                say((await came.get()).facts["seconds"])
            else:
                say(time.monotonic())
                del message  # dealt with before the next one comes, as in a round
                await post.send("sender", Message("stopped", number))
        if repeats == 1:
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
            print(f"{role}: {(peak - before) / nbytes:.2f} times the block at most", file=sys.stderr)
    await post.close()


def take_side(options: argparse.Namespace) -> None:
    nbytes = int(options.megabytes[0] * 1e6)
    torch.set_num_threads(1)
    sends, hashes = options.role == "sender", options.contestant == "tcp-sha256"
    if options.contestant.startswith("tcp"):
        if sends:
            tcp_sender(options.where, nbytes, options.repeats, hashes)
        else:
            new = options.contestant == "tcp-new"
            tcp_receiver(options.where, nbytes, options.repeats, hashes, new=new)
    elif options.contestant == "zenoh":
        if sends:
            zenoh_sender(options.where, options.repeats)
        else:
            zenoh_receiver(options.where, nbytes, options.repeats)
    else:
        keys = options.keys if options.contestant == "manyhands-tls" else None
        back = options.contestant == "manyhands-round"
        asyncio.run(post_side(options.role, options.where, nbytes, options.repeats, keys, back=back))


# The runner.


def one_run(contestant: str, megabytes: float, repeats: int, keys: Path, rate: str | None) -> list[float]:
    """Seconds of each transfer of one pair of processes."""
    (where,) = free_endpoints(1) if rate is None else [f"{HOSTS[0]}:7447"]
    command = [sys.executable, __file__, "--contestant", contestant, "--megabytes", str(megabytes)]
    command += ["--repeats", str(repeats), "--where", where, "--keys", str(keys), "--role"]
    sides = []
    for number, role in enumerate(("sender", "receiver")):
        inside = [] if rate is None else ["ip", "netns", "exec", f"mhbench{number}"]
        sides.append(subprocess.Popen([*inside, *command, role], stdout=subprocess.PIPE, text=True))
    try:
        said = [side.communicate(timeout=600)[0].splitlines() for side in sides]
    finally:
        for side in sides:
            side.kill()
            side.wait()
    return [json.loads(end) - json.loads(begin) for begin, end in zip(*said, strict=True)]


def peer_rounds(name: str, megabytes: float, repeats: int, envs: Path) -> list[float]:
    """Seconds of each round of a peer; none, with a word why, where it cannot be had."""
    python = (envs / name / "bin" / "python").absolute()
    if not python.is_file():
        why = f"{name}: there is no {python}; the head of {Path(__file__).name} says how to make it"
        Console().print(why, soft_wrap=True, markup=False)
        return []
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "rounds.json"
        command = [python, HERE / "peers" / f"{name}_round.py", "--megabytes", str(megabytes)]
        command += ["--rounds", str(repeats + 1), "--json", out]
        variables = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        try:
            subprocess.run(command, env=variables, timeout=300, check=True, capture_output=True, cwd=folder)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            said = (error.stderr or b"").decode(errors="replace").strip().splitlines()[-1:]
            Console().print(f"{name}: {error}: {' '.join(said)}", soft_wrap=True, markup=False)
            return []
        return [float(seconds) for seconds in json.loads(out.read_text())][1:]


def shaped_link(rate: str) -> ExitStack:
    """Two network namespaces with a link between them that carries so much and no more."""
    held = ExitStack()

    def call(text: str, check: bool = True) -> None:
        subprocess.run(text.split(), check=check, stderr=None if check else subprocess.DEVNULL)

    call("ip link add mhb0 type veth peer name mhb1")
    for number in (0, 1):
        call(f"ip netns add mhbench{number}")
        held.callback(call, f"ip netns del mhbench{number}", False)
        call(f"ip link set mhb{number} netns mhbench{number}")
        inside = f"ip netns exec mhbench{number}"
        call(f"{inside} ip addr add {HOSTS[number]}/24 dev mhb{number}")
        call(f"{inside} ip link set mhb{number} up")
        call(f"{inside} ip link set lo up")
        call(f"{inside} tc qdisc add dev mhb{number} root tbf rate {rate} burst 256kb latency 50ms")
    return held


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=float, nargs="+", default=[6.5, 250.0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--rate", help="shape the link, as tc writes it: 1gbit, 100mbit")
    parser.add_argument("--only", default=",".join(CONTESTANTS))
    parser.add_argument("--peers", action="store_true", help="also a round of Flower and of p2pfl")
    parser.add_argument("--envs", type=Path, default=HERE / ".envs", help="where their environments are")
    parser.add_argument("--memory", action="store_true", help="only how much memory each side takes")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--role", choices=["sender", "receiver"], help=argparse.SUPPRESS)
    parser.add_argument("--contestant", help=argparse.SUPPRESS)
    parser.add_argument("--where", help=argparse.SUPPRESS)
    parser.add_argument("--keys", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.role:
        take_side(options)
        return
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    found: dict[str, dict[str, list[float]]] = {}
    with ExitStack() as held:
        keys = Path(held.enter_context(tempfile.TemporaryDirectory()))
        new_cluster(keys, ["sender", "receiver"])
        if options.memory:
            for megabytes in options.megabytes:
                Console().print(f"{megabytes:g} MB, memory beyond what was there before the transfer:")
                one_run("manyhands", megabytes, 1, keys, None)
            return
        if options.rate:
            held.enter_context(shaped_link(options.rate))
        for megabytes in options.megabytes:
            peers = PEERS if options.peers else ()
            times = {name: list[float]() for name in (*options.only.split(","), *peers)}
            for _ in range(options.turns):
                for name in times:
                    # The first of each run meets cold caches and is left out.
                    if name in PEERS:
                        times[name] += peer_rounds(name, megabytes, options.repeats, options.envs)
                    else:
                        times[name] += one_run(name, megabytes, options.repeats + 1, keys, options.rate)[1:]
            found[f"{megabytes:g}"] = {name: seconds for name, seconds in times.items() if seconds}
    show(found, options.rate)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))


def show(found: dict[str, dict[str, list[float]]], rate: str | None) -> None:
    table = Table("MB", "contestant", "median s", "range", "MB/s", "times tcp", title=rate or "loopback")
    for megabytes, times in found.items():
        bare = statistics.median(times["tcp"]) if "tcp" in times else float("nan")
        for name, seconds in times.items():
            middle = statistics.median(seconds)
            spread = f"{min(seconds):.3f}-{max(seconds):.3f}"
            rate_text, ratio = f"{float(megabytes) / middle:.0f}", f"{middle / bare:.2f}"
            table.add_row(megabytes, name, f"{middle:.3f}", spread, rate_text, ratio)
    Console().print(table)


if __name__ == "__main__":
    main()

"""A round of Flower between processes of its own: a SuperLink, one SuperNode, and an app that trains nothing.

Run in an environment with Flower. The server app sends the arrays to the client app and gets them back, which
is what every round of a strategy does; it writes how long each round took, in seconds, as JSON.

    python flwr_round.py --megabytes 6.5 --rounds 4 --json rounds.json
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

PROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "round"
version = "1.0.0"
description = ""
license = "Apache-2.0"
dependencies = []
[tool.hatch.build.targets.wheel]
packages = ["."]
[tool.flwr.app]
publisher = "benchmark"
[tool.flwr.app.components]
serverapp = "roundtrip.apps:server"
clientapp = "roundtrip.apps:client"
[tool.flwr.app.config]
megabytes = 1.0
rounds = 1
out = ""
"""

APPS = """
import json, time
from pathlib import Path
import numpy as np
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

client = ClientApp()
server = ServerApp()

@client.train()
def train(message, context):
    arrays = message.content["arrays"].to_numpy_ndarrays()
    return Message(RecordDict({"arrays": ArrayRecord(arrays)}), reply_to=message)

@server.main()
def main(grid, context):
    config = context.run_config
    count = int(config["megabytes"] * 1e6 / 4 / 8)
    arrays = [np.random.default_rng(n).standard_normal(count, dtype=np.float32) for n in range(8)]
    while not (nodes := list(grid.get_node_ids())):
        time.sleep(0.1)
    seconds = []
    for _ in range(int(config["rounds"])):
        began = time.monotonic()
        record = RecordDict({"arrays": ArrayRecord(arrays)})
        sent = Message(record, dst_node_id=nodes[0], message_type="train")
        (reply,) = grid.send_and_receive([sent])
        back = reply.content["arrays"].to_numpy_ndarrays()
        seconds.append(time.monotonic() - began)
        assert all(np.array_equal(a, b) for a, b in zip(arrays, back))
    Path(config["out"]).write_text(json.dumps(seconds))
"""


def free_ports(count: int) -> list[int]:
    with ExitStack() as held:
        probes = [held.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=float, default=6.5)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--json", type=Path, required=True)
    options = parser.parse_args()
    binaries = Path(sys.executable).parent
    link, node = free_ports(2)
    with ExitStack() as held:
        home = Path(held.enter_context(tempfile.TemporaryDirectory()))
        app = home / "app"
        (app / "roundtrip").mkdir(parents=True)
        (app / "pyproject.toml").write_text(PROJECT)
        (app / "roundtrip" / "__init__.py").write_text("")
        (app / "roundtrip" / "apps.py").write_text(APPS)
        (home / "config.toml").write_text(
            '[superlink]\ndefault = "here"\n[superlink.here]\n'
            f'address = "127.0.0.1:{link}"\ninsecure = true\n'
        )
        environment = os.environ | {"FLWR_HOME": str(home), "FLWR_TELEMETRY_ENABLED": "0"}
        environment["PATH"] = f"{binaries}{os.pathsep}{environment['PATH']}"

        def start(*command: str) -> None:
            log = held.enter_context((home / f"{command[0]}.log").open("w"))
            process = subprocess.Popen(
                [binaries / command[0], *command[1:]], env=environment, stdout=log, stderr=log
            )
            held.callback(process.wait)
            held.callback(process.terminate)

        start(
            "flower-superlink", "--insecure", "--disable-runtime-dependency-installation",
            "--host", "127.0.0.1", "--port", str(link),
        )  # fmt: skip
        start("flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{link}", "--port", str(node))
        config = f'megabytes={options.megabytes} rounds={options.rounds} out="{options.json.resolve()}"'
        for _ in range(5):
            run = subprocess.run(
                [binaries / "flwr", "run", str(app), "here", "--stream", "--run-config", config],
                env=environment, timeout=300, check=False, capture_output=True, text=True,
            )  # fmt: skip
            if options.json.exists():
                return
        print(run.stdout[-2000:], run.stderr[-2000:], file=sys.stderr)
        for log in home.glob("*.log"):
            print(log.name, log.read_text()[-1500:], file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()

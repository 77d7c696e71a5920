"""A round of p2pfl between two processes over gRPC, with a learner that trains nothing.

Run in an environment with p2pfl. Settings are p2pfl's own for a single machine, without Ray. A round is the
time from one call of the learner's `fit` to the next; it is written in seconds, as JSON.

    python p2pfl_round.py --megabytes 6.5 --rounds 3 --json rounds.json
"""

# ruff: noqa: D102, E402 (p2pfl describes its methods)
from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
from datasets import Dataset, DatasetDict
from p2pfl.settings import Settings

Settings.general.DISABLE_RAY = True  # before the rest is imported, which would start it

from p2pfl.learning.dataset.p2pfl_dataset import P2PFLDataset
from p2pfl.learning.frameworks import Framework
from p2pfl.learning.frameworks.learner import Learner
from p2pfl.learning.frameworks.p2pfl_model import P2PFLModel
from p2pfl.node import Node
from p2pfl.utils.utils import set_standalone_settings, wait_convergence


class Arrays(P2PFLModel):
    """A model that is nothing but its parameters."""

    def get_parameters(self) -> list[np.ndarray]:
        return self.model

    def set_parameters(self, params: list[np.ndarray] | bytes) -> None:
        if isinstance(params, bytes):
            params, self.additional_info = self.decode_parameters(params)
        self.model = params

    def build_copy(self, **kwargs: object) -> Arrays:
        return Arrays(self.model, **kwargs)

    def get_framework(self) -> str:
        return Framework.PYTORCH.value


class Idle(Learner):
    """Trains nothing, and notes when it was asked to."""

    asked_s: list[float]

    def fit(self) -> P2PFLModel:
        self.asked_s.append(time.monotonic())
        self.get_model().set_contribution([self.addr], 1)
        return self.get_model()

    def interrupt_fit(self) -> None:
        return

    def evaluate(self) -> dict[str, float]:
        return {}

    def get_framework(self) -> str:
        return Framework.PYTORCH.value


def make_node(megabytes: float, port: int) -> Node:
    count = int(megabytes * 1e6 / 4 / 8)
    arrays = [np.random.default_rng(n).standard_normal(count, dtype=np.float32) for n in range(8)]
    rows = Dataset.from_dict({"x": [0], "y": [0]})
    learner = Idle()
    learner.asked_s = []
    data = P2PFLDataset(DatasetDict({"train": rows, "test": rows}))
    return Node(Arrays(arrays, num_samples=1), data, addr=f"127.0.0.1:{port}", learner=learner)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=float, default=6.5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--port", type=int)
    options = parser.parse_args()
    set_standalone_settings()
    Settings.general.LOG_LEVEL = "WARNING"
    Settings.general.LOG_DIR = tempfile.mkdtemp()
    if options.port:
        make_node(options.megabytes, options.port).start()
        time.sleep(600)
        return
    port = free_port()
    command = [sys.executable, *sys.argv, "--port", str(port)]
    with subprocess.Popen(command, env=os.environ) as other:
        try:
            node = make_node(options.megabytes, free_port())
            node.start()
            while not node.connect(f"127.0.0.1:{port}"):
                time.sleep(0.5)
            wait_convergence([node], 1, only_direct=True, wait=60)
            node.set_start_learning(rounds=options.rounds + 1, epochs=1)
            while node.state.round is None:
                time.sleep(0.1)
            while node.state.round is not None:
                time.sleep(0.1)
            asked_s = node.learner.asked_s
            options.json.write_text(json.dumps([b - a for a, b in pairwise(asked_s)]))
            node.stop()
        finally:
            other.kill()
    os._exit(0)


if __name__ == "__main__":
    main()

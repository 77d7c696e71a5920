"""What the tests of crews have in common: signals at a step, and reading what is left."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from manyhands.job import Job

Watcher = Callable[..., None]


def signal_at(step: int, out: Path, victims: list[str], what: signal.Signals) -> Watcher:
    """Sends a signal to processes of a crew when it has made so many steps, once."""
    done: list[int] = []

    def watch(_split: str, _job: Job, _tally: Any, event: dict[str, Any] | None) -> None:
        if done or event is None or event["event"] != "step" or event["step"] < step:
            return
        processes = json.loads((out / "crew.json").read_text())["processes"]
        for name in victims:
            os.kill(processes[name], what)
        done.append(event["step"])

    return watch


def events_of(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "trace.jsonl").read_text().splitlines()]


def alive(out: Path) -> list[str]:
    """Devices whose processes are still there."""
    processes = json.loads((out / "crew.json").read_text())["processes"]
    return [name for name, pid in processes.items() if Path(f"/proc/{pid}").exists()]

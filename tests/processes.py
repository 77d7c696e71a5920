"""Devices as processes, for the tests of live runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import psutil

__all__ = ["KEPT", "PATIENT", "children", "events"]

PATIENT = {"wait_s": 300.0, "patience_s": 120.0, "linger_s": 120.0}
KEPT = {"save_models": True, "report": False, "evaluate_examples": 60}


def events(folder: Path) -> list[dict[str, Any]]:
    """The merged trace of a run."""
    return [json.loads(line) for line in (folder / "trace.jsonl").read_text().splitlines()]


def children() -> dict[str, psutil.Process]:
    """The devices that this process has started, by name."""
    found = {}
    for child in psutil.Process().children(recursive=True):
        try:
            words = child.cmdline()
        except psutil.Error:
            continue
        if "join" in words and "--name" in words:
            found[words[words.index("--name") + 1]] = child
    return found

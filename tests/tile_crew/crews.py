"""What the tests of crews have in common: reading what is left."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

FAULTY = "faulty_crewmate"


def events_of(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "trace.jsonl").read_text().splitlines()]


def furthest_apart(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    assert a.keys() == b.keys()
    return max(float((a[name] - b[name]).abs().max()) for name in a)


def alive(out: Path) -> list[str]:
    """Devices whose processes are still there."""
    processes = json.loads((out / "crew.json").read_text())["processes"]
    return [name for name, pid in processes.items() if Path(f"/proc/{pid}").exists()]

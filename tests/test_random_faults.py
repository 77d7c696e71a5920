"""Twenty fault schedules from seeds, in the simulator: whatever goes wrong, training comes to its end."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from manyhands.job import Job
from manyhands.run import train
from manyhands.seeds import numpy_generator

NAMES = ("a", "b", "c", "d", "e", "f")
MODES: list[dict[str, Any]] = [
    {"mode": "neighbours"},
    {"mode": "synchronous"},
    {"mode": "asynchronous"},
    {"mode": "neighbours", "consensus": "ring"},
]


def schedule(seed: int, span_s: float) -> list[dict[str, Any]]:
    """Two crashes with a restart, a partition that heals, and messages lost, late and doubled."""
    rng = numpy_generator(seed, "schedule")
    names = [str(name) for name in rng.permutation(NAMES)]
    faults: list[dict[str, Any]] = []
    for name in names[:2]:
        at_s = float(rng.uniform(0.05, 0.5) * span_s)
        back_s = at_s + float(rng.uniform(0.05, 0.4) * span_s)
        faults.append({"kind": "crash", "device": name, "at_s": at_s, "restart_at_s": back_s})
    half = int(rng.integers(1, 5))
    from_s = float(rng.uniform(0, 0.5) * span_s)
    groups = [names[:half], names[half:]]
    faults.append({"kind": "partition", "groups": groups, "from_s": from_s, "until_s": from_s + 0.3 * span_s})
    until = {"until_s": 0.9 * span_s}
    faults.append({"kind": "loss", "probability": float(rng.uniform(0.01, 0.1)), **until})
    faults.append({"kind": "duplicate", "probability": 0.1, **until})
    faults.append({"kind": "delay", "device": names[2], "delay_s": 0.05 * span_s, **until})
    return faults


@pytest.mark.parametrize("seed", range(20))
def test_training_comes_to_its_end_whatever_goes_wrong(
    seed: int, small_job: Callable[..., Job], tmp_path: Path
) -> None:
    job = small_job(
        seed=seed,
        exchange={"rounds": 8, **MODES[seed % len(MODES)]},
        fleet={"topology": "mesh", "device": [{"kind": "raspberry-pi-4", "name": name} for name in NAMES]},
        run={"evaluate_every": 0},
    )
    span_s = train(job, tmp_path / "undisturbed")["seconds"]
    faults = small_job(fault=schedule(seed, span_s)).fault
    result = train(job.model_copy(update={"fault": faults}), tmp_path / "disturbed")
    events = [json.loads(line) for line in (tmp_path / "disturbed" / "trace.jsonl").read_text().splitlines()]
    kinds = [event["event"] for event in events]
    assert result["complete"]
    assert kinds.count("crashed") >= 2
    assert 0 <= result["accuracy"] <= 1
    if job.exchange.mode == "synchronous":
        assert [e["round"] for e in events if e["event"] == "merged"] == list(range(1, 9))
    if job.exchange.mode == "neighbours":
        assert all(device["finished"] for device in result["devices"])
        assert max(device["rounds"] for device in result["devices"]) == 8

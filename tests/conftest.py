from __future__ import annotations

import os
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

from manyhands.fleet import DeviceSection, Fleet, FleetSection, make_fleet
from manyhands.job import Job

torch.set_num_threads(1)

# Machines that run tests are shared: no test may fail because another was slow. And the same commit gives the
# same verdict twice: what hypothesis draws is fixed (HYPOTHESIS_PROFILE=seeking looks for new examples).
settings.register_profile(
    "shared", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("seeking", settings.get_profile("shared"), derandomize=False)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "shared"))

OVER_SOCKETS = ("test_live_runs.py", "test_live_faults.py", "tile_crew/", "wire/")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of real sockets and processes may try again: another may take a free port first.

    What is broken is broken three times.
    """
    for item in items:
        if any(name in item.nodeid for name in OVER_SOCKETS):
            item.add_marker(pytest.mark.flaky(reruns=2))


SMALL_JOB = """
name = "small"
seed = 3
[data]
name = "digits"
limit = 120
[model]
name = "lenet5"
[learn]
learning_rate = 0.05
batch_size = 10
[exchange]
rounds = 3
[run]
evaluate_examples = 60
save_models = false
report = false
[[fleet.device]]
name = "a"
kind = "raspberry-pi-3b"
[[fleet.device]]
name = "b"
kind = "raspberry-pi-4"
[[fleet.device]]
name = "c"
kind = "laptop"
"""


@pytest.fixture
def small_job() -> Callable[..., Job]:
    """A job of seconds; changes are given as ``section={"key": value}``."""

    def make(**changes: object) -> Job:
        said = tomllib.loads(SMALL_JOB)
        for section, value in changes.items():
            said[section] = said.get(section, {}) | value if isinstance(value, dict) else value
        return Job.model_validate(said)

    return make


@pytest.fixture
def small_job_file(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(SMALL_JOB)
    return path


@pytest.fixture
def fleet() -> Fleet:
    """Four devices, all linked: 1 GFLOP/s, 8 Mbit/s (1 MB takes a second), 10 ms each way."""
    device = DeviceSection(kind="laptop", flops=1e9, bandwidth_bps=8e6, latency_s=0.01)
    devices = tuple(device.model_copy(update={"name": name}) for name in "abcd")
    return make_fleet(FleetSection(device=devices, topology="mesh"), seed=0)

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from manyhands.job import Job, load_job

CREW_JOB = """
name = "crew"
seed = 5
[data]
name = "digits"
limit = 120
[model]
name = "lenet5"
[learn]
learning_rate = 0.05
batch_size = 16
[split]
by = "space"
[split.space]
patience_s = {patience_s}
[exchange]
rounds = 3
[run]
evaluate_examples = 40
report = false
checkpoint_every_s = 0.001
[[fleet.device]]
name = "pi"
kind = "raspberry-pi-4"
count = {count}
"""


@pytest.fixture
def crew_job(tmp_path: Path) -> Callable[..., Job]:
    """A job of a few seconds for real processes; a device is given up only when something is really wrong."""

    def make(count: int = 2, patience_s: float = 120.0, changes: tuple[str, ...] = ()) -> Job:
        path = tmp_path / "crew.toml"
        path.write_text(CREW_JOB.format(count=count, patience_s=patience_s))
        return load_job(path, changes)

    return make

"""From what a monitor sees to a slow-down: with a profile the regression's, without one none."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from manyhands.errors import JobError
from manyhands.fleet import Use, monitor
from manyhands.fleet.monitor import Counters, Monitor
from manyhands.fleet.outlook import slowdown_here, slowdown_of
from manyhands.fleet.predictor import Regression, write_predictor


class Seen:
    """A monitor that has seen what it is told."""

    def __init__(self, use: Use) -> None:
        self.use = use
        self.asked: list[float] = []

    def over(self, seconds: float) -> Use:
        self.asked.append(seconds)
        return self.use


def test_the_slowdown_is_what_the_regression_makes_of_the_span() -> None:
    watcher = Seen(Use(0.5, 1e9))
    slowdown = slowdown_of(Regression(cores=0.0, squeeze=1.0, network=0.25), watcher)
    assert slowdown(3.0, 5.0) == 2.25
    watcher.use = Use()
    assert slowdown(5.0, 5.5) == 1.0
    assert watcher.asked == [2.0, 0.5]


def test_without_a_profile_there_is_nothing_to_know() -> None:
    with slowdown_here(None) as slowdown:
        assert slowdown is None


def test_with_one_this_machine_is_watched(tmp_path: Path) -> None:
    write_predictor(tmp_path / "p.json", 0.1, Regression(), [])
    with slowdown_here(tmp_path / "p.json", lambda: 0.0) as slowdown:
        assert slowdown is not None
        assert slowdown(0.0, 1.0) >= 1.0


def test_what_is_no_profile_is_named_by_its_key(tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text("{}")
    with pytest.raises(JobError, match=r"live\.profile"), slowdown_here(tmp_path / "p.json"):
        pass


def test_a_monitor_tells_of_the_last_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    readings = iter([Counters(float(t), busy) for t, busy in enumerate((0.0, 1.0, 1.0, 1.5, 1.5, 2.5))])
    monkeypatch.setattr(monitor, "read_counters", lambda *_: next(readings))
    monkeypatch.setattr(psutil, "cpu_count", lambda: 1)
    watching = Monitor(own=[])
    watching.sample()
    watching.sample()
    assert watching.over(1.0) == Use(0.5)  # from 2 to 3
    assert watching.over(2.0) == Use(0.25)  # from 2 to 4
    assert watching.over(100.0) == Use(0.5)  # from the beginning to 5

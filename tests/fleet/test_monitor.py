from __future__ import annotations

import os
import threading
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.fleet import Use, monitor
from manyhands.fleet.monitor import Counters, Monitor, monitoring, read_counters, seen, used_between
from manyhands.fleet.recording import read_recording, write_recording

NOBODY: dict[int, tuple[float, float]] = {}


def test_what_the_own_processes_use_is_not_others_work() -> None:
    before = Counters(10.0, 100.0, 1000, 5000, {1: (50.0, 400.0)}, 100)
    after = Counters(14.0, 106.0, 6000, 9000, {1: (52.0, 1400.0)}, 1100)
    # On two cores for four seconds: 6 s busy, 2 s of them own; 5000 B less 1000 own; 4000 B less 1000 own.
    assert used_between(before, after, 2) == Use(0.5, 8000.0, 6000.0)


def test_a_process_that_came_is_own_from_its_start() -> None:
    before, after = Counters(0.0, 0.0, own=NOBODY), Counters(1.0, 1.0, own={7: (1.0, 0.0)})
    assert used_between(before, after, 1) == Use()


def test_counters_that_tick_unevenly_never_give_less_than_nothing() -> None:
    before, after = Counters(0.0, 0.0), Counters(1.0, 0.5, 10, 10, {7: (0.51, 20.0)}, 20)
    assert used_between(before, after, 1) == Use()
    assert used_between(after, after, 1) == Use()


seconds, num_bytes = st.floats(0, 1e6), st.floats(0, 1e12)
own = st.dictionaries(st.integers(1, 3), st.tuples(seconds, num_bytes))
counters = st.builds(Counters, seconds, seconds, num_bytes, num_bytes, own)


@given(counters, counters, st.integers(1, 64))
def test_a_use_is_in_range_whatever_the_counters(a: Counters, b: Counters, num_cores: int) -> None:
    use = used_between(a, b, num_cores)
    assert 0 <= use.cores <= 1
    assert use.network_bps >= 0
    assert use.disk_bps >= 0


def test_means_are_kept_between_askings(monkeypatch: pytest.MonkeyPatch) -> None:
    readings = iter([Counters(0.0, 0.0), Counters(1.0, 0.5), Counters(2.0, 0.5), Counters(4.0, 2.5)])
    monkeypatch.setattr(monitor, "read_counters", lambda *_: next(readings))
    monkeypatch.setattr(psutil, "cpu_count", lambda: 1)
    watching = Monitor(own=[])
    assert [watching.sample().cores, watching.sample().cores] == [0.5, 0.0]
    assert watching.mean() == Use(0.25)
    assert watching.mean() == Use()  # nothing was seen since
    assert watching.sample().cores == 1.0
    assert watching.mean() == Use(1.0)
    assert watching.num_samples == 3


def test_this_machines_counters_grow() -> None:
    me = [psutil.Process()]
    first, second = read_counters(me, lambda: 5.0), read_counters(me)
    assert 0 < first.busy_s <= second.busy_s
    assert first.seconds <= second.seconds
    assert first.own.keys() == {os.getpid()}
    assert (first.own_network_bytes, second.own_network_bytes) == (5.0, 0.0)


def test_a_process_that_is_gone_is_no_trouble(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone(psutil.Process):
        def cpu_times(self) -> None:  # type: ignore[override]
            raise psutil.NoSuchProcess(1)

    assert read_counters([Gone()]).own == {}


def test_a_monitor_samples_by_itself_until_it_is_not_needed() -> None:
    with monitoring(period_s=0.01) as watching:
        waiting = threading.Event()
        while watching.num_samples < 3:
            waiting.wait(0.01)
        assert watching.spent_s > 0
    assert all(thread.name != "monitor" for thread in threading.enumerate())
    assert 0 <= watching.mean().cores <= 1


def test_what_was_seen_can_be_played_back(tmp_path: Path) -> None:
    with (tmp_path / "seen.csv").open("w") as file:
        write_recording(file, seen(Monitor(own=[]), seconds=0.45, period_s=0.2))
    spans = read_recording(tmp_path / "seen.csv")
    assert spans[-1].end_s + 0.001 >= 0.45  # rounded to milliseconds
    assert all(0 <= span.use.cores <= 1 for span in spans)

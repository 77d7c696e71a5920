"""Loads that can be ordered, and executors: that they come, go, and do what they say."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

from manyhands.fleet import burn
from manyhands.fleet.burn import burning
from manyhands.fleet.executor import executors_running
from manyhands.fleet.mapreduce import jobs_running, run_job
from manyhands.fleet.measure import TrainingStep


@pytest.mark.parametrize("level", [0.1, 0.5, 0.8])
def test_a_load_is_busy_for_its_part_of_the_time(level: float, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(wall_s=0.0, used_s=0.0)

    def nap(wait_s: float) -> bool:
        clock.wall_s += wait_s
        return clock.wall_s > 100

    def work(_: object) -> None:
        clock.wall_s += 0.003
        clock.used_s += 0.003

    monkeypatch.setattr(burn, "stopped", nap)
    monkeypatch.setattr(burn, "_work", work)
    monkeypatch.setattr(burn, "_processor_seconds", lambda: clock.used_s)
    monkeypatch.setattr(os, "times", lambda: SimpleNamespace(elapsed=clock.wall_s))
    burn.main(level)
    assert clock.used_s / clock.wall_s == pytest.approx(level, abs=0.02)


def test_a_load_ends_with_its_context_and_with_its_standard_input() -> None:
    with burning(0.1, workers=2) as processes:
        assert [process.poll() for process in processes] == [None, None]
        assert processes[0].stdin is not None
        processes[0].stdin.close()
        assert processes[0].wait(timeout=120) == 0
    assert all(process.poll() is not None for process in processes)
    with burning(0.0) as none:
        assert none == ()


def test_words_are_counted(tmp_path: Path) -> None:
    counts = run_job("wordcount", 20_000, tmp_path)
    assert counts == Counter((tmp_path / "input").read_text().split())
    assert (tmp_path / "input").stat().st_size == 20_000


def test_words_are_sorted(tmp_path: Path) -> None:
    places = run_job("sort", 20_000, tmp_path)
    words = (tmp_path / "input").read_text().split()
    output = (tmp_path / "output").read_text().split()
    assert output == sorted(words)
    assert all(output[place] == word for word, place in places.items())


def test_a_long_input_is_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("manyhands.fleet.mapreduce.PIECE_BYTES", 1000)
    assert run_job("wordcount", 20_000, tmp_path) == Counter((tmp_path / "input").read_text().split())


@pytest.mark.parametrize("job", ["wordcount", "sort"])
def test_jobs_run_until_they_are_not_needed(job: str) -> None:
    with jobs_running(job, 10_000) as processes:  # type: ignore[arg-type]
        assert processes[0].poll() is None
    assert processes[0].poll() is not None


def test_executors_train_for_as_long_as_they_are_told() -> None:
    with executors_running(2) as executors:
        paces = executors.run_for(0.05)
        assert len(set(executors.pids)) == 2
        assert all(pace.num_examples > 0 and pace.seconds >= 0.05 for pace in paces)
        assert all(
            pace.seconds == pytest.approx(pace.seconds_per_example * pace.num_examples) for pace in paces
        )
        again = executors.run_for(0.0)
    assert [pace.num_examples for pace in again] == [32, 32]


def test_a_step_costs_what_its_layers_do() -> None:
    step = TrainingStep(batch_size=4)
    first, second, dense = 32 * 32 * 32 * 75, 16 * 16 * 64 * 800, 64 * 8 * 8 * 10
    # Each operation is a multiplication and an addition; the pictures need no gradient.
    assert step.flops == 4 * 2 * (2 * first + 3 * second + 3 * dense)
